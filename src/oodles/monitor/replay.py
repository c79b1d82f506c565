"""Results of ``oodles score`` given to a monitor, in order."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from oodles.deploy.results.reading import read_rows
from oodles.deploy.results.rows import Row
from oodles.errors import DataError
from oodles.monitor.monitor import Monitor
from oodles.monitor.rules import Alert

BATCH = 1024
CLOSE = 1e-5  # scores this close to the threshold, relatively, may have been decided either way


def replay(monitor: Monitor, path: Path) -> Iterator[Alert]:
    """Observe the rows of a file of results; gives each alarm when it is raised.

    Decisions that contradict the monitor's threshold are an error: the file is that of another guard.
    """
    rows = read_rows(path)
    while batch := list(islice(rows, BATCH)):
        scored = [row for row in batch if row.error is None]
        monitor.count_errors(len(batch) - len(scored))
        _check(monitor, scored, path)
        yield from monitor.observe(
            score=np.array([_number(row.score) for row in scored]),
            p_value=np.array([_number(row.p_value) for row in scored]),
            label=np.array([-1 if row.label is None else row.label for row in scored], dtype=np.int64),
            is_id=np.array([row.is_id for row in scored], dtype=np.bool_),
        )


def count_classes(rows: Iterable[Row]) -> Counter[int]:
    """How often each class was predicted."""
    return Counter(row.label for row in rows if row.error is None and row.label is not None)


def _check(monitor: Monitor, rows: Iterable[Row], path: Path) -> None:
    value = monitor.threshold.value
    for row in rows:
        if (
            row.score is not None
            and row.is_id != (row.score >= value)
            and not math.isclose(row.score, value, rel_tol=CLOSE, abs_tol=CLOSE)
        ):
            decided = "accepted" if row.is_id else "rejected"
            raise DataError(
                f"{path} was not made with this guard's threshold: a score of {row.score:.7g} was {decided}, and the "
                f"threshold is {value:.7g}; give the guard that scored it"
            )


def _number(value: float | None) -> float:
    return math.nan if value is None else value
