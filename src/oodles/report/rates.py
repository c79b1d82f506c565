"""Shares of inputs with their uncertainty."""

from dataclasses import dataclass

from scipy.special import betaincinv

from oodles.report.document import Cell, Interval

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Rate:
    """How many of ``total`` inputs; in percent with an exact 95 % interval, which holds for independent inputs."""

    count: int
    total: int

    @property
    def percent(self) -> float:
        """The share, 0 if there are no inputs."""
        return 100 * self.count / self.total if self.total else 0.0

    @property
    def interval(self) -> Interval:
        """Clopper and Pearson's interval in percent.

        >>> low, high = Rate(0, 100).interval
        >>> low, round(high, 2)
        (0.0, 3.62)
        """
        if not self.total:
            return 0.0, 100.0
        half, rest = (1 - CONFIDENCE) / 2, self.total - self.count
        low = float(betaincinv(self.count, rest + 1, half)) if self.count else 0.0
        high = float(betaincinv(self.count + 1, rest, 1 - half)) if rest else 1.0
        return 100 * low, 100 * high

    @property
    def cell(self) -> Cell:
        """The share as a cell of a table; nothing if there are no inputs."""
        return Cell(self.percent, self.interval) if self.total else Cell(None)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.percent:.1f} % [{low:.1f}, {high:.1f}]"
