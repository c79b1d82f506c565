"""KL matching, temperature scaling and OpenMax: their formulas, and fits with little to learn from."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from reference import detectors as slow
from support.detector_data import Pair, assert_matches, train_and_test

from oodles.detectors import parse
from oodles.errors import ArgumentError, FitWarning, ShapeError
from oodles.features import Features
from oodles.testing import example_features


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("kl_matching", slow.kl_matching),
        ("temp_scale", slow.temp_scale),
        ("openmax(tail=8, top=3)", lambda rows: slow.openmax(rows, 8, 3)),
    ],
)
@settings(max_examples=8, deadline=None)
@given(pair=train_and_test())
def test_scores_match_the_reference(text: str, reference: Callable[[slow.Rows], np.ndarray], pair: Pair) -> None:
    assert_matches(text, reference, pair)


def test_openmax_without_a_correctly_classified_row() -> None:
    features = example_features(20)
    wrong = (features.logits.argmax(dim=1) + 1) % features.classes
    with pytest.warns(FitWarning, match="no training row is classified correctly"):
        detector = parse("openmax").fit(Features(features.embedding, labels=wrong, head=features.head))
    assert torch.isfinite(detector.score(features)).all()


@pytest.mark.parametrize("text", ["openmax(tail=1)", "openmax(top=0)"])
def test_openmax_needs_a_tail_and_a_class(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"tail=\d+ must be at least 2 and top=\d+ at least 1"):
        parse(text)


@pytest.mark.parametrize("text", ["temp_scale", "openmax"])
def test_labels_are_required(text: str) -> None:
    features = example_features()
    with pytest.raises(ShapeError, match="learns from the labels"):
        parse(text).fit(Features(features.embedding, head=features.head))
