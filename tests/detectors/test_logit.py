"""Chains of stages: any shape, sparsifier and score combine, and a chain owns its stages."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from reference import scores as slow_scores
from reference import sparsity as slow_sparsity
from support.detector_data import numpy_parts

from oodles.detectors import (
    DICE,
    SCALE,
    Detector,
    LogitDetector,
    RandomK,
    RankEnsemble,
    ReAct,
    Sparsifier,
    UnitPruning,
    detector_list,
    parse,
)
from oodles.detectors.base import check_multilabel
from oodles.detectors.network_detector import needs_network
from oodles.detectors.registry import BUILT_IN
from oodles.errors import ArgumentError
from oodles.features import Features
from oodles.functional import energy, entropy, max_logit, msp

# Composition ------------------------------------------------------------------------------------

SHAPES: list[Callable[[], Any]] = [
    tuple,
    lambda: ReAct(percentile=90),
    lambda: ReAct(threshold=1.0),
    lambda: [ReAct(percentile=95), ReAct(percentile=60)],
]
SPARSIFIERS = [None, *(entry.kind for entry in BUILT_IN if issubclass(entry.kind, Sparsifier))]
SCORES: list[tuple[Any, Callable[..., float]]] = [
    (energy, slow_scores.energy),
    (msp, slow_scores.msp),
    (max_logit, slow_scores.max_logit),
    (entropy, slow_scores.entropy),
    (partial(energy, temperature=2.5), partial(slow_scores.energy, temperature=2.5)),
    (partial(msp, temperature=2.5), partial(slow_scores.msp, temperature=2.5)),
    (partial(entropy, temperature=2.5), partial(slow_scores.entropy, temperature=2.5)),
]


def stages_of(detector: LogitDetector) -> tuple[list[str], str]:
    """The stages and the score, whether they are a chain or a stage used alone."""
    sparsifier = detector.sparsifier()
    stages = [*detector.shape_stages(), *([] if sparsifier is None else [sparsifier])]
    return [stage.stage_spec for stage in stages], repr(detector.scoring)


@pytest.mark.parametrize("sparsifier", SPARSIFIERS, ids=lambda kind: kind.name if kind else "dense")
@pytest.mark.parametrize("make_shape", SHAPES, ids=["unshaped", "percentile", "threshold", "chain"])
def test_any_three_stages_combine(features, make_shape, sparsifier):
    embedding, weight, bias = numpy_parts(features)
    for score, slow_score in SCORES:
        sparsify = sparsifier(p=0.4) if sparsifier else None
        detector = LogitDetector(shape=make_shape(), sparsify=sparsify, score=score)
        got = detector.fit(features).score(features)
        again = parse(detector.spec)
        assert again.spec == detector.spec
        assert stages_of(again) == stages_of(detector)
        if len(stages_of(detector)[0]) > 1:
            assert str(again) == str(detector)
        assert torch.equal(again.fit(features).score(features), got)

        mask = np.ones(weight.shape, dtype=bool)
        if sparsifier and sparsifier.name in slow_sparsity.MASKS:
            mask = slow_sparsity.MASKS[sparsifier.name](weight, embedding.mean(axis=0), 0.4)
        elif sparsifier:
            mask = detector.weight_.numpy() != 0  # the reference does not draw the same random weights
            assert 0.5 < mask.mean() < 0.7
        clip = min((float(shape.threshold_) for shape in detector.shapes), default=np.inf)
        logits = np.minimum(embedding, clip) @ (weight * mask).T + bias
        np.testing.assert_allclose(got, [slow_score(row) for row in logits], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("alone", "chain"),
    [
        (ReAct(percentile=80), LogitDetector(shape=ReAct(percentile=80))),
        (DICE(p=0.6), LogitDetector(sparsify=DICE(p=0.6))),
        (
            DICE(p=0.6, shape=[ReAct(percentile=80), SCALE()], score=msp),
            LogitDetector(shape=[ReAct(percentile=80), SCALE()], sparsify=DICE(p=0.6), score=msp),
        ),
    ],
    ids=lambda detector: type(detector).__name__,
)
def test_a_stage_alone_is_a_chain_of_one_stage(alone: LogitDetector, chain: LogitDetector, features: Features) -> None:
    assert alone.spec == chain.spec
    assert torch.equal(alone.fit(features).score(features), chain.fit(features).score(features))


def test_a_stage_given_to_two_chains_learns_in_each_separately(features: Features) -> None:
    shape = ReAct(percentile=70)
    one, other = (LogitDetector(shape=shape) for _ in range(2))
    one.fit(features[:40])
    other.fit(features[40:])
    assert shape.threshold_ is None
    thresholds = [float(chain.shapes[0].threshold_) for chain in (one, other)]
    want = [np.percentile(part.embedding.double().numpy(), 70) for part in (features[:40], features[40:])]
    assert thresholds == [float(np.float32(threshold)) for threshold in want]
    assert thresholds[0] != thresholds[1]


def test_a_fitted_stage_can_be_given_to_a_chain(features: Features) -> None:
    """The chain learns from what it is itself fitted on."""
    shape = ReAct(percentile=70).fit(features[:40])
    chain = LogitDetector(shape=shape)
    assert not chain.fitted
    assert torch.equal(chain.fit(features).score(features), ReAct(percentile=70).fit(features).score(features))


def test_the_bias_stays_whole(features: Features) -> None:
    chains = [each for each in detector_list() if isinstance(each, LogitDetector) and not each.dense]
    assert len(chains) > 15
    for detector in chains:
        assert torch.equal(detector.fit(features).bias_, features.head.bias)


def test_fitting_does_not_change_the_head(features: Features) -> None:
    before = features.head.weight.clone()
    detector = DICE(p=0.9).fit(features)
    detector.weight_.fill_(7)
    detector.bias_.fill_(7)
    react = ReAct().fit(features)
    react.weight_.fill_(7)
    assert torch.equal(features.head.weight, before)
    assert not (features.head.bias == 7).any()


SPARSE = [
    DICE(p=0.9),
    DICE(p=0.9, shape=ReAct(percentile=85), score=msp),
    DICE(p=0.9, shape=[ReAct(threshold=2.0), ReAct(percentile=70)], score=partial(energy, temperature=3.0)),
    LogitDetector(sparsify=RandomK(p=0.9, seed=7)),
    LogitDetector(sparsify=UnitPruning(p=0.9, by="activation"), score=max_logit),
]


@pytest.mark.parametrize("detector", SPARSE, ids=lambda detector: detector.spec)
@pytest.mark.parametrize("p", [0.0, 0.25])
def test_with_p_changes_only_p(detector: LogitDetector, p: float, features: Features) -> None:
    other = detector.with_p(p)
    assert other.spec == detector.spec.replace("0.9", str(p))
    assert other.sparsifier().p == p  # type: ignore[union-attr]
    assert detector.sparsifier().p == 0.9  # type: ignore[union-attr]
    assert not other.fitted or other.dense
    scores = other.fit(features).score(features)
    assert torch.equal(scores, parse(other.spec).fit(features).score(features))


def test_with_p_of_a_fitted_detector_is_not_fitted(features: Features) -> None:
    fitted = DICE(p=0.9, shape=ReAct(percentile=85)).fit(features[:50])
    before = fitted.score(features)
    other = fitted.with_p(0.3)
    assert not other.fitted
    other.fit(features)
    expected = DICE(p=0.3, shape=ReAct(percentile=85)).fit(features)
    assert torch.equal(other.score(features), expected.score(features))
    assert torch.equal(fitted.score(features), before)


# Several classes per input ----------------------------------------------------------------------


def several(features: Features) -> Features:
    """The same features of a model with one sigmoid per class."""
    return Features(features.embedding, labels=features.labels, head=features.head, multilabel=True)


WITHOUT_SOFTMAX = {
    *("max_logit", "joint_energy", "knn", "residual", "ddu", "godin"),
    *("mahalanobis", "rmds", "mahalanobis_pp", "gaussian_mixture", "support"),
}
NAMES = [entry.name for entry in BUILT_IN if issubclass(entry.kind, Detector) and entry.name != "rank_ensemble"]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT_SOFTMAX])
@pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")
def test_detectors_with_a_softmax_are_refused_by_name_for_multi_label_models(name: str, features: Features) -> None:
    detector = parse(name)
    message = re.escape(detector.spec) + " takes classes as exclusive, .* use joint_energy, max_l"
    with pytest.raises(ArgumentError, match=message):
        check_multilabel(detector)
    if needs_network(detector):
        return
    with pytest.raises(ArgumentError, match=message):
        detector.fit(several(features)).score(several(features))
    if name != "mcm":  # which takes no other head than a cosine one
        with pytest.raises(ArgumentError, match=message):
            detector.fit(features).score(several(features))


@pytest.mark.parametrize("name", ["max_logit", "joint_energy", "knn", "residual", "mahalanobis", "mahalanobis_pp"])
@pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")
def test_detectors_without_a_softmax_are_as_good_for_multi_label_models(name: str, features: Features) -> None:
    want = parse(name).fit(features).score(features)
    assert torch.equal(parse(name).fit(several(features)).score(several(features)), want)


def test_a_chain_is_for_multi_label_models_if_its_score_is(features: Features) -> None:
    train = several(features)
    for score in ("max_logit", "joint_energy"):
        assert torch.isfinite(parse(f"react(90)+dice(0.5)+{score}").fit(train).score(train)).all()
    with pytest.raises(ArgumentError, match=r"^react\(90\)\+dice\(0\.5\).* takes classes as exclusive"):
        parse("react(90)+dice(0.5)").fit(train)
    with pytest.raises(ArgumentError, match=r"rank_ensemble.* takes classes as exclusive"):
        RankEnsemble(detectors=["knn", "energy"]).fit(train)
    assert not RankEnsemble(detectors=["knn", "max_logit"]).needs_softmax


# Mistakes ---------------------------------------------------------------------------------------


OF_ITS_OWN = "has a shape or a score of its own"  # which would count is not obvious, so it is not guessed


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"shape": ["react"]}, "is not a Shape"),
        ({"sparsify": 0.9}, "is not a Sparsifier"),
        ({"sparsify": ReAct()}, "is not a Sparsifier"),
        ({"score": partial(energy, torch.zeros(1, 2))}, "by keyword"),
        ({"shape": ReAct(score=msp)}, OF_ITS_OWN),
        ({"shape": [SCALE(), ReAct(score=partial(energy, temperature=2.0))]}, OF_ITS_OWN),
        ({"sparsify": DICE(score=msp)}, OF_ITS_OWN),
        ({"sparsify": DICE(shape=ReAct())}, OF_ITS_OWN),
    ],
)
def test_stages_in_the_wrong_place_are_refused(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        LogitDetector(**arguments)
