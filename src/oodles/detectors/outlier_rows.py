"""Training rows far longer than all others, from which nothing useful is learned: how they are found and treated."""

import warnings
from collections.abc import Iterable

import torch
from torch import Tensor

from oodles.detectors.statistics import Joined
from oodles.errors import ArgumentError, DataError, FitWarning
from oodles.features import Features

POLICIES = ("warn", "drop", "raise", "ignore")

FACTOR = 100
"""Rows whose norm is more than this many times the median norm are outliers.

In the features of nine networks the longest row has 4.3 times the median. One row at 100 times costs the most sensitive
detector (NECO) one point of AUROC, at 1,000 times more than 20.
"""


class RowNorms:
    """The norm of every row in each column, by which outliers are found once all rows have been seen.

    >>> norms = RowNorms()
    >>> norms.add(Features(torch.tensor([[1.0], [2.0], [1e9], [1.5]])), ["embedding"])
    >>> norms.outliers()
    tensor([2])
    """

    def __init__(self) -> None:
        self._norms: dict[str, Joined] = {}

    def add(self, batch: Features, columns: Iterable[str]) -> None:
        """Add the rows of one batch; columns that it does not have are left out."""
        for name in columns:
            if batch.holds(name):
                rows = batch.column(name).detach()
                wide = torch.promote_types(rows.dtype, torch.float32)
                self._norms.setdefault(name, Joined(torch.empty(0))).add(
                    torch.linalg.vector_norm(rows, dim=1, dtype=wide).cpu()
                )

    def merge(self, other: "RowNorms") -> None:
        """Add another's rows, after one's own."""
        for name, numbers in other._norms.items():
            self._norms.setdefault(name, Joined(torch.empty(0))).add(numbers.values())

    def outliers(self) -> Tensor:
        """The numbers of the rows that are outliers, or not finite, in any column; in ascending order."""
        found = torch.zeros(0, dtype=torch.bool)
        for numbers in self._norms.values():
            norms = numbers.values()
            positive = norms[norms > 0]  # more than half of the rows may be zeros
            limit = FACTOR * positive.median() if len(positive) else 0.0
            # not `norms > limit`, which is False for NaN; a norm that overflows is infinite, and so is above any limit
            outlying = ~(norms <= limit)
            found = found | outlying if len(found) else outlying
        return found.nonzero().flatten()

    def report(self, outlier_rows: str = "warn") -> None:
        """Warn or raise if there are outliers."""
        rows = self.outliers()
        if not len(rows):
            return
        total = max(len(numbers.values()) for numbers in self._norms.values())
        problem = (
            f"{len(rows)} of {total} training rows have norms of more than {FACTOR} times the median, the first is row "
            f"{int(rows[0])}; they can ruin what is learned. Check those inputs, or leave them out: outlier_rows='drop'"
        )
        if outlier_rows == "raise":
            raise DataError(problem)
        if outlier_rows == "warn":
            warnings.warn(problem, FitWarning, stacklevel=4)


def check_policy(outlier_rows: str) -> None:
    """Raise unless ``outlier_rows`` is one of ``POLICIES``."""
    if outlier_rows not in POLICIES:
        raise ArgumentError(f"outlier_rows={outlier_rows!r} must be one of {', '.join(POLICIES)}")


def screen(features: Features, columns: Iterable[str], outlier_rows: str, norms: RowNorms | None = None) -> Features:
    """Warn about outlying rows, raise an error, or return the features without them.

    One pass over all rows, unless their ``norms`` are known.
    """
    check_policy(outlier_rows)
    if norms is None:
        norms, columns = RowNorms(), tuple(columns)
        for batch in features.batches() if columns and outlier_rows != "ignore" else ():
            norms.add(batch, columns)
    norms.report(outlier_rows)
    outliers = norms.outliers()
    if outlier_rows != "drop" or not len(outliers):
        return features
    kept = torch.ones(len(features), dtype=torch.bool)
    kept[outliers] = False
    return features.gather(kept.nonzero().flatten())
