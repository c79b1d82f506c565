"""Relative and normalised Mahalanobis and the Gaussian mixtures: their formulas, and classes with few rows."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import detectors as slow
from support.detector_data import labelled, reference_rows

from oodles.detectors import DDU, parse
from oodles.detectors import mahalanobis_variants as module
from oodles.errors import ArgumentError, DataError, FitWarning
from oodles.features import Features, Head
from oodles.testing import check_detector, example_features


@pytest.mark.parametrize("text", ["rmds", "mahalanobis_pp", "gaussian_mixture"])
def test_directions_that_do_not_vary_are_left_out_with_a_warning(text: str) -> None:
    with pytest.warns(FitWarning, match="1 of 24 directions do not vary"):
        parse(text).fit(example_features())


# DDU --------------------------------------------------------------------------------------------


def of_classes(*counts: int, width: int = 6, seed: int = 0) -> Features:
    """Signed embeddings, this many of each class."""
    rows, labels = labelled(counts, width, seed=seed)
    return Features(rows.float(), labels=labels, head=Head(torch.eye(len(counts), width)))


@settings(max_examples=20, deadline=None)
@given(
    counts=st.lists(st.integers(2, 30), min_size=1, max_size=4),
    width=st.integers(2, 24),
    seed=st.integers(0, 10_000),
    ridge=st.sampled_from([1e-4, 1e-2, 1.0]),
)
def test_ddu_matches_the_reference_also_with_fewer_rows_than_units(counts, width, seed, ridge):
    train, test = of_classes(*counts, width=width, seed=seed), of_classes(3, 3, width=width, seed=seed + 1)
    got = DDU(ridge=ridge).fit(train).score(Features(test.embedding, head=train.head))
    want = slow.ddu(reference_rows(train, Features(test.embedding, head=train.head)), ridge)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


def test_ddu_has_a_covariance_per_class() -> None:
    """A direction along which one class varies and the other does not."""
    generator = torch.Generator().manual_seed(0)
    offset = 0.3 * torch.randn(400, generator=generator)
    embedding = torch.stack([torch.ones(400), torch.zeros(400), torch.zeros(400)], dim=1)
    embedding[200:] = torch.tensor([0.0, 0.0, 1.0])
    embedding += 0.01 * torch.randn(400, 3, generator=generator)
    embedding[:200, 1] += offset[:200]
    features = Features(embedding, labels=torch.arange(400) // 200, head=Head(torch.eye(2, 3)))
    moved = torch.tensor([[1.0, 0.3, 0.0], [0.0, 0.3, 1.0]])
    scores = DDU().fit(features).score(Features(moved, head=features.head))
    assert float(scores[0]) > 0 > -50 > float(scores[1])


def test_ddu_leaves_out_classes_whose_rows_are_all_equal() -> None:
    """Their covariance is only rounding, 1e-34, and its inverse would decide everything."""
    features = of_classes(20, 20, 7, 1)
    embedding, labels = features.embedding.clone(), features.column("labels")
    embedding[labels == 2] = torch.tensor([0.1, 0.7, -0.3, 1 / 3, 0.9, 0.11])
    equal = Features(embedding, labels=labels, head=features.head)
    with pytest.warns(FitWarning, match="2 of 4 classes"):
        detector = DDU().fit(equal)
    assert len(detector.means_) == 2
    scores = detector.score(equal)
    assert torch.isfinite(scores).all()
    want = slow.ddu(reference_rows(equal, equal))
    np.testing.assert_allclose(scores, want, rtol=1e-3, atol=1e-3)
    with pytest.warns(FitWarning, match="2 of 4"):
        merged = DDU().partial_fit(equal[:19]).merge(DDU().partial_fit(equal[19:])).finish()
    torch.testing.assert_close(merged.score(equal), scores, rtol=1e-4, atol=1e-3)


def test_ddu_refuses_classes_without_spread() -> None:
    features = of_classes(1, 1, 1)
    with pytest.raises(DataError, match="does not vary within any class; give more rows per class"):
        DDU().fit(features)
    zeros = Features(torch.zeros(9, 6), labels=torch.arange(9) % 3, head=features.head)
    with pytest.raises(DataError, match="does not vary within any class"):
        DDU().fit(zeros)


def test_ddu_of_a_class_without_rows_of_one_class_and_of_zeros() -> None:
    two_of_three = of_classes(20, 0, 20)
    detector = DDU().fit(two_of_three)
    assert len(detector.means_) == 2
    zeros = detector.score(Features(torch.zeros(1, 6), head=two_of_three.head))
    assert float(zeros) < float(detector.score(two_of_three).median())
    assert torch.isfinite(DDU().fit(of_classes(30)).score(of_classes(30, seed=1))).all()
    assert torch.isnan(detector(torch.full((1, 6), float("nan")), torch.zeros(1, 3))).all()


@pytest.mark.parametrize("counts", [(40,), (40, 30), (4, 5, 6)])
def test_ddu_passes_every_check_on_embeddings_of_both_signs(counts: tuple[int, ...]) -> None:
    """Parts of the last hold fewer rows of a class than there are units."""
    check_detector(DDU(), of_classes(*counts))


def test_ddu_refuses_more_covariances_than_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    features = of_classes(9, 9, 9)
    monkeypatch.setattr(module, "MAX_VALUES", 3 * 6 * 6)
    DDU().fit(features)
    monkeypatch.setattr(module, "MAX_VALUES", 3 * 6 * 6 - 1)
    with pytest.raises(ArgumentError, match="3 covariances of 6 x 6 numbers, more than 107"):
        DDU().fit(features)
