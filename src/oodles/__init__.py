"""oodles tells when a classifier is looking at something it was never trained on.

>>> import oodles as ood
>>> ood.parse("react(90)+dice(0.7)").spec
'react(90)+dice(0.7)+energy'

Names load when first used, so that ``import oodles`` and ``oodles --help`` do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oodles import analysis as analysis
    from oodles import functional as functional
    from oodles import metrics as metrics
    from oodles import models as models
    from oodles import testing as testing
    from oodles.bench import Suite as Suite
    from oodles.bench import benchmark as benchmark
    from oodles.calibration import Threshold as Threshold
    from oodles.calibration import calibrate as calibrate
    from oodles.choice import mixture_features as mixture_features
    from oodles.choice import outlier_features as outlier_features
    from oodles.choice import select as select
    from oodles.conformity import benjamini_hochberg as benjamini_hochberg
    from oodles.conformity import conformal as conformal
    from oodles.detectors import DICE as DICE
    from oodles.detectors import FDBD as FDBD
    from oodles.detectors import GODIN as GODIN
    from oodles.detectors import KNN as KNN
    from oodles.detectors import MSP as MSP
    from oodles.detectors import NCI as NCI
    from oodles.detectors import NECO as NECO
    from oodles.detectors import ODIN as ODIN
    from oodles.detectors import RMDS as RMDS
    from oodles.detectors import SHE as SHE
    from oodles.detectors import AdaScale as AdaScale
    from oodles.detectors import AshB as AshB
    from oodles.detectors import AshP as AshP
    from oodles.detectors import AshS as AshS
    from oodles.detectors import BottomContribution as BottomContribution
    from oodles.detectors import Clip as Clip
    from oodles.detectors import Combination as Combination
    from oodles.detectors import Detector as Detector
    from oodles.detectors import Energy as Energy
    from oodles.detectors import Entropy as Entropy
    from oodles.detectors import ExGrad as ExGrad
    from oodles.detectors import GaussianMixture as GaussianMixture
    from oodles.detectors import GradNorm as GradNorm
    from oodles.detectors import GradUncertainty as GradUncertainty
    from oodles.detectors import Jury as Jury
    from oodles.detectors import KLMatching as KLMatching
    from oodles.detectors import LogitDetector as LogitDetector
    from oodles.detectors import LogitScale as LogitScale
    from oodles.detectors import Mahalanobis as Mahalanobis
    from oodles.detectors import MahalanobisPP as MahalanobisPP
    from oodles.detectors import MaxLogit as MaxLogit
    from oodles.detectors import NNGuide as NNGuide
    from oodles.detectors import OpenMax as OpenMax
    from oodles.detectors import RandomContribution as RandomContribution
    from oodles.detectors import ReAct as ReAct
    from oodles.detectors import Residual as Residual
    from oodles.detectors import Scale as Scale
    from oodles.detectors import TempScale as TempScale
    from oodles.detectors import TopBottomContribution as TopBottomContribution
    from oodles.detectors import TopContribution as TopContribution
    from oodles.detectors import Trio as Trio
    from oodles.detectors import UnitDropout as UnitDropout
    from oodles.detectors import UnitPruning as UnitPruning
    from oodles.detectors import ViM as ViM
    from oodles.detectors import Vra as Vra
    from oodles.detectors import WeightDropout as WeightDropout
    from oodles.detectors import WeightPruning as WeightPruning
    from oodles.detectors import WeiPer as WeiPer
    from oodles.detectors import combine as combine
    from oodles.detectors import default_detector as default_detector
    from oodles.detectors import detector_list as detector_list
    from oodles.detectors import load_detector as load_detector
    from oodles.detectors import parse as parse
    from oodles.errors import OodlesError as OodlesError
    from oodles.extraction import extract as extract
    from oodles.features import Features as Features
    from oodles.features import Head as Head
    from oodles.functional import energy as energy
    from oodles.functional import entropy as entropy
    from oodles.functional import max_logit as max_logit
    from oodles.functional import msp as msp
    from oodles.guard import Guard as Guard
    from oodles.guard import Verdict as Verdict
    from oodles.guard import detect as detect
    from oodles.metrics import Row as Row
    from oodles.metrics import evaluate as evaluate
    from oodles.outliers import stand_ins as stand_ins
    from oodles.perturbation import Step as Step
    from oodles.perturbation import fgsm as fgsm
    from oodles.perturbation import perturb as perturb
    from oodles.recipes import Recipe as Recipe
    from oodles.selection import noise_features as noise_features
    from oodles.selection import select_p as select_p
    from oodles.training import train as train
    from oodles.tuning import tune as tune

__version__ = "0.1.0"

_HOMES = {
    "oodles": ("analysis", "functional", "metrics", "models", "testing"),
    "oodles.bench": ("Suite", "benchmark"),
    "oodles.calibration": ("Threshold", "calibrate"),
    "oodles.choice": ("mixture_features", "outlier_features", "select"),
    "oodles.conformity": ("benjamini_hochberg", "conformal"),
    "oodles.detectors": (
        *("DICE", "MSP", "Energy", "Entropy", "MaxLogit", "ReAct", "Detector", "LogitDetector", "Clip"),
        *("ODIN", "Mahalanobis", "GODIN", "AdaScale"),
        *(
            "FDBD",
            "KNN",
            "NCI",
            "NECO",
            "RMDS",
            "SHE",
            "AshB",
            "AshP",
            "AshS",
            "Combination",
            "ExGrad",
            "GaussianMixture",
            "GradNorm",
            "GradUncertainty",
            "Jury",
            "KLMatching",
            "LogitScale",
            "MahalanobisPP",
            "NNGuide",
            "OpenMax",
            "Residual",
            "Scale",
            "TempScale",
            "Trio",
            "ViM",
            "WeiPer",
            "Vra",
            "combine",
            "default_detector",
        ),
        *("TopContribution", "BottomContribution", "TopBottomContribution", "RandomContribution"),
        *("WeightPruning", "WeightDropout", "UnitPruning", "UnitDropout"),
        *("detector_list", "load_detector", "parse"),
    ),
    "oodles.errors": ("OodlesError",),
    "oodles.extraction": ("extract",),
    "oodles.features": ("Features", "Head"),
    "oodles.functional": ("energy", "entropy", "max_logit", "msp"),
    "oodles.guard": ("Guard", "Verdict", "detect"),
    "oodles.metrics": ("Row", "evaluate"),
    "oodles.outliers": ("stand_ins",),
    "oodles.perturbation": ("Step", "fgsm", "perturb"),
    "oodles.recipes": ("Recipe",),
    "oodles.selection": ("noise_features", "select_p"),
    "oodles.training": ("train",),
    "oodles.tuning": ("tune",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'oodles' has no attribute {name!r}")
    home = _HOME[name]
    value = import_module(f"oodles.{name}") if home == "oodles" else getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
