"""``oodles score`` from JPEG files to a file of results, against decoding alone and the network alone."""

import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from oodles.data.decoding import Prepared
from oodles.data.transforms import CIFAR, IMAGENET, Transform
from oodles.deploy.opening import OpenGuard, open_guard
from oodles.deploy.scoring import decode_ahead, score_files
from oodles.deploy.sources import InputSequence
from oodles.guard import Guard
from oodles.models import load
from studies.bench.results import Row, cost, from_record, sides
from studies.memory import in_child
from studies.sources import resize_jpeg, resnet50, write_jpegs
from studies.timing import paired

TARGET = round(1 / 0.9, 3)  # 90 % of the images per second of the slower part
BATCH = 32
ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}  # as `oodles score` sets it


@dataclass(frozen=True)
class Case:
    """A network, and the number and size of the JPEG files that it is given."""

    network: str
    make: Callable[[], nn.Module]
    transform: Transform
    images: int
    size: tuple[int, int]


CASES = (
    Case("cifar10-small", lambda: load("cifar10-small"), CIFAR, 512, (64, 48)),
    Case("cifar10-small", lambda: load("cifar10-small"), CIFAR, 256, (500, 375)),
    Case("cifar10-small", lambda: load("cifar10-small"), CIFAR, 96, (2000, 1500)),
    Case("ResNet-50", resnet50, IMAGENET, 64, (500, 375)),
)


def run(quick: bool = False) -> Iterator[Row]:
    """Networks and files of several sizes, in a process with the settings of the command, which torch reads early."""
    yield from map(from_record, in_child("studies.bench.scoring:measure_all", quick, environment=ENVIRONMENT))


def measure_all(quick: bool) -> list[dict[str, Any]]:
    """Return the rows of every case as records; called in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        write_jpegs(Path(folder) / "images", 64)
        cases, budget = (CASES[:1], 3.0) if quick else (CASES, 15.0)
        return [row.as_record() for case in cases for row in _measure(case, Path(folder), budget)]


def _measure(case: Case, folder: Path, budget: float) -> Iterator[Row]:
    paths = _copies(case, sorted((folder / "images").iterdir()), folder / f"{case.network} {case.size}")
    guard = _guard(case, folder / case.network)

    def whole() -> None:
        score_files(guard, paths, folder / "results.jsonl", overwrite=True, batch_size=BATCH)

    def decoding(workers: int | None = None) -> list[list[Prepared]]:
        return [images for _, images in decode_ahead(InputSequence(paths).batches(BATCH), case.transform, workers)]

    decoded = [np.stack([each for each in images if not isinstance(each, str)]) for images in decoding()]

    def network() -> None:
        for pixels in decoded:
            guard.judge(guard.batch(pixels))

    def network_on_one_core() -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        network()
        torch.set_num_threads(threads)

    alone: dict[str, Callable[[], object]] = {"decoding": decoding, "network": network}
    on_one: dict[str, Callable[[], object]] = {
        "decoding, one core": partial(decoding, 1),
        "network, one core": network_on_one_core,
    }
    times = paired({"whole": whole, **alone, **on_one}, budget=budget)
    times["both"] = [sum(pair) for pair in zip(times["decoding"], times["network"], strict=True)]
    slower, slower_on_one = (max(each, key=lambda side: min(times[side])) for each in (alone, on_one))
    parts = " and ".join(f"{side} {1e3 * min(times[side]) / case.images:.2g} ms" for side in ("decoding", "network"))
    name = f"{case.network}, {case.images} JPEG files of {case.size[0]} x {case.size[1]}"
    note = f"per image {parts}"
    yield cost(name, f"the slower part, {slower}", sides(times, "whole", slower), target=TARGET, note=note)
    yield cost(name, f"the slower part, {slower_on_one}", sides(times, "whole", slower_on_one), target=TARGET)
    yield cost(name, "both parts, one after the other", sides(times, "whole", "both"))


def _copies(case: Case, originals: list[Path], folder: Path) -> list[Path]:
    """As many files as the case has, of its size."""
    folder.mkdir()
    paths = [folder / f"{number:04}.jpg" for number in range(case.images)]
    for original, path in zip(cycle(originals), paths, strict=False):
        resize_jpeg(original, path, case.size)
    return paths


def _guard(case: Case, folder: Path) -> OpenGuard:
    """A saved guard with DICE for a network with whatever weights it has."""
    torch.manual_seed(0)
    model, size = case.make().eval(), case.transform.size
    train = [torch.randn(8, 3, size, size) for _ in range(15)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # noise is classified as one class
        guard = Guard.fit(model, train, detector="dice(0.9)", preprocessing=case.transform)
    guard.save(folder)
    return open_guard(folder, model)
