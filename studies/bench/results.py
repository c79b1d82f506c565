"""What a benchmark returns: rows, each a ratio of two sides measured in the same run."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

Kind = Literal["cost", "speedup", "exponent"]
"""How a ratio is to be read: ours over a floor that cannot be beaten, a peer over ours, or growth as a power."""


@dataclass(frozen=True)
class Row:
    """One comparison. ``ratio`` is that of the fastest repeats, ``low`` and ``high`` its range over thirds of them all.

    ``ours`` and ``other`` are the fastest repeats in ``unit``: whatever else the machine does only adds to them. A cost
    should be at most ``target``, a speed-up at least. ``memory`` is the peak of ours in MB beyond what was there
    before, if it was measured.
    """

    name: str
    against: str
    kind: Kind
    ours: float
    other: float
    ratio: float
    low: float
    high: float
    repeats: int
    target: float | None = None
    unit: str = "s"
    memory: float | None = None
    note: str = ""

    @property
    def met(self) -> str:
        """``yes``, ``no``, ``noise`` if the target lies within the spread of the repeats, or nothing without one."""
        if self.target is None:
            return ""
        if self._reaches(self.ratio):
            return "yes"
        return "noise" if self._reaches(self.low) or self._reaches(self.high) else "no"

    def _reaches(self, ratio: float) -> bool:
        assert self.target is not None
        return ratio >= self.target if self.kind == "speedup" else ratio <= self.target

    def as_record(self) -> dict[str, Any]:
        """Plain values, rounded to what the measurement supports."""
        record = {key: _rounded(value) for key, value in asdict(self).items() if value not in (None, "")}
        return record | ({"met": self.met} if self.met else {})

    @property
    def goal(self) -> str:
        """The target in words, such as ``at most 1.2``."""
        return "" if self.target is None else f"at {'least' if self.kind == 'speedup' else 'most'} {self.target:g}"

    def line(self) -> str:
        """The row as printed in the terminal."""
        ratio = _WORDS[self.kind].format(f"{self.ratio:.2f}")
        spread = f"{self.low:.2f} to {self.high:.2f}" if self.repeats > 1 else "once"
        goal = f"[{self.goal}: {self.met}]" if self.goal else ""
        memory = "" if self.memory is None else f"{self.memory:.0f} MB"
        more = "  ".join(filter(None, (goal, memory, self.note)))
        return f"{self.name:52} {ratio} {self.against} ({spread})  {more}"


_WORDS = {"cost": "{} x", "speedup": "{} x as fast as", "exponent": "grows with power {} of"}


def detector_and_size(row: Row) -> tuple[str, str]:
    """The parts of a name such as ``fit msp, 10k x 342, C=10``."""
    detector, _, size = row.name.partition(" ")[2].partition(", ")
    return detector, size


def from_record(record: dict[str, Any]) -> Row:
    """The row that :meth:`Row.as_record` wrote."""
    return Row(**{key: value for key, value in record.items() if key != "met"})


def cost(name: str, against: str, times: dict[str, list[float]], *, target: float | None = None, **more: Any) -> Row:
    """Ours, the first of two sides, as a multiple of the other; smaller is better."""
    ours, other = times.values()
    return Row(name, against, "cost", min(ours), min(other), *spread(ours, other), len(ours), target, **more)


def speedup(name: str, against: str, times: dict[str, list[float]], *, target: float | None = None, **more: Any) -> Row:
    """How many times as long the other side takes as ours, the first of the two; larger is better."""
    ours, other = times.values()
    return Row(name, against, "speedup", min(ours), min(other), *spread(other, ours), len(ours), target, **more)


def sides(times: dict[str, list[float]], ours: str, other: str) -> dict[str, list[float]]:
    """Two sides of several that were measured together."""
    return {ours: times[ours], other: times[other]}


def spread(above: Sequence[float], below: Sequence[float]) -> tuple[float, float, float]:
    """The ratio of the fastest repeats, and its smallest and largest value over thirds of the repeats."""
    whole = min(above) / min(below)
    ratios = [whole, *(min(above[part]) / min(below[part]) for part in thirds(len(above)))]
    return whole, min(ratios), max(ratios)


def thirds(repeats: int) -> list[slice]:
    """Consecutive parts of the repeats, three if there are enough."""
    ends = np.linspace(0, repeats, min(3, repeats) + 1).round().astype(int).tolist()
    return [slice(low, high) for low, high in pairwise(ends)]


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value
