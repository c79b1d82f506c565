"""``oodles serve`` in a process of its own, with guards that show every part of its page."""

import socket
import subprocess
import sys
import time
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.exported_guards import export as export_small

import oodles as ood
from oodles.data.loaders import ImageLoader
from oodles.data.readers import open_images
from oodles.data.transforms import CIFAR
from oodles.models import load

GUARDS = ("small", "dice", "ensemble", "vectors")
ROWS = 800  # of training and of calibration images
PATIENCE = 60  # seconds


def export_guards(data: Path, folder: Path) -> Path:
    """Export the shipped guard, DICE and the default on the shipped network, and one that takes vectors."""
    command = [sys.executable, "-m", "oodles", "export", "--out", str(folder / "small")]
    subprocess.run(command, check=True, capture_output=True)
    network = load("cifar10-small")
    images = {part: open_images(data / "cifar10-jpeg.zip" / part).sample(ROWS, 0) for part in ("train", "test")}
    train = ood.extract(network, ImageLoader(images["train"], CIFAR))
    held_out = ood.extract(network, ImageLoader(images["test"], CIFAR, labels=False))
    for name, spec in (("dice", "dice(0.9)"), ("ensemble", "default")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ood.FitWarning)  # few rows are enough here
            detector = ood.parse(spec).fit(train)
        threshold = ood.calibrate(detector.score(held_out))
        guard = ood.Guard(network, detector, threshold, preprocessing=CIFAR, classes=train.class_names)
        guard.export(folder / name)
    export_small("vectors", folder / "vectors")
    return folder


@contextmanager
def serving(*arguments: object) -> Iterator[str]:
    """The address of ``oodles serve`` with these arguments, once it is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "oodles", "serve", *map(str, arguments), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(process, address)
        yield address
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _wait_until_ready(process: subprocess.Popen[bytes], address: str) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        assert process.poll() is None, "the server has ended"
        try:
            with urllib.request.urlopen(f"{address}/v2/health/ready"):  # noqa: S310
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"the server was not ready after {PATIENCE} seconds")
