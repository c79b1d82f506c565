"""Statistics that are updated batch by batch and can be merged across processes."""

from collections.abc import Callable
from functools import partial
from typing import Protocol, Self

import torch
from torch import Tensor

from oodles.functional import Quantiles


class Statistic(Protocol):
    """Updated batch by batch; two of them merge into what one would have computed from all batches."""

    def merge(self, other: Self) -> None:
        """Add everything the other has seen, leaving it as it was."""


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


class Moments:
    """Mean and covariance of the columns, in float64, by Chan's update.

    >>> part = Moments()
    >>> part.add(torch.tensor([[0.0, 0.0], [2.0, 4.0]]))
    >>> part.covariance()
    tensor([[1., 2.],
            [2., 4.]], dtype=torch.float64)
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean = torch.zeros(())
        self._scatter = torch.zeros(())

    def add(self, values: Tensor) -> None:
        """Add the rows of one batch."""
        rows = values.detach().double().cpu()
        mean = rows.mean(dim=0)
        centred = rows - mean
        self._combine(len(rows), mean, centred.T @ centred)

    def merge(self, other: "Moments") -> None:
        """Add another's rows."""
        if other.count:
            self._combine(other.count, other._mean, other._scatter)

    def mean(self) -> Tensor:
        """The mean of each column."""
        return self._mean

    def covariance(self) -> Tensor:
        """The covariance matrix, divided by the number of rows."""
        return self._scatter / self.count

    def _combine(self, count: int, mean: Tensor, scatter: Tensor) -> None:
        if self.count == 0:
            self.count, self._mean, self._scatter = count, mean.clone(), scatter.clone()
            return
        total = self.count + count
        step = mean - self._mean
        self._scatter = self._scatter + scatter + torch.outer(step, step) * (self.count * count / total)
        self._mean = self._mean + step * (count / total)
        self.count = total


class ClassMoments:
    """The mean of each class, and the scatter of all rows around the mean of their class, in float64.

    >>> part = ClassMoments()
    >>> part.add(torch.tensor([[0.0], [2.0], [9.0]]), torch.tensor([0, 0, 1]), 2)
    >>> part.means.T, part.within()
    (tensor([[1., 9.]], dtype=torch.float64), tensor([[0.6667]], dtype=torch.float64))
    """

    def __init__(self) -> None:
        self.counts = torch.zeros(0)
        self.means = torch.zeros(0, 0)
        self._scatter = torch.zeros(0, 0)

    def add(self, values: Tensor, labels: Tensor, classes: int) -> None:
        """Add the rows of one batch."""
        rows, labels = values.detach().double().cpu(), labels.cpu().long()
        counts = torch.bincount(labels, minlength=classes).double()
        sums = rows.new_zeros(classes, rows.shape[1]).index_add_(0, labels, rows)
        means = sums / counts.clamp(min=1)[:, None]
        centred = rows - means[labels]
        self._combine(counts, means, centred.T @ centred)

    def merge(self, other: "ClassMoments") -> None:
        """Add another's rows."""
        if len(other.counts):
            self._combine(other.counts, other.means, other._scatter)

    def within(self) -> Tensor:
        """The covariance shared by all classes: the scatter around the class means, divided by the number of rows."""
        return self._scatter / self.counts.sum()

    def _combine(self, counts: Tensor, means: Tensor, scatter: Tensor) -> None:
        if not len(self.counts):
            self.counts, self.means, self._scatter = counts.clone(), means.clone(), scatter.clone()
            return
        total = self.counts + counts
        step = means - self.means
        weight = self.counts * counts / total.clamp(min=1)
        self._scatter = self._scatter + scatter + (step * weight[:, None]).T @ step
        self.means = self.means + step * (counts / total.clamp(min=1))[:, None]
        self.counts = total


class MomentsPerClass:
    """Mean and covariance of each class that has rows, in float64.

    >>> part = MomentsPerClass()
    >>> part.add(torch.tensor([[0.0], [2.0], [9.0]]), torch.tensor([3, 3, 1]))
    >>> part.moments[3].covariance(), part.moments[1].count
    (tensor([[1.]], dtype=torch.float64), 1)
    """

    def __init__(self) -> None:
        self.moments: dict[int, Moments] = {}

    def add(self, values: Tensor, labels: Tensor) -> None:
        """Add the rows of one batch."""
        for label in torch.unique(labels).tolist():
            self.moments.setdefault(label, Moments()).add(values[labels == label])

    def merge(self, other: "MomentsPerClass") -> None:
        """Add another's rows."""
        for label, moments in other.moments.items():
            self.moments.setdefault(label, Moments()).merge(moments)


class ClassMeans:
    """The mean row of each class, summed in float64.

    >>> means = ClassMeans()
    >>> means.add(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 1]), 3)
    >>> means.counts, means.values().T
    (tensor([2., 1., 0.], dtype=torch.float64), tensor([[2., 5., 0.]], dtype=torch.float64))
    """

    def __init__(self) -> None:
        self.counts = torch.zeros((), dtype=torch.float64)
        self._sums = torch.zeros((), dtype=torch.float64)

    def add(self, values: Tensor, labels: Tensor, classes: int) -> None:
        """Add the rows of one batch."""
        rows, labels = values.detach().double().cpu(), labels.cpu()
        self.counts = self.counts + torch.bincount(labels, minlength=classes).double()
        self._sums = self._sums + rows.new_zeros(classes, rows.shape[1]).index_add_(0, labels, rows)

    def merge(self, other: "ClassMeans") -> None:
        """Add another's rows."""
        self.counts, self._sums = self.counts + other.counts, self._sums + other._sums

    def values(self) -> Tensor:
        """The means ``(C, m)``; zeros for a class without rows."""
        return self._sums / self.counts.clamp(min=1)[:, None]


class RowSample:
    """At most ``limit`` rows, chosen by their content: the same ones whatever their order and batches.

    Every row has a key computed from its bits; the rows with the smallest keys are kept, sorted by key. If part of a
    row is computed from the rest, its rounding may differ from batch to batch; then pass the ``keys`` of the rest.

    >>> sample = RowSample(2)
    >>> sample.add(torch.tensor([[1.0], [2.0], [3.0]]))
    >>> len(sample.rows())
    2
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._rows: list[Tensor] = []
        self._keys: list[Tensor] = []

    def add(self, values: Tensor, keys: Tensor | None = None) -> None:
        """Add the rows of one batch."""
        rows = values.detach().to("cpu", torch.float32)
        self._rows.append(rows.clone())
        self._keys.append(row_keys(rows) if keys is None else keys)
        if sum(map(len, self._rows)) > 2 * self.limit:
            self._truncate()

    def merge(self, other: "RowSample") -> None:
        """Add another's rows."""
        self._rows, self._keys = [*self._rows, *other._rows], [*self._keys, *other._keys]

    def rows(self) -> Tensor:
        """The sample, ``(limit, m)`` or fewer."""
        self._truncate()
        return self._rows[0]

    def _truncate(self) -> None:
        rows, keys = torch.cat(self._rows), torch.cat(self._keys)
        order = torch.argsort(keys, stable=True)[: self.limit]
        self._rows, self._keys = [rows[order]], [keys[order]]


def row_keys(values: Tensor) -> Tensor:
    """A pseudo-random 64-bit number from the bits of each row; sums overflow on purpose, which mixes the bits."""
    rows = values.detach().to("cpu", torch.float32)
    generator = torch.Generator().manual_seed(rows.shape[1])
    factors = torch.randint(1 << 61, (rows.shape[1],), generator=generator) * 2 + 1
    keys = torch.zeros(len(rows), dtype=torch.int64)
    for part, factor in zip(rows.split(64, dim=1), factors.split(64), strict=True):  # type: ignore[no-untyped-call]
        keys += (part.contiguous().view(torch.int32).long() * factor).sum(dim=1)
    keys = (keys ^ (keys >> 31)) * -7046029254386353131
    return keys ^ (keys >> 29)


EMBEDDING_STATISTICS: dict[str, Callable[[], Mean | Quantiles | RowSample]] = {
    "mean": Mean,
    "activations": Quantiles,
    "rows": partial(RowSample, 10_000),
}
"""Statistics of embeddings by name: the mean of each unit, the quantiles of all activations together, and a sample."""
