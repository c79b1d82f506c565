"""Scores of logits against the term-by-term reference, and their behaviour at extreme values."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import scores as slow

from oodles import functional as fast

logit = st.floats(-30, 30, width=32)
rows = st.integers(1, 7).flatmap(
    lambda classes: st.lists(st.lists(logit, min_size=classes, max_size=classes), min_size=1, max_size=5)
)
temperatures = st.sampled_from([0.5, 1.0, 2.0, 10.0, 1000.0])

WITH_TEMPERATURE = [
    (fast.energy, slow.energy),
    (fast.msp, slow.msp),
    (fast.entropy, slow.entropy),
    (fast.doctor, slow.doctor),
]


@pytest.mark.parametrize(("score", "reference"), WITH_TEMPERATURE)
@settings(max_examples=60, deadline=None)
@given(logits=rows, temperature=temperatures)
def test_scores_agree_with_the_reference(score, reference, logits, temperature):
    want = [reference(row, temperature) for row in logits]
    wide = score(torch.tensor(logits, dtype=torch.float64), temperature)
    assert wide.dtype == torch.float64
    np.testing.assert_allclose(wide, want, rtol=1e-10, atol=1e-10)
    narrow = score(torch.tensor(logits), temperature)
    assert narrow.dtype == torch.float32
    # at temperature T the energy is about T log C, so its float32 error grows with T
    np.testing.assert_allclose(narrow, want, rtol=2e-5, atol=2e-6 * max(1.0, temperature))


@settings(max_examples=60, deadline=None)
@given(logits=rows)
def test_max_logit_and_joint_energy_agree_with_the_reference(logits: list[list[float]]) -> None:
    assert fast.max_logit(torch.tensor(logits)).tolist() == [max(row) for row in logits]
    # one class at a time: the energy of a two-class problem with the logits 0 and z
    want = [math.fsum(slow.energy([0.0, value]) for value in row) for row in logits]
    wide = fast.joint_energy(torch.tensor(logits, dtype=torch.float64))
    np.testing.assert_allclose(wide, want, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(fast.joint_energy(torch.tensor(logits)), want, rtol=2e-5, atol=1e-9)


def test_joint_energy_counts_every_class_that_is_likely() -> None:
    """The energy of a softmax hardly notices a second class; the sum over classes does."""
    logits = torch.tensor([[9.0, -9.0, -9.0], [9.0, 9.0, -9.0], [1e4, -1e4, 0.0]])
    np.testing.assert_allclose(fast.joint_energy(logits), [9, 18, 1e4 + np.log(2)], rtol=1e-4)


def slow_gen(row: list[float], gamma: float, top: int) -> float:
    """Term by term; what a probability lacks to 1 is the sum of the others."""
    powers = [math.exp(value - max(row)) for value in row]
    total = math.fsum(powers)
    order = sorted(range(len(row)), key=lambda place: -row[place])
    others = [math.fsum(powers[:place] + powers[place + 1 :]) for place in order[:top]]
    return -math.fsum(
        (powers[place] / total * other / total) ** gamma for place, other in zip(order, others, strict=False)
    )


@settings(max_examples=60, deadline=None)
@given(logits=rows, gamma=st.sampled_from([0.1, 0.5, 1.0]), top=st.integers(1, 8))
def test_gen_agrees_with_the_reference(logits: list[list[float]], gamma: float, top: int) -> None:
    got = fast.gen(torch.tensor(logits, dtype=torch.float64), gamma, top)
    np.testing.assert_allclose(got, [slow_gen(row, gamma, top) for row in logits], rtol=1e-8, atol=1e-12)


def test_gen_takes_the_hundred_largest_probabilities_to_the_tenth_power() -> None:
    logits = torch.randn(4, 150, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    np.testing.assert_allclose(fast.gen(logits), [slow_gen(row, 0.1, 100) for row in logits.tolist()], rtol=1e-10)
    saturated = torch.tensor([[60.0, 0.0, -5.0], [0.0, 45.0, 1.0]])
    for top in (1, 2, 3):
        want = [slow_gen(row, 0.1, top) for row in saturated.tolist()]
        np.testing.assert_allclose(fast.gen(saturated, top=top), want, rtol=1e-5)


@pytest.mark.parametrize(("score", "reference"), WITH_TEMPERATURE)
def test_the_temperature_is_one_if_none_is_given(score: Callable[..., Any], reference: Callable[..., Any]) -> None:
    row = [3.0, -1.0, 0.5]
    assert score(torch.tensor([row], dtype=torch.float64)).item() == pytest.approx(reference(row, 1.0), rel=1e-12)


@settings(max_examples=30, deadline=None)
@given(logits=rows)
def test_label_probabilities(logits: list[list[float]]) -> None:
    given_logits = torch.tensor(logits, dtype=torch.float64)
    np.testing.assert_allclose(fast.label_probability(given_logits), given_logits.softmax(1).amax(1), rtol=1e-10)
    got = fast.label_probability(given_logits, multilabel=True)
    np.testing.assert_allclose(got, [1 / (1 + math.exp(-max(row))) for row in logits], rtol=1e-10)


EVERY_SCORE = [fast.energy, fast.msp, fast.max_logit, fast.entropy, fast.gen, fast.doctor, fast.joint_energy]
SETTINGS = [partial(fast.gen, top=2), *(partial(score, temperature=2.0) for score, _ in WITH_TEMPERATURE)]


@pytest.mark.parametrize("score", [*EVERY_SCORE, fast.label_probability, *SETTINGS])
def test_classes_are_in_the_last_dimension(score: Callable[..., Any]) -> None:
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    torch.testing.assert_close(score(logits), torch.stack([score(part) for part in logits]))
    torch.testing.assert_close(score(logits[0, 0]), score(logits[0])[0])
    assert torch.equal(logits, before), "what is given stays as it is"


def test_energy_does_not_overflow() -> None:
    huge = torch.tensor([[1e4, -1e4], [-1e4, -1e4]])
    np.testing.assert_allclose(fast.energy(huge), [1e4, -1e4 + np.log(2)], rtol=1e-6)


def test_msp_does_not_saturate() -> None:
    """Gaps at which a float32 probability is exactly 1 still give distinct scores."""
    gaps = torch.tensor([18.0, 25.0, 40.0, 80.0])
    logits = torch.stack([gaps, torch.zeros(4)], dim=1)
    assert (torch.softmax(logits, dim=1).amax(dim=1) == 1).all()
    scores = fast.msp(logits)
    assert (scores.diff() > 0).all()
    np.testing.assert_allclose(scores, -np.log1p(np.exp(-gaps.double().numpy())), rtol=1e-5)


@pytest.mark.parametrize("score", [fast.doctor, fast.msp])
@pytest.mark.parametrize("classes", [2, 10, 100])
def test_saturated_float32_logits_give_as_many_scores_as_in_float64(score: Callable[..., Any], classes: int) -> None:
    generator = torch.Generator().manual_seed(classes)
    logits = torch.randn(3000, classes, generator=generator)
    logits[:, 0] += 25 + 40 * torch.rand(3000, generator=generator)
    logits = (1024 * logits).round() / 1024  # differences of logits are exact in float32
    assert (torch.softmax(logits, dim=1).amax(dim=1) == 1).all()
    narrow, wide = score(logits), score(logits.double())
    assert len(narrow.unique()) == len(wide.unique()) > 2800
    assert torch.equal(narrow.argsort(stable=True), wide.argsort(stable=True))
    np.testing.assert_allclose(narrow, wide, rtol=1e-5)


def test_doctor_of_one_class_of_ties_and_of_huge_logits() -> None:
    assert fast.doctor(torch.tensor([[7.0], [-7.0]])).tolist() == [0, 0]
    # two equal logits: the two draws differ half of the time
    assert fast.doctor(torch.tensor([[1e4, 1e4, -1e4], [3e38, -3e38, 0.0]])).tolist() == [-1, 0]
    np.testing.assert_allclose(fast.doctor(torch.zeros(1, 1000)), -999, rtol=1e-6)


def test_entropy_of_a_one_hot_softmax_is_zero_and_finite() -> None:
    scores = fast.entropy(torch.tensor([[500.0, 0.0, -500.0], [0.0, 0.0, 0.0]]))
    assert scores[0] == 0
    assert scores[1] == pytest.approx(-np.log(3), rel=1e-6)


@pytest.mark.parametrize("score", EVERY_SCORE)
def test_nan_stays_nan(score: Callable[..., Any]) -> None:
    """An invalid input must not get a finite score."""
    scores = score(torch.tensor([[1.0, float("nan"), 0.0], [1.0, 2.0, 3.0]]))
    assert torch.isnan(scores).tolist() == [True, False]
