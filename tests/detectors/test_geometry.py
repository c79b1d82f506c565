"""fDBD, NCI, SHE and MCM: their formulas, what SHE does for empty classes, and which heads MCM is for."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import detectors as slow
from support.detector_data import Pair, assert_matches, train_and_test

from oodles.detectors import MCM, SHE, parse
from oodles.errors import ArgumentError, DataError, ShapeError
from oodles.features import Features, Head
from oodles.testing import example_features


@pytest.mark.parametrize(("text", "reference"), [("she", slow.she), ("fdbd", slow.fdbd), ("nci", slow.nci)])
@settings(max_examples=8, deadline=None)
@given(pair=train_and_test())
def test_scores_match_the_reference(text: str, reference: Callable[[slow.Rows], np.ndarray], pair: Pair) -> None:
    assert_matches(text, reference, pair)


def test_she_falls_back_to_all_rows_of_a_class_and_then_to_all_rows() -> None:
    embedding = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0], [0.0, 7.0]])
    logits = torch.tensor([[9.0, 0.0, 0.0], [0.0, 9.0, 0.0], [9.0, 0.0, 0.0], [9.0, 0.0, 0.0]])
    # class 0 has one correctly classified row of two, class 1 none of two, class 2 no row
    features = Features(embedding, logits=logits, labels=torch.tensor([0, 0, 1, 1]))
    assert SHE().fit(features).patterns_.tolist() == [[1.0, 0.0], [0.0, 6.0], [1.0, 3.0]]


def test_she_needs_labels() -> None:
    features = example_features()
    with pytest.raises(ShapeError, match="learns from the labels"):
        parse("she").fit(Features(features.embedding, head=features.head))


# MCM --------------------------------------------------------------------------------------------


def cosine_features(
    rows: int, width: int, classes: int, *, seed: int, scale: float = 1.0, length: float = 1.0
) -> Features:
    """Embeddings of one length and a head whose logits are ``scale`` times the cosines."""
    generator = torch.Generator().manual_seed(seed)
    embedding = torch.nn.functional.normalize(torch.randn(rows, width, generator=generator)) * length
    weight = torch.nn.functional.normalize(torch.randn(classes, width, generator=generator)) * scale / length
    return Features(embedding, head=Head(weight))


def slow_mcm(features: Features, temperature: float) -> list[float]:
    """Row by row and class by class."""
    assert features.head is not None
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
def test_mcm_is_the_softmax_over_cosines(
    width: int, classes: int, seed: int, scale: float, length: float, temperature: float
) -> None:
    train = cosine_features(12, width, classes, seed=seed, scale=scale, length=length)
    test = Features(train.embedding[3:8] * -1, head=train.head)
    detector = MCM(temperature=temperature).fit(train)
    np.testing.assert_allclose(detector.score(test), slow_mcm(test, temperature), rtol=1e-4, atol=1e-5)


def test_mcm_leaves_the_heads_own_scale_out() -> None:
    one, hundred = (cosine_features(30, 8, 4, seed=0, scale=scale) for scale in (1.0, 100.0))
    torch.testing.assert_close(MCM().fit(one).score(one), MCM().fit(hundred).score(hundred))
    assert not torch.allclose(parse("msp").score(one), parse("msp").score(hundred), atol=0.1)


def test_mcm_refuses_heads_that_are_not_cosine() -> None:
    with pytest.raises(
        DataError, match=r"MCM\(temperature=1\.0\) is for cosine heads, .* norms go from .*Use msp for oth"
    ):
        MCM().fit(example_features())
    almost = cosine_features(30, 8, 4, seed=0)
    longer = almost.embedding.clone()
    longer[7] *= 1.02
    with pytest.raises(DataError, match=r"their norms go from 1 to 1\.02"):
        MCM().fit(Features(longer, head=almost.head))


def test_mcm_needs_a_head_and_a_positive_temperature() -> None:
    features = cosine_features(30, 8, 4, seed=0)
    with pytest.raises(ShapeError, match="learns from the head"):
        MCM().fit(Features(features.embedding, logits=features.logits))
    for temperature in (0, -1, float("nan")):
        with pytest.raises(ArgumentError, match=r"temperature=.* must be positive"):
            MCM(temperature=temperature)
