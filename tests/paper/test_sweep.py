"""The sweep over p, against detectors fitted one by one."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.experiment import experiment, ood_features
from support.networks import one_thread  # noqa: F401
from torch.nn import functional as F

from oodles.bench.run import benchmark
from oodles.detectors import DICE, Energy, LogitDetector
from oodles.errors import ArgumentError, DataError, ShapeError
from oodles.features import Features, Head
from oodles.functional import max_logit
from oodles.metrics import evaluate
from oodles.paper.sweep import SWEEP_GRID, sweep
from oodles.testing import example_features


@pytest.fixture(scope="module")
def sets():
    return experiment()


def test_rows_are_those_of_detectors_fitted_one_by_one(sets):
    points = sweep(SWEEP_GRID, **sets, id_set="ours", run="r1")
    assert [point.p for point in points] == list(SWEEP_GRID)
    for point in points:
        detector = DICE(p=point.p).fit(sets["train"])
        id_scores = detector.score(sets["test"])
        for row, (name, part) in zip(point.rows, sets["ood"].items(), strict=True):
            by_hand = evaluate(
                id_scores, detector.score(part), detector=detector.spec, id_set="ours", ood_set=name, run="r1"
            )
            assert row == by_hand


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), p=st.floats(0, 1, exclude_max=True), bias=st.booleans())
def test_any_p_gives_the_metrics_of_dice(seed, p, bias):
    whole = example_features(90, 7, 3, seed=seed)
    head = whole.head if bias else Head(whole.head.weight)
    train, test = (Features(part.embedding, head=head) for part in (whole[:50], whole[50:]))
    ood = {"x": ood_features(head, seed + 1, rows=30)}
    (point,) = sweep([p], train=train, test=test, ood=ood)
    (row,) = benchmark({point.rows[0].detector: DICE(p=p)}, train=train, test=test, ood=ood)
    assert point.rows == [row]


def test_p_zero_is_the_energy_of_the_networks_own_logits(sets):
    (point,) = sweep([0.0], **sets)
    wanted = benchmark([Energy()], **sets)
    assert [replace(row, detector="") for row in point.rows] == [replace(row, detector="") for row in wanted]


def test_accuracy_is_that_of_the_masked_layer(sets):
    test = sets["test"]
    for point in sweep(SWEEP_GRID, **sets):
        logits = test.logits
        if point.p > 0:
            detector = DICE(p=point.p).fit(sets["train"])
            logits = F.linear(test.embedding, detector.weight_, detector.bias_)
        assert point.accuracy == float(logits.argmax(dim=1).eq(test.labels).double().mean())
    unlabelled = Features(test.embedding, head=test.head)
    assert sweep([0.5], train=sets["train"], test=unlabelled, ood=sets["ood"])[0].accuracy is None


def test_spread_and_gap_by_hand(sets):
    for point in sweep([0.0, 0.5, 0.9], **sets):
        by_energy = DICE(p=point.p).fit(sets["train"])
        by_largest = LogitDetector(sparsify=DICE(p=point.p), score=max_logit).fit(sets["train"])
        id_energy = by_energy.score(sets["test"]).double().numpy()
        id_largest = by_largest.score(sets["test"]).double()
        assert list(point.spread) == list(point.gap) == ["near", "far"]
        for name, part in sets["ood"].items():
            ood_largest = by_largest.score(part).double()
            spread = by_energy.score(part).double().numpy().std() / id_energy.mean()
            assert point.spread[name] == pytest.approx(spread, rel=1e-9)
            assert point.gap[name] == pytest.approx(float(id_largest.mean() - ood_largest.mean()), rel=1e-9, abs=1e-9)


def test_sets_without_a_head_are_scored_with_the_head_of_the_training_features(sets):
    test, part = sets["test"], sets["ood"]["near"]
    bare = Features(test.embedding, logits=test.logits)
    ood = {"near": Features(part.embedding, logits=part.logits)}
    (point,) = sweep([0.5], train=sets["train"], test=bare, ood=ood)
    (row,) = benchmark([DICE(p=0.5)], train=sets["train"], test=bare, ood=ood)
    assert point.rows == [row]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_features_of_other_precision(sets, dtype):
    train, test = (sets[name].to(dtype=dtype) for name in ("train", "test"))
    ood = {name: part.to(dtype=dtype) for name, part in sets["ood"].items()}
    points = sweep([0.0, 0.5], train=train, test=test, ood=ood)
    for point, wide in zip(points, sweep([0.0, 0.5], **sets), strict=True):
        for row, like in zip(point.rows, wide.rows, strict=True):
            assert row.auroc == pytest.approx(like.auroc, abs=0.01)


@pytest.mark.parametrize("p", [1.0, 90, -0.1, float("nan")])
def test_a_p_that_is_not_a_fraction(sets, p):
    with pytest.raises(ArgumentError, match=r"must lie in \[0, 1\); p is a fraction: 0.9, not 90"):
        sweep([0.5, p], **sets)


def test_nothing_to_sweep_over(sets):
    with pytest.raises(DataError, match="no OOD set to sweep over"):
        sweep([0.5], train=sets["train"], test=sets["test"], ood={})
    with pytest.raises(ShapeError, match="learns from the head, which"):
        sweep([0.5], train=Features(sets["train"].embedding), test=sets["test"], ood=sets["ood"])
    assert sweep([], **sets) == []
