"""What is remembered of a stream beside its evidence: the last windows, scores and predicted classes."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from oodles.monitor.bounds import CalibratedRate
from oodles.monitor.evidence import Bools, Floats
from oodles.records.text import printable

Array = npt.NDArray[Any]
Count = Annotated[int, Meta(ge=0, lt=1 << 62)]
Value = Annotated[float, Meta(ge=0, le=1e300)]

MAX_WINDOW, MAX_WINDOWS = 10**6, 200
BINS = 20
MAX_CLASSES = 10_000  # different labels that are counted one by one; a model has no more, but data may
MAX_SHOWN = 100
OTHERS = -1
LIMIT = 0.0027  # probability that a distance between samples of one distribution is above its limit, looked at once


class Window(NamedTuple):
    """Counts of consecutive inputs, and the largest value of each e-detector among them, to four digits."""

    inputs: Annotated[int, Meta(ge=1, lt=1 << 62)] = 0
    rejected: Count = 0
    rejections: Value = 0.0
    p_values: Value = 0.0

    def __add__(self, other: "Window") -> "Window":  # type: ignore[override]  # not as tuples are added
        """The window of both."""
        inputs, rejected = self.inputs + other.inputs, self.rejected + other.rejected
        return Window(inputs, rejected, max(self.rejections, other.rejections), max(self.p_values, other.p_values))


@dataclass
class Windows:
    """Windows of ``size`` inputs, oldest first, at most 200: then the oldest is forgotten."""

    size: int
    kept: list[Window]

    def observe(self, rejected: Bools, rejections: Floats, p_values: Floats) -> None:
        """Take inputs into account, with each e-detector after each input."""
        start = 0
        while start < len(rejected):
            if not self.kept or self.kept[-1].inputs >= self.size:
                self.kept = [*self.kept[1 - MAX_WINDOWS :], Window()]
            part = slice(start, start + self.size - self.kept[-1].inputs)
            peaks = [float(f"{each[part].max():.4g}") for each in (rejections, p_values)]
            self.kept[-1] += Window(len(rejected[part]), int(np.count_nonzero(rejected[part])), *peaks)
            start = part.stop

    def as_records(self, inputs: int, rate: CalibratedRate) -> list[dict[str, Any]]:
        """Each window with its first and last input, counted from 1, its rate and the limits of the rate."""
        records: list[dict[str, Any]] = []
        last = inputs
        for window in reversed(self.kept):
            low, high = rate.limits(window.inputs)
            first = last - window.inputs + 1
            share = window.rejected / window.inputs
            records.insert(0, {"first": first, "last": last, "rate": share, "low": low, "high": high})
            last = first - 1
        return records


class ScoreHistogram:
    """Scores counted in bins of equal shares of the calibration set; those that are not finite apart."""

    def __init__(self, id_scores: Array | None) -> None:
        self.edges = np.empty(0)
        self.size = 0
        self.expected = np.empty(0)
        if id_scores is not None:
            scores = id_scores.astype(np.float64)
            self.edges = np.unique(np.quantile(scores, np.arange(1, BINS) / BINS))
            self.size = len(scores)
            self.expected = self._count(scores) / self.size
        self.counts = np.zeros(len(self.expected), dtype=np.int64)
        self.not_finite = 0

    def observe(self, scores: Array) -> None:
        """Take scores into account."""
        finite = np.isfinite(scores)
        if not finite.all():
            scores = scores[finite]
            self.not_finite += len(finite) - len(scores)
        if self.size:
            self.counts += self._count(scores)

    def _count(self, scores: Array) -> npt.NDArray[np.int64]:
        return np.bincount(np.searchsorted(self.edges, scores, side="right"), minlength=len(self.edges) + 1)

    def as_record(self) -> dict[str, Any] | None:
        """Edges and counts, the shares in the calibration set, and how far the two are apart; None if unknown.

        ``distance`` is the largest difference of the distribution functions at an edge (Kolmogorov and Smirnov), and
        ``limit`` what it is for two samples of one distribution but for a probability of 0.27 %, looked at once.
        """
        if not self.size:
            return None
        total = int(self.counts.sum())
        distance = limit = None
        if total:
            gaps = np.cumsum(self.counts / total - self.expected)
            distance = float(np.abs(gaps).max())
            limit = min(1.0, math.sqrt(math.log(4 / LIMIT) / 2) * (total**-0.5 + self.size**-0.5))
        return {
            "edges": self.edges.tolist(),
            "expected": self.expected.tolist(),
            "counts": self.counts.tolist(),
            "not_finite": self.not_finite,
            "distance": distance,
            "limit": limit,
        }


class ClassCounts:
    """How often each class was predicted; ``expected`` are counts on the calibration set, if they are known."""

    def __init__(self, names: Sequence[str], expected: Mapping[int, int] | None) -> None:
        self.names = tuple(names)
        self.expected = Counter(expected or {})
        self.counts: Counter[int] = Counter()

    def observe(self, labels: Array) -> None:
        """Take predicted classes into account."""
        for label in labels.tolist():
            known = label in self.counts or (label >= 0 and len(self.counts) < MAX_CLASSES)
            self.counts[label if known else OTHERS] += 1

    def as_records(self) -> list[dict[str, Any]]:
        """The most frequent classes with their counts, and with the expected share if it is known."""
        total = self.expected.total()
        records = []
        for label, count in sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_SHOWN]:
            record: dict[str, Any] = {"name": self._name(label), "count": count}
            records.append(record | ({"expected": self.expected[label] / total} if total else {}))
        return records

    def distance(self) -> float | None:
        """Half the sum of all differences between the shares of classes here and in the calibration set."""
        total, expected = self.counts.total(), self.expected.total()
        if not total or not expected:
            return None
        labels = self.counts.keys() | self.expected.keys()
        return sum(abs(self.counts[each] / total - self.expected[each] / expected) for each in labels) / 2

    def _name(self, label: int) -> str:
        if label == OTHERS:
            return "others"
        return printable(self.names[label]) if label < len(self.names) else f"class {label}"
