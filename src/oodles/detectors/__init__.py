"""The detectors: they see ``Features`` and give scores, never a model or a loader."""

from oodles.detectors.adascale import AdaScale
from oodles.detectors.base import Detector, fit_together
from oodles.detectors.calibrated import KLMatching, OpenMax, TempScale
from oodles.detectors.combination import Combination, Jury, combine
from oodles.detectors.gaussian import Mahalanobis
from oodles.detectors.geometry import FDBD, NCI, SHE, ExGrad, GradNorm, GradUncertainty
from oodles.detectors.gradient import GODIN, ODIN
from oodles.detectors.logit import DICE, MSP, Energy, Entropy, LogitDetector, MaxLogit, ReAct, Trio
from oodles.detectors.neighbours import KNN, NNGuide
from oodles.detectors.parse import STAGES, WHOLES, default_detector, detector_list, load_detector, parse
from oodles.detectors.relatives import RMDS, GaussianMixture, MahalanobisPP
from oodles.detectors.stages import (
    AshB,
    AshP,
    AshS,
    BottomContribution,
    Clip,
    LogitScale,
    RandomContribution,
    Scale,
    Shape,
    Sparsifier,
    TopBottomContribution,
    TopContribution,
    UnitDropout,
    UnitPruning,
    Vra,
    WeightDropout,
    WeightPruning,
)
from oodles.detectors.subspace import NECO, Residual, ViM
from oodles.detectors.weiper import WeiPer

__all__ = [
    "DICE",
    "FDBD",
    "GODIN",
    "KNN",
    "MSP",
    "NCI",
    "NECO",
    "ODIN",
    "RMDS",
    "SHE",
    "STAGES",
    "WHOLES",
    "AdaScale",
    "AshB",
    "AshP",
    "AshS",
    "BottomContribution",
    "Clip",
    "Combination",
    "Detector",
    "Energy",
    "Entropy",
    "ExGrad",
    "GaussianMixture",
    "GradNorm",
    "GradUncertainty",
    "Jury",
    "KLMatching",
    "LogitDetector",
    "LogitScale",
    "Mahalanobis",
    "MahalanobisPP",
    "MaxLogit",
    "NNGuide",
    "OpenMax",
    "RandomContribution",
    "ReAct",
    "Residual",
    "Scale",
    "Shape",
    "Sparsifier",
    "TempScale",
    "TopBottomContribution",
    "TopContribution",
    "Trio",
    "UnitDropout",
    "UnitPruning",
    "ViM",
    "Vra",
    "WeiPer",
    "WeightDropout",
    "WeightPruning",
    "combine",
    "default_detector",
    "detector_list",
    "fit_together",
    "load_detector",
    "parse",
]
