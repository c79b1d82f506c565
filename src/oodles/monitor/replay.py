"""Results of ``oodles score`` given to a monitor."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from oodles.calibration import Threshold
from oodles.deploy.results.reading import read_rows
from oodles.deploy.results.rows import Row
from oodles.deploy.results.writing import job_path, read_job
from oodles.errors import ArgumentError, DataError
from oodles.monitor.alerts import Alert, AlertRule
from oodles.monitor.monitor import WINDOW, Monitor

BATCH = 1024
MAX_WINDOWS = 150  # of a chart whose window was not given
MAX_LABEL = 1 << 31
CLOSE = 1e-5  # scores this close to the threshold, relatively, may have been decided either way


def open_monitor(
    results: Sequence[Path],
    threshold: Threshold,
    *,
    classes: Sequence[str],
    guard: str,
    state: Path | None = None,
    reference: Path | None = None,
    rule: AlertRule | None = None,
    window: int | None = None,
) -> Monitor:
    """Make the monitor for some files of results, or continue from ``state``; raises if a file cannot be read.

    ``guard`` is the identity of the guard that scored them, and ``reference`` a file of results on the calibration
    images. Without a ``window`` it is chosen so that all inputs fit into a chart.
    """
    for path in results:
        if job_path(path).is_file() and read_job(path).identity != guard:
            raise DataError(
                f"{path} was made with another guard, or with another threshold of this one; give the guard that "
                "scored it"
            )
    inputs = sum(1 for path in results for _ in read_rows(path))
    counts = None
    if reference is not None:
        counts = Counter(row.label for row in read_rows(reference) if row.error is None and row.label is not None)
    if state is not None and state.exists():
        known = Monitor.load(state, threshold=threshold, classes=classes, guard=guard, rule=rule, class_counts=counts)
        if window not in (None, known.windows.size):
            raise ArgumentError(f"window {window}: {state} has windows of {known.windows.size}; leave it out")
        return known
    if window is None:
        window = WINDOW if state is not None else max(WINDOW, -(-inputs // MAX_WINDOWS))
    return Monitor(threshold, classes=classes, guard=guard, rule=rule, window=window, class_counts=counts)


def replay(monitor: Monitor, path: Path) -> Iterator[Alert]:
    """Observe the rows of a file of results; gives each alarm when it is raised.

    Alarms mean something only if the rows are in the order in which the inputs came; otherwise look at
    :meth:`Monitor.test_set` at the end. Labels outside the guard's classes, and decisions that contradict its
    threshold, are an error: the file is that of another guard.
    """
    rows = (_checked(monitor, row, f"{path}: row {number}") for number, row in enumerate(read_rows(path), 1))
    while batch := list(islice(rows, BATCH)):
        scored = [row for row in batch if row.error is None]
        monitor.count_errors(len(batch) - len(scored))
        # numbers that are not known become NaN
        yield from monitor.observe(
            score=np.array([row.score for row in scored], dtype=np.float64),
            p_value=np.array([row.p_value for row in scored], dtype=np.float64),
            label=np.array([-1 if row.label is None else row.label for row in scored], dtype=np.int64),
            is_id=np.array([row.is_id for row in scored], dtype=np.bool_),
        )


def _checked(monitor: Monitor, row: Row, place: str) -> Row:
    """Raise if a row cannot have been made by the monitored guard; returns the row."""
    value, classes = monitor.threshold.value, len(monitor.class_names) or MAX_LABEL
    possible = {
        "score": (row.score is None) == (row.error is not None),
        "is_id": row.error is None or not row.is_id,
        "label": row.label is None or 0 <= row.label < classes,
        "p_value": row.p_value is None or 0 <= row.p_value <= 1,
    }
    wrong = next((name for name, right in possible.items() if not right), None)
    if wrong is not None:
        shown = f"{wrong}={getattr(row, wrong)}"
        raise DataError(
            f"{place}: {shown:.40} cannot be: there are {classes:,} classes, p-values lie between 0 and 1, "
            "and a row has either a score or an error; score the inputs again"
        )
    if (
        row.score is not None
        and row.is_id != (row.score >= value)
        and not math.isclose(row.score, value, rel_tol=CLOSE, abs_tol=CLOSE)
    ):
        decided = "accepted" if row.is_id else "rejected"
        raise DataError(
            f"{place} was not made with this guard's threshold: a score of {row.score:.7g} was {decided}, and the "
            f"threshold is {value:.7g}; give the guard that scored it"
        )
    return row
