"""What a fold over batches keeps: statistics that add up, and add up across processes."""

from typing import Protocol, Self

import torch
from torch import Tensor

from oodles.functional import Quantiles


class Statistic(Protocol):
    """Takes in batches one by one; two of them merge into what one would have seen."""

    def add(self, values: Tensor) -> None:
        """Take in the values of one batch, ``(n, m)``."""

    def merge(self, other: Self) -> None:
        """Take in everything the other has seen, leaving it as it was."""


class Mean:
    """Mean of each column, summed in float64.

    >>> mean = Mean()
    >>> mean.add(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    >>> mean.value()
    tensor([2., 4.], dtype=torch.float64)
    """

    def __init__(self) -> None:
        self.count = 0
        self.sum = torch.zeros(())

    def add(self, values: Tensor) -> None:
        """Add the rows of one batch."""
        self.sum = self.sum.double() + values.detach().sum(dim=0, dtype=torch.float64).cpu()
        self.count += len(values)

    def merge(self, other: "Mean") -> None:
        """Add another's rows."""
        self.sum = self.sum.double() + other.sum.double()
        self.count += other.count

    def value(self) -> Tensor:
        """The mean so far, float64."""
        return self.sum / self.count


EMBEDDING_STATISTICS: dict[str, type[Mean] | type[Quantiles]] = {"mean": Mean, "activations": Quantiles}
"""Statistics of embeddings by name: the mean of each unit, and the quantiles of all activations together."""
