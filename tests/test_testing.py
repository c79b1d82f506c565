"""The conformance suite finds detectors that are broken, each in one way, and says what is wrong."""

import copy
from collections.abc import Callable
from typing import Any, Self

import pytest
import torch
from torch import Tensor

from oodles.detectors import DICE, GODIN, ODIN, Detector, Mahalanobis, ReAct
from oodles.detectors.statistics import Mean
from oodles.errors import FileError
from oodles.features import Features, Head
from oodles.testing import check_detector, example_features, with_passes

# the example features have a dead unit, which some detectors leave out with a warning
pytestmark = pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")


class Distance(Detector):
    """Minus the distance to the mean ID embedding: a correct detector for the others to derive from."""

    learns_from = ("embedding",)
    scores_from = ("embedding",)
    mean_: Tensor

    def begin(self) -> dict[str, Any]:
        return {"mean": Mean()}

    def learn(self, statistics: dict[str, Any], head: Head) -> None:
        self.mean_ = statistics["mean"].value().float()

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        return -(embedding - self.mean_).square().sum(dim=-1)


def giving(name: str, alter: Callable[[Tensor, Tensor], Tensor]) -> Detector:
    """One whose scores are altered by a function of the scores and embeddings."""

    def forward(self: Distance, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        return alter(Distance.forward(self, embedding, logits), embedding)

    return type(name, (Distance,), {"forward": forward})()


class DependsOnPosition(Distance):
    """Right for any batch size as long as rows come in order, so only the shuffled order shows it."""

    def score(self, features: Features) -> Tensor:
        scores = super().score(features)
        return scores.sort().values if len(features) > 100 else scores


class NeverForgets(Distance):
    def fit(self, features: Features) -> Self:
        for batch in features.batches():
            self.partial_fit(batch)
        return self.finish()


class WritesIntoItsInput(ReAct):
    """As shaping in place does: the second time there is nothing left to change, so only the first shows it."""

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        return super().forward(embedding.clamp_(max=self.threshold_), logits)


class ReturnsNothing(Distance):
    def fit(self, features: Features) -> None:  # type: ignore[override]
        super().fit(features)


class ScoresUnfitted(Distance):
    """Scores before it has learned anything, against the origin instead of the mean."""

    fitted = True  # type: ignore[assignment]

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        if self.mean_ is None:
            return -embedding.square().sum(dim=-1)
        return super().forward(embedding, logits)


class LosesTheOther(Distance):
    def begin(self) -> dict[str, Any]:
        return {"mean": type("MeanThatDoesNotMerge", (Mean,), {"merge": lambda self, other: None})()}


class LastBatchOnly(Distance):
    """Right when fitted at once, wrong when the same rows come in pieces."""

    def observe(self, batch: Features, statistics: dict[str, Any]) -> None:
        if len(batch) < 50:
            statistics["mean"] = Mean()
        super().observe(batch, statistics)


class AddsToAFinishedFit(Distance):
    """Starts from nothing without saying so when rows are added to a fit that kept no statistics."""

    def _require_open(self) -> None:
        pass


class RoundsFloats(Distance):
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        if embedding.dtype == torch.float32:
            embedding = embedding.bfloat16().float()
        return super().forward(embedding, logits)


class KeepsItOutOfBuffers(DICE):
    """A constant that was learned but is not a buffer is lost when saving."""

    factor = 1.0

    def learn(self, statistics: dict[str, Any], head: Head) -> None:
        super().learn(statistics, head)
        self.factor = 2.0

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        return self.factor * super().forward(embedding, logits)


class ReplacesNan(DICE):
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        return super().forward(embedding, logits).nan_to_num()


class TakesAnyWidth(DICE):
    def score(self, features: Features) -> Tensor:
        return super().score(Features.unvalidated({"embedding": features.embedding[:, :24]}))


class GivesInfinityForHugeRows(Distance):
    def score(self, features: Features) -> Tensor:
        return super().score(features).nan_to_num(nan=torch.inf)


class ClipsInfinity(Distance):
    """What clipping does to an infinite activation, if nothing checks the rows."""

    def score(self, features: Features) -> Tensor:
        return super().score(Features.unvalidated({"embedding": features.embedding.clamp(max=1e4)}))


class NeighbourlyODIN(ODIN):
    def score_values(self, values: Tensor) -> Tensor:
        return super().score_values(values) - values.mean()


class ForgetfulODIN(ODIN):
    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        state_dict.pop(prefix + "choice_", None)


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (giving("DependsOnNeighbours", lambda scores, _: scores - scores.mean()), "depend on the batch size"),
        (DependsOnPosition(), "depend on the order of rows|depend on the batch size"),
        (NeverForgets(), "a second fit depends on the first"),
        (WritesIntoItsInput(), "changes embeddings"),
        (ReturnsNothing(), "must return the detector itself"),
        (giving("GivesAColumn", lambda scores, _: scores[:, None]), r"scores of shape \(300, 1\)"),
        (giving("GivesDoubles", lambda scores, _: scores.double()), "not float32"),
        (giving("GivesInfinity", lambda scores, embedding: scores / embedding[:, -1]), "not finite"),
        (ScoresUnfitted(), "scoring before fit must raise NotFittedError"),
        (LosesTheOther(), "merge differs from one fit"),
        (LastBatchOnly(), "partial_fit differs from fit"),
        (AddsToAFinishedFit(), "partial_fit after fit must raise ArgumentError"),
        (RoundsFloats(), "float32 and float64 disagree"),
        (ReplacesNan(p=0.5), "a NaN input does not get a NaN score"),
        (TakesAnyWidth(p=0.5), "another width must raise ShapeError"),
        (GivesInfinityForHugeRows(), "infinite scores"),
        (ClipsInfinity(), "an infinite embedding must get NaN"),
        (NeighbourlyODIN(epsilon=0.004), "depend on the batch size"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Detector) else "",
)
def test_the_suite_finds_what_is_broken(broken: Detector, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_detector(broken)


def test_what_is_not_in_a_buffer_is_found() -> None:
    with pytest.raises(FileError, match="the scores for its test rows differ"):
        check_detector(KeepsItOutOfBuffers(p=0.5))


def test_a_choice_that_is_lost_when_saving_is_found() -> None:
    with pytest.raises(FileError, match=r"does not hold a fitted ForgetfulODIN.* choice_ missing"):
        check_detector(ForgetfulODIN())


def test_the_suite_passes_a_detector_of_one_s_own() -> None:
    check_detector(Distance())


def test_made_up_columns_are_those_the_detector_needs() -> None:
    features = example_features(rows=30)
    for detector in (ODIN(), GODIN(epsilon=0.02), Mahalanobis(layers=("a",), epsilon=0.01)):
        whole = with_passes(detector, features)
        fitted = copy.deepcopy(detector).fit(whole)
        assert {step.name for step in (*fitted.trials(), *fitted.steps())} | {*detector.layers} == set(whole.layers)
        assert torch.equal(whole.embedding, features.embedding)
        assert detector.shape_ is None, "only a copy of the detector is fitted"
    assert with_passes(DICE(), features) is features
