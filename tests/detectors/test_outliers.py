"""Training rows far longer than the others are reported and can be dropped; what is learned is finite."""

import copy
import subprocess
import sys
import warnings
from importlib.resources import files
from pathlib import Path

import pytest
import torch

from oodles.detectors import DICE, KNN, MSP, Mahalanobis, drop_outliers, fit_together, parse
from oodles.detectors.outliers import FACTOR, RowNorms
from oodles.errors import DataError, FitWarning
from oodles.features import Features, Head
from oodles.metrics import auroc
from oodles.testing import example_features


def poisoned() -> Features:
    plain = example_features()
    embedding = plain.embedding.clone()
    embedding[7] *= 1e30
    return Features(embedding, labels=plain.labels, head=plain.head)


def outliers(*norms: float) -> list[int]:
    rows = RowNorms()
    rows.add(Features.unvalidated({"embedding": torch.tensor(norms)[:, None]}), ["embedding"])
    return rows.outliers().tolist()


def warned(action) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [str(each.message) for each in caught if "training rows have norms" in str(each.message)]


# What is found ------------------------------------------------------------------------------------


def test_rows_beyond_the_factor_are_outliers_in_either_direction_of_sign():
    assert outliers(1.0, -1.0, 1.0, FACTOR, -FACTOR) == []
    assert outliers(1.0, -1.0, 1.0, -1.01 * FACTOR, 1e30) == [3, 4]


def test_zeros_do_not_make_every_other_row_an_outlier():
    assert outliers(0.0, 0.0, 0.0, 1.0, 2.0) == []
    assert outliers(0.0, 0.0, 0.0) == []


def test_rows_that_are_not_finite_are_outliers_and_norms_that_overflow_are_compared():
    assert outliers(1.0, torch.nan, torch.inf, 2.0, 3e38) == [1, 2, 4]
    assert outliers(3e38, 3e38, 3e38) == [], "all are alike"


def test_heavy_tails_are_no_outliers():
    draws = torch.randn(20_000, generator=torch.Generator().manual_seed(0)).exp()
    assert draws.max() / draws.median() > 30
    assert outliers(*draws.tolist()) == []


@pytest.mark.parametrize("name", ["train", "test", "textures", "svhn"])
def test_no_row_of_a_real_network_is_an_outlier(name):
    features = Features.load(str(files("oodles") / "demo_pack" / name))
    assert drop_outliers(features) is features


def test_every_column_that_is_learned_from_counts():
    plain = example_features(20)
    layer = torch.ones(20, 3)
    layer[4] = 1e9
    features = Features(plain.embedding, labels=plain.labels, head=plain.head, layers={"a": layer})
    assert warned(lambda: DICE().fit(features)) == []
    (message,) = warned(lambda: Mahalanobis(layers=["a"]).fit(features))
    assert "1 of 20" in message
    assert len(drop_outliers(features)) == 19


# What is done -------------------------------------------------------------------------------------


def test_a_fit_warns_once_whatever_the_number_of_detectors():
    with pytest.warns(FitWarning, match=r"1 of 300 training rows .*drop_outliers\(features\)"):
        DICE().fit(poisoned())
    assert len(warned(lambda: fit_together([DICE(), KNN(), parse("vim"), MSP()], poisoned()))) == 1
    assert warned(lambda: DICE().fit(example_features())) == []


@pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")
def test_dropping_restores_what_one_row_ruined():
    train, same = poisoned(), example_features()
    others = Features(example_features(seed=1).embedding.flip(1), head=train.head)
    ruined, kept = Mahalanobis().fit(train), Mahalanobis().fit(drop_outliers(train))
    assert auroc(ruined.score(same), ruined.score(others)) < 0.8
    assert auroc(kept.score(same), kept.score(others)) > 0.99


def test_dropping_reads_a_store_in_parts(tmp_path):
    poisoned().save(tmp_path / "features")
    stored = Features.load(tmp_path / "features")
    left = drop_outliers(stored)
    assert left.labels.tolist() == [label for row, label in enumerate(stored.labels.tolist()) if row != 7]
    assert torch.equal(left.embedding, stored.embedding[[row for row in range(300) if row != 7]])


def test_partial_fits_and_merged_ones_warn_when_they_finish():
    whole = poisoned()
    first, second = DICE().partial_fit(whole[100:]), DICE().partial_fit(whole[:100])
    with pytest.warns(FitWarning, match="1 of 300 "):
        copy.deepcopy(first).merge(second).finish()
    assert warned(lambda: first.finish()) == []
    with pytest.warns(FitWarning, match="1 of 100 "):
        second.finish()
    assert warned(lambda: second.fit(example_features())) == [], "an earlier fit does not count"


# What is learned ----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("spec", ["fdbd", "mahalanobis", "vim", "react(100)", "default", "knn(k=200)", "pnml"])
def test_values_that_are_not_finite_are_not_learned(spec, value):
    plain = example_features()
    embedding = plain.embedding.clone()
    embedding[3:9, 2] = value
    broken = Features.unvalidated({"embedding": embedding, "logits": plain.logits, "labels": plain.labels}, plain.head)
    detector = parse(spec)
    with pytest.raises(DataError, match=r"not finite \(.*drop_outliers|6 of 300 rows contain NaN"):
        detector.fit(broken)
    assert not detector.fitted
    assert len(drop_outliers(broken)) == 294


def test_rows_too_large_for_the_detector_are_refused():
    plain = example_features()
    rows = plain.embedding.double() * 1e60
    head = Head(plain.head.weight.double() * 1e-60)
    with pytest.raises(DataError, match=r"FDBD\(\) learned values that are not finite \(mean_\)"):
        parse("fdbd").fit(Features(rows, head=head))


MANY_BATCHES = """
import torch
from studies.memory import own_memory
from oodles.detectors.outliers import RowNorms
from oodles.features import Features
rows, norms = torch.rand(1024, 2048).half(), RowNorms()
norms.add(Features(rows), ["embedding"])
before = own_memory()
for _ in range(100):
    norms.add(Features(rows), ["embedding"])
print(own_memory() - before)
"""


def test_norms_do_not_keep_the_memory_of_their_batches():
    command = [sys.executable, "-c", MANY_BATCHES]  # in a process of its own, since it depends on what was allocated
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    assert int(done.stdout) < 100e6, "the rows of all batches take 840 MB in float32"
