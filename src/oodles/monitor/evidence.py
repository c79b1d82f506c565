"""Evidence that events have become more frequent than they can be among ID inputs: a test and an e-detector.

The null hypothesis: whatever came before, the next input has event ``e`` with probability at most ``bound[e]``. It
holds for independent ID inputs if the bounds hold, which the calibration set promises up to a small error.

A *bet* is an event with an alternative rate ``q > bound = b``. Each input multiplies it by ``q / b`` if the event
happens and by ``(1 - q) / (1 - b)`` if not: the likelihood ratio of the two rates, or in other words ``1 + l (x - b)``
with the stake ``l = (q - b) / (b (1 - b))``. Under the null hypothesis the expected factor is at most 1, whatever came
before, because it grows with the probability of the event and is exactly 1 at ``b``. Hence:

- The product of all factors since the start is a supermartingale that starts at 1, and so is the mean of these
  products over the bets, the *wealth*. By Ville's inequality it ever reaches ``1 / a`` with probability at most
  ``a``, however often one looks.
- The *e-detector* ``M_n = (M_{n-1} + 1) * factor_n`` of each bet, and the mean of them over the bets, grows by at most
  1 per input on average: ``M_n - n`` is a supermartingale (Shiryaev and Roberts; Shin, Ramdas and Rinaldo, 2024). If it
  is set to 0 whenever it is at least ``c``, then ``M_n + c * (alarms so far) - n`` is a supermartingale too, so the
  expected number of alarms in N inputs is at most ``N / c``. It sees a change at any time as if the stream had begun
  there. The variant with a maximum, ``max(M_{n-1}, 1)``, has the same promise and is never larger.

Bets are fixed in advance, so the wealth depends on counts alone, and several alternatives cover small and large shifts.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from oodles.errors import DataError

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

EXCESS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # of the inputs beyond the bound, that an alternative assumes have the event
SMALL_P = (0.05, 0.1, 0.2, 0.35, 0.5)  # p-values at most this are events
MAX_VALUE = 1e280  # of an e-detector: a smaller value is still one, and does not overflow
CHUNK = 64


class Bets:
    """One bet per event and alternative; events whose bound is 1 are certain to be allowed, and nothing is bet.

    ``event`` is the event of each bet, ``win`` its factor if the event happens, and ``lose`` its factor if not.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        pairs = [
            (event, bound, bound + excess * (1 - bound)) for event, bound in enumerate(bounds) for excess in EXCESS
        ]
        bets = [(event, bound, rate) for event, bound, rate in pairs if 0 < bound < rate < 1]
        self.bounds = bounds
        self.event = np.array([event for event, _, _ in bets], dtype=np.intp)
        self.win = np.array([rate / bound for _, bound, rate in bets])
        self.lose = np.array([(1 - rate) / (1 - bound) for _, bound, rate in bets])

    def __len__(self) -> int:
        return len(self.event)

    def factors(self, happened: Bools) -> Floats:
        """The factors ``(..., bets)`` of inputs with events ``(..., events)``."""
        return np.where(happened[..., self.event], self.win, self.lose)

    def log_factors(self, inputs: npt.ArrayLike, counts: npt.ArrayLike) -> Floats:
        """Return the logarithm of each bet after ``inputs (...)``, of which ``counts (..., events)`` had each event."""
        happened = np.asarray(counts)[..., self.event]
        return np.asarray(happened * np.log(self.win) + (np.asarray(inputs)[..., None] - happened) * np.log(self.lose))

    def log_wealth(self, inputs: npt.ArrayLike, counts: npt.ArrayLike) -> Floats:
        """The logarithm of the wealth after ``inputs (...)`` of which ``counts (..., events)`` had each event."""
        logs = self.log_factors(inputs, counts)
        largest = logs.max(axis=-1)
        return np.asarray(largest + np.log(mean_over_bets(np.exp(logs - largest[..., None]))))


def mean_over_bets(values: Floats) -> Floats:
    """The mean over the last axis, added in order: NumPy's own may differ in a bit from one row to many."""
    return np.asarray(np.cumsum(values, axis=-1)[..., -1] / values.shape[-1])


def detect(values: Floats, factors: Floats, out: Floats) -> Floats:
    """The e-detectors of all bets, ``(..., bets)``, after one more input, written to ``out``."""
    np.add(values, 1, out=out)
    np.multiply(out, factors, out=out)
    return np.minimum(out, MAX_VALUE, out=out)


class Evidence:
    """The wealth and the e-detector of some bets over one stream."""

    def __init__(self, bets: Bets) -> None:
        self.bets = bets
        self.inputs = 0
        self.counts = np.zeros(len(bets.bounds), dtype=np.int64)
        self.best = 0.0  # largest logarithm of the wealth so far
        self.values = np.zeros(len(bets))
        self.since = 0  # inputs since the e-detector was last at 0

    @property
    def value(self) -> float:
        """The e-detector: the mean over the bets."""
        return float(mean_over_bets(self.values)) if len(self.bets) else 0.0

    def observe(self, happened: Bools, line: float, minimum: int) -> tuple[Floats, list[int]]:
        """Take the events ``(n, events)`` of n inputs into account.

        Returns the e-detector after each input, and the inputs at which it was at least ``line``, ``minimum`` or more
        inputs after it was 0, and was set to 0 again. The result is the same bits however a stream is divided.
        """
        before, known = self.inputs, self.counts
        self.inputs, self.counts = before + len(happened), known + happened.sum(axis=0)
        if not len(happened) or not len(self.bets):
            return np.zeros(len(happened)), []
        after = known + np.cumsum(happened, axis=0)
        wealth = self.bets.log_wealth(before + np.arange(1, len(happened) + 1), after)
        self.best = max(self.best, float(wealth.max()))
        traces, alarms, start = [], [], 0
        factors = self.bets.factors(happened)
        while start < len(factors):
            trace, crossed = self._advance(factors[start : start + CHUNK], line, minimum)
            start += len(trace)
            traces.append(trace)
            if crossed:
                alarms.append(start - 1)
        return np.concatenate(traces), alarms

    def _advance(self, factors: Floats, line: float, minimum: int) -> tuple[Floats, bool]:
        """The e-detector after each input up to the first alarm, and whether there was one."""
        values, rows = self.values, np.empty_like(factors)
        for row, factor in zip(rows, factors, strict=True):
            values = detect(values, factor, row)
        trace = mean_over_bets(rows)
        alarms = np.flatnonzero((trace >= line) & (self.since + np.arange(1, len(trace) + 1) >= minimum))
        if not len(alarms):
            self.values, self.since = values.copy(), self.since + len(trace)
            return trace, False
        self.values, self.since = np.zeros(len(self.bets)), 0
        return trace[: alarms[0] + 1], True


def check_batch(scores: Floats, p_values: Floats, labels: npt.NDArray[Any], accepted: Bools) -> None:
    """Raise unless the arrays are one entry per input each, of the right kind."""
    shapes = {scores.shape, p_values.shape, labels.shape, accepted.shape}
    if scores.ndim != 1 or len(shapes) != 1:
        raise DataError(
            f"a batch must have one score, p-value, label and decision per input, got the shapes {sorted(shapes)}"
        )
    if accepted.dtype != np.bool_:
        raise DataError(f"is_id must be true or false for each input, got {accepted.dtype}")
    if labels.dtype.kind not in "iu" and len(labels):
        raise DataError(f"labels must be whole numbers, got {labels.dtype}")
