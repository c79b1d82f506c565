"""Training rows far longer than all others, which can ruin what a detector learns: found, reported and dropped."""

import warnings
from collections.abc import Iterable

import torch
from torch import Tensor

from oodles.columns import LAYER
from oodles.detectors.statistics import Joined
from oodles.errors import FitWarning
from oodles.features import Features

FACTOR = 100
"""Rows whose norm is more than this many times the median norm are outliers.

In the features of nine networks the longest row has 4.3 times the median. One row at 100 times costs the most sensitive
detector (NECO) one point of AUROC, at 1,000 times more than 20.
"""


def drop_outliers(features: Features) -> Features:
    """Return the features without rows that are not finite or whose norm exceeds 100 times the median in any column.

    >>> drop_outliers(Features(torch.tensor([[1.0], [2.0], [1e9], [1.5]]))).embedding.flatten()
    tensor([1.0000, 2.0000, 1.5000])
    """
    norms = RowNorms()
    columns = ("embedding", "logits", *(LAYER + name for name in features[:1].layers))
    for batch in features.batches():
        norms.add(batch, columns)
    outliers = norms.outliers()
    if not len(outliers):
        return features
    kept = torch.ones(len(features), dtype=torch.bool)
    kept[outliers] = False
    return features.gather(kept.nonzero().flatten())


class RowNorms:
    """The norm of every row in each column, by which outliers are found once all rows have been seen."""

    def __init__(self) -> None:
        self._norms: dict[str, Joined] = {}

    def add(self, batch: Features, columns: Iterable[str]) -> None:
        """Add the rows of one batch; columns that it does not have are left out."""
        for name in columns:
            if batch.holds(name):
                rows = batch.column(name).detach()
                wide = torch.promote_types(rows.dtype, torch.float32)
                self._of(name).add(torch.linalg.vector_norm(rows, dim=1, dtype=wide).cpu())

    def merge(self, other: "RowNorms") -> None:
        """Add another's rows, after one's own."""
        for name, numbers in other._norms.items():
            self._of(name).add(numbers.values())

    def outliers(self) -> Tensor:
        """Return the numbers of the rows that are outliers, or not finite, in any column, in ascending order."""
        found = torch.zeros(0, dtype=torch.bool)
        for numbers in self._norms.values():
            norms = numbers.values()
            positive = norms[norms > 0]  # more than half of the rows may be zeros
            limit = FACTOR * positive.median() if len(positive) else 0.0
            # not `norms > limit`, which is False for NaN; a norm that overflows is infinite, and so is above any limit
            outlying = ~(norms <= limit)
            found = found | outlying if len(found) else outlying
        return found.nonzero().flatten()

    def warn(self) -> None:
        """Warn if there are outliers."""
        count = len(self.outliers())
        if count:
            total = max(map(len, self._norms.values()))
            warnings.warn(
                f"{count} of {total} training rows have norms of more than {FACTOR} times the median, which can ruin "
                "the fit; to leave them out, fit on oodles.detectors.drop_outliers(features)",
                FitWarning,
                stacklevel=4,
            )

    def _of(self, column: str) -> Joined:
        return self._norms.setdefault(column, Joined(torch.empty(0)))
