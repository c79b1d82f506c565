"""Features of one set with the scores that a detector gives them: what the sections on a guard are made from."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from oodles.calibration import Threshold
from oodles.detectors import Detector
from oodles.explanation.findings import class_text, name_of
from oodles.features import Features
from oodles.metrics import Row, evaluate
from oodles.report.document import Rate

Floats = npt.NDArray[np.float64]

MAX_RESAMPLES, MIN_RESAMPLES, MAX_DRAWS = 1000, 100, 20_000_000
ROC_POINTS = 100


@dataclass(frozen=True, eq=False)
class Judged:
    """A set: its name, its features, their scores, and the predicted classes if there are logits."""

    name: str
    features: Features
    scores: Floats
    labels: npt.NDArray[np.int64] | None
    accepted: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, name: str, features: Features, detector: Detector, threshold: Threshold) -> "Judged":
        """Score the rows of a set."""
        scores = detector.score(features).double().numpy()
        return cls(name, features, scores, _predicted(features), threshold.is_id(scores))

    @property
    def rate(self) -> Rate:
        """The share of accepted rows."""
        return Rate(int(self.accepted.sum()), len(self.accepted))

    @property
    def ranked(self) -> Floats:
        """The scores without NaN."""
        return ranked(self.scores)

    @property
    def finite(self) -> Floats:
        """The scores that there are."""
        return self.scores[np.isfinite(self.scores)]

    def against(self, ood: "Judged", detector: str) -> Row:
        """The metrics of these rows as ID and others as OOD, with intervals from as many resamples as are quick."""
        count = MAX_DRAWS // (len(self.scores) + len(ood.scores))
        resamples = max(MIN_RESAMPLES, min(MAX_RESAMPLES, count))
        return evaluate(self.ranked, ood.ranked, detector=detector, ood_set=ood.name, bootstrap=resamples)

    def rates_by_class(self, names: Sequence[str]) -> dict[str, Rate]:
        """The share of accepted rows of each predicted class."""
        if self.labels is None:
            return {}
        found = {int(label): self.accepted[self.labels == label] for label in np.unique(self.labels)}
        return {
            class_text(label, name_of(label, names)): Rate(int(each.sum()), len(each)) for label, each in found.items()
        }


def ranked(scores: Floats) -> Floats:
    """Scores without NaN: a row that has no score is below all others, so that it is never accepted."""
    return np.where(np.isfinite(scores), scores, -np.inf)


def roc(id_scores: Floats, ood_scores: Floats) -> tuple[Floats, Floats]:
    """The shares of OOD and of ID scores at or above each of about 200 thresholds, in percent, ascending."""
    ids, oods = np.sort(id_scores), np.sort(ood_scores)
    at = np.unique(np.concatenate([_spaced(ids), _spaced(oods)]))[::-1]
    shares = [np.concatenate([[0.0], 1 - np.searchsorted(each, at, side="left") / len(each)]) for each in (oods, ids)]
    return 100 * shares[0], 100 * shares[1]


def _spaced(ordered: Floats) -> Floats:
    places = np.linspace(0, len(ordered) - 1, min(ROC_POINTS, len(ordered))).round().astype(int)
    return np.take(ordered, places)


def _predicted(features: Features) -> npt.NDArray[np.int64] | None:
    if not features.holds("logits"):
        return None
    return torch.cat([batch.logits.argmax(dim=1).cpu() for batch in features.batches()]).numpy()
