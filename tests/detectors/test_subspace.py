"""ViM, Residual, NECO and pNML: their formulas, and the dimensions that are refused."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import detectors as slow
from support.detector_data import Pair, assert_matches, reference_rows, train_and_test

from oodles.detectors import parse
from oodles.errors import ArgumentError, DataError
from oodles.features import Features, Head
from oodles.testing import check_detector, example_features


@pytest.mark.parametrize(
    "kind", ["independent rows", "dependent rows", "nearly dependent rows", "more classes than units"]
)
def test_the_origin_is_where_all_logits_are_zero_or_as_near_as_can_be(kind: str) -> None:
    classes = 40 if kind == "more classes than units" else 6
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(classes, 24, generator=generator), torch.randn(classes, generator=generator)
    if kind in ("dependent rows", "nearly dependent rows"):
        weight[0] = weight[1] + (1e-6 * weight[2] if kind.startswith("nearly") else 0)
    origin = parse("residual(6)").fit(Features(torch.rand(50, 24), head=Head(weight, bias))).origin_
    wanted = -np.linalg.pinv(weight.double().numpy()) @ bias.double().numpy()
    np.testing.assert_allclose(origin, wanted, rtol=1e-5, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.parametrize(("width", "dimension"), [(24, 12), (768, 512), (2048, 1000)])
def test_by_default_the_subspace_is_as_large_as_the_authors(width: int, dimension: int) -> None:
    detector = parse("residual").fit(example_features(30, width, 3))
    assert detector.outside_.shape == (width, width - dimension)


@pytest.mark.parametrize("text", ["vim(24)", "residual(24)", "residual(30)"])
def test_a_subspace_as_large_as_the_embedding_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="must be smaller than the width of the embedding, 24"):
        parse(text).fit(example_features())


def test_more_principal_directions_than_units_are_refused() -> None:
    with pytest.raises(ArgumentError, match="dimension=25 exceeds the number of units, 24"):
        parse("neco(25)").fit(example_features())


def test_vim_refuses_logits_that_are_not_positive() -> None:
    """The scale of the residual would be negative, which would reverse the ranking."""
    features = example_features()
    low = Features(features.embedding, head=Head(features.head.weight, features.head.bias - 1e4))
    with pytest.raises(DataError, match="one of them is not positive; use Residual"):
        parse("vim").fit(low)


# pNML -------------------------------------------------------------------------------------------


def signed(rows: int, width: int, classes: int, seed: int, *, length: float = 1.0) -> Features:
    """Embeddings of both signs, and a head whose logits are as large as those of a trained network at length 1."""
    generator = torch.Generator().manual_seed(seed)
    embedding = length * torch.randn(rows, width, generator=generator)
    head = Head(3 * torch.randn(classes, width, generator=generator), torch.randn(classes, generator=generator))
    return Features(embedding, head=head)


@settings(max_examples=20, deadline=None)
@given(
    rows=st.sampled_from([3, 8, 40, 200]),
    width=st.integers(2, 24),
    classes=st.integers(2, 8),
    seed=st.integers(0, 10_000),
    length=st.sampled_from([1e-3, 1.0, 1e4]),
)
def test_pnml_matches_the_reference_also_with_fewer_rows_than_units(rows, width, classes, seed, length):
    train = signed(rows, width, classes, seed, length=length)
    test = Features(torch.cat([train.embedding[:3], signed(6, width, classes, seed + 1).embedding]), head=train.head)
    got, want = parse("pnml").fit(train).score(test), slow.pnml(reference_rows(labelled(train), test))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)


def labelled(features: Features) -> Features:
    return Features(features.embedding, labels=features.logits.argmax(dim=1), head=features.head)


def test_pnml_sees_what_lies_outside_the_span_of_the_training_rows() -> None:
    """The leverage of such a row is 0, so without the part outside it would be the most ID of all."""
    train = signed(50, 6, 4, seed=0)
    flat = train.embedding.clone()
    flat[:, 5] = 0
    detector = parse("pnml").fit(Features(flat, head=train.head))
    outside = torch.zeros(1, 6)
    outside[0, 5] = 1
    score, usual = (detector.score(Features(rows, head=train.head)) for rows in (outside, flat))
    assert float(score) < float(usual.min())
    regret = np.log(sum(1 / (2 - p) for p in torch.softmax(train.head(outside).double()[0], dim=0).tolist()))
    np.testing.assert_allclose(score, -regret / np.log(4), rtol=1e-5)


def test_pnml_does_not_call_an_embedding_of_zeros_the_most_id() -> None:
    features = example_features()
    with_zeros = Features(torch.cat([torch.zeros(1, 24), features.embedding]), head=features.head)
    scores = parse("pnml").fit(features).score(with_zeros)
    assert scores[0] < scores[1:].min()


def test_pnml_depends_on_the_direction_only() -> None:
    features = signed(60, 8, 4, seed=0)
    detector = parse("pnml").fit(features)
    longer = Features(features.embedding * 64, head=features.head)
    torch.testing.assert_close(detector.score(longer), detector.score(features))
    torch.testing.assert_close(parse("pnml").fit(longer).score(features), detector.score(features))


def test_pnml_distinguishes_id_rows_whose_regret_is_tiny() -> None:
    """With many rows the regret is far below the rounding error of 1, from which it must not be subtracted."""
    features = signed(20_000, 4, 3, seed=0)
    sure = Features(features.embedding, head=Head(features.head.weight * 6))  # type: ignore[union-attr]
    scores = parse("pnml").fit(sure).score(sure)
    assert len(scores.unique()) > 19_000
    assert float(scores.abs().median()) < 1e-3
    wide = slow.pnml(reference_rows(labelled(sure), sure[:50]))
    np.testing.assert_allclose(scores[:50], wide, rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize("classes", [1, 2])
def test_pnml_with_one_or_two_classes(classes: int) -> None:
    features = signed(40, 5, classes, seed=0)
    scores = parse("pnml").fit(features).score(features)
    assert torch.isfinite(scores).all()
    assert bool((scores == 0).all()) == (classes == 1), "a single class is always certain"


@pytest.mark.parametrize("rows", [6, 400])
def test_pnml_passes_every_check_with_and_without_a_part_outside(rows: int) -> None:
    """With 400 rows nothing is outside, and an empty tensor is saved and exported."""
    features = signed(rows * 3, 9 if rows == 400 else 24, 4, seed=0)
    check_detector(parse("pnml"), labelled(features))
    assert parse("pnml").fit(features).outside_.shape[1] == (0 if rows == 400 else 6)


@settings(max_examples=8, deadline=None)
@given(pair=train_and_test())
def test_mme_matches_the_reference(pair: Pair) -> None:
    assert_matches("mme", slow.mme, pair)
