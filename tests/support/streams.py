"""Thousands of simulated streams at once, and the charts that monitoring is compared with.

A score is simulated by its rank among all ID scores, a number ``v`` from 0 to 1 that is uniform for ID inputs. An input
is rejected if ``v`` is below the rank of the calibration score that is the threshold, and its p-value is at most ``u``
if ``v`` is below that of another calibration score: so few of the calibration scores matter, and these can be drawn
without the others.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from oodles.calibration import Threshold, threshold_rank
from oodles.monitor.bounds import CalibratedRate, dkw_margin
from oodles.monitor.evidence import SMALL_P, Bets, detect, mean_over_bets

Floats = npt.NDArray[np.float64]
Array = npt.NDArray[Any]
SHIFT = 3.0  # standard deviations that the scores of simulated OOD inputs are below those of ID inputs


def said_of(scores: Floats, threshold: Threshold) -> dict[str, Array]:
    """What a guard says about inputs with these scores, as the arguments of ``observe``."""
    label = np.zeros(len(scores), dtype=np.int64)
    return {"score": scores, "p_value": threshold.p_values(scores), "label": label, "is_id": threshold.is_id(scores)}


class Calibrations(NamedTuple):
    """Many calibration sets of one size: the ranks of the scores that decide, one row per set."""

    rejection: Floats  # (streams, 1)
    small_p: Floats  # (streams, len(SMALL_P))


def calibrations(size: int, streams: int, generator: np.random.Generator, id_rate: float = 0.95) -> Calibrations:
    """Order statistics of uniform numbers, whose spacings are those of a sum of exponential ones."""
    rank = threshold_rank(size, id_rate)
    of_levels = [math.floor(level * (size + 1) + 1e-9) for level in SMALL_P]
    ranks = sorted({rank, *of_levels})
    gaps = np.diff([0, *ranks, size + 1])
    sums = np.cumsum(generator.gamma(np.broadcast_to(gaps, (streams, len(gaps)))), axis=1)
    found = {each: sums[:, place] / sums[:, -1] for place, each in enumerate(ranks)}
    levels = [found[each] for each in of_levels]
    return Calibrations(found[rank][:, None], np.stack(levels, axis=1))


def ranks_of(generator: np.random.Generator, streams: int, contamination: float) -> Floats:
    """The rank of one more input of each stream among ID scores."""
    if not contamination:
        return generator.random(streams)
    shifted = generator.normal(size=streams) - SHIFT * (generator.random(streams) < contamination)
    return np.asarray(ndtr(shifted))


def bets_of(size: int, error: float, id_rate: float = 0.95) -> dict[str, Bets]:
    """The bets of a monitor with this error."""
    share = error / 4  # two kinds of evidence, and half of each error is for the bound
    margin = dkw_margin(size, share)
    upper = CalibratedRate(threshold_rank(size, id_rate), size).upper(share)
    return {"rejections": Bets((upper,)), "p_values": Bets(tuple(min(1.0, level + margin) for level in SMALL_P))}


class Outcome(NamedTuple):
    """Per stream: the first alarm (inf if there is none), the number of alarms, and the largest log wealth."""

    first: Floats
    alarms: npt.NDArray[np.int64]
    best: Floats


def run(
    bets: Bets,
    events: Callable[[int], Array],
    *,
    streams: int,
    steps: int,
    line: float,
    minimum: int = 1,
    wealth: bool = False,
    until_all: bool = False,
) -> Outcome:
    """The e-detector and, if asked for, the wealth over streams whose events ``(streams, events)`` a function gives."""
    values, counts = np.zeros((streams, len(bets))), np.zeros((streams, len(bets.bounds)))
    first, best = np.full(streams, np.inf), np.zeros(streams)
    alarms, since = np.zeros(streams, dtype=np.int64), np.zeros(streams)
    for step in range(1, steps + 1):
        happened = events(step)
        detect(values, bets.factors(happened), values)
        since += 1
        if wealth:
            counts += happened
            best = np.maximum(best, bets.log_wealth(np.full(streams, step), counts))
        crossed = (mean_over_bets(values) >= line) & (since >= minimum)
        if crossed.any():
            first[crossed] = np.minimum(first[crossed], step)
            alarms += crossed
            values[crossed] = 0
            since[crossed] = 0
            if until_all and np.isfinite(first).all():
                break
    return Outcome(first, alarms, best)


def cusum(
    events: Callable[[int], Array], rates: tuple[float, float], *, streams: int, steps: int, limit: float
) -> Floats:
    """The first alarm of each stream by CUSUM that knows the rates before and after."""
    before, after = rates
    win, lose = math.log(after / before), math.log((1 - after) / (1 - before))
    sums, first = np.zeros(streams), np.full(streams, np.inf)
    for step in range(1, steps + 1):
        sums = np.maximum(sums, 0) + np.where(events(step), win, lose)
        crossed = (sums >= limit) & np.isinf(first)
        first[crossed] = step
        if np.isfinite(first).all():
            break
    return first


def window_test(events: Callable[[int], Array], *, streams: int, steps: int, size: int, most: int) -> Floats:
    """The first alarm of each stream by windows of ``size`` inputs, of which at most ``most`` may be rejected."""
    counts, first = np.zeros(streams, dtype=np.int64), np.full(streams, np.inf)
    for step in range(1, steps + 1):
        counts += events(step)
        if step % size == 0:
            first[(counts > most) & np.isinf(first)] = step
            counts[:] = 0
            if np.isfinite(first).all():
                break
    return first
