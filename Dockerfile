# The service without PyTorch: an ordinary user, a read-only file system, guards mounted at /guards.
#   docker build -t oodles .
#   docker run --rm --read-only --memory 2g -p 8000:8000 -v "$PWD/guards:/guards:ro" -e OODLES_TOKEN oodles

FROM python:3.11-slim AS build
WORKDIR /source
RUN python -m venv /oodles
COPY constraints.txt ./
RUN /oodles/bin/pip install --no-cache-dir --constraint constraints.txt hatchling
COPY pyproject.toml README.md LICENSE THIRD_PARTY.md ./
COPY src src
RUN /oodles/bin/pip install --no-cache-dir --constraint constraints.txt --no-build-isolation '.[serve,text]'
RUN /oodles/bin/pip uninstall --yes hatchling pip

FROM python:3.11-slim
COPY --from=build /oodles /oodles
ENV PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
WORKDIR /guards
VOLUME /guards
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["/oodles/bin/python", "-c", \
    "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/v2/health/live', timeout=4)"]
# every guard that is mounted; further options of `oodles serve` are given after the name of the image
ENTRYPOINT ["/bin/sh", "-c", "exec /oodles/bin/oodles serve /guards/*.zip --host 0.0.0.0 \"$@\"", "serve"]
