"""Put load on the service: against the same guard in a bare loop, and from more clients than it has places for.

Print the table and write it into ``docs/serving.md``; ``--quick`` takes a few seconds and writes nothing.
"""

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from oodles.data.loaders import ImageLoader
from oodles.data.readers import open_images
from oodles.data.transforms import CIFAR, IMAGENET, Transform
from oodles.deploy.exported import ExportedGuard
from oodles.guard import Guard
from oodles.models import load
from studies import ROOT
from studies.memory import in_child
from studies.sources import resize_jpeg, resnet50, write_jpegs

PAGE = ROOT / "docs" / "serving.md"
BEGIN, END = "<!-- load table -->", "<!-- end of the load table -->"
BATCH, FILES = 32, 128
CROWD = 200  # clients, three times as many as the service has places for
TARGET = 0.8
HEADER = ("what", "images/s", "against", "ratio", "p50", "p99", "answers")


@dataclass(frozen=True)
class Case:
    """A network, the size of the images that it is sent, and how many of them are in one request."""

    network: str
    transform: Transform
    size: tuple[int, int]
    per_request: tuple[int, ...]


CASES = (Case("cifar10-small", CIFAR, (64, 48), (1, 8)), Case("ResNet-50", IMAGENET, (500, 375), (1, 8)))


def main(quick: bool = False) -> None:
    """Measure every case, print and write the table."""
    rows = [
        row
        for case in (CASES[:1] if quick else CASES)
        for row in measure(case, 2.0 if quick else 10.0, 1 if quick else 3)
    ]
    lines = [f"| {' | '.join(HEADER)} |", "|" + "---|" * len(HEADER), *(f"| {' | '.join(row)} |" for row in rows)]
    cores = f"{os.cpu_count()} cores ({platform.machine()}), clients and service on the same machine"
    text = f"Measured on {cores}, batches of at most {BATCH}:\n\n" + "\n".join(lines)
    print(text)
    if not quick:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")


def measure(case: Case, seconds: float, rounds: int) -> Iterator[list[str]]:
    """The bare loop and the service in turns, then far more clients than places, which ask again at once."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images = write_images(case, folder)
        guard = export(case, images, folder / "guard.zip")
        contents = [path.read_bytes() for path in sorted(images.iterdir())]
        with served(folder / "guard.zip") as port:
            bare: list[float] = []
            found: dict[int, list[dict[str, Any]]] = {size: [] for size in case.per_request}
            for _ in range(rounds):
                bare.append(bare_rate(guard, contents, seconds))
                for size in case.per_request:
                    found[size].append(clients(images, port, seconds, size, count=max(4, 64 // size)))
            best = max(bare)
            yield [f"{case.network}, bare loop", f"{best:.0f}", "", "", "", "", ""]
            for size, results in found.items():
                result = max(results, key=lambda each: each["images_per_second"])
                ratios = [each["images_per_second"] / alone for each, alone in zip(results, bare, strict=True)]
                spread = f"{result['images_per_second'] / best:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
                yield row(f"{case.network}, as fast as it answers, {size} per request", result, "the bare loop", spread)
            size = case.per_request[0]
            result = clients(images, port, seconds, size, count=CROWD)
            alone = max(each["images_per_second"] for each in found[size])
            spread = f"{result['images_per_second'] / alone:.2f}"
            yield row(f"{case.network}, {CROWD} clients that ask again at once", result, "64 clients", spread)


def row(what: str, result: dict[str, Any], against: str, ratio: str) -> list[str]:
    """One line of the table; ``live`` was asked ten times a second meanwhile, each time on a new connection."""
    answers = ", ".join(f"{count} x {status}" for status, count in sorted(result["statuses"].items()))
    live = ", ".join(f"{count} x {status}" for status, count in sorted(result["live"].items()))
    times = [f"{1000 * result[name]:.0f} ms" for name in ("p50", "p99")]
    probes = f"live {live}, at most {1000 * result['slowest_live']:.0f} ms"
    return [what, f"{result['images_per_second']:.0f}", against, ratio, *times, f"{answers}; {probes}"]


def bare_rate(guard: ExportedGuard, contents: list[bytes], seconds: float) -> float:
    """Images per second of the guard alone, decoding included, in batches of the same size."""
    batches = [contents[start : start + BATCH] for start in range(0, len(contents), BATCH)]
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for batch in batches:
            guard(batch)
            count += len(batch)
    return count / (time.perf_counter() - began)


def clients(images: Path, port: int, seconds: float, size: int, count: int) -> dict[str, Any]:
    """What became of the requests of many clients, which are a process of their own."""
    found: dict[str, Any] = in_child("studies.load_clients:send", str(images), port, seconds, size, count)
    return found


@contextmanager
def served(guard: Path) -> Iterator[int]:
    """The service in a process of its own, with its log in a file; gives its port."""
    command = [sys.executable, "-m", "oodles", "serve", str(guard), "--port", "0", "--max-batch", str(BATCH)]
    log = guard.with_name("log")
    with log.open("w") as file, subprocess.Popen(command, cwd=ROOT, stderr=file) as process:  # noqa: S603
        try:
            while not (events := _events(log)).get("ready") and process.poll() is None:
                time.sleep(0.1)
            yield int(events["listening"]["address"].rpartition(":")[2])
        finally:
            process.send_signal(signal.SIGTERM)


def _events(log: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return {line["event"]: line for line in lines}


def write_images(case: Case, folder: Path) -> Path:
    """JPEG files of the size of the case."""
    for path in write_jpegs(folder / "images", FILES):
        resize_jpeg(path, path, case.size)
    return folder / "images"


def export(case: Case, images: Path, path: Path) -> ExportedGuard:
    """The network with DICE, fitted to the images, as an exported guard."""
    torch.manual_seed(0)
    model = (load("cifar10-small") if case.network == "cifar10-small" else resnet50()).eval()
    train = ImageLoader(open_images(images), case.transform, labels=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a network with random weights knows one class
        return Guard.fit(model, train, detector="dice(0.9)").export(path)
