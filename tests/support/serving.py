"""The real service as a process of its own, what is asked of it, and the guards that it serves in the tests."""

import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from hypothesis import strategies as st
from PIL import Image
from support.images import noise

import oodles

PATIENCE = 60  # seconds, on a machine that does other things as well
TOKEN = "a-token-for-the-tests"  # noqa: S105
AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}
JPEG = {"Content-Type": "image/jpeg"}
JSON = {"Content-Type": "application/json"}
BOUNDARY = "a-boundary-that-no-image-contains"
Prepare = Callable[[], None] | None


class Reply(NamedTuple):
    """An answer of the service."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The one line of a refusal, which has nothing else but the request's id."""
        assert self.headers["content-type"] == "application/json", self
        assert set(self.json) == {"error", "request_id"}, self
        assert self.json["request_id"] == self.headers["x-request-id"]
        line: str = self.json["error"]
        assert line, self
        assert len(line.splitlines()) == 1
        return line

    def refuses(self, status: int, words: str = "") -> bool:
        return self.status == status and words in self.error

    @property
    def result(self) -> dict[str, Any]:
        """The result of a request with one input."""
        assert self.status == 200, self
        (only,) = self.json["results"]
        assert only["error"] is None, only
        return dict(only)


class Server:
    """A running service: ``process``, where it listens, and its log so far."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.log: list[dict[str, Any]] = []
        self.other_lines: list[str] = []
        self.address = ""
        self.reader = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                self.log.append(json.loads(line))
            except ValueError:
                self.other_lines.append(line)

    def begin(self) -> None:
        """Read the log from now on, and wait until the service is ready."""
        self.reader.start()
        self.address = self.wait_for("listening")["address"]
        self.wait_for("ready")

    def wait_for(self, event: str, *, known: int = 0, **fields: Any) -> dict[str, Any]:
        """The first line of the log with this event and these fields, after ``known`` lines."""
        wanted = {"event": event, **fields}

        def found() -> list[dict[str, Any]]:
            more = self.reader.is_alive()
            lines = [line for line in self.log[known:] if wanted.items() <= line.items()]
            assert lines or more, f"no {wanted} in {self.log[-20:]} {self.other_lines}"
            return lines

        return dict(until(found, f"no {wanted}")[0])

    def ask(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Reply:
        """Send one request on a connection of its own."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)) as connection:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, headers=headers)

    def score(self, content: bytes, query: str = "", headers: Mapping[str, str] = JPEG) -> Reply:
        return self.ask("POST", f"/score{query}", content, headers)

    def score_files(self, files: Sequence[tuple[str, bytes]], query: str = "", **headers: str) -> Reply:
        content, kind = form(files)
        return self.score(content, query, {**kind, **headers})

    def score_json(self, value: Any, query: str = "") -> Reply:
        return self.score(json.dumps(value).encode(), query, JSON)

    def metric(self, name: str) -> float:
        """A number of ``/metrics`` by its name and labels."""
        text = self.get("/metrics").body.decode()
        return next((float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name)), 0.0)

    def memory(self, what: str = "VmRSS") -> int:
        """Megabytes of the process: VmRSS, those that it has now, or VmHWM, the most that it ever had."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:")) // 1024

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    @property
    def port(self) -> int:
        return int(urlsplit(self.address).port or 0)

    def stop(self, sign: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(sign)
        return self.process.wait(PATIENCE)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "oodles", "serve", *map(str, arguments)]


def environment(**others: str) -> dict[str, str]:
    """That of this process without settings of the service, and with this package whatever is installed."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("OODLES_", "FORCE_COLOR"))}
    return {**known, "PYTHONPATH": str(Path(oodles.__file__).parents[1]), "OMP_NUM_THREADS": "1", **others}


def serving(*arguments: object, prepare: Prepare = None, **others: str) -> AbstractContextManager[Server]:
    """Start ``oodles serve`` on a free port and wait until it is ready; ``others`` are variables of its environment.

    ``prepare`` is called in the new process before it begins.
    """
    return running(command("--port", 0, *arguments), environment(**others), prepare)


@contextmanager
def running(
    started: Sequence[object], variables: Mapping[str, str], prepare: Prepare = None, folder: Path | None = None
) -> Iterator[Server]:
    """The server that a command starts, with nothing but these variables in its environment."""
    options = {"text": True, "env": dict(variables), "preexec_fn": prepare, "cwd": folder}
    with subprocess.Popen([*map(str, started)], stderr=subprocess.PIPE, **options) as process:
        server = Server(process)
        try:
            server.begin()
            yield server
        finally:
            server.stop(signal.SIGKILL)
            server.reader.join(PATIENCE)


# What is sent -------------------------------------------------------------------------------------

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.integers(10**18, 10**25),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
"""Values that JSON can have."""


def encoded(picture: "np.ndarray[Any, Any] | Image.Image", kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    (picture if isinstance(picture, Image.Image) else Image.fromarray(picture)).save(buffer, kind, **options)
    return buffer.getvalue()


def photo(seed: int = 0, size: tuple[int, int] = (40, 30), kind: str = "PNG", **options: Any) -> bytes:
    """An image file of smooth noise, different for each seed."""
    small = Image.fromarray(noise(5, 7, 3, seed=seed)).resize(size, Image.Resampling.BICUBIC)
    return encoded(small, kind, **options)


def form(files: Sequence[tuple[str, bytes]]) -> tuple[bytes, dict[str, str]]:
    """A form with files as browsers send it, and its content type."""
    head = '--{}\r\nContent-Disposition: form-data; name="file"; filename="{}"\r\n\r\n'
    parts = [head.format(BOUNDARY, name.replace('"', "%22")).encode() + content + b"\r\n" for name, content in files]
    whole = b"".join([*parts, f"--{BOUNDARY}--\r\n".encode()])
    return whole, {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


def in_parallel(count: int, work: Callable[[int], Any]) -> list[Any]:
    """The results of ``work(0)``, ..., at the same time; an exception is a result."""
    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(work, number) for number in range(count)]
    return [future.exception() or future.result() for future in futures]


def until(holds: Callable[[], Any], what: str = "it never came") -> Any:
    """Wait until ``holds`` gives something true, and return that."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := holds():
            return found
        time.sleep(0.05)
    raise AssertionError(what)


# Guards -------------------------------------------------------------------------------------------


def export_guards(folder: Path) -> None:
    """The guards that the tests serve, as .zip files.

    That of the shipped network, and small ones: of images, of images with an ensemble, of vectors, and of tokens.
    """
    import torch
    from support.exported_guards import Net, export
    from torch import nn

    from oodles.cli.guards import load_with_model
    from oodles.cli.options import GuardOptions
    from oodles.data.transforms import Transform
    from oodles.guard import Guard

    load_with_model(None, GuardOptions()).export(folder / "cifar10-small.zip")
    for kind in ("images", "vectors"):
        export(kind, folder / f"{kind}.zip")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, rows = Net(48).eval(), (torch.rand(300, 3, 4, 4) - 0.5) / 0.25
    guard = Guard.fit(
        model,
        [rows],
        detector="rank_ensemble(['dice(0.5)', 'energy', 'knn'])",
        labels=False,
        classes=["<script>alert(1)</script>", "b & c", "\N{LATIN SMALL LETTER E WITH ACUTE}"],
        preprocessing=Transform(4, 5, (0.5,) * 3, (0.25,) * 3),
    )
    guard.export(folder / "ensemble.zip")

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.fc = nn.Embedding(20, 8), nn.Linear(8, 3)

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return self.fc(torch.relu(self.embedding(input_ids).mean(dim=1)))

    with torch.random.fork_rng():
        torch.manual_seed(0)
        tokens, ids = Tokens().eval(), torch.randint(0, 20, (200, 6))
    Guard.fit(tokens, [{"input_ids": ids}], detector="energy", labels=False).export(folder / "tokens.zip")
