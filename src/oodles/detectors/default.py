"""What is used if no detector is named, and the chain of stages at its core; docs/default-detector.md has the study."""

from collections.abc import Sequence

from typing_extensions import override

from oodles.detectors.base import Detector, Statistics
from oodles.detectors.ensemble import RankEnsemble
from oodles.detectors.logit import LogitDetector
from oodles.detectors.shapes import SCALE, ReAct
from oodles.detectors.sparsifiers import DICE
from oodles.features import Features

MEMBERS = (
    "react(97)+scale(65)+dice(0.05)+energy",
    "ash_b(90)+energy",
    "fdbd",
    "mahalanobis_pp",
    "knn(k=5, bank=2000)",
)
LOGIT_MEMBERS = ("energy", "gen", "max_logit")
MULTILABEL_MEMBERS = ("joint_energy", "max_logit", "knn(k=5, bank=2000)")
MULTILABEL_LOGIT_MEMBERS = ("joint_energy", "max_logit")


class ReActScaleDICE(LogitDetector):
    """ReAct, SCALE and DICE at mild settings, one after another, then energy; together they beat each of them alone."""

    def __init__(self, *, percentile: float = 97, scale: float = 65, p: float = 0.05) -> None:
        shapes = [ReAct(percentile=percentile), SCALE(percentile=scale)]
        super().__init__(shape=shapes, sparsify=DICE(p=p))
        self.percentile = percentile
        self.scale = scale
        self.p = p


class DefaultEnsemble(RankEnsemble):
    """Five detectors of different kinds, combined with Fisher's method: what is used if no detector is named.

    ReAct + SCALE + DICE, which shapes the embedding and sparsifies the head; ASH-B, which keeps only which units are
    active; fDBD, the distance to the decision boundaries; Mahalanobis++, the distance to the classes; KNN, the distance
    to single training rows. Where some are blind, others see. It needs no labels: it uses the predicted classes.
    """

    def __init__(self, *, detectors: Sequence[str | Detector] = MEMBERS) -> None:
        super().__init__(detectors=detectors, reduction="fisher")
        self.learns_from = tuple(name for name in self.learns_from if name != "labels")
        if "logits" not in self.learns_from:
            self.learns_from = (*self.learns_from, "logits")

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


def default_detector(features: Features | None = None) -> Detector:
    """The detector that is used if none is named.

    Given ``features``, one for what they hold: without embeddings it is made of detectors that need only logits, and
    for a multi-label model of detectors without a softmax.
    """
    if features is None or (features.head is not None and not features.multilabel):
        return DefaultEnsemble()
    if features.multilabel:
        return DefaultEnsemble(detectors=MULTILABEL_MEMBERS if features.width else MULTILABEL_LOGIT_MEMBERS)
    return DefaultEnsemble(detectors=LOGIT_MEMBERS)
