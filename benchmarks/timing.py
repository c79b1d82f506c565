"""Paired timing: the sides take turns, so that whatever else the machine does affects all of them equally."""

import time
from collections.abc import Callable, Mapping
from statistics import median


def paired(sides: Mapping[str, Callable[[], object]], repeats: int = 9) -> dict[str, float]:
    """Median seconds of each side, run in turn ``repeats`` times after one warm-up each."""
    for run in sides.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, run in sides.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in times.items()}
