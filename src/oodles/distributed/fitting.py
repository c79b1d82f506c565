"""``fit``: each process learns from its share of the rows; the statistics are merged in the order of the ranks."""

from collections.abc import Iterable, Iterator

import torch

from oodles.detectors.base import Detector
from oodles.distributed.processes import Processes
from oodles.errors import ArgumentError
from oodles.features import Features


def fit(detector: Detector, features: Features, processes: Processes) -> Detector:
    """The detector fitted on ID features by several processes, which all call this with all features.

    It has learned what ``detector.fit(features)`` learns. Counts, samples of rows and percentiles are the same exactly.
    Sums, means and covariances are the same up to the rounding of float64, because they are added in another order.

    >>> from oodles.detectors import DICE
    >>> from oodles.testing import example_features
    >>> fit(DICE(p=0.5), example_features(), Processes()).fitted  # a process on its own
    True
    """
    if processes.size == 1:
        return detector.fit(features)
    with processes.raise_together():
        if detector.fitted and detector.learns_from:
            raise ArgumentError(f"{detector} is fitted already; give a new one")
        for batch in _own_batches(features, processes) if detector.learns_from else ():
            detector.partial_fit(batch)
        parts = processes.gather(detector)
        if parts and detector.learns_from:
            detector = _merged(parts)
        return processes.broadcast(detector)


def _merged(parts: Iterable[Detector]) -> Detector:
    """One fitted detector from those that have observed parts of the rows; some may have had none."""
    whole, *others = (part for part in parts if part._statistics is not None)
    for other in others:
        whole.merge(other)
    whole.finish()
    whole._statistics = None  # as after fit: they are large, and nobody adds to them
    return whole


def _own_batches(features: Features, processes: Processes) -> Iterator[Features]:
    """The rows that are this process's share, in batches; there may be none."""
    rows = processes.share(range(len(features)))
    return features.gather(torch.as_tensor(rows)).batches() if rows else iter(())
