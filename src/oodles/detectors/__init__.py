"""Detectors: they see ``Features`` and give scores, never a model or a loader.

``base`` has what all share, one file per family the methods, and ``registry`` the list of them, from which every class
can be imported here: ``from oodles.detectors import KNN``.
"""

from typing import Any

from oodles.detectors.base import Detector, fit_together
from oodles.detectors.default import default_detector
from oodles.detectors.ensemble import combine
from oodles.detectors.logit import LogitDetector, Shape, Sparsifier
from oodles.detectors.network_detector import NetworkDetector
from oodles.detectors.outliers import drop_outliers
from oodles.detectors.parsing import detector_list, parse
from oodles.detectors.registry import BUILT_IN, find_class, register
from oodles.detectors.score_only import ScoreDetector

__all__ = [
    "Detector",
    "LogitDetector",
    "NetworkDetector",
    "ScoreDetector",
    "Shape",
    "Sparsifier",
    "combine",
    "default_detector",
    "detector_list",
    "drop_outliers",
    "fit_together",
    "parse",
    "register",
]
__all__ += [entry.kind.__name__ for entry in BUILT_IN]


def __getattr__(name: str) -> Any:
    kind = find_class(name)
    if kind is None:
        raise AttributeError(f"module 'oodles.detectors' has no attribute {name!r}")
    return kind


def __dir__() -> list[str]:
    return sorted(__all__)
