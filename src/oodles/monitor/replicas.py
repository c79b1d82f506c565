"""Evidence of several monitors that share one stream, such as the replicas of a service.

Given the calibration set, ID inputs are independent, whichever replica they reach. So all inputs in the order "slot of
the clock by slot, and within a slot replica by replica" are a stream to which the null hypothesis of
:mod:`oodles.monitor.evidence` applies: the order depends on the clock, not on scores. Let ``F`` be the product of a
bet's factors over the ``n`` inputs of a slot, which follows from their counts. Its expectation is at most 1, whatever
came before, so ``M = (M + n) * F`` grows by at most ``n`` on average, and ``M`` less the number of inputs is a
supermartingale: until ``M`` is at least ``c`` there are at least ``c`` inputs on average, as with one monitor. A slot
counts when it can no longer grow.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from oodles.calibration import Threshold
from oodles.errors import DataError
from oodles.monitor.evidence import MAX_VALUE, mean_over_bets
from oodles.monitor.monitor import SLOT, Monitor

DELAY = 10  # seconds after which the states of all replicas have been written


def load_states(paths: Sequence[Path], threshold: Threshold, **about: Any) -> dict[str, Monitor]:
    """Load the states of the replicas that serve a guard; ``about`` are arguments of :meth:`Monitor.load`."""
    return {str(path): Monitor.load(path, threshold=threshold, **about) for path in paths}


def merge(monitors: Mapping[str, Monitor], now: float | None = None) -> dict[str, Any]:
    """Return what monitors of the same guard know together, by name, as plain values for JSON.

    ``evidence`` is the e-detector of all inputs of the last day up to ``now``, ``peak`` its largest value, and
    ``alarm`` the first time at which it was at least ``alarm_at``.
    """
    first = next(iter(monitors.values()))
    other = next((name for name, each in monitors.items() if each.rule != first.rule), None)
    if other is not None:
        raise DataError(
            f"{other} has another alarm rule than the first state; serve all replicas with the same options"
        )
    known = (time.time() if now is None else now) - DELAY
    slots = sorted({slot for each in monitors.values() for slot in each.slots if (slot + 1) * SLOT <= known})
    values = [np.zeros(len(bets)) for bets in first.bets]
    ends = np.cumsum([1 + len(bets.bounds) for bets in first.bets])[:-1]
    trace: list[float] = []
    above: list[int] = []
    inputs = 0
    for slot in slots:
        counts = np.sum([each.slots[slot] for each in monitors.values() if slot in each.slots], axis=0)
        for kind, (bets, part) in enumerate(zip(first.bets, np.split(counts, ends), strict=True)):
            factors = np.exp(np.minimum(bets.log_factors(part[0], part[1:]), 600))
            values[kind] = np.minimum((values[kind] + part[0]) * factors, MAX_VALUE)
        trace.append(max((float(mean_over_bets(each)) for each in values if len(each)), default=0.0))
        inputs += int(counts[0])
        if trace[-1] >= first.alarm_at and inputs >= first.rule.minimum:
            above.append(slot)
    return {
        "replicas": len(monitors),
        **{name: sum(getattr(each, name) for each in monitors.values()) for name in ("inputs", "rejected", "errors")},
        "evidence": trace[-1] if trace else 0.0,
        "peak": max(trace, default=0.0),
        "peak_at": _text(slots[int(np.argmax(trace))]) if trace else None,
        "alarm_at": first.alarm_at,
        "alarm": _text(above[0]) if above else None,
    }


def _text(slot: int) -> str:
    """Return the time at which a slot ended."""
    return datetime.fromtimestamp((slot + 1) * SLOT, UTC).isoformat()
