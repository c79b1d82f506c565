"""What is used if no detector is named, and the chain of stages at its core; docs/default-detector.md has the study."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from oodles.detectors.base import Detector, Statistics
from oodles.detectors.ensemble import HELD_OUT, LEARNED, MIN_ROWS, RankEnsemble, require_members
from oodles.detectors.logit import LogitDetector
from oodles.detectors.shapes import SCALE, ReAct
from oodles.detectors.sparsifiers import DICE
from oodles.errors import DataError, FitWarning
from oodles.features import Features, Head

MEMBERS = (
    "react(97)+scale(65)+dice(0.05)+energy",
    "scale(85)+energy",
    "she",
    "pnml",
    "knn(k=5, bank=2000)",
    "vim",
)
SIGNED_MEMBERS = ("vra(60)+energy", "nci", "mahalanobis", "knn(k=5, bank=2000)")
SIGNED = 0.05  # fraction of negative activations; a ReLU leaves none, a LayerNorm about half
LOGIT_MEMBERS = ("energy", "gen", "max_logit")
MULTILABEL_MEMBERS = ("joint_energy", "max_logit", "knn(k=5, bank=2000)")
MULTILABEL_LOGIT_MEMBERS = ("joint_energy", "max_logit")


def is_signed(embedding: Tensor) -> bool:
    """Whether activations are negative too, so that shapes made for a ReLU's output do not suit them."""
    return float((embedding < 0).double().mean()) > SIGNED


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

    ReAct + SCALE + DICE, which shapes the embedding and sparsifies the head; SCALE alone, with stronger scaling; SHE,
    the similarity to the mean of the predicted class; pNML, the distance from the bulk of the training rows; KNN, the
    distance to single rows; ViM, the distance to the subspace in which they vary most. Where some are blind, others
    see. It needs no labels: it uses the predicted classes.

    Scaling and sparsifying take activations to be positive, as after a ReLU. If more than 5 % of the held-out ID
    activations are negative, as after a LayerNorm, the members are those in ``signed``, unless there are none.

    >>> DefaultEnsemble().detectors
    ('react(97)+scale(65)+dice(0.05)+energy', 'scale(85)+energy', 'she', 'pnml', 'knn(k=5, bank=2000)', 'vim')
    """

    def __init__(
        self, *, detectors: Sequence[str | Detector] = MEMBERS, signed: Sequence[str | Detector] = SIGNED_MEMBERS
    ) -> None:
        from oodles.detectors.parsing import as_detector  # parsing knows every detector, this one included

        require_members("detectors", detectors)
        if signed:
            require_members("signed", signed)
        usual, others = ({each.spec: each for each in map(as_detector, given)} for given in (detectors, signed))
        super().__init__(detectors=list((usual | others).values()), reduction="fisher")
        self.detectors, self.signed = tuple(usual), tuple(others)
        self.learns_from = tuple(name for name in self.learns_from if name != "labels")
        if "logits" not in self.learns_from:
            self.learns_from = (*self.learns_from, "logits")
        self._used: tuple[str, ...] = ()

    @override
    def arguments(self) -> dict[str, Any]:
        members = {member.spec: member for member in self._members()}
        return {
            name: tuple(members[spec] for spec in specs)
            for name, specs in (("detectors", self.detectors), ("signed", self.signed))
        }

    @override
    def observe(self, batch: Features, statistics: Statistics) -> None:
        labelled = Features(
            batch.embedding if batch.holds("embedding") else None,
            logits=batch.logits,
            labels=batch.logits.argmax(dim=1),
            head=batch.head,
            layers=batch.layers,
        )
        super().observe(labelled, statistics)

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        self._used = self.signed if self._suits_signed(statistics) else self.detectors
        super().learn(statistics, head)

    def _suits_signed(self, statistics: Statistics) -> bool:
        rows = torch.cat([statistics[name].rows() for name in (HELD_OUT, LEARNED)])
        if len(rows) < MIN_ROWS:
            raise DataError(f"{self.spec} was given {len(rows)} rows; it needs at least {MIN_ROWS}")
        return bool(self.signed) and "embedding" in self._ranked() and is_signed(rows[:, : self._seen[0]])

    @override
    def learn_member(self, member: Detector, statistics: Statistics, head: Head) -> None:
        for part in member.modules():
            for name in part._buffers:
                setattr(part, name, None)
        if member.spec not in self._used:
            return
        try:
            super().learn_member(member, statistics, head)
        except DataError as error:
            warnings.warn(f"{self.spec} leaves out {member.spec}: {error}", FitWarning, stacklevel=2)
            return
        member.shape_ = torch.tensor(self._seen)  # also of one that learns nothing: it marks those that are used

    @override
    def tune(self, held_out: Features, adversarial: Features | None = None) -> None:
        if len(self.scoring_members()) < 2:
            raise DataError(f"{self.spec} has fewer than two members that can learn from these rows; name a detector")
        super().tune(held_out, adversarial)

    @override
    def scoring_members(self) -> list[Detector]:
        return [member for member in self._members() if member.shape_ is not None]


def default_detector(features: Features | None = None) -> Detector:
    """The detector that is used if none is named.

    Given ``features``, one for what they hold: without embeddings it is made of detectors that need only logits, and
    for a multi-label model of detectors without a softmax.

    >>> default_detector().spec
    'default'
    >>> default_detector(Features(logits=torch.eye(3))).spec  # of detectors that need only logits
    "default(detectors=('energy', 'gen', 'max_logit'), signed=())"
    """
    if features is None or (features.head is not None and not features.multilabel):
        return DefaultEnsemble()
    if features.multilabel:
        return DefaultEnsemble(detectors=MULTILABEL_MEMBERS if features.width else MULTILABEL_LOGIT_MEMBERS, signed=())
    return DefaultEnsemble(detectors=LOGIT_MEMBERS, signed=())
