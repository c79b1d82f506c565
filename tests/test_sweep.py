"""The sweep over p beside detectors fitted one by one; fitting together; the same detector with another p."""

import copy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import one_thread  # noqa: F401
from torch.nn import functional as F

from oodles.bench.run import benchmark
from oodles.bench.sweep import PAPER_GRID, SWEEP_GRID, sweep
from oodles.detectors import (
    DICE,
    MSP,
    Clip,
    Energy,
    LogitDetector,
    RandomContribution,
    ReAct,
    UnitPruning,
    detector_list,
    fit_together,
    parse,
)
from oodles.errors import ArgumentError, DataError, ShapeError
from oodles.features import Features, Head
from oodles.functional import energy, max_logit, msp
from oodles.metrics import evaluate
from oodles.testing import example_features


def strangers(head, seed, rows=110):
    """Embeddings of another kind of data under the same head."""
    return Features(example_features(rows, head.width, head.classes, seed=seed).embedding, head=head)


@pytest.fixture(scope="module")
def sets():
    whole = example_features(420, 18, 5, seed=1)
    ood = {"near": strangers(whole.head, 2), "far": strangers(whole.head, 3, rows=70)}
    return {"train": whole[:300], "test": whole[300:], "ood": ood}


# The sweep --------------------------------------------------------------------------------------


def test_the_grids_are_the_papers():
    assert PAPER_GRID == (0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
    assert (0.0, *PAPER_GRID) == SWEEP_GRID


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
    ood = {"x": strangers(head, seed + 1, rows=30)}
    (point,) = sweep([p], train=train, test=test, ood=ood)
    (row,) = benchmark({point.rows[0].detector: DICE(p=p)}, train=train, test=test, ood=ood)
    assert point.rows == (row,)


def test_p_zero_is_energy_of_the_networks_own_logits(sets):
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
        layer = Energy() if point.p == 0 else DICE(p=point.p).fit(sets["train"])
        largest = MSP() if point.p == 0 else LogitDetector(sparsify=layer.sparsify, score=max_logit).fit(sets["train"])
        id_energy = layer.score(sets["test"]).double().numpy()
        id_largest = (sets["test"].logits.amax(dim=1) if point.p == 0 else largest.score(sets["test"])).double()
        assert list(point.spread) == list(point.gap) == ["near", "far"]
        for name, part in sets["ood"].items():
            ood_largest = (part.logits.amax(dim=1) if point.p == 0 else largest.score(part)).double()
            spread = layer.score(part).double().numpy().std() / id_energy.mean()
            assert point.spread[name] == pytest.approx(spread, rel=1e-9)
            assert point.gap[name] == pytest.approx(float(id_largest.mean() - ood_largest.mean()), rel=1e-9, abs=1e-9)


def test_bootstrap_gives_intervals(sets):
    (point,) = sweep([0.5], **sets, bootstrap=40)
    for row in point.rows:
        low, high = row.intervals["auroc"]
        assert low <= row.auroc <= high


def test_sets_that_kept_no_head_are_scored_under_the_training_head(sets):
    # DICE learns the whole layer from the training features; so does its sweep
    test, part = sets["test"], sets["ood"]["near"]
    bare = Features(test.embedding, logits=test.logits)
    ood = {"near": Features(part.embedding, logits=part.logits)}
    (point,) = sweep([0.5], train=sets["train"], test=bare, ood=ood)
    (row,) = benchmark([DICE(p=0.5)], train=sets["train"], test=bare, ood=ood)
    assert point.rows == (row,)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_features_of_other_floats_are_swept_too(sets, dtype):
    train, test = (sets[name].to(dtype=dtype) for name in ("train", "test"))
    ood = {name: part.to(dtype=dtype) for name, part in sets["ood"].items()}
    points = sweep([0.0, 0.5], train=train, test=test, ood=ood)
    for point, wide in zip(points, sweep([0.0, 0.5], **sets), strict=True):
        for row, like in zip(point.rows, wide.rows, strict=True):
            assert row.auroc == pytest.approx(like.auroc, abs=0.01)


@pytest.mark.parametrize("p", [1.0, 90, -0.1, float("nan")])
def test_a_p_that_is_no_fraction(sets, p):
    with pytest.raises(ArgumentError, match=r"must lie in \[0, 1\); p is a fraction: 0.9, not 90"):
        sweep([0.5, p], **sets)


def test_nothing_to_sweep_over(sets):
    with pytest.raises(DataError, match="no OOD set to sweep over"):
        sweep([0.5], train=sets["train"], test=sets["test"], ood={})
    with pytest.raises(DataError, match="has no head"):
        sweep([0.5], train=Features(sets["train"].embedding), test=sets["test"], ood=sets["ood"])
    assert sweep([], **sets) == []


# Fitting together -------------------------------------------------------------------------------


def test_fitting_together_is_fitting_one_by_one(sets):
    together, alone = detector_list(), detector_list()
    fit_together(together, sets["train"])
    for one, other in zip(together, alone, strict=True):
        other.fit(sets["train"])
        for part in (sets["test"], *sets["ood"].values()):
            assert torch.equal(one.score(part), other.score(part)), one.spec
        mine, theirs = one.state_dict(), other.state_dict()
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine), one.spec


def test_fitting_together_reads_the_features_once_and_forgets_what_was_before(sets, monkeypatch):
    detectors = [detector for detector in detector_list() if "labels" not in detector.learns_from]
    fit_together(detectors, strangers(sets["train"].head, 9))
    passes = []
    batches = Features.batches
    monkeypatch.setattr(Features, "batches", lambda self, rows=None: passes.append(self) or batches(self, rows or 64))
    fit_together(detectors, sets["train"])
    monkeypatch.undo()
    assert [part is sets["train"] for part in passes].count(True) == 1
    assert all(len(part) < len(sets["train"]) / 2 for part in passes[1:])  # rows kept apart, to take ranks on
    for one in detectors:
        fresh = copy.deepcopy(one).fit(sets["train"])
        torch.testing.assert_close(one.score(sets["test"]), fresh.score(sets["test"]), rtol=1e-5, atol=1e-5)


def test_fitting_together_names_the_detector_that_cannot_learn(sets):
    with pytest.raises(ShapeError, match=r"DICE.*learns from the head"):
        fit_together([MSP(), DICE()], Features(sets["train"].embedding))
    fit_together([], sets["train"])


# Another p --------------------------------------------------------------------------------------

SPARSE = [
    DICE(p=0.9),
    DICE(p=0.9, shape=Clip(percentile=85), score=msp),
    DICE(p=0.9, shape=[Clip(threshold=2.0), Clip(percentile=70)], score=partial(energy, temperature=3.0)),
    LogitDetector(sparsify=RandomContribution(p=0.9, seed=7)),
    LogitDetector(sparsify=UnitPruning(p=0.9, by="activation"), score=max_logit),
]


@pytest.mark.parametrize("detector", SPARSE, ids=lambda detector: detector.spec)
@pytest.mark.parametrize("p", [0.0, 0.25])
def test_with_p_changes_p_and_nothing_else(sets, detector, p):
    other = detector.with_p(p)
    assert other.spec == detector.spec.replace("0.9", str(p))
    assert other.sparsify.p == p
    assert detector.sparsify.p == 0.9
    assert not other.fitted or other.dense
    scores = other.fit(sets["train"]).score(sets["test"])
    assert torch.equal(scores, parse(other.spec).fit(sets["train"]).score(sets["test"]))


def test_with_p_of_a_fitted_detector_learns_afresh(sets):
    fitted = DICE(p=0.9, shape=Clip(percentile=85)).fit(strangers(sets["train"].head, 11))
    before = fitted.score(sets["test"])
    other = fitted.with_p(0.3)
    assert not other.fitted
    other.fit(sets["train"])
    wanted = DICE(p=0.3, shape=Clip(percentile=85)).fit(sets["train"])
    assert torch.equal(other.score(sets["test"]), wanted.score(sets["test"]))
    assert torch.equal(fitted.score(sets["test"]), before)


@pytest.mark.parametrize("detector", [MSP(), Energy(), ReAct()], ids=lambda detector: detector.spec)
def test_with_p_needs_a_sparsifier(detector):
    with pytest.raises(ArgumentError, match="has no sparsifier, so no p to choose"):
        detector.with_p(0.5)


def test_with_p_checks_p():
    with pytest.raises(ArgumentError, match="p is a fraction"):
        DICE().with_p(90)


# The benchmark ----------------------------------------------------------------------------------


def test_a_benchmark_gives_a_row_a_pair_under_the_names_given(sets):
    rows = benchmark({"mine": DICE(p=0.5), "msp": MSP()}, **sets, id_set="here", run="r2", bootstrap=20)
    assert [(row.detector, row.ood_set) for row in rows] == [
        ("mine", "near"),
        ("mine", "far"),
        ("msp", "near"),
        ("msp", "far"),
    ]
    assert {(row.id_set, row.run, row.n_id) for row in rows} == {("here", "r2", 120)}
    assert [row.n_ood for row in rows[:2]] == [110, 70]
    for row in rows:
        low, high = row.intervals["fpr95"]
        assert low <= high
    by_spec = benchmark([DICE(p=0.5)], **sets)
    assert [row.detector for row in by_spec] == ["dice(0.5)+energy"] * 2
    assert np.allclose([row.auroc for row in by_spec], [row.auroc for row in rows[:2]])
    with pytest.raises(DataError, match="no OOD set"):
        benchmark([MSP()], train=sets["train"], test=sets["test"], ood={})
