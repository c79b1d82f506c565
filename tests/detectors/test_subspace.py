"""ViM, Residual and NECO: their formulas, and the dimensions that are refused."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from reference import detectors as slow
from support.detector_data import Pair, assert_matches, train_and_test

from oodles.detectors import parse
from oodles.errors import ArgumentError, DataError
from oodles.features import Features, Head
from oodles.testing import example_features


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("residual(6)", lambda rows: slow.residual(rows, 6)),
        ("vim(6)", lambda rows: slow.vim(rows, 6)),
        ("neco(4)", lambda rows: slow.neco(rows, 4)),
    ],
)
@settings(max_examples=8, deadline=None)
@given(pair=train_and_test())
def test_scores_match_the_reference(text: str, reference: Callable[[slow.Rows], np.ndarray], pair: Pair) -> None:
    assert_matches(text, reference, pair)


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


@pytest.mark.parametrize("text", ["residual(0)", "vim(0)", "neco(0)", "neco(-1)", "residual(1.5)"])
def test_dimensions_are_whole_and_positive(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"dimension=\S+ must be a whole number, at least 1"):
        parse(text)


def test_vim_refuses_logits_that_are_not_positive() -> None:
    """The scale of the residual would be negative, which would reverse the ranking."""
    features = example_features()
    assert features.head is not None
    assert features.head.bias is not None
    low = Features(features.embedding, head=Head(features.head.weight, features.head.bias - 1e4))
    with pytest.raises(DataError, match="one of them is not positive; use Residual"):
        parse("vim").fit(low)
