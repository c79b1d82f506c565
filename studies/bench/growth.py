"""How fit and score grow with rows, width and classes: the exponent of a power fitted to four sizes."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from oodles.detectors import parse
from studies.bench.results import Row, thirds
from studies.data import example
from studies.timing import paired

DETECTORS = ("dice(0.9)", "mahalanobis", "vim", "knn(k=5, bank=2000)", "default")


@dataclass(frozen=True)
class Axis:
    """One of rows, width and classes, its sizes, those of the other two, and the exponents that are expected."""

    name: str
    sizes: tuple[int, ...]
    others: tuple[int, int]
    fit_target: float
    score_target: float

    def shape(self, size: int) -> tuple[int, int, int]:
        """Rows, width and classes."""
        before, after = self.others
        places = {"rows": (size, before, after), "width": (before, size, after), "classes": (before, after, size)}
        return places[self.name]


AXES = (
    Axis("rows", (4_000, 8_000, 16_000, 32_000), (512, 100), 1.1, 1.1),
    Axis("width", (256, 512, 1024, 2048), (4_000, 100), 3.0, 2.1),
    Axis("classes", (10, 40, 160, 640), (8_000, 512), 1.1, 1.1),
)


def run(quick: bool = False) -> Iterator[Row]:
    """Fit and score of each detector along each axis."""
    for axis in AXES:
        for spec in DETECTORS[:1] if quick else DETECTORS:
            yield from measure(axis, spec, budget=0.3 if quick else 1.0)


def measure(axis: Axis, spec: str, budget: float) -> Iterator[Row]:
    """The rows of one detector along one axis."""
    features = {size: example(*axis.shape(size)) for size in axis.sizes}
    fits: dict[str, Callable[[], object]] = {}
    scores: dict[str, Callable[[], object]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the synthetic rows
        for size, part in features.items():
            detector = parse(spec)
            fits[str(size)] = partial(detector.fit, part)
            scores[str(size)] = partial(detector.score, part)
        for verb, sides, target in (("fit", fits, axis.fit_target), ("score", scores, axis.score_target)):
            times = paired(sides, budget=budget)
            yield _row(f"{verb} {spec.partition('(')[0]}", axis, times, target)


def _row(name: str, axis: Axis, times: dict[str, list[float]], target: float) -> Row:
    """The exponent fitted to the fastest round of each size, and its range over thirds of the rounds."""
    seconds = np.array(list(times.values()))
    repeats = seconds.shape[1]
    whole, *parts = (
        float(np.polyfit(np.log(axis.sizes), np.log(seconds[:, part].min(axis=1)), 1)[0])
        for part in (slice(None), *thirds(repeats))
    )
    ends = float(seconds[-1].min()), float(seconds[0].min())
    span = f"{axis.sizes[0]:,} to {axis.sizes[-1]:,} {axis.name}"
    limits = min(whole, *parts), max(whole, *parts)
    return Row(f"{name}, {span}", axis.name, "exponent", *ends, whole, *limits, repeats, target)
