"""The last windows of a stream: how many inputs each had, how many were rejected, and the largest evidence in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from oodles.monitor.bounds import CalibratedRate
from oodles.monitor.evidence import Bools, Floats

MAX_WINDOW, MAX_WINDOWS = 10**6, 200


class Window(NamedTuple):
    """Counts of consecutive inputs, and the largest value of each e-detector among them, to four digits."""

    inputs: int = 0
    rejected: int = 0
    rejections: float = 0.0
    p_values: float = 0.0

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
            peaks = [_rounded(float(each[part].max())) for each in (rejections, p_values)]
            self.kept[-1] += Window(len(rejected[part]), int(np.count_nonzero(rejected[part])), *peaks)
            start = part.stop

    def add(self, others: Sequence["Windows"]) -> None:
        """Add windows of other parts of the same stream, the last to the last: there are no times to go by."""
        for other in others:
            longer, shorter = sorted((self.kept, other.kept), key=len, reverse=True)
            aligned = [Window()] * (len(longer) - len(shorter)) + shorter
            self.kept = [one + two for one, two in zip(longer, aligned, strict=True)]

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


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
