"""Bounds on rates beside SciPy's, by simulation with ties, and for thresholds that were changed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from oodles.calibration import Threshold, calibrate, threshold_rank
from oodles.monitor.bounds import TAIL, CalibratedRate, dkw_margin


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 3000), share=st.floats(0, 1), error=st.floats(1e-6, 0.5))
def test_the_bound_is_the_quantile_of_a_beta_distribution(size, share, error):
    rank = max(1, round(share * size))
    found = CalibratedRate(rank, size).upper(error)
    assert found == pytest.approx(stats.beta.ppf(1 - error, rank, size + 1 - rank), rel=1e-8)
    clopper_pearson = stats.binomtest(rank - 1, size).proportion_ci(1 - 2 * error, "exact").high
    assert found == pytest.approx(clopper_pearson, rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 2000), share=st.floats(0, 1), inputs=st.integers(1, 1500))
def test_limits_of_a_window_are_quantiles_of_a_beta_binomial_distribution(size, share, inputs):
    rank = max(1, round(share * size))
    low, high = CalibratedRate(rank, size).limits(inputs)
    exact = stats.betabinom(inputs, rank, size + 1 - rank)
    assert exact.cdf(round(low * inputs) - 1) <= TAIL * (1 + 1e-6)
    assert exact.cdf(round(low * inputs)) >= TAIL * (1 - 1e-6)
    assert exact.sf(round(high * inputs)) <= TAIL * (1 + 1e-6)
    assert high == 0 or exact.sf(round(high * inputs) - 1) >= TAIL * (1 - 1e-6)


def test_a_threshold_has_the_rank_that_it_was_set_at():
    scores = np.arange(1.0, 1001.0)
    threshold = calibrate(scores, 0.95)
    assert CalibratedRate.of(threshold) == CalibratedRate(50, 1000)
    assert CalibratedRate.of(Threshold(threshold.value, 0.95, 1000)) == CalibratedRate(50, 1000), "without scores"
    assert CalibratedRate(50, 1000).expected == 50 / 1001


def test_a_threshold_that_was_changed_has_the_rank_of_the_next_score():
    scores = np.arange(1.0, 101.0)
    changed = [Threshold(value, 0.95, 100, id_scores=scores) for value in (10.0, 9.5, 0.0, 100.0, 100.5)]
    assert [CalibratedRate.of(each).rank for each in changed] == [10, 10, 1, 100, 101]
    beyond = CalibratedRate.of(changed[-1])
    assert (beyond.upper(0.01), beyond.expected, beyond.limits(50)) == (1.0, 1.0, (0.0, 1.0)), "nothing is known"


@pytest.mark.filterwarnings("ignore:.* equal the threshold")
def test_ties_at_the_threshold_count_as_when_it_was_set():
    tied = calibrate(np.repeat([0.0, 1.0, 2.0, 3.0], [1, 30, 40, 29]), 0.9)
    assert (tied.value, CalibratedRate.of(tied)) == (1.0, CalibratedRate(10, 100))
    moved = Threshold(2.0, 0.9, 100, id_scores=tied.id_scores)
    assert CalibratedRate.of(moved) == CalibratedRate(32, 100)


def test_a_calibration_of_unknown_or_tiny_size_promises_nothing_and_a_huge_one_is_quick():
    assert CalibratedRate.of(Threshold(0.0, 0.95, 0)).upper(0.01) == 1.0
    assert CalibratedRate.of(Threshold(0.0, 0.95, 3)).rank == 1
    huge = CalibratedRate.of(Threshold(0.0, 0.95, 10**15))
    assert 0.05 < huge.upper(0.001) < 0.051


@pytest.mark.parametrize("values", [3, 8, 40])
@pytest.mark.filterwarnings("ignore:.* equal the threshold")
def test_the_bound_holds_with_ties(values):
    """Scores that have few different values: the true rate exceeds its bound at most as often as promised."""
    generator, error, sets = np.random.default_rng(values), 0.05, 1500
    shares = generator.dirichlet(np.ones(values))
    below = np.concatenate([[0], np.cumsum(shares)])
    wrong = 0
    for scores in generator.choice(values, p=shares, size=(sets, 100)):
        threshold = calibrate(scores.astype(np.float32), 0.8)
        wrong += below[int(threshold.value)] > CalibratedRate.of(threshold).upper(error)
    assert wrong / sets <= error + 4 * np.sqrt(error * (1 - error) / sets)


@pytest.mark.parametrize(("size", "kept"), [(20_000, 10_000), (200_000, 10_000), (40, 20)])
def test_the_bound_from_a_sample_of_the_calibration_scores_holds(size, kept):
    """How many of the kept scores are below the threshold does not depend on its true rate: both are drawn."""
    generator, error, sets = np.random.default_rng(kept), 0.02, 20_000
    rank = threshold_rank(size, 0.95)
    rates = generator.beta(rank, size + 1 - rank, sets)
    below = generator.hypergeometric(rank - 1, size - rank + 1, kept, sets)
    uppers = {count: CalibratedRate(int(count) + 1, kept).upper(error) for count in np.unique(below)}
    wrong = np.mean(rates > np.array([uppers[count] for count in below]))
    assert wrong <= error + 4 * np.sqrt(error * (1 - error) / sets)


@pytest.mark.parametrize("size", [1, 5, 100, 400])
def test_the_margin_holds_at_every_p_value_at_once(size):
    generator, error, sets = np.random.default_rng(size), 0.1, 2000
    ranks = np.sort(generator.random((sets, size)), axis=1)
    above = (ranks - np.arange(size) / size).max(axis=1)  # the true function less the empirical one, just below a score
    assert np.mean(above > dkw_margin(size, error)) <= error + 4 * np.sqrt(error * (1 - error) / sets)
