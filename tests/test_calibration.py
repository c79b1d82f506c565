import math
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from oodles.calibration import Threshold, calibrate
from oodles.errors import ArgumentError, DataError

RATES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
rates = st.sampled_from(RATES)


def exact(rate: float) -> Fraction:
    """The rate as it is written in decimals: 0.9 is nine tenths."""
    return Fraction(str(rate))


def brute_force(scores: list[float], rate: float) -> float | None:
    """The largest of the scores that promises the rate, by the exact chance 1 - k/(n + 1) of each rank k."""
    best = None
    for k, score in enumerate(sorted(scores), start=1):
        if 1 - Fraction(k, len(scores) + 1) >= exact(rate):
            best = score
    return best


@settings(max_examples=150, deadline=None)
@given(scores=st.lists(st.floats(-100, 100) | st.integers(-2, 2).map(float), min_size=1, max_size=120), rate=rates)
def test_threshold_is_the_best_rank_that_keeps_the_promise(scores: list[float], rate: float) -> None:
    want = brute_force(scores, rate)
    if want is None:
        with pytest.raises(DataError, match="too few"):
            calibrate(scores, rate)
        return
    threshold = calibrate(scores, rate)
    assert threshold == Threshold(value=want, id_rate=rate, held_out=len(scores))
    assert Fraction(int(threshold.is_id(np.array(scores)).sum()), len(scores)) >= exact(rate)


@settings(max_examples=60, deadline=None)
@given(pool=st.lists(st.integers(0, 30), min_size=11, max_size=60), rate=st.sampled_from([0.5, 0.7, 0.9]))
def test_leaving_each_row_out_in_turn_keeps_the_promise(pool: list[int], rate: float) -> None:
    """The guarantee itself, with no randomness: any of n + 1 rows may be the new one, ties or not."""
    kept = 0
    for index, new in enumerate(pool):
        others = np.array(pool[:index] + pool[index + 1 :], dtype=np.float64)
        kept += bool(calibrate(others, rate).is_id(np.float64(new)))
    assert Fraction(kept, len(pool)) >= exact(rate)
    if len(set(pool)) == len(pool):
        # and without ties not one row more is accepted than it takes
        assert kept == len(pool) - math.floor((1 - exact(rate)) * len(pool))


@pytest.mark.parametrize(("rate", "n"), [(0.95, 19), (0.95, 50), (0.9, 9), (0.9, 100), (0.8, 37)])
def test_simulated_coverage(rate: float, n: int) -> None:
    generator = np.random.default_rng(n)
    chances = [norm.sf(calibrate(generator.normal(size=n), rate).value) for _ in range(1500)]
    error = float(np.std(chances)) / math.sqrt(len(chances))
    want = 1 - math.floor((1 - exact(rate)) * (n + 1)) / (n + 1)
    assert want >= rate
    assert np.mean(chances) == pytest.approx(want, abs=4 * error)


@pytest.mark.parametrize(("rate", "n"), [(0.9, 9), (0.8, 4), (0.7, 9), (0.95, 19), (0.99, 99), (0.999, 999)])
def test_rounding_of_the_rate_costs_no_row(rate: float, n: int) -> None:
    """``1 - 0.9`` is a little less than a tenth in floating point; nine rows are enough all the same."""
    rank = int((1 - exact(rate)) * (n + 1))
    assert rank == (1 - exact(rate)) * (n + 1)
    assert calibrate(np.arange(1.0, n + 1), rate).value == rank


@pytest.mark.parametrize("rate", [*RATES, 0.999])
def test_too_few_rows_says_how_many_it_takes(rate: float) -> None:
    least = math.ceil(1 / (1 - exact(rate))) - 1
    for rows in {1, least // 2, least - 1} - {0, least}:
        with pytest.raises(DataError, match=f"^{rows} held-out .* at least {least}$"):
            calibrate(np.zeros(rows), rate)
    assert calibrate(np.zeros(least), rate).held_out == least


@settings(max_examples=60, deadline=None)
@given(rate=st.floats(0.5, 0.995), rows=st.integers(1, 50))
def test_the_number_it_asks_for_is_enough_and_no_more(rate: float, rows: int) -> None:
    try:
        calibrate(np.zeros(rows), rate)
    except DataError as error:
        least = int(re.findall(r"at least (\d+)$", str(error))[0])
    else:
        return
    assert least > rows
    assert calibrate(np.zeros(least), rate).value == 0
    with pytest.raises(DataError, match="too few"):
        calibrate(np.zeros(least - 1), rate)


def test_ties_are_all_accepted() -> None:
    scores = np.array([1.0] * 50 + [2.0] * 49)
    threshold = calibrate(scores, 0.9)
    assert threshold.value == 1
    assert threshold.is_id(scores).all()
    assert not threshold.is_id(np.nextafter(scores[:1], 0)).any()


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_nan_is_never_id(kind: Any) -> None:
    nan, inf = float("nan"), float("inf")
    decided = Threshold(value=-5.0, id_rate=0.95, held_out=99).is_id(kind([nan, -inf, -5.0, inf, nan]))
    assert decided.tolist() == [False, False, True, True, False]
    assert not Threshold(value=-1e300, id_rate=0.95, held_out=99).is_id(kind([nan])).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_torch_and_numpy_calibrate_alike(dtype: torch.dtype) -> None:
    scores = torch.randn(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    threshold = calibrate(scores.requires_grad_(), 0.9)
    assert threshold == calibrate(scores.detach().numpy(), 0.9)
    # the score the threshold was taken from is itself accepted: no rounding between the two
    accepted = threshold.is_id(scores.detach())
    assert int(accepted.sum()) == 200 - math.floor(0.1 * 201) + 1
    assert torch.equal(accepted, torch.from_numpy(threshold.is_id(scores.detach().numpy())))


def test_scores_are_left_as_they_were() -> None:
    scores = np.arange(100.0)[::-1].copy()
    calibrate(scores)
    assert scores.tolist() == np.arange(100.0)[::-1].tolist()


@pytest.mark.parametrize("rate", [0, 1, -0.5, 95, float("nan")])
def test_rates_that_are_no_fraction_are_refused(rate: float) -> None:
    with pytest.raises(ArgumentError, match=r"0\.95, not 95"):
        calibrate(np.arange(100.0), rate)


@pytest.mark.parametrize("scores", [[], [[1.0] * 50], 3.0])
def test_scores_that_are_no_row_are_refused(scores: Any) -> None:
    with pytest.raises(DataError, match="one non-empty row"):
        calibrate(scores)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_scores_that_are_not_finite_are_refused(kind: Any, bad: float) -> None:
    with pytest.raises(DataError, match=r"1 of 31 .* not finite, the first is number 30"):
        calibrate(kind([1.0] * 30 + [bad]))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_threshold_that_decides_nothing_is_refused(value: float) -> None:
    with pytest.raises(ArgumentError, match="decides nothing"):
        Threshold(value=value, id_rate=0.95, held_out=20)
