"""``benchmark``: one row for each detector and OOD set."""

from itertools import product

import numpy as np
import pytest
from support.experiment import experiment

from oodles.bench.run import benchmark
from oodles.detectors import DICE, MSP
from oodles.errors import ArgumentError, FitWarning, ShapeError
from oodles.features import Features


def test_one_row_per_detector_and_set_under_the_given_names():
    sets = experiment()
    rows = benchmark({"mine": DICE(p=0.5), "msp": MSP()}, **sets, id_set="here", run="r2", bootstrap=20)
    assert [(row.detector, row.ood_set) for row in rows] == list(product(("mine", "msp"), ("near", "far")))
    assert {(row.id_set, row.run, row.n_id) for row in rows} == {("here", "r2", 120)}
    assert [row.n_ood for row in rows[:2]] == [110, 70]
    for row in rows:
        low, high = row.intervals["fpr95"]
        assert low <= high
    by_spec = benchmark([DICE(p=0.5)], **sets)
    assert [row.detector for row in by_spec] == ["dice(0.5)+energy"] * 2
    assert np.allclose([row.auroc for row in by_spec], [row.auroc for row in rows[:2]])


def test_detectors_may_be_given_as_text():
    sets = experiment()
    assert benchmark(["dice(0.5)", MSP()], **sets) == benchmark([DICE(p=0.5), MSP()], **sets)
    named = benchmark({"mine": "dice(0.5)"}, **sets)
    assert [row.detector for row in named] == ["mine", "mine"]


def test_no_detector_is_dropped_because_another_has_the_same_name():
    sets = experiment()
    with pytest.raises(ArgumentError, match="two detectors are called 'msp'; give a mapping"):
        benchmark([MSP(), MSP()], **sets)
    rows = benchmark({"first": MSP(), "second": MSP()}, **sets)
    assert [row.detector for row in rows] == ["first", "first", "second", "second"]


def test_without_labels_the_detectors_that_need_them_are_left_out_with_one_warning():
    sets = experiment()
    train = sets["train"]
    sets["train"] = Features(train.embedding, logits=train.logits, head=train.head)
    with pytest.warns(FitWarning, match=r"left out, because .* has no labels: mahalanobis, she") as caught:
        rows = benchmark(["energy", "mahalanobis", "she"], **sets)
    assert len(caught) == 1
    assert {row.detector for row in rows} == {"energy"}
    with pytest.raises(ShapeError, match="learns from the labels"):
        benchmark(["mahalanobis"], **sets)
