"""What is used if no detector is named, and the chain of stages at its core; docs/default-detector.md has the study."""

import warnings
from collections.abc import Sequence

import torch
from typing_extensions import override

from oodles.detectors.base import Detector, Statistics, check_features
from oodles.detectors.ensemble import RankEnsemble
from oodles.detectors.logit import LogitDetector
from oodles.detectors.shapes import SCALE, ReAct
from oodles.detectors.sparsifiers import DICE
from oodles.detectors.support import CHECKS, LOGIT_CHECKS, Supported
from oodles.errors import DataError, FitWarning, ShapeError
from oodles.features import Features, Head

CHAIN = "react(97)+scale(65)+dice(0.05)+energy"
NEAREST = "knn(k=5, bank=2000)"
MEMBERS = (CHAIN, CHAIN, "vim", NEAREST, "mahalanobis_pp(floor=1e-06)")
LOGIT_MEMBERS = ("energy", "gen", "max_logit")
PROBABILITY_MEMBERS = ("gen", "max_logit")  # the energy of log-probabilities is always 0
NORMALISED = 1e-3  # logits whose log-sum-exp is within this of 0 are logarithms of probabilities
MULTILABEL_MEMBERS = ("joint_energy", "max_logit", NEAREST)
MULTILABEL_LOGIT_MEMBERS = ("joint_energy", "max_logit")


class ReActScaleDICE(LogitDetector):
    """ReAct, SCALE and DICE at mild settings, one after another, then energy; together they beat each of them alone.

    >>> print(ReActScaleDICE())
    ReActScaleDICE(percentile=97, scale=65, p=0.05)
    """

    def __init__(self, *, percentile: float = 97, scale: float = 65, p: float = 0.05) -> None:
        shapes = [ReAct(percentile=percentile), SCALE(percentile=scale)]
        super().__init__(shape=shapes, sparsify=DICE(p=p))
        self.percentile = percentile
        self.scale = scale
        self.p = p


class DefaultEnsemble(RankEnsemble):
    """Detectors of different kinds, combined with Fisher's method: what is used if no detector is named.

    ReAct + SCALE + DICE, which shapes the embedding and sparsifies the head and counts twice; ViM, the distance to the
    subspace in which training rows vary most; KNN, the distance to single rows; Mahalanobis++, the distance to the
    class means among directions. Two checks (:class:`Support`) lower the score of inputs far from all training rows.
    It needs no labels: it uses the predicted classes. A member that cannot learn from the rows is left out, with a
    warning.

    >>> DefaultEnsemble().detectors[2:]
    ('vim', 'knn(k=5, bank=2000)', 'mahalanobis_pp(floor=1e-06)')
    """

    def __init__(
        self, *, detectors: Sequence[str | Detector] = MEMBERS, checks: Sequence[str | Detector] = CHECKS
    ) -> None:
        super().__init__(detectors=detectors, reduction="fisher", checks=checks)
        names = (*(name for name in self.learns_from if name != "labels"), "logits")
        self.learns_from = tuple(dict.fromkeys(names))

    @override
    def _receive(self, batch: Features) -> Statistics:
        check_features(self, batch)
        missing = [name for name in self.learns_from if not batch.holds(name)]
        if missing:
            raise ShapeError(f"{self.spec} needs the {missing[0]}, which {batch} lacks; use default_detector(features)")
        return super()._receive(batch)

    @override
    def observe(self, batch: Features, statistics: Statistics) -> None:
        super().observe(batch.with_predicted_labels(), statistics)

    @override
    def learn_member(self, member: Detector, statistics: Statistics, head: Head) -> None:
        for part in member.modules():
            for name in part._buffers:
                setattr(part, name, None)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FitWarning)  # what one member cannot see, others do
                super().learn_member(member, statistics, head)
        except DataError as error:
            warnings.warn(f"{self.spec} leaves out {member.spec}: {error}", FitWarning, stacklevel=2)
            return
        member.shape_ = torch.tensor(self._seen)  # also of one that learns nothing: it marks those that are used

    @override
    def tune(self, held_out: Features, adversarial: Features | None = None) -> None:
        if all(member.spec in self.checks for member in self.scoring_members()):
            raise DataError(f"{self.spec} has no member that can learn from these rows; name a detector")
        super().tune(held_out, adversarial)

    @override
    def scoring_members(self) -> list[Detector]:
        return [member for member in self._members() if member.shape_ is not None]


def default_detector(features: Features | None = None) -> Detector:
    """Return the detector that is used if none is named.

    If ``features`` is given, the ensemble is adapted to it: without embeddings it uses only logit-based members,
    without logits only distances between embeddings, and for a multi-label model only members without a softmax.
    Logarithms of probabilities serve as logits.

    >>> default_detector().spec
    'default'
    >>> default_detector(Features(logits=torch.eye(3))).detectors
    ('energy', 'gen', 'max_logit')
    """
    if features is None or (features.head is not None and not features.multilabel):
        return DefaultEnsemble()
    if not features.classes:
        return Supported(detector=NEAREST)
    if features.multilabel and features.width:
        return DefaultEnsemble(detectors=MULTILABEL_MEMBERS)
    members = MULTILABEL_LOGIT_MEMBERS if features.multilabel else LOGIT_MEMBERS
    if not features.multilabel and bool((next(features.batches()).logits.logsumexp(dim=1).abs() < NORMALISED).all()):
        members = PROBABILITY_MEMBERS
    return DefaultEnsemble(detectors=members, checks=CHECKS if features.width else LOGIT_CHECKS)
