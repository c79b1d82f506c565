"""What is kept of scored inputs while they are read: counts, samples of scores, and the inputs to show.

Memory does not grow with the number of inputs.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from oodles.deploy.results.rows import Row
from oodles.records.text import printable
from oodles.report.document import Rate, shortened

Array = npt.NDArray[np.float64]

MAX_NAMES = 10_000  # different classes or errors that are counted separately
MAX_SCORES = 1 << 18  # of a sample
NAME_LENGTH = 120
P_BINS = 20
OTHERS = "others"


@dataclass
class Sample:
    """Every ``step``-th of a stream of scores; ``step`` doubles whenever there are too many."""

    step: int = 1
    seen: int = 0
    _kept: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        """Take a score into account."""
        if self.seen % self.step == 0:
            self._kept.append(value)
            if len(self._kept) > MAX_SCORES:
                self._kept = self._kept[::2]
                self.step *= 2
        self.seen += 1

    def values(self) -> Array:
        """The scores that were kept."""
        return np.array(self._kept, dtype=np.float64)


class Extremes:
    """The inputs with the largest keys, the first of equal ones."""

    def __init__(self, most: int, key: Callable[[float], float]) -> None:
        self._most, self._key, self._seen = most, key, 0
        self._heap: list[tuple[float, int, Row]] = []

    def add(self, row: Row, score: float) -> None:
        """Take an input into account."""
        self._seen += 1
        entry = (self._key(score), -self._seen, row)
        if len(self._heap) < self._most:
            heapq.heappush(self._heap, entry)
        elif entry[:2] > self._heap[0][:2]:
            heapq.heapreplace(self._heap, entry)

    def rows(self) -> list[Row]:
        """The inputs, the one with the largest key first."""
        return [row for *_, row in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)]


class Tally:
    """Everything that a report says about scored inputs."""

    def __init__(self) -> None:
        self.total = self.accepted = self.rejected = 0
        self.errors: Counter[str] = Counter()
        self.by_class: Counter[str] = Counter()
        self.accepted_by_class: Counter[str] = Counter()
        self.accepted_scores, self.rejected_scores = Sample(), Sample()
        self.p_values = np.zeros(P_BINS, dtype=np.int64)
        self.highest, self.lowest = Extremes(12, lambda score: score), Extremes(16, lambda score: -score)
        self.just_accepted, self.just_rejected = Extremes(8, lambda score: -score), Extremes(8, lambda score: score)

    @classmethod
    def of(cls, rows: Iterable[Row]) -> "Tally":
        """Read all rows."""
        tally = cls()
        for row in rows:
            tally.add(row)
        return tally

    @property
    def scored(self) -> int:
        """How many inputs have a score."""
        return self.accepted + self.rejected

    @property
    def rejection(self) -> Rate:
        """The share of scored inputs that were rejected."""
        return Rate(self.rejected, self.scored)

    @property
    def with_p_value(self) -> int:
        """How many inputs have a p-value."""
        return int(self.p_values.sum())

    def add(self, row: Row) -> None:
        """Take an input into account."""
        self.total += 1
        if row.error is not None or row.score is None or not math.isfinite(row.score):
            _count(self.errors, row.error or "it has no score")
            return
        name = _class_name(row)
        counted = _count(self.by_class, name)
        self.highest.add(row, row.score)
        self.lowest.add(row, row.score)
        if row.is_id:
            self.accepted += 1
            self.accepted_by_class[counted] += 1
            self.accepted_scores.add(row.score)
            self.just_accepted.add(row, row.score)
        else:
            self.rejected += 1
            self.rejected_scores.add(row.score)
            self.just_rejected.add(row, row.score)
        if row.p_value is not None and 0 <= row.p_value <= 1:
            self.p_values[min(int(row.p_value * P_BINS), P_BINS - 1)] += 1

    def threshold(self) -> float | None:
        """The lowest accepted score, which is at least the threshold; None if accepted and rejected scores overlap."""
        accepted, rejected = self.just_accepted.rows(), self.just_rejected.rows()
        if not accepted or accepted[0].score is None:
            return None
        highest = rejected[0].score if rejected else None
        return accepted[0].score if highest is None or highest < accepted[0].score else None


def _class_name(row: Row) -> str:
    if row.class_name is not None:
        return row.class_name
    return "no class" if row.label is None else f"class {row.label}"


def _count(counter: Counter[str], name: str) -> str:
    """Count a name, or the rest if there are very many different ones; returns what was counted."""
    name = shortened(printable(name[: 2 * NAME_LENGTH]), NAME_LENGTH)
    if name not in counter and len(counter) >= MAX_NAMES:
        name = OTHERS
    counter[name] += 1
    return name
