"""Thresholds with their guarantee on finite data, conformal p-values, and Benjamini-Hochberg."""

import math
from dataclasses import FrozenInstanceError
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import false_discovery_control

from oodles.calibration import (
    Conformal,
    Threshold,
    benjamini_hochberg,
    calibrate,
    conformal,
    kept_scores,
    p_values,
    restore_threshold,
)
from oodles.detectors import Detector, parse
from oodles.errors import ArgumentError, DataError, FileError, FitWarning, NotFittedError
from oodles.features import Features
from oodles.testing import example_features

RECORD: Any = {"value": 0.0, "id_rate": 0.5, "calibration_size": 3}
RATES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
rates = st.sampled_from(RATES)

# Thresholds ---------------------------------------------------------------------------------------


def exact(rate: float) -> Fraction:
    """The rate as it is written: 0.9 is exactly nine tenths."""
    return Fraction(str(rate))


def brute_force(scores: list[float], rate: float) -> float | None:
    """The largest score that guarantees the rate, by the exact probability 1 - k/(n + 1) of each rank k."""
    best = None
    for k, score in enumerate(sorted(scores), start=1):
        if 1 - Fraction(k, len(scores) + 1) >= exact(rate):
            best = score
    return best


@pytest.mark.filterwarnings("ignore:.* equal the threshold")
@settings(max_examples=150, deadline=None)
@given(scores=st.lists(st.floats(-100, 100) | st.integers(-2, 2).map(float), min_size=1, max_size=120), rate=rates)
def test_threshold_is_the_largest_score_that_guarantees_the_rate(scores: list[float], rate: float) -> None:
    want = brute_force(scores, rate)
    if want is None:
        with pytest.raises(DataError, match="too few"):
            calibrate(scores, rate)
        return
    threshold = calibrate(scores, rate)
    assert threshold == Threshold(value=want, id_rate=rate, calibration_size=len(scores))
    assert Fraction(int(threshold.is_id(np.array(scores)).sum()), len(scores)) >= exact(rate)


@pytest.mark.filterwarnings("ignore:.* equal the threshold")
@settings(max_examples=60, deadline=None)
@given(pool=st.lists(st.integers(0, 30), min_size=11, max_size=60), rate=st.sampled_from([0.5, 0.7, 0.9]))
def test_leaving_out_each_score_in_turn_confirms_the_guarantee(pool: list[int], rate: float) -> None:
    """The guarantee itself, without randomness: any of n + 1 scores may be the new one, with or without ties."""
    accepted = 0
    for index, new in enumerate(pool):
        others = np.array(pool[:index] + pool[index + 1 :], dtype=np.float64)
        accepted += bool(calibrate(others, rate).is_id(np.float64(new)))
    assert Fraction(accepted, len(pool)) >= exact(rate)
    if len(set(pool)) == len(pool):
        # without ties, no more scores are accepted than necessary
        assert accepted == len(pool) - math.floor((1 - exact(rate)) * len(pool))


@pytest.mark.parametrize(("rate", "n"), [(0.9, 9), (0.8, 4), (0.7, 9), (0.95, 19), (0.99, 99), (0.999, 999)])
def test_rounding_of_the_rate_does_not_change_the_rank(rate: float, n: int) -> None:
    """``1 - 0.9`` is slightly less than a tenth in floating point; nine scores must still be enough."""
    rank = int((1 - exact(rate)) * (n + 1))
    assert rank == (1 - exact(rate)) * (n + 1)
    assert calibrate(np.arange(1.0, n + 1), rate).value == rank


@pytest.mark.parametrize("rate", [*RATES, 0.999])
def test_too_few_scores_say_how_many_are_needed(rate: float) -> None:
    least = math.ceil(1 / (1 - exact(rate))) - 1
    for rows in {1, least // 2, least - 1} - {0, least}:
        with pytest.raises(DataError, match=f"^{rows} ID scores are too few .* at least {least} are needed$"):
            calibrate(np.zeros(rows), rate)
    assert calibrate(np.arange(least), rate).calibration_size == least


@pytest.mark.parametrize("rate", [1e-320, 1e-12, 0.01])
def test_a_rate_that_every_score_keeps_is_the_largest_score(rate):
    assert calibrate(torch.arange(12.0), rate).value == 11.0


def test_every_rank_is_found_among_many_scores() -> None:
    scores = np.random.default_rng(0).permutation(np.arange(1.0, 1001))
    assert [calibrate(scores, 1 - rank / 1001).value for rank in range(1, 1001)] == list(range(1, 1001))


def test_ties_are_all_accepted_and_reported_if_they_are_many() -> None:
    scores = np.array([1.0] * 50 + [2.0] * 49)
    with pytest.warns(FitWarning, match="50 of 99 ID scores equal the threshold 1, .* use another detector"):
        threshold = calibrate(scores, 0.9)
    calibrate(np.r_[[0.0] * 9, np.arange(1, 91)], 0.9)
    assert threshold.value == 1
    assert threshold.is_id(scores).all()
    assert not threshold.is_id(np.nextafter(scores[:1], 0)).any()


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_a_score_that_is_not_finite_is_never_id(kind: Any) -> None:
    nan, inf = float("nan"), float("inf")
    decided = Threshold(value=-5.0, id_rate=0.95, calibration_size=99).is_id(kind([nan, -inf, -5.0, inf, nan]))
    assert decided.tolist() == [False, False, True, False, False]
    assert not Threshold(value=-1e300, id_rate=0.95, calibration_size=99).is_id(kind([nan])).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_torch_and_numpy_calibrate_alike(dtype: torch.dtype) -> None:
    scores = torch.randn(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    threshold = calibrate(scores.requires_grad_(), 0.9)
    assert threshold == calibrate(scores.detach().numpy(), 0.9)
    # the score that the threshold equals is itself accepted: no rounding between the two
    accepted = threshold.is_id(scores.detach())
    assert int(accepted.sum()) == 200 - math.floor(0.1 * 201) + 1
    assert torch.equal(accepted, torch.from_numpy(threshold.is_id(scores.detach().numpy())))


def test_scores_are_not_modified() -> None:
    scores = np.arange(100.0)[::-1].copy()
    calibrate(scores)
    assert scores.tolist() == np.arange(100.0)[::-1].tolist()


@pytest.mark.parametrize("rate", [0, 1, -0.5, 95, float("nan")])
def test_rates_that_are_not_fractions_are_refused(rate: float) -> None:
    with pytest.raises(ArgumentError, match=r"0\.95, not 95"):
        calibrate(np.arange(100.0), rate)


@pytest.mark.parametrize("scores", [[], [[1.0] * 50], 3.0])
def test_scores_of_another_shape_are_refused(scores: Any) -> None:
    with pytest.raises(DataError, match="non-empty, one-dimensional"):
        calibrate(scores)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_scores_and_thresholds_that_are_not_finite_are_refused(bad: float) -> None:
    for kind in (np.array, torch.tensor):
        with pytest.raises(DataError, match=r"1 of 31 .* not finite, the first at index 30; leave"):
            calibrate(kind([1.0] * 30 + [bad]))
    with pytest.raises(ArgumentError, match="cannot decide anything"):
        Threshold(value=bad, id_rate=0.95, calibration_size=20)


def test_a_threshold_accepts_95_percent_by_default_and_is_a_record_that_prints_without_its_scores() -> None:
    threshold = calibrate(np.arange(1.0, 100.0))
    assert threshold.as_record() == {"value": 5.0, "id_rate": 0.95, "calibration_size": 99}
    assert repr(threshold) == "Threshold(value=5.0, id_rate=0.95, calibration_size=99)"
    with pytest.raises(FrozenInstanceError):
        threshold.value = 0.0  # type: ignore[misc]


# Scores that a threshold keeps --------------------------------------------------------------------


def test_a_threshold_has_the_p_values_of_its_calibration_scores() -> None:
    assert calibrate([3.0, 1.0, 2.0], 0.5).p_values(torch.tensor([0.0, 2.5])).tolist() == [0.25, 0.75]
    kept = calibrate([3.0, 1.0, 2.0], 0.5)
    scores = torch.tensor([0.0, 1.0, 2.5, 9.0, -torch.inf, torch.inf, torch.nan])
    assert kept.p_values(scores).tolist() == kept.p_values(scores.numpy()).tolist()
    unknown = Threshold(value=0.0, id_rate=0.5, calibration_size=3).p_values(torch.zeros(2, 3))
    assert unknown.shape == (2, 3)
    assert unknown.isnan().all()


@pytest.mark.parametrize("rows", [1, 9_999, 10_000])
def test_all_scores_are_kept_in_order(rows: int) -> None:
    kept = kept_scores(np.random.default_rng(0).permutation(np.arange(float(rows))))
    assert kept.dtype == np.float32
    assert kept.tolist() == list(range(rows))


@pytest.mark.parametrize("rows", [10_001, 30_000])
def test_of_very_many_scores_a_random_choice_is_kept(rows: int) -> None:
    kept = kept_scores(np.arange(float(rows)))
    assert len(kept) == 10_000
    assert (np.diff(kept) > 0).all(), "in order, and each at most once"
    assert set(kept.tolist()) <= set(range(rows))
    assert kept.mean() == pytest.approx(rows / 2, rel=0.02)


def test_scores_are_kept_in_float32_only_if_that_changes_none() -> None:
    assert kept_scores(np.array([0.5, 0.25])).dtype == np.float32
    kept = kept_scores(np.array([0.5, 0.1]))
    assert (kept.dtype, kept.tolist()) == (np.float64, [0.1, 0.5])


@pytest.mark.parametrize(
    "scores",
    [
        np.zeros((1, 1)),
        np.zeros(0),
        np.zeros(10_001),
        np.zeros(3, np.int64),
        np.zeros(3, np.float16),
        np.array([0.0, np.inf]),
        np.array([0.0, np.nan, 1.0]),
        np.array([1.0, 0.0]),
        np.array([1.0, 3.0, 2.0]),
        np.array([1.0, 2.0, 0.0, 3.0]),
    ],
)
def test_other_arrays_are_not_kept_scores(scores: Any) -> None:
    with pytest.raises(FileError, match="guard has no usable scores"):
        restore_threshold(RECORD, scores, "guard")


def test_a_threshold_is_restored_with_or_without_scores() -> None:
    sizes = (1, 10_000, 10_001)
    for usable in (np.array([1.0, 1.0, 2.0]), *(kept_scores(np.arange(float(size))) for size in sizes)):
        assert restore_threshold(RECORD, usable, "guard").id_scores is usable
    assert restore_threshold(RECORD, None, "guard") == Threshold(**RECORD)


# P-values -----------------------------------------------------------------------------------------


def test_p_values_agree_with_counting() -> None:
    scores, reference = torch.tensor([0.5, 2.0, 2.5, torch.nan, torch.inf]), torch.tensor([1.0, 2.0, 2.0, 3.0])
    want = [(1 + sum(other <= score for other in reference.tolist())) / 5 for score in scores[:3].tolist()]
    assert p_values(scores, reference).tolist() == [*want, 0.2, 0.2], "NaN and +inf get the smallest p-value"


@pytest.mark.parametrize("count", [9, 19, 50])
def test_p_values_are_valid_in_small_samples(count: int) -> None:
    # for scores from one distribution P(p <= a) is at most a, and exactly a if a (n + 1) is a whole number
    generator = torch.Generator().manual_seed(count)
    draws = torch.randn(4000, count + 1, generator=generator)
    values = np.array([p_values(row[:1], row[1:])[0] for row in draws])
    for level in (0.1, 0.2, 0.5):
        fraction = float((values <= level).mean())
        assert fraction <= level + 3 * np.sqrt(level * (1 - level) / len(values))
        want = np.floor(level * (count + 1)) / (count + 1)
        assert abs(fraction - want) <= 4 * np.sqrt(want * (1 - want) / len(values))


def test_the_false_discovery_rate_holds_over_a_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    false = []
    for _ in range(300):
        reference = torch.randn(200, generator=generator)
        id_scores, ood_scores = torch.randn(80, generator=generator), torch.randn(20, generator=generator) - 4
        called = benjamini_hochberg(p_values(torch.cat([id_scores, ood_scores]), reference), 0.1)
        false.append(called[:80].sum() / max(1, called.sum()))
        assert called[80:].mean() > 0.3, "some OOD rows must be found"
    assert np.mean(false) <= 0.1 + 3 * np.std(false) / np.sqrt(len(false))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.sampled_from([0.01, 0.05, 0.2, 0.5]))
def test_benjamini_hochberg_agrees_with_scipy(values: list[float], level: float) -> None:
    adjusted = false_discovery_control(values, method="bh")
    got = benjamini_hochberg(values, level)
    # at the level itself the two may round differently
    clear = np.abs(adjusted - level) > 1e-12
    assert (got == (adjusted <= level))[clear].all()


def test_a_p_value_at_its_limit_is_rejected() -> None:
    assert benjamini_hochberg([0.05]).tolist() == [True]
    assert benjamini_hochberg([0.0501]).tolist() == [False]
    assert benjamini_hochberg([0.0, 1.0, 0.09], 0.15).tolist() == [True, False, True]


def test_conformal_on_a_detector() -> None:
    features = example_features(300)
    with pytest.warns(FitWarning, match="1 of 24 directions do not vary"):
        detector = parse("mahalanobis").fit(features[:150])
    found = conformal(detector, features[150:250])
    assert repr(found) == "Conformal(Mahalanobis(epsilon=0.0), calibration_size=100)"
    values = found.p_values(features[250:])
    assert values.shape == (50,)
    assert values.tolist() == p_values(detector.score(features[250:]), detector.score(features[150:250])).tolist()
    assert 0.3 < values.mean() < 0.7, "p-values of ID rows are uniform"
    far = Features(features.embedding[:20] + 30, head=features.head)
    assert (found.p_values(far) == 1 / 101).all()
    assert found.is_ood(far, fdr=0.05).all()
    # the same decisions as Benjamini-Hochberg on the p-values of a mixed batch, at two rates that differ
    mixed = Features(torch.cat([features.embedding[250:], far.embedding]), head=features.head)
    for fdr in (0.05, 0.6):
        want = benjamini_hochberg(found.p_values(mixed), fdr)
        assert found.is_ood(mixed, fdr=fdr).tolist() == want.tolist()
    assert found.is_ood(mixed, fdr=0.6).sum() > found.is_ood(mixed, fdr=0.05).sum()
    assert found.is_ood(mixed).sum() == found.is_ood(mixed, fdr=0.05).sum() > found.is_ood(mixed, fdr=0.025).sum()
    assert found != Conformal(detector, found.scores.clone()), "each is equal to itself alone, as tensors are"
    with pytest.raises(FrozenInstanceError):
        found.scores = found.scores  # type: ignore[misc]


class FirstLogit(Detector):
    """The first logit, NaN if it is negative."""

    scores_from = ("logits",)

    def forward(self, embedding: torch.Tensor, logits: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return logits[:, 0].sqrt()


def test_conformal_refuses_what_it_cannot_rank() -> None:
    with pytest.raises(DataError, match="not finite on the calibration set"):
        conformal(FirstLogit(), Features(logits=torch.tensor([[1.0, 0.0], [-1.0, 0.0]])))
    with pytest.raises(NotFittedError, match="has not been fitted"):
        conformal(parse("knn(5)"), example_features())


@pytest.mark.parametrize("values", [[], [[0.5]], [1.5], [float("nan")]])
def test_values_that_are_not_p_values_are_refused(values: list) -> None:
    with pytest.raises(ArgumentError, match="p-values must be a non-empty list"):
        benjamini_hochberg(values)


@pytest.mark.parametrize("fdr", [0, 1, 2, -0.1, float("nan")])
def test_false_discovery_rates_that_are_not_fractions_are_refused(fdr: float) -> None:
    with pytest.raises(ArgumentError, match=f"fdr={fdr} must lie between 0 and 1"):
        benjamini_hochberg([0.5], fdr)


def test_p_values_of_numpy_arrays_are_those_of_tensors() -> None:
    scores, reference = np.array([0.5, np.nan, 3.0]), np.array([3.0, 1.0, 2.0])
    expected = p_values(torch.from_numpy(scores), torch.from_numpy(reference))
    np.testing.assert_array_equal(p_values(scores, reference), expected)
    np.testing.assert_array_equal(p_values(scores.tolist(), reference.tolist()), expected)
