"""What a calibration set says about the rates of a stream of ID inputs: exact bounds, with NumPy alone."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from oodles.calibration import Threshold, threshold_rank

Floats = npt.NDArray[np.float64]

MAX_SIZE = 10**6  # calibration size beyond which a bound hardly improves: its sums have up to that many terms
TAIL = 0.00135  # of each side of a window's limits, as of three standard deviations


@dataclass(frozen=True)
class CalibratedRate:
    """The rejection rate of ID inputs at a threshold, as far as ``size`` calibration scores determine it.

    The threshold is the score of rank ``rank``, counted from 1 in ascending order. Let ``F`` be the distribution of ID
    scores. Given the calibration set, the probability that an ID input scores less is ``F(threshold-)``. If scores
    are continuous, this is the ``rank``-th smallest of ``size`` uniform numbers, that is ``Beta(rank, size + 1 -
    rank)``, whatever ``F`` is; with ties it is at most that. A rank beyond ``size`` means that nothing is known.
    """

    rank: int
    size: int

    @classmethod
    def of(cls, threshold: Threshold) -> "CalibratedRate":
        """The rate at a threshold.

        If its calibration scores are known and it is one of them at the rank that its ``id_rate`` says, it has that
        rank. Otherwise it was changed by hand, or only a sample of the scores was kept; the next score above it then
        has at least its rate, so its rank is one more than the number of scores below it. Without scores the
        rank is that of ``id_rate``.
        """
        scores = threshold.id_scores
        size = threshold.calibration_size if scores is None else len(scores)
        rank = threshold_rank(threshold.calibration_size, threshold.id_rate)
        if scores is None:
            capped = min(size, MAX_SIZE)
            return cls(max(1, threshold_rank(capped, threshold.id_rate)), capped)
        if not (size == threshold.calibration_size and 1 <= rank <= size and scores[rank - 1] == threshold.value):
            rank = 1 + int(np.searchsorted(scores, threshold.value, side="left"))
        return cls(rank, size)

    @property
    def expected(self) -> float:
        """The mean over calibration sets."""
        return min(1.0, self.rank / (self.size + 1))

    def upper(self, error: float) -> float:
        """A rate that the true one exceeds with probability at most ``error`` over the calibration set.

        It is the upper limit of Clopper and Pearson for ``rank - 1`` rejections of ``size``.

        >>> CalibratedRate(rank=50, size=1000).expected, round(CalibratedRate(rank=50, size=1000).upper(0.005), 4)
        (0.04995004995004995, 0.0693)
        """
        if self.rank > self.size:
            return 1.0
        counts = np.arange(self.rank, dtype=np.float64)
        steps = np.log((self.size - counts[1:] + 1) / counts[1:])
        ways = np.concatenate([[0.0], np.cumsum(steps)])  # logarithms of binomial coefficients
        low, high = 0.0, 1.0
        while True:  # bisect for the rate at which fewer than rank of size are rejected with probability error
            middle = (low + high) / 2
            if not low < middle < high or high - low < 1e-12 * high:
                return high
            tail = np.exp(ways + counts * math.log(middle) + (self.size - counts) * math.log1p(-middle)).sum()
            low, high = (middle, high) if tail > error else (low, middle)

    def limits(self, inputs: int) -> tuple[float, float]:
        """Between which shares a window of ``inputs`` ID inputs is rejected, but for a probability of 0.27 %.

        The number is beta-binomial: binomial, with the rate's own distribution given the calibration. The limits
        hold for one window looked at once, not for many.
        """
        if self.rank > self.size or inputs < 1:
            return 0.0, 1.0
        return _limits(self.rank, self.size, inputs)

    def excess(self, inputs: int, count: int) -> float:
        """Return the probability that at least ``count`` of ``inputs`` ID inputs are rejected.

        It is exact for exchangeable inputs and scores without ties, and an upper bound with ties: in any order, every
        arrangement of calibration scores and inputs is equally likely. Hence it is a p-value, for one look.

        >>> round(CalibratedRate(rank=50, size=1000).excess(inputs=200, count=25), 6)
        0.000154
        """
        if self.rank > self.size or not count:
            return 1.0
        return float(_distribution(self.rank, self.size, inputs)[count:].sum())


@lru_cache(maxsize=1024)
def _limits(rank: int, size: int, inputs: int) -> tuple[float, float]:
    at_most = np.cumsum(_distribution(rank, size, inputs))
    low = int(np.searchsorted(at_most, TAIL, side="right"))
    high = int(np.searchsorted(at_most, 1 - TAIL, side="left"))
    return low / inputs, min(high, inputs) / inputs


def _distribution(rank: int, size: int, inputs: int) -> Floats:
    """Return the probability of each number of rejections from 0 to ``inputs``."""
    counts = np.arange(inputs, dtype=np.float64)
    others = size + 1 - rank
    ratios = (inputs - counts) / (counts + 1) * (rank + counts) / (others + inputs - counts - 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log(ratios))])
    shares = np.exp(logs - logs.max())
    return np.asarray(shares / shares.sum())


def dkw_margin(size: int, error: float) -> float:
    """How far above the empirical distribution of ``size`` values the true one is anywhere, but for ``error``.

    The one-sided inequality of Dvoretzky, Kiefer and Wolfowitz with Massart's constant, for any distribution, any
    size, and an ``error`` of at most one half.

    >>> round(dkw_margin(1000, 0.005), 4)
    0.0515
    """
    return math.sqrt(math.log(1 / error) / (2 * size)) if size else 1.0
