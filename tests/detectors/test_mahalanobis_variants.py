"""Relative and normalised Mahalanobis and the Gaussian mixture: their formulas with one covariance per fit."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from reference import detectors as slow
from support.detector_data import Pair, assert_matches, train_and_test

from oodles.detectors import parse
from oodles.errors import FitWarning, ShapeError
from oodles.features import Features
from oodles.testing import example_features


@pytest.mark.parametrize(
    ("text", "reference"),
    [("rmds", slow.rmds), ("mahalanobis_pp", slow.mahalanobis_pp), ("gaussian_mixture", slow.gaussian_mixture)],
)
@settings(max_examples=8, deadline=None)
@given(pair=train_and_test())
def test_scores_match_the_reference(text: str, reference: Callable[[slow.Rows], np.ndarray], pair: Pair) -> None:
    assert_matches(text, reference, pair)


@pytest.mark.parametrize("text", ["rmds", "mahalanobis_pp", "gaussian_mixture"])
def test_directions_that_do_not_vary_are_left_out_with_a_warning(text: str) -> None:
    with pytest.warns(FitWarning, match="embedding: 1 of 24 directions do not vary within classes and are left out"):
        parse(text).fit(example_features())


@pytest.mark.parametrize("text", ["rmds", "mahalanobis_pp", "gaussian_mixture"])
def test_labels_are_required(text: str) -> None:
    features = example_features()
    with pytest.raises(ShapeError, match="learns from the labels"):
        parse(text).fit(Features(features.embedding, head=features.head))
