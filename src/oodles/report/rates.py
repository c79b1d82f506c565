"""Shares of inputs with their uncertainty."""

import math
from dataclasses import dataclass

from oodles.report.document import Cell, Interval

QUANTILE = 1.959963984540054  # of the normal distribution, for 95 %


@dataclass(frozen=True)
class Rate:
    """How many of ``total`` inputs; in percent with a 95 % interval, which holds for independent inputs."""

    count: int
    total: int

    @property
    def percent(self) -> float:
        """The share, 0 if there are no inputs."""
        return 100 * self.count / self.total if self.total else 0.0

    @property
    def interval(self) -> Interval:
        """Wilson's interval in percent, which is sensible for few inputs and for shares near 0 and 1 too.

        >>> low, high = Rate(0, 100).interval
        >>> low, round(high, 2)
        (0.0, 3.7)
        """
        if not self.total:
            return 0.0, 100.0
        share, spread = self.count / self.total, QUANTILE**2 / self.total
        centre = (share + spread / 2) / (1 + spread)
        half = math.sqrt(share * (1 - share) * spread + spread**2 / 4) / (1 + spread)
        low = 0.0 if self.count == 0 else centre - half
        high = 1.0 if self.count == self.total else centre + half
        return 100 * low, 100 * high

    @property
    def cell(self) -> Cell:
        """The share as a cell of a table; nothing if there are no inputs."""
        return Cell(self.percent, self.interval) if self.total else Cell(None)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.percent:.1f} % [{low:.1f}, {high:.1f}]"
