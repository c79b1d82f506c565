"""The one list of detectors: name in text, class, one line, paper. Parsing, help, tables and tests derive from it."""

import inspect
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import TypeVar

from oodles.detectors.adascale import AdaSCALE
from oodles.detectors.arguments import class_key
from oodles.detectors.base import Detector
from oodles.detectors.default import DefaultEnsemble, ReActScaleDICE
from oodles.detectors.ensemble import RankEnsemble
from oodles.detectors.geometry import FDBD, MCM, NCI, SHE, CADRef
from oodles.detectors.gradnorm import ExGrad, GradNorm, GradUncertainty
from oodles.detectors.gram import Gram
from oodles.detectors.logit import SCORES, LogitDetector
from oodles.detectors.mahalanobis import Mahalanobis
from oodles.detectors.mahalanobis_variants import DDU, RMDS, GaussianMixture, MahalanobisPP
from oodles.detectors.mme import MME
from oodles.detectors.neighbours import KNN, NNGuide
from oodles.detectors.odin import GODIN, IODIN, ODIN
from oodles.detectors.rankfeat import RankFeat
from oodles.detectors.score_only import DOCTOR, GEN, MSP, Energy, Entropy, JointEnergy, MaxLogit, ScoreDetector
from oodles.detectors.shapes import ASHB, ASHP, ASHS, LTS, SCALE, VRA, OptFS, ReAct
from oodles.detectors.sparsifiers import (
    DICE,
    BottomK,
    RandomK,
    TopBottomK,
    UnitDropout,
    UnitPruning,
    WeightDropout,
    WeightPruning,
)
from oodles.detectors.subspace import NECO, PNML, Residual, ViM
from oodles.detectors.support import Support, Supported
from oodles.detectors.training_logits import KLMatching, OpenMax, TempScale
from oodles.detectors.weiper import WeiPer
from oodles.errors import ArgumentError

ENTRY_POINTS = "oodles.detectors"  # the entry-point group in which an installed package announces its own detectors

Kind = TypeVar("Kind", bound=type[Detector])


@dataclass(frozen=True)
class Entry:
    """A detector: its name in text, its class, what it does in one line, and the paper it comes from.

    ``listed`` are its settings in :func:`oodles.detectors.detector_list`; None stands for the defaults, () for none.
    """

    name: str
    kind: type[Detector]
    summary: str
    paper: str = ""
    listed: tuple[str, ...] | None = None

    def settings(self) -> tuple[str, ...]:
        """The texts that :func:`oodles.detectors.detector_list` has of it."""
        return (self.name,) if self.listed is None else self.listed


_ABLATION = "an ablation in Sun & Li, ECCV 2022"
_DICE = ("dice(0.9)", "react(90)+dice(0.9)", "dice(0.9)+msp")
BUILT_IN = (
    Entry("msp", MSP, "maximum softmax probability", "Hendrycks & Gimpel, ICLR 2017"),
    Entry("max_logit", MaxLogit, "largest logit", "Hendrycks et al., ICML 2022"),
    Entry("energy", Energy, "log-sum-exp of the logits", "Liu et al., NeurIPS 2020"),
    Entry("entropy", Entropy, "negative entropy of the softmax"),
    Entry("gen", GEN, "negative generalised entropy of the softmax", "Liu et al., CVPR 2023"),
    Entry("doctor", DOCTOR, "probability that two draws from the softmax agree", "Granese et al., NeurIPS 2021"),
    Entry(
        "joint_energy",
        JointEnergy,
        "sum over classes of softplus(logit), for multi-label models",
        "Wang et al., NeurIPS 2021",
        (),
    ),
    Entry("react", ReAct, "clip activations at a percentile of ID activations", "Sun, Guo & Li, NeurIPS 2021"),
    Entry("vra", VRA, "zero small activations, clip large ones", "Xu et al., NeurIPS 2023"),
    Entry("ash_p", ASHP, "keep each input's largest activations", "Djurisic et al., ICLR 2023"),
    Entry("ash_b", ASHB, "set each input's largest activations to one value", "Djurisic et al., ICLR 2023"),
    Entry("ash_s", ASHS, "keep each input's largest activations, scaled up", "Djurisic et al., ICLR 2023"),
    Entry("scale", SCALE, "scale each input by its sum over that of its largest activations", "Xu et al., ICLR 2024"),
    Entry("lts", LTS, "scale the logits by the square of the ratio in scale", "Djurisic et al., 2024"),
    Entry("optfs", OptFS, "multiply activations by a factor for their size", "Zhao et al., ICLR 2024"),
    Entry("dice", DICE, "keep the weights that contribute most on ID data", "Sun & Li, ECCV 2022", _DICE),
    Entry("bottom_k", BottomK, "keep the weights that contribute least", _ABLATION),
    Entry("top_bottom_k", TopBottomK, "keep the contributions that are largest in absolute value", _ABLATION),
    Entry("random_k", RandomK, "keep a random selection of contributions", _ABLATION),
    Entry("weight_pruning", WeightPruning, "keep the weights that are largest in absolute value", _ABLATION),
    Entry("weight_dropout", WeightDropout, "keep a random selection of weights", _ABLATION),
    Entry("unit_pruning", UnitPruning, "keep the units with the largest weight vectors", _ABLATION),
    Entry("unit_dropout", UnitDropout, "keep a random selection of units", _ABLATION),
    Entry("kl_matching", KLMatching, "KL divergence from the nearest mean softmax", "Hendrycks et al., ICML 2022"),
    Entry("temp_scale", TempScale, "maximum softmax probability at the fitted temperature", "Guo et al., ICML 2017"),
    Entry("openmax", OpenMax, "extreme-value model of distances between logits", "Bendale & Boult, CVPR 2016"),
    Entry("gradnorm", GradNorm, "norm of the last layer's gradient towards uniform", "Huang et al., NeurIPS 2021"),
    Entry("grad_uncertainty", GradUncertainty, "norm of the gradient for a target of ones", "Lee & AlRegib, ICIP 2020"),
    Entry("exgrad", ExGrad, "expected norm of the last layer's gradient", "Igoe et al., 2022"),
    Entry("mahalanobis", Mahalanobis, "distance to the nearest class mean", "Lee et al., NeurIPS 2018"),
    Entry("rmds", RMDS, "Mahalanobis distance to the nearest class minus that to all data", "Ren et al., 2021"),
    Entry("mahalanobis_pp", MahalanobisPP, "Mahalanobis on normalised embeddings", "Mueller & Hein, ICML 2025"),
    Entry("gaussian_mixture", GaussianMixture, "log density of one Gaussian per class"),
    Entry("ddu", DDU, "log density of one Gaussian per class with its own covariance", "Mukhoti et al., CVPR 2023"),
    Entry("knn", KNN, "distance to the direction of the k-th nearest training embedding", "Sun et al., ICML 2022"),
    Entry("nnguide", NNGuide, "energy times the energy-weighted similarity to neighbours", "Park et al., ICCV 2023"),
    Entry("she", SHE, "inner product with the predicted class's mean embedding", "Zhang et al., ICLR 2023"),
    Entry("vim", ViM, "energy minus the norm outside the principal subspace", "Wang et al., CVPR 2022"),
    Entry("residual", Residual, "norm outside the principal subspace", "Wang et al., CVPR 2022"),
    Entry("neco", NECO, "fraction of the norm in the principal subspace", "Ben Ammar et al., ICLR 2024"),
    Entry("pnml", PNML, "regret of the last layer's maximum likelihood", "Bibas et al., NeurIPS 2021"),
    Entry("fdbd", FDBD, "distance to the decision boundaries", "Liu & Qin, ICML 2024"),
    Entry("nci", NCI, "alignment with the predicted class's weights", "Liu & Qin, CVPR 2025"),
    Entry("cadref", CADRef, "distance to the predicted class's mean, split by sign", "Ling et al., CVPR 2025"),
    Entry("mcm", MCM, "maximum softmax over the cosines of a cosine head", "Ming et al., NeurIPS 2022", ()),
    Entry("mme", MME, "product of five scores: ViM, class means, fDBD and others", "MME, BMVC 2025"),
    Entry("weiper", WeiPer, "histograms of activations and of noisy logits", "Granz et al., NeurIPS 2024"),
    Entry("adascale", AdaSCALE, "SCALE at a percentile per input, after an input step", "Regmi, 2025", ()),
    Entry("odin", ODIN, "softmax at temperature 1000 after an input step", "Liang et al., ICLR 2018", ()),
    Entry("iodin", IODIN, "ODIN with a step of a single input value", "OpenOOD", ()),
    Entry("godin", GODIN, "largest cosine of a DeConf head after an input step", "Hsu et al., CVPR 2020", ()),
    Entry("rankfeat", RankFeat, "energy without the first component of the last map", "Song et al., NeurIPS 2022", ()),
    Entry("gram", Gram, "deviation of inner layers' Gram matrices from their range", "Sastry & Oore, ICML 2020", ()),
    Entry("react_scale_dice", ReActScaleDICE, "ReAct, SCALE and DICE one after another"),
    Entry("rank_ensemble", RankEnsemble, "several detectors combined by their ranks on ID data", "", ()),
    Entry("support", Support, "deviation of the units from their ID means", "", ()),
    Entry("supported", Supported, "a detector that also rejects inputs far from all ID data", "", ()),
    Entry("default", DefaultEnsemble, "detectors of different kinds, combined by their ranks"),
)

_BY_NAME: dict[str, Entry] = {}


def register(name: str, *, summary: str = "", paper: str = "") -> Callable[[Kind], Kind]:
    """Decorate a detector of your own so that it can be named in text, listed and benchmarked like a built-in one.

    ``name`` is what it is called in text and on the command line: lower-case letters, digits and ``_``. (A package can
    announce its detectors in the entry-point group ``oodles.detectors`` instead.)::

        @register("first_logit", summary="the first logit")
        class FirstLogit(Detector):
            def forward(self, embedding, logits, *others):
                return logits[:, 0]

    >>> register("knn")(Energy)
    Traceback (most recent call last):
    oodles.errors.ArgumentError: register('knn'): KNN already has that name; choose another
    """

    def keep(kind: Kind) -> Kind:
        if not inspect.isclass(kind) or not issubclass(kind, Detector):
            raise ArgumentError(f"register({name!r}) is for classes; {kind!r} must derive from oodles.Detector")
        if not name.isidentifier() or name != name.lower():
            raise ArgumentError(f"register({name!r}): a name must consist of lower-case letters, digits and _")
        there = _BY_NAME.get(name)
        # a module that is reloaded defines the same class again
        if there is not None and class_key(there.kind) != class_key(kind):
            raise ArgumentError(f"register({name!r}): {class_key(there.kind)} already has that name; choose another")
        parameters = inspect.signature(kind).parameters.values()
        complete = all(parameter.default is not parameter.empty for parameter in parameters)
        line = summary or (inspect.getdoc(kind) or "").partition("\n")[0]
        _add(Entry(name, kind, line, paper, None if complete else ()))
        return kind

    return keep


def entries() -> dict[str, Entry]:
    """Every registered detector by its name in text, those of installed packages included."""
    _load_entry_points()
    return dict(_BY_NAME)


def find_class(key: str) -> type[Detector] | None:
    """A built-in class by its name, e.g. ``KNN``, or a user's by ``package.module:Class``; None if there is none.

    A user's class has to be registered, or its module imported, already: nothing is imported here.
    """
    module, colon, name = key.partition(":")
    if not colon:
        return _CLASSES.get(key)
    registered = (entry.kind for entry in entries().values() if class_key(entry.kind) == key)
    kind = next(registered, None) or getattr(sys.modules.get(module), name, None)
    return kind if inspect.isclass(kind) and issubclass(kind, Detector) and class_key(kind) == key else None


def _add(entry: Entry) -> None:
    entry.kind.name = entry.name
    _BY_NAME[entry.name] = entry
    if issubclass(entry.kind, ScoreDetector):
        SCORES[entry.kind.function] = entry.name


@cache
def _load_entry_points() -> None:
    for point in entry_points(group=ENTRY_POINTS):
        try:
            kind = point.load()
            if kind.__dict__.get("name") != point.name:  # not registered by its own module
                register(point.name)(kind)
        except Exception as error:  # one broken package must not take the others down
            warnings.warn(f"the detector {point.name} ({point.value}) cannot be loaded: {error}", stacklevel=2)


for _entry in BUILT_IN:
    _add(_entry)
_CLASSES: dict[str, type[Detector]] = {entry.kind.__name__: entry.kind for entry in BUILT_IN}
_CLASSES["LogitDetector"] = LogitDetector
