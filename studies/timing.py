"""Paired timing: the sides take turns, so that whatever else the machine does affects all of them equally."""

import time
from collections.abc import Callable, Mapping

Sides = Mapping[str, Callable[[], object]]
Times = dict[str, list[float]]


def paired(sides: Sides, *, budget: float = 2.0, least: int = 3, most: int = 200, warm_up: bool = True) -> Times:
    """Seconds of each side in every round, after one that warms up.

    Rounds go on until ``budget`` seconds have passed, but there are at least ``least`` and at most ``most``. Sides so
    slow that one round takes more than three budgets run only once, without a round to warm up.
    """
    times: Times = {name: [] for name in sides}
    began = time.perf_counter()
    if warm_up:
        one_round(sides, times)
        if budget and time.perf_counter() - began > 3 * budget:
            return times
        times = {name: [] for name in sides}
        began = time.perf_counter()
    for count in range(1, most + 1):
        one_round(sides, times)
        if count >= least and time.perf_counter() - began > budget:
            break
    return times


def one_round(sides: Sides, times: Times) -> None:
    """Run every side once and append its time."""
    for name, run in sides.items():
        times[name].append(seconds(run))


def seconds(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return how long a call takes."""
    start = clock()
    run()
    return clock() - start


def fastest(run: Callable[[], object], repeats: int = 3, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the shortest of several repeats, in seconds."""
    return min(seconds(run, clock) for _ in range(repeats))
