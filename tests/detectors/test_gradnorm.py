"""Gradient norms in closed form are those of the written-out matrix, and of autograd."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from reference import detectors as slow
from reference import gradient as slow_gradient
from support.detector_data import Pair, assert_matches, train_and_test

from oodles.detectors import parse
from oodles.errors import ArgumentError
from oodles.testing import example_features


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("gradnorm", slow.gradnorm),
        ("gradnorm(2)", lambda rows: slow.gradnorm(rows, 2)),
        ("grad_uncertainty", slow.grad_uncertainty),
        ("exgrad", slow.exgrad),
    ],
)
@settings(max_examples=8, deadline=None)
@given(pair=train_and_test())
def test_scores_match_the_reference(text: str, reference: Callable[[slow.Rows], np.ndarray], pair: Pair) -> None:
    assert_matches(text, reference, pair)


@pytest.mark.parametrize("text", slow_gradient.BY_AUTOGRAD)
def test_closed_forms_match_autograd(text: str) -> None:
    features = example_features(6)
    assert features.head is not None
    assert features.head.bias is not None
    weight, bias = features.head.weight.double(), features.head.bias.double()
    want = [slow_gradient.BY_AUTOGRAD[text](weight, bias, row) for row in features.embedding.double()]
    torch.testing.assert_close(parse(text).score(features).double(), torch.stack(want), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("temperature", [0, -1])
def test_a_temperature_is_positive(temperature: float) -> None:
    with pytest.raises(ArgumentError, match=f"temperature={temperature} must be positive"):
        parse(f"gradnorm({temperature})")
