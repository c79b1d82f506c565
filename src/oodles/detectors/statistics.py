"""Statistics that are updated batch by batch and can be merged across processes."""

from collections.abc import Callable
from functools import partial
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from oodles.functional import Quantiles

MIN_ROWS = 1 << 14  # rows that there is space for from the beginning; the system gives memory when it is used


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
        # so few float16 numbers are added in float32 almost without error
        kind = torch.float32 if values.dtype == torch.float16 else torch.float64
        sums = torch.stack([each.sum(dim=0, dtype=kind) for each in _pieces(values.detach())])
        self.sum = self.sum.double() + sums.double().sum(0).cpu()
        self.count += len(values)

    def merge(self, other: "Mean") -> None:
        """Add another's rows."""
        self.sum = self.sum.double() + other.sum.double()
        self.count += other.count

    def value(self) -> Tensor:
        """The mean so far, float64."""
        return self.sum / self.count


class UnitMoments:
    """Mean and variance of each column, summed in float64.

    >>> units = UnitMoments()
    >>> units.add(torch.tensor([[1.0, 2.0], [3.0, 2.0]]))
    >>> units.variance()
    tensor([1., 0.], dtype=torch.float64)
    """

    def __init__(self) -> None:
        self._values, self._squares = Mean(), Mean()

    def add(self, values: Tensor) -> None:
        """Add the rows of one batch."""
        for piece in _pieces(values.detach()):
            self._values.add(piece)
            self._squares.add(piece.double().square())

    def merge(self, other: "UnitMoments") -> None:
        """Add another's rows."""
        self._values.merge(other._values)
        self._squares.merge(other._squares)

    def mean(self) -> Tensor:
        """The mean of each column."""
        return self._values.value()

    def variance(self) -> Tensor:
        """The variance of each column, divided by the number of rows."""
        return (self._squares.value() - self.mean().square()).clamp(min=0)


class Moments:
    """Mean and covariance of the columns, in float64.

    Products are summed about a fixed point near the mean, that of the first batch, and corrected at the end: a batch
    costs its own product and nothing else.

    >>> part = Moments()
    >>> part.add(torch.tensor([[0.0, 0.0], [2.0, 4.0]]))
    >>> part.covariance()
    tensor([[1., 2.],
            [2., 4.]], dtype=torch.float64)
    """

    def __init__(self) -> None:
        self.count = 0
        self._shift = torch.zeros(())
        self._sum = torch.zeros(())
        self._products = torch.zeros(0, 0)

    def add(self, values: Tensor) -> None:
        """Add the rows of one batch."""
        rows = values.detach().cpu()
        if self.count == 0:
            self._start(rows.mean(dim=0, dtype=torch.float64))
        centred = rows - self._shift  # in float64, as the fixed point is
        self.count += len(rows)
        self._sum += centred.sum(dim=0)
        _add_products(self._products, centred)

    def merge(self, other: "Moments") -> None:
        """Add another's rows."""
        if not other.count:
            return
        if self.count == 0:
            self._start(other._shift)
        step = other._shift - self._shift
        mixed = torch.outer(other._sum + other.count / 2 * step, step)
        self.count += other.count
        self._sum += other._sum + other.count * step
        self._products += other._products + mixed + mixed.T

    def mean(self) -> Tensor:
        """The mean of each column."""
        return self._shift + self._sum / self.count

    def covariance(self) -> Tensor:
        """The covariance matrix, divided by the number of rows."""
        step = self._sum / self.count
        return _symmetric(self._products) / self.count - torch.outer(step, step)

    def _start(self, shift: Tensor) -> None:
        self._shift, self._sum = shift.clone(), torch.zeros_like(shift)
        self._products = shift.new_zeros(len(shift), len(shift))


class ClassMoments:
    """The mean of each class, and the scatter of all rows around the mean of their class, in float64.

    Products are summed about a fixed point for each class near its mean, that of its rows in the first batch that has
    any, and corrected at the end: a batch costs its own product, whatever the number of classes.

    >>> part = ClassMoments()
    >>> part.add(torch.tensor([[0.0], [2.0], [9.0]]), torch.tensor([0, 0, 1]), 2)
    >>> part.means().T, part.within()
    (tensor([[1., 9.]], dtype=torch.float64), tensor([[0.6667]], dtype=torch.float64))
    """

    def __init__(self) -> None:
        self.counts = torch.zeros(0)
        self._shifts = torch.zeros(0, 0)
        self._sums = torch.zeros(0, 0)
        self._products = torch.zeros(0, 0)

    def add(self, values: Tensor, labels: Tensor, classes: int) -> None:
        """Add the rows of one batch."""
        rows, labels = values.detach().cpu(), labels.cpu().long()
        self._start(classes, rows.shape[1])
        counts = torch.bincount(labels, minlength=classes).double()
        new = (self.counts == 0) & (counts > 0)
        if new.any():
            first = new[labels]
            sums = torch.zeros_like(self._sums).index_add_(0, labels[first], rows[first].double())
            self._shifts[new] = sums[new] / counts[new, None]
        centred = self._shifts[labels]
        torch.sub(rows, centred, out=centred)
        self.counts += counts
        self._sums.index_add_(0, labels, centred)
        _add_products(self._products, centred)

    def merge(self, other: "ClassMoments") -> None:
        """Add another's rows."""
        if not len(other.counts):
            return
        self._start(*other._sums.shape)
        new = self.counts == 0
        self._shifts[new] = other._shifts[new]
        steps, counts = other._shifts - self._shifts, other.counts[:, None]
        steps[other.counts == 0] = 0.0
        mixed = (other._sums + counts / 2 * steps).T @ steps
        self.counts += other.counts
        self._sums += other._sums + counts * steps
        self._products += other._products + mixed + mixed.T

    def means(self) -> Tensor:
        """The mean of each class, ``(C, m)``; zeros for a class without rows."""
        return self._shifts + self._steps()

    def within(self) -> Tensor:
        """The covariance shared by all classes: the scatter around the class means, divided by the number of rows."""
        steps = self._steps()
        return (_symmetric(self._products) - (self.counts[:, None] * steps).T @ steps) / self.counts.sum()

    def _steps(self) -> Tensor:
        """From the fixed point of each class to its mean."""
        return self._sums / self.counts.clamp(min=1)[:, None]

    def _start(self, classes: int, width: int) -> None:
        if not len(self.counts):
            self.counts = torch.zeros(classes, dtype=torch.float64)
            self._shifts, self._sums = self.counts.new_zeros(2, classes, width)
            self._products = self.counts.new_zeros(width, width)


def _pieces(rows: Tensor) -> tuple[Tensor, ...]:
    """Return the rows in pieces that stay in the caches."""
    return torch.split(rows, max(64, (1 << 19) // max(1, rows.shape[1:].numel())))


def _add_products(total: Tensor, rows: Tensor) -> None:
    """Add the upper triangle of ``rows.T @ rows``, in strips: half the work of the whole, and no copy of the total."""
    width = len(total)
    strip = max(128, width // 8)
    for start in range(0, width, strip):
        total[start : start + strip, start:].addmm_(rows[:, start : start + strip].T, rows[:, start:])


def _symmetric(upper: Tensor) -> Tensor:
    return upper.triu() + upper.triu(1).T


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
        if not self.counts.ndim:
            self.counts, self._sums = rows.new_zeros(classes), rows.new_zeros(classes, rows.shape[1])
        self.counts += torch.bincount(labels, minlength=classes)
        self._sums.index_add_(0, labels, rows)

    def merge(self, other: "ClassMeans") -> None:
        """Add another's rows."""
        self.counts, self._sums = self.counts + other.counts, self._sums + other._sums

    def values(self) -> Tensor:
        """The means ``(C, m)``; zeros for a class without rows."""
        return self._sums / self.counts.clamp(min=1)[:, None]

    def values_or_overall(self) -> Tensor:
        """The means ``(C, m)``; a class without rows has the mean of all rows."""
        means = self.values()
        overall = (means * self.counts[:, None]).sum(dim=0) / self.counts.sum()
        return torch.where(self.counts[:, None] > 0, means, overall)


class Joined:
    """Rows that come in parts, in one piece of memory.

    A list of the parts would keep the memory of the batches they came from in use: each part would lie behind the space
    of its batch, which the next batch does not quite fit into.
    """

    def __init__(self, rows: Tensor) -> None:
        self._space, self._used = rows, len(rows)

    def __len__(self) -> int:
        return self._used

    def __getstate__(self) -> dict[str, object]:
        """Without the space that is not used."""
        return {"_space": self.values().clone(), "_used": self._used}

    def add(self, part: Tensor) -> None:
        """Append some rows; the first ones determine width and type."""
        if not self._used and part.shape[1:].numel():
            self._space = part.new_empty((0, *part.shape[1:]))
        needed = self._used + len(part)
        if needed > len(self._space):
            longer = part.new_empty((max(needed, 2 * len(self._space), MIN_ROWS), *part.shape[1:]))
            longer[: self._used] = self.values()
            self._space = longer
        if len(part):
            self._space[self._used : needed] = part
        self._used = needed

    def shorten(self, rows: int) -> None:
        """Keep the first rows only."""
        self._used = rows

    def values(self) -> Tensor:
        """All rows so far."""
        return self._space[: self._used]


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
        self._rows, self._keys = Joined(torch.empty(0, 0)), Joined(torch.empty(0, dtype=torch.int64))
        self._bound: int | None = None  # rows with keys from here on are not among the smallest

    def add(self, *columns: Tensor, keys: Tensor | None = None) -> None:
        """Add the rows of one batch, each of them from one or more columns."""
        parts = [column.detach().to("cpu", torch.float32) for column in columns]
        keys = row_keys(torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]) if keys is None else keys
        if self._bound is not None:
            kept = (keys < self._bound).nonzero().flatten()
            parts, keys = [part[kept] for part in parts], keys[kept]
        self._keep(torch.cat(parts, dim=1) if len(parts) > 1 else parts[0], keys)

    def merge(self, other: "RowSample") -> None:
        """Add another's rows."""
        self._keep(other._rows.values(), other._keys.values())

    def rows(self) -> Tensor:
        """The sample, ``(limit, m)`` or fewer."""
        self._truncate()
        order = torch.argsort(self._keys.values(), stable=True)
        self._rows, self._keys = Joined(self._rows.values()[order]), Joined(self._keys.values()[order])
        return self._rows.values()

    def _keep(self, rows: Tensor, keys: Tensor) -> None:
        most = max(1, self.limit // 4)  # beyond the limit
        for part, part_keys in zip(torch.split(rows, most), torch.split(keys, most), strict=True):
            if len(self._keys) + len(part_keys) > self.limit + most:
                self._truncate()
            self._rows.add(part)
            self._keys.add(part_keys)

    def _truncate(self) -> None:
        """Move rows with small keys from the end to the places of those that are not among the smallest."""
        if len(self._keys) <= self.limit:
            return
        rows, keys = self._rows.values(), self._keys.values()
        order = torch.argsort(keys, stable=True)[: self.limit]
        self._bound = int(keys[order[-1]])
        kept = torch.zeros(len(keys), dtype=torch.bool)
        kept[order] = True
        free, late = (~kept[: self.limit]).nonzero().flatten(), kept[self.limit :].nonzero().flatten() + self.limit
        rows[free], keys[free] = rows[late], keys[late]
        self._rows.shorten(self.limit)
        self._keys.shorten(self.limit)


def row_keys(values: Tensor) -> Tensor:
    """A pseudo-random 64-bit number from the bits of each row; sums overflow on purpose, which mixes the bits."""
    rows = values.detach().to("cpu", torch.float32).contiguous()
    generator = torch.Generator().manual_seed(rows.shape[1])
    factors = torch.randint(1 << 61, (rows.shape[1],), generator=generator) * 2 + 1
    # einsum, because a product of integers would first copy all of them as 64 bits
    keys = torch.from_numpy(np.einsum("ij,j->i", rows.numpy().view(np.int32), factors.numpy()))
    keys = (keys ^ (keys >> 31)) * -7046029254386353131
    return keys ^ (keys >> 29)


EMBEDDING_STATISTICS: dict[str, Callable[[], Mean | Quantiles | RowSample]] = {
    "mean": Mean,
    "activations": Quantiles,
    "rows": partial(RowSample, 10_000),
}
"""Statistics of embeddings by name: the mean of each unit, the quantiles of all activations together, and a sample."""
