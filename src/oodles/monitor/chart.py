"""The chart of a monitored stream."""

from typing import TYPE_CHECKING

import numpy as np

from oodles import plots
from oodles.errors import DataError
from oodles.monitor.monitor import P_VALUES, REJECTIONS, Monitor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {REJECTIONS: "rejections", P_VALUES: "p-values"}


def draw(monitor: Monitor) -> "Figure":
    """Rates of the last windows with their limits, the evidence below, and a line at each alarm."""
    status = monitor.status()
    windows = status["windows"]
    if not windows:
        raise DataError("there is nothing to draw: not one input was scored")
    first = windows[0]["first"]
    rates, low, high = (np.array([100 * window[name] for window in windows]) for name in ("rate", "low", "high"))
    kept = monitor.windows.kept
    evidence = {REJECTIONS: np.array([window.rejections for window in kept])}
    if status["evidence"][P_VALUES] is not None:
        evidence[P_VALUES] = np.array([window.p_values for window in kept])
    return plots.monitored_stream(
        np.array([first - 1, *(window["last"] for window in windows)], dtype=np.float64),
        rates,
        (low, high),
        100 * status["expected"]["rate"],
        {NAMES[kind]: values for kind, values in evidence.items()},
        alarm_at=status["evidence"]["alarm_at"],
        alarms=[alert.since for alert in monitor.alerts if alert.since >= first],
    )
