"""``fit``: each process learns from its share of the rows; the statistics are merged in the order of the ranks."""

from collections.abc import Iterable, Iterator

import torch

from oodles.detectors.base import Detector, learned_columns
from oodles.detectors.outlier_rows import RowNorms, check_policy, screen
from oodles.distributed.processes import Processes
from oodles.errors import ArgumentError
from oodles.features import Features


def fit(detector: Detector, features: Features, processes: Processes, *, outlier_rows: str = "warn") -> Detector:
    """The detector fitted on ID features by several processes, which all call this with all features.

    It has learned what ``detector.fit(features)`` learns. Counts, samples of rows and percentiles are the same exactly.
    Sums, means and covariances are the same up to the rounding of float64, because they are added in another order.

    >>> from oodles.detectors import DICE
    >>> from oodles.testing import example_features
    >>> fit(DICE(p=0.5), example_features(), Processes()).fitted  # a process on its own
    True
    """
    if processes.size == 1:
        return detector.fit(features, outlier_rows=outlier_rows)
    with processes.raise_together():
        check_policy(outlier_rows)
        if detector.fitted and detector.learns_from:
            raise ArgumentError(f"{detector} is fitted already; give a new one")
        if outlier_rows in ("drop", "raise"):
            features = screen_together(features, learned_columns([detector]), outlier_rows, processes)
        for batch in _own_batches(features, processes) if detector.learns_from else ():
            detector.partial_fit(batch)
        parts = processes.gather(detector)
        if parts and detector.learns_from:
            detector = _merged(parts, report=outlier_rows == "warn")
        return processes.broadcast(detector)


def _merged(parts: Iterable[Detector], *, report: bool) -> Detector:
    """One fitted detector from those that have observed parts of the rows; some may have had none."""
    whole, *others = (part for part in parts if part._statistics is not None)
    for other in others:
        whole.merge(other)
    if not report:
        whole._norms = RowNorms()
    whole.finish()
    whole._statistics = None  # as after fit: they are large, and nobody adds to them
    return whole


def _own_batches(features: Features, processes: Processes) -> Iterator[Features]:
    """The rows that are this process's share, in batches; there may be none."""
    rows = processes.share(range(len(features)))
    return features.gather(torch.as_tensor(rows)).batches() if rows else iter(())


def screen_together(features: Features, columns: Iterable[str], outlier_rows: str, processes: Processes) -> Features:
    """The same as :func:`~oodles.detectors.outlier_rows.screen`, each process reading its share of the rows."""
    columns = tuple(columns)
    if processes.size == 1 or not columns or outlier_rows == "ignore":
        return screen(features, columns, outlier_rows)
    check_policy(outlier_rows)
    mine, every = RowNorms(), RowNorms()
    for batch in _own_batches(features, processes):
        mine.add(batch, columns)
    for part in processes.all_gather(mine):
        every.merge(part)
    return screen(features, columns, outlier_rows, every)
