"""The detectors: they see ``Features`` and give scores, never a model or a loader."""

from oodles.detectors.base import Detector, fit_together
from oodles.detectors.gaussian import Mahalanobis
from oodles.detectors.gradient import GODIN, ODIN
from oodles.detectors.logit import DICE, MSP, Energy, Entropy, LogitDetector, MaxLogit, ReAct
from oodles.detectors.parse import STAGES, WHOLES, detector_list, load_detector, parse
from oodles.detectors.stages import (
    BottomContribution,
    Clip,
    RandomContribution,
    Shape,
    Sparsifier,
    TopBottomContribution,
    TopContribution,
    UnitDropout,
    UnitPruning,
    WeightDropout,
    WeightPruning,
)

__all__ = [
    "DICE",
    "GODIN",
    "MSP",
    "ODIN",
    "STAGES",
    "WHOLES",
    "BottomContribution",
    "Clip",
    "Detector",
    "Energy",
    "Entropy",
    "LogitDetector",
    "Mahalanobis",
    "MaxLogit",
    "RandomContribution",
    "ReAct",
    "Shape",
    "Sparsifier",
    "TopBottomContribution",
    "TopContribution",
    "UnitDropout",
    "UnitPruning",
    "WeightDropout",
    "WeightPruning",
    "detector_list",
    "fit_together",
    "load_detector",
    "parse",
]
