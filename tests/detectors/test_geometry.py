"""fDBD, NCI, SHE, CADRef and MCM: their formulas, classes without rows, and which heads MCM is for."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import detectors as slow
from support.detector_data import reference_rows

from oodles.detectors import MCM, SHE, CADRef
from oodles.errors import DataError
from oodles.features import Features, Head
from oodles.testing import check_detector, example_features


def test_she_falls_back_to_all_rows_of_a_class_and_then_to_all_rows() -> None:
    embedding = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0], [0.0, 7.0]])
    logits = torch.tensor([[9.0, 0.0, 0.0], [0.0, 9.0, 0.0], [9.0, 0.0, 0.0], [9.0, 0.0, 0.0]])
    # class 0 has one correctly classified row of two, class 1 none of two, class 2 no row
    features = Features(embedding, logits=logits, labels=torch.tensor([0, 0, 1, 1]))
    assert SHE().fit(features).patterns_.tolist() == [[1.0, 0.0], [0.0, 6.0], [1.0, 3.0]]


# CADRef -----------------------------------------------------------------------------------------


def by_hand(rows: list[list[float]], logits: list[list[float]], test: list[float], own: list[float]) -> float:
    """The score of one row; the weights of class 0 are positive, negative and zero."""
    head = Head(torch.tensor([[2.0, -3.0, 0.0], [1.0, 1.0, 1.0]]))
    detector = CADRef()
    statistics = detector.begin()
    # logits that are not the head's, so that energies can be chosen
    detector.observe(Features(torch.tensor(rows), logits=torch.tensor(logits)), statistics)
    detector.learn(statistics, head)
    return float(detector(torch.tensor([test]), torch.tensor([own])))


def test_cadref_by_hand() -> None:
    """The mean of class 0 is (1, 1, 1) and d = (3, -1, 5): 3 + 1 with the signs of the weights, 0 against them."""
    rows, logits = [[0.0, 2.0, 1.0], [2.0, 0.0, 1.0]], [[8.0, -90.0], [2.0, -90.0]]
    assert by_hand(rows, logits, [4.0, 0.0, 6.0], [10.0, -90.0]) == pytest.approx(-(4 / 10) / 10)
    # d = (-1, 3, 5): all of it against the signs, divided by the mean ID energy
    assert by_hand(rows, logits, [0.0, 4.0, 6.0], [10.0, -90.0]) == pytest.approx(-(4 / 10) / 5)


@pytest.mark.parametrize("energy", [0.0, -1e-6, -3.0, -1e4])
def test_an_energy_that_is_not_positive_does_not_reverse_cadref(energy: float) -> None:
    rows, logits = [[0.0, 2.0, 1.0], [2.0, 0.0, 1.0]], [[8.0, -90.0], [2.0, -90.0]]
    near, far = (by_hand(rows, logits, test, [energy, -2e4]) for test in ([1.5, 1.0, 1.0], [9.0, 1.0, 1.0]))
    usual = by_hand(rows, logits, [1.5, 1.0, 1.0], [5.0, -90.0])
    assert far < near < usual < 0
    assert near == pytest.approx(-(0.5 / 3.5) / 0.005, rel=1e-5)


def test_cadref_uses_the_mean_of_all_rows_for_a_class_that_is_never_predicted() -> None:
    rows, logits = [[0.0, 2.0, 1.0], [2.0, 4.0, 3.0]], [[-90.0, 8.0], [-90.0, 2.0]]
    # the mean of all is (1, 3, 2), d = (1, 0, 0)
    assert by_hand(rows, logits, [2.0, 3.0, 2.0], [10.0, -90.0]) == pytest.approx(-(1 / 7) / 10)


def test_cadref_refuses_a_mean_energy_that_is_not_positive() -> None:
    features = example_features()
    low = Features(features.embedding, head=Head(features.head.weight, torch.full((5,), -1e3)))  # type: ignore[union-attr]
    with pytest.raises(DataError, match=r"mean ID energy, which is -9\d\d"):
        CADRef().fit(low)


def test_cadref_of_zeros_is_the_most_ood_and_of_nan_is_nan() -> None:
    features = example_features()
    detector = CADRef().fit(features)
    zeros = detector.score(Features(torch.zeros(1, 24), head=features.head))
    assert torch.isfinite(zeros).all()
    assert float(zeros) < float(detector.score(features).min())
    nan = torch.full((1, 24), float("nan"))
    assert torch.isnan(detector(nan, torch.ones(1, 5))).all()
    assert torch.isnan(detector(torch.ones(1, 24), nan[:, :5])).all()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("classes", [1, 2, 5])
def test_cadref_of_embeddings_of_both_signs(classes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    head = Head(torch.randn(classes, 7, generator=generator), torch.full((classes,), 5.0))
    labels = torch.zeros(80, dtype=torch.long)
    train, test = (Features(torch.randn(80, 7, generator=generator), labels=labels, head=head) for _ in range(2))
    want = slow.cadref(reference_rows(train, test))
    np.testing.assert_allclose(CADRef().fit(train).score(test), want, rtol=2e-4, atol=2e-5)
    check_detector(CADRef(), train)


# MCM --------------------------------------------------------------------------------------------


def cosine_features(rows, width, classes, *, seed=0, scale=1.0, length=1.0) -> Features:
    """Embeddings of one length and a head whose logits are ``scale`` times the cosines."""
    generator = torch.Generator().manual_seed(seed)
    embedding = torch.nn.functional.normalize(torch.randn(rows, width, generator=generator)) * length
    weight = torch.nn.functional.normalize(torch.randn(classes, width, generator=generator)) * scale / length
    return Features(embedding, head=Head(weight))


def slow_mcm(features: Features, temperature: float) -> list[float]:
    """Row by row and class by class."""
    scores = []
    for row in features.embedding.double().numpy():
        weights = features.head.weight.double().numpy()
        cosines = [float(row @ weight / np.sqrt(row @ row) / np.sqrt(weight @ weight)) for weight in weights]
        powers = [math.exp(cosine / temperature) for cosine in cosines]
        scores.append(math.log(max(powers) / math.fsum(powers)))
    return scores


@settings(max_examples=40, deadline=None)
@given(
    width=st.integers(2, 9),
    classes=st.integers(2, 6),
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([1.0, 10.0, 100.0]),
    length=st.sampled_from([1.0, 0.25, 64.0]),
    temperature=st.sampled_from([1.0, 0.1, 3.0]),
)
def test_mcm_is_the_softmax_over_cosines(width, classes, seed, scale, length, temperature):
    train = cosine_features(12, width, classes, seed=seed, scale=scale, length=length)
    test = Features(train.embedding[3:8] * -1, head=train.head)
    detector = MCM(temperature=temperature).fit(train)
    np.testing.assert_allclose(detector.score(test), slow_mcm(test, temperature), rtol=1e-4, atol=1e-5)


def test_mcm_refuses_heads_that_are_not_cosine() -> None:
    with pytest.raises(DataError, match="is for cosine heads"):
        MCM().fit(example_features())
    almost = cosine_features(30, 8, 4)
    longer = almost.embedding.clone()
    longer[7] *= 1.02
    with pytest.raises(DataError, match=r"their norms go from 1 to 1\.02"):
        MCM().fit(Features(longer, head=almost.head))
    # a plain head on normalised embeddings, as after a LayerNorm, whose outputs all have the same norm
    plain = Head(almost.head.weight * torch.tensor([[1.0], [2.0], [1.0], [1.0]]))
    with pytest.raises(DataError, match=r"weights .* norms go from 1 to 2\."):
        MCM().fit(Features(almost.embedding, head=plain))
