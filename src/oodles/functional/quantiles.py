"""Quantiles of any number of values: exact, or streaming with a bounded error."""

import numpy as np
import torch
from torch import Tensor

EXACT_VALUES = 1 << 24  # up to this many values (64 MB) a :class:`Quantiles` keeps them all and is exact

MANTISSA_BITS = 12
"""Beyond that it counts values by sign, exponent and this many mantissa bits: a relative error of 2**-12."""

_SHIFT = 23 - MANTISSA_BITS
_BINS = 1 << (32 - _SHIFT)


def quantile(values: Tensor, q: float) -> float:
    """The ``q``-quantile of all entries, linearly interpolated, in float64, like ``numpy.quantile``.

    ``torch.quantile`` of PyTorch 2.13 is limited to 16 million elements; this is not.

    >>> quantile(torch.tensor([1.0, 2.0, 3.0, 4.0]), 0.5)
    2.5
    """
    flat = values.detach().cpu().reshape(-1)
    numbers = (flat if flat.dtype == torch.float64 else flat.float()).numpy()
    position = q * (len(numbers) - 1)
    low = int(position)
    parted = np.partition(numbers, low)
    above = parted[low + 1 :]
    # the next larger number; NaN if there is any, because NaN is sorted to the end
    ends = np.array([parted[low], above.min() if len(above) else parted[low]], dtype=np.float64)
    with np.errstate(invalid="ignore"):  # between infinite values it is NaN
        return float(np.quantile(ends, position - low))


class Quantiles:
    """Quantiles of a stream of float32 values; streams merge, and the order of values never matters.

    Exact up to ``EXACT_VALUES`` values. Beyond that, values are counted in bins of relative width ``2**-12``, which
    bounds the relative error of the quantile. Whether a result is exact depends only on the number of values, so
    merged streams give the same result as one stream.

    >>> stream = Quantiles()
    >>> stream.add(torch.arange(101.0))
    >>> stream.quantile(0.9)
    90.0
    """

    def __init__(self) -> None:
        self.count = 0
        self._kept: list[Tensor] = []
        self._counts: Tensor | None = None
        self._cache: dict[float, float] = {}

    def add(self, values: Tensor) -> None:
        """Add values, of any shape."""
        self._cache = {}
        kind = torch.float16 if values.dtype == torch.float16 else torch.float32
        flat = values.detach().reshape(-1).to("cpu", kind)
        self.count += flat.numel()
        if self._counts is not None:
            _count(flat, self._counts)
            return
        # what was converted is ours already
        self._kept.append(flat.clone() if flat.data_ptr() == values.data_ptr() else flat)
        if self.count > EXACT_VALUES:
            self._to_counts()

    def merge(self, other: "Quantiles") -> None:
        """Add everything another stream has seen; the other is left as it was."""
        self._cache = {}
        self.count += other.count
        self._kept.extend(other._kept)
        if self._counts is None and other._counts is None and self.count <= EXACT_VALUES:
            return
        self._to_counts()
        if self._counts is not None and other._counts is not None:
            self._counts += other._counts

    def quantile(self, q: float) -> float:
        """The ``q``-quantile of everything seen, cached."""
        if q not in self._cache:
            self._cache[q] = self._quantile(q)
        return self._cache[q]

    def _quantile(self, q: float) -> float:
        if self._counts is None:
            return quantile(torch.cat(self._kept), q)
        position = q * (self.count - 1)
        below = torch.cumsum(self._counts, dim=0)
        index = int(torch.searchsorted(below, torch.tensor(int(position)), right=True))
        inside = position - float(below[index] - self._counts[index])
        low, high = _edges(index)
        return low + (high - low) * (inside + 0.5) / float(self._counts[index])

    def _to_counts(self) -> None:
        counts = torch.zeros(_BINS, dtype=torch.int64) if self._counts is None else self._counts
        for values in self._kept:
            _count(values, counts)
        self._counts = counts
        self._kept = []


def _count(values: Tensor, counts: Tensor) -> None:
    """Add values to the counts of their bins."""
    if values.dtype == torch.float16:  # there are so few different ones that each is counted
        found = torch.bincount(values.view(torch.int16).to(torch.int32).bitwise_and_(0xFFFF))
        different = found.nonzero().flatten()
        counts.index_add_(0, _bins(different.to(torch.int16).view(torch.float16).float()), found[different])
    elif values.numel():
        bins = _bins(values)
        low = int(bins.min())
        found = torch.bincount(bins.sub_(low))
        counts[low : low + len(found)] += found


def _bins(values: Tensor) -> Tensor:
    # float32 bits, read as integers, sort like the values once those of negative values are flipped
    bits = values.view(torch.int32)
    return (bits ^ (bits >> 31).bitwise_and_(0x7FFFFFFF)).bitwise_right_shift_(_SHIFT).add_(_BINS // 2)


def _edges(index: int) -> tuple[float, float]:
    low = (index - _BINS // 2) << _SHIFT
    ordered = torch.tensor([low, low + (1 << _SHIFT) - 1], dtype=torch.int32)
    ends = torch.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).view(torch.float32)
    return float(ends[0]), float(ends[1])
