"""``oodles score`` from JPEG files to a file of results, against the slower of decoding alone and the network alone."""

import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.extraction import resnet50, write_jpegs
from benchmarks.peers import torchvision_operators
from benchmarks.results import Row, cost
from benchmarks.timing import paired
from oodles.cli.checks import image_options
from oodles.cli.decoding import DecodedBatch, decode_ahead
from oodles.cli.guards import SavedGuard, load_saved
from oodles.cli.inputs import InputSequence
from oodles.cli.outputs import Output
from oodles.cli.scorers import SavedScorer
from oodles.cli.scoring import Counts, score_batches
from oodles.data.transforms import CIFAR, IMAGENET, Transform
from oodles.guard import Guard
from oodles.models import load
from oodles.results.jobs import Job

TARGET = round(1 / 0.9, 3)  # 90 % of the images per second of the slower part
BATCH = 32


@dataclass(frozen=True)
class Case:
    """A network and how many JPEG files of 500 x 375 pixels it is given."""

    name: str
    make: Callable[[], nn.Module]
    transform: Transform
    images: int


CASES = (
    Case("cifar10-small", lambda: load("cifar10-small"), CIFAR, 384),
    Case("ResNet-50", resnet50, IMAGENET, 96),
)


class Loaded(SavedScorer):
    """A scorer whose model is at hand and not named on a command line."""

    def __init__(self, saved: SavedGuard, guard: Guard) -> None:
        super().__init__(saved, image_options(None, None, None, None), None, None, None)
        self._guard = guard


def run(quick: bool = False) -> Iterator[Row]:
    """A network for which decoding is the limit, and one that is the limit itself."""
    torchvision_operators()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_jpegs(folder / "images", max(case.images for case in CASES))
        for case in CASES[:1] if quick else CASES:
            yield _measure(case, folder, budget=5.0 if quick else 30.0)


def _measure(case: Case, folder: Path, budget: float) -> Row:
    paths = sorted((folder / "images").iterdir())[: case.images]
    scorer = _scorer(case, folder / case.name)
    job = Job(scorer.detector, scorer.threshold.value, 0.95, scorer.identity, case.transform.as_record(), BATCH)
    output = Output(folder / "results.jsonl", as_csv=False, as_json=False, resume=False, force=True)

    def whole() -> None:
        batches = InputSequence(paths).batches(BATCH)
        counts = Counts()
        output.deliver(job, batches, lambda left: score_batches(scorer, left, case.transform), counts.add)

    def decoding() -> list[DecodedBatch]:
        found = decode_ahead(InputSequence(paths).batches(BATCH), case.transform)
        return [batch for batch in found if isinstance(batch, DecodedBatch)]

    decoded = [np.stack([each.pixels for each in batch.images if each.pixels is not None]) for batch in decoding()]

    def network() -> None:
        for pixels in decoded:
            scorer.score_images(pixels)

    times = paired({"whole": whole, "decoding": decoding, "network": network}, budget=budget)
    slower = max("decoding", "network", key=lambda side: min(times[side]))
    parts = " and ".join(f"{side} {1e3 * min(times[side]) / case.images:.1f} ms" for side in ("decoding", "network"))
    name = f"{case.name}, {case.images} JPEG files of 500 x 375"
    sides = {"whole": times["whole"], slower: times[slower]}
    return cost(name, f"{slower} alone", sides, target=TARGET, note=f"per image: {parts}")


def _scorer(case: Case, folder: Path) -> SavedScorer:
    """A saved guard with DICE for a network with whatever weights it has."""
    torch.manual_seed(0)
    model, size = case.make().eval(), case.transform.size
    train = [torch.randn(8, 3, size, size) for _ in range(15)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # noise is classified as one class
        guard = Guard.fit(model, train, detector="dice(0.9)", preprocessing=case.transform)
    guard.save(folder)
    return Loaded(load_saved(folder), guard)
