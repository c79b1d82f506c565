"""fDBD, NCI and SHE: their formulas, and what SHE does for classes without a correctly classified row."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from reference import detectors as slow
from support.detector_data import Pair, assert_matches, train_and_test

from oodles.detectors import SHE, parse
from oodles.errors import ShapeError
from oodles.features import Features
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
