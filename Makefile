# Two commands matter: `make demo` and `make test`. Both work on a fresh clone with Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# The unpacked datasets, and `checkpoints/` with the DICE authors' networks.
DATA ?= ../shared/data
# one process per core, with one thread each: threads of several processes would slow each other down
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto
# The folders that `oodles train` wrote: cifar10-small, and godin for the short DeConf run.
RUNS ?= runs
# The interpreters beside our own that `make check-package` tries.
PYTHONS ?= $(wildcard /usr/bin/python3.1[1-9] /usr/local/bin/python3.1[1-9] $(HOME)/.pyenv/versions/3.1[1-9].*/bin/python)

.PHONY: demo test check check-browser check-package check-ray check-serve check-slow coverage docs docs-quick mutants
.PHONY: bench clean format fuzz lint load
.PHONY: architectures choice default-study detectors exports monitoring openood pack page-image reproduction scale
.PHONY: ship-small-network site-figures small-network third-party

demo: $(VENV)/.installed
	$(BIN)/oodles demo

test: $(VENV)/.developed
	$(PYTEST)
	$(PYTEST) -m slow

check: $(VENV)/.developed lint
	$(PYTEST)

# What `make check` leaves out: every detector exported, the paper's networks on real images, examples, kills.
check-slow: $(VENV)/.developed
	$(PYTEST) -m slow

# Which lines and branches the tests run, as a table and in htmlcov/index.html. Processes that tests start are not counted.
coverage: $(VENV)/.developed
	$(PYTEST) --cov --cov-report=term --cov-report=html

# Change the mathematics in 800 small ways, one at a time, and see whether its tests notice, for ten minutes: docs/mutation.md.
mutants: $(VENV)/.developed
	OMP_NUM_THREADS=1 $(BIN)/python tools/mutate.py

# Two Ray workers on this machine, one of which is killed: a minute and a half, with packages of their own.
check-ray: $(VENV)/.with-ray
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m ray tests/distributed/test_ray.py

# The site, in docs/_build/html: warnings are errors, and every link inside it leads somewhere.
docs: $(VENV)/.with-docs
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html
	$(BIN)/python tools/check_site.py docs/_build/html

# The same without running the examples of the gallery.
docs-quick: export OODLES_DOCS_QUICK = 1
docs-quick: docs

# The service's page in headless Chromium: photographs in, verdicts out, thresholds moved, axe-core on every state.
check-browser: $(VENV)/.with-browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser tests/serve/test_page.py

# The wheel in environments of its own: with PyTorch the demo and a scored picture, on every other Python an exported guard.
check-package: $(VENV)/.developed
	OODLES_PYTHONS='$(PYTHONS)' $(BIN)/python -m pytest -m install tests/test_packaging.py tests/serve/test_deployment.py

# The service under load for two minutes, 10,000 random bodies, connections left half-open: memory stays flat.
check-serve: $(VENV)/.developed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m soak -s tests/serve/test_soak.py

lint: $(VENV)/.developed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.developed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Speed and memory beside other packages, for an hour on two quiet cores: docs/performance.md.
bench: $(VENV)/.with-bench
	$(BIN)/python -m benchmarks

# The service under load, beside the same guard in a bare loop: the table in docs/serving.md.
load: $(VENV)/.with-bench
	$(BIN)/python -m benchmarks.load

# Attack with hostile files, texts, numbers and kills, for an hour or so: docs/reliability.md. The tests run a short version.
fuzz: $(VENV)/.developed
	$(BIN)/python -m tests.fuzz --write-page

# What is generated: files of the package, then pages whose prose is in docs/templates. ------------

# Extract the demo's features from the original images (see the card in src/oodles/demo_pack).
pack: $(VENV)/.developed
	$(BIN)/python tools/build_demo_pack.py $(DATA) $(DATA)/checkpoints/densenet101-cifar10.pth.tar

# Make the network that comes with the package from its training run.
ship-small-network: $(VENV)/.developed
	$(BIN)/python tools/ship_small_network.py $(RUNS)/cifar10-small $(DATA)

# Measure every candidate for the default detector on nine networks: docs/default-detector.md.
default-study: $(VENV)/.developed
	$(BIN)/python tools/write_default_study.py $(DATA)

# Search the heads of many architectures with random weights: docs/architectures.md.
architectures: $(VENV)/.developed
	$(BIN)/python tools/write_architectures.py

# Collect costs and results of detectors from the pages that measured them: docs/choose-a-detector.md.
choice: $(VENV)/.developed
	$(BIN)/python tools/write_choice.py

# Draw what the two conventions of FPR95 measure, and the decision tree: docs/images.
site-figures: $(VENV)/.developed
	$(BIN)/python tools/draw_site_figures.py

# Export every detector with a small network: docs/export.md.
exports: $(VENV)/.developed
	$(BIN)/python tools/write_exports.py

# Measure false alarms and delays of monitoring, simulated and on real images: docs/monitoring.md.
monitoring: $(VENV)/.developed
	$(BIN)/python tools/write_monitoring.py $(DATA)

# List every detector with its needs and its measured cost: docs/detectors.md.
detectors: $(VENV)/.developed
	$(BIN)/python tools/write_detectors.py

# Measure what each image costs and plan a billion of them: docs/scale.md.
scale: $(VENV)/.with-ray
	$(BIN)/python -m benchmarks.scale

# Measure every detector by OpenOOD's protocol on the two CIFAR networks: docs/openood.md.
openood: $(VENV)/.developed
	$(BIN)/python tools/write_openood.py $(DATA)

# Take a picture of the service's page with its own drawings: docs/images/serve-page.png.
page-image: $(VENV)/.with-browser
	$(BIN)/python tools/write_page_image.py $(DATA)

# Measure every table and figure of the paper: docs/reproduction.md.
reproduction: $(VENV)/.developed
	$(BIN)/python tools/write_reproduction.py $(DATA)

# List the licences of everything that is installed with the package: THIRD_PARTY.md.
third-party: $(VENV)/.with-everything
	$(BIN)/python tools/write_third_party.py

# Measure every detector on the network that comes with the package: docs/cifar10-small.md.
small-network: $(VENV)/.developed
	$(BIN)/python tools/write_small_network.py $(DATA) $(RUNS)/godin

# Installation: the build tools come from the same pinned list, so nothing else is downloaded. ------
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt hatchling editables
	$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[torch]'
	touch $@

$(VENV)/.developed: $(VENV)/.installed
	$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	touch $@

$(VENV)/.with-ray: $(VENV)/.developed
	$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[dev,ray]'
	touch $@

$(VENV)/.with-browser: $(VENV)/.developed
	$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[dev,browser]'
	{ command -v chromium && command -v chromedriver && command -v npm; } >/dev/null || { apt-get --quiet=2 update && \
	  apt-get --quiet=2 install --yes --no-install-recommends chromium chromium-driver fonts-dejavu-core npm; }
	npm install --silent --no-save --no-package-lock --prefix $(VENV)/axe axe-core@4.14.0
	touch $@

$(VENV)/.with-everything: $(VENV)/.with-ray
	$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[dev,all]'
	touch $@

$(VENV)/.with-bench: $(VENV)/.developed
	$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[dev,bench]'
	touch $@

$(VENV)/.with-docs: $(VENV)/.developed
	$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[dev,docs]'
	touch $@

clean:
	rm -rf $(VENV) .coverage htmlcov docs/_build docs/gallery .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
