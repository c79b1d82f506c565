"""The same detector with another sparsity."""

from functools import partial

import pytest
import torch
from support.experiment import experiment, ood_features

from oodles.detectors import DICE, MSP, Energy, LogitDetector, RandomK, ReAct, UnitPruning, parse
from oodles.errors import ArgumentError
from oodles.functional import energy, max_logit, msp

SPARSE = [
    DICE(p=0.9),
    DICE(p=0.9, shape=ReAct(percentile=85), score=msp),
    DICE(p=0.9, shape=[ReAct(threshold=2.0), ReAct(percentile=70)], score=partial(energy, temperature=3.0)),
    LogitDetector(sparsify=RandomK(p=0.9, seed=7)),
    LogitDetector(sparsify=UnitPruning(p=0.9, by="activation"), score=max_logit),
]


@pytest.fixture(scope="module")
def sets():
    return experiment()


@pytest.mark.parametrize("detector", SPARSE, ids=lambda detector: detector.spec)
@pytest.mark.parametrize("p", [0.0, 0.25])
def test_with_p_changes_only_p(sets, detector, p):
    other = detector.with_p(p)
    assert other.spec == detector.spec.replace("0.9", str(p))
    assert other.sparsifier().p == p
    assert detector.sparsifier().p == 0.9
    assert not other.fitted or other.dense
    scores = other.fit(sets["train"]).score(sets["test"])
    assert torch.equal(scores, parse(other.spec).fit(sets["train"]).score(sets["test"]))


def test_with_p_of_a_fitted_detector_is_not_fitted(sets):
    fitted = DICE(p=0.9, shape=ReAct(percentile=85)).fit(ood_features(sets["train"].head, 11))
    before = fitted.score(sets["test"])
    other = fitted.with_p(0.3)
    assert not other.fitted
    other.fit(sets["train"])
    expected = DICE(p=0.3, shape=ReAct(percentile=85)).fit(sets["train"])
    assert torch.equal(other.score(sets["test"]), expected.score(sets["test"]))
    assert torch.equal(fitted.score(sets["test"]), before)


@pytest.mark.parametrize("detector", [MSP(), Energy(), ReAct()], ids=lambda detector: detector.spec)
def test_with_p_needs_a_sparsifier(detector):
    with pytest.raises(ArgumentError, match="has no sparsifier, so no p to choose"):
        detector.with_p(0.5)


def test_with_p_checks_p():
    with pytest.raises(ArgumentError, match="p is a fraction"):
        DICE().with_p(90)
