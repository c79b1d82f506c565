"""Metrics against a slow reference that tries every threshold, and against scikit-learn."""

import itertools
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import metrics as slow
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from oodles import metrics
from oodles.errors import ArgumentError, DataError

Array = npt.NDArray[Any]

EXACT = 1e-12
FIELDS = ("fpr95", "auroc", "aupr_id", "aupr_ood", "detection_error", "fpr95_ood")
GRID_TYPES = (np.int8, np.int32, np.int64, np.uint8, np.float16, np.float32, np.float64)

# (PARALLEL_FROM, BLOCK): large arrays only, one thread with small blocks, two threads with blocks of one or a few
PATHS = [(1 << 17, 1 << 17), (1 << 30, 3), (1, 1), (2, 5), (1, 1 << 17)]


def neighbours(base: float, count: int = 3) -> list[float]:
    """Numbers around ``base`` that differ only in their last bits."""
    around = [base]
    for _ in range(count):
        around = [np.nextafter(around[0], -np.inf), *around, np.nextafter(around[-1], np.inf)]
    return [float(value) for value in around]


def arrays_of(values: st.SearchStrategy[Any], dtype: Any, most: int = 30) -> st.SearchStrategy[Array]:
    return st.lists(values, min_size=1, max_size=most).map(lambda drawn: np.array(drawn, dtype=dtype))


grids = st.sampled_from(GRID_TYPES).flatmap(lambda dtype: arrays_of(st.integers(0, 4), dtype))
singles = arrays_of(st.floats(-100, 100, width=32), np.float32)
doubles = arrays_of(st.floats(-1e9, 1e9, allow_subnormal=False), np.float64)
signed_zeros = arrays_of(st.sampled_from([-1.0, -0.0, 0.0, 1.0]), np.float64)
last_bits = st.sampled_from([1.0, -1.0, 0.1, 1e300, -3e-200]).flatmap(
    lambda base: st.tuples(*[arrays_of(st.sampled_from(neighbours(base)), np.float64)] * 2)
)
one_set = st.one_of(grids, singles, doubles, signed_zeros)
pairs = st.tuples(one_set, one_set)
infinite = arrays_of(st.sampled_from([-np.inf, -1.0, 0.0, 2.0, 1e308]), np.float64)
paths = st.sampled_from(PATHS)


def evaluated(ids: Any, oods: Any, path: tuple[int, int] = PATHS[0]) -> dict[str, float]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "PARALLEL_FROM", path[0])
        patch.setattr(metrics, "BLOCK", path[1])
        row = metrics.evaluate(ids, oods)
    return {name: getattr(row, name) for name in FIELDS}


# Against the reference ----------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(scores=pairs | last_bits, path=paths)
def test_evaluate_agrees_with_the_reference(scores: tuple[Array, Array], path: tuple[int, int]) -> None:
    """Also if scores differ only in the last bit: they are not ties."""
    assert evaluated(*scores, path) == pytest.approx(slow.everything(*scores), abs=EXACT)


@settings(max_examples=60, deadline=None)
@given(ids=infinite, oods=infinite, path=paths)
def test_minus_infinity_is_an_ordinary_value(ids: Array, oods: Array, path: tuple[int, int]) -> None:
    # that there are no warnings is tested separately below
    with np.errstate(all="ignore"):
        got = evaluated(ids, oods, path)
    assert got == pytest.approx(slow.everything(ids, oods), abs=EXACT)


@pytest.mark.parametrize("path", PATHS)
def test_the_smallest_numbers_keep_their_order(path: tuple[int, int]) -> None:
    """Subnormal numbers around zero differ only in the last bit."""
    values = neighbours(0.0, 1)
    sets = [list(one) for size in (1, 2) for one in itertools.product(values, repeat=size)]
    for ids, oods in itertools.product(sets, sets):
        got, want = evaluated(ids, oods, path), slow.everything(ids, oods)
        assert got == pytest.approx(want, abs=EXACT), f"ID {ids}, OOD {oods}"


@pytest.mark.parametrize(
    ("ids", "oods"),
    [
        ([1e308, 1.0], [-np.inf, 0.0]),
        ([1e308, 1.7e308], [0.0, 1.0]),
        (np.array([6e4, 6e4], dtype=np.float16), [0.0, 1.0]),
        (np.array([3e38, 3e38], dtype=np.float32), [0.0, 1.0]),
    ],
)
def test_large_scores_give_no_warning(ids: Any, oods: Any) -> None:
    """Such scores are valid (pytest turns warnings into errors)."""
    assert metrics.auroc(ids, oods) == 1
    assert metrics.fpr_at_tpr(ids, oods) == 0


def test_every_small_case() -> None:
    """All ways to give up to three ID and three OOD scores three values, also with blocks of one on two threads."""
    sets = [list(one) for size in (1, 2, 3) for one in itertools.combinations_with_replacement((0, 1, 2), size)]
    for ids, oods in itertools.product(sets, sets):
        want = slow.everything(ids, oods)
        assert evaluated(ids, oods) == pytest.approx(want, abs=EXACT)
        assert evaluated([float(score) for score in ids], oods, (1, 1)) == pytest.approx(want, abs=EXACT)


@settings(max_examples=80, deadline=None)
@given(
    scores=pairs,
    tpr=st.sampled_from([0.01, 0.05, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99, 1.0]),
    positive=st.sampled_from(["id", "ood"]),
)
def test_single_metrics_agree_with_the_reference(scores: tuple[Array, Array], tpr: float, positive: Any) -> None:
    ids, oods = scores
    plain = slow.numbers(ids), slow.numbers(oods)
    got = metrics.fpr_at_tpr(ids, oods, tpr, positive)
    assert got == pytest.approx(slow.fpr_at_tpr(*plain, tpr, positive), abs=EXACT)
    assert metrics.aupr(ids, oods, positive) == pytest.approx(slow.aupr(*plain, positive), abs=EXACT)
    assert metrics.auroc(ids, oods) == pytest.approx(slow.auroc(*plain), abs=EXACT)
    assert metrics.detection_error(ids, oods) == pytest.approx(slow.detection_error(*plain), abs=EXACT)


@pytest.mark.parametrize("positive", ["id", "ood"])
@pytest.mark.parametrize("n", [20, 40, 100, 140, 1000])
def test_the_rate_is_reached_exactly(n: int, positive: Any) -> None:
    """0.95 of a multiple of 20 is an integer, however the floating-point product is rounded."""
    ids, oods = np.arange(1.0, n + 1), np.arange(0.5, n)
    got = metrics.fpr_at_tpr(ids, oods, 0.95, positive)
    assert got == slow.fpr_at_tpr(ids.tolist(), oods.tolist(), 0.95, positive)
    row = metrics.evaluate(ids, oods)
    assert got == (row.fpr95 if positive == "id" else row.fpr95_ood)


@pytest.mark.parametrize(("tpr", "n"), [(0.55, 100), (0.07, 100), (0.14, 50), (0.28, 25), (0.56, 50), (0.07, 10_000)])
def test_a_product_that_is_rounded_up_requires_no_additional_row(tpr: float, n: int) -> None:
    """Here ``tpr * n`` is an integer that floating point rounds up."""
    assert tpr * n > round(tpr * n)
    lowest = float(n - round(tpr * n))  # of the ID scores that reach the rate
    assert metrics.fpr_at_tpr(np.arange(float(n)), [lowest - 0.5, lowest], tpr) == 0.5


def test_the_rate_is_95_percent_unless_another_is_given() -> None:
    assert metrics.fpr_at_tpr(np.arange(20.0), [1.0, 0.5]) == 0.5


def test_the_two_conventions_differ() -> None:
    ids, oods = [0.0] + [3.0] * 19, [1.0] * 10 + [2.0] * 10
    assert metrics.fpr_at_tpr(ids, oods, positive="id") == 0
    assert metrics.fpr_at_tpr(ids, oods, positive="ood") == 0.05


# Against scikit-learn -----------------------------------------------------------------------------


def by_scikit_learn(ids: Array, oods: Array) -> dict[str, float]:
    scores = np.concatenate([ids, oods]).astype(np.float64)
    is_id = np.repeat([1, 0], [len(ids), len(oods)])
    fpr, tpr, _ = roc_curve(is_id, scores, drop_intermediate=False)
    fpr_ood, tpr_ood, _ = roc_curve(1 - is_id, -scores, drop_intermediate=False)
    return {
        "fpr95": fpr[np.argmax(tpr >= 0.95 - 1e-9)],
        "auroc": roc_auc_score(is_id, scores),
        "aupr_id": average_precision_score(is_id, scores),
        "aupr_ood": average_precision_score(1 - is_id, -scores),
        "detection_error": np.min((1 - tpr + fpr) / 2),
        "fpr95_ood": fpr_ood[np.argmax(tpr_ood >= 0.95 - 1e-9)],
    }


@settings(max_examples=60, deadline=None)
@given(
    ids=arrays_of(st.integers(-6, 6).map(lambda score: score / 8), np.float32, most=60),
    oods=arrays_of(st.integers(-6, 6).map(lambda score: score / 8), np.float32, most=60),
    path=paths,
)
def test_evaluate_agrees_with_scikit_learn(ids: Array, oods: Array, path: tuple[int, int]) -> None:
    assert evaluated(ids, oods, path) == pytest.approx(by_scikit_learn(ids, oods), abs=1e-9)


@pytest.mark.parametrize("decimals", [2, 12])
def test_evaluate_agrees_with_scikit_learn_on_large_arrays(decimals: int) -> None:
    """Large enough for two threads and several blocks at the default limits, with and without ties."""
    generator = np.random.default_rng(0)
    ids = generator.normal(1.0, 1.0, metrics.PARALLEL_FROM).round(decimals)
    oods = generator.normal(0.0, 1.5, metrics.BLOCK + 12_345).round(decimals)
    assert len(ids) + len(oods) > 3 * metrics.BLOCK
    assert evaluated(ids, oods) == pytest.approx(by_scikit_learn(ids, oods), abs=1e-9)


def test_the_threshold_is_the_first_id_score_of_a_block() -> None:
    """Of 20 ID scores one may be rejected: it is in the first block, and the threshold in the second."""
    ids, oods = np.repeat([0.0, 1.0], [1, 19]), np.repeat([0.0, 1.0], [15, 5])
    assert evaluated(ids, oods, (1 << 30, 16)) == pytest.approx(slow.everything(ids, oods), abs=EXACT)


# Inputs -------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(scores=pairs)
def test_torch_numpy_and_lists_give_the_same(scores: tuple[Array, Array]) -> None:
    ids, oods = scores
    want = evaluated(ids, oods)
    assert evaluated(torch.from_numpy(ids), torch.from_numpy(oods)) == want
    assert evaluated(ids.tolist(), torch.from_numpy(oods)) == want
    assert evaluated(torch.from_numpy(ids.astype(np.float64)).requires_grad_(), oods) == want


@pytest.mark.parametrize("path", PATHS)
def test_inputs_are_not_modified(path: tuple[int, int]) -> None:
    ids, oods = np.array([3.0, -0.0, 1.0]), torch.tensor([2.0, 0.0, 5.0], dtype=torch.float64)
    evaluated(ids, oods, path)
    metrics.fpr_at_tpr(ids, oods)
    metrics.evaluate(ids, oods, bootstrap=5)
    assert ids.tobytes() == np.array([3.0, -0.0, 1.0]).tobytes()
    assert oods.tolist() == [2.0, 0.0, 5.0]


@pytest.mark.parametrize("bad", [[], [[1.0, 2.0]], 1.0, [1.0, np.nan], ["a", "b"], [True, False], [1 + 2j]])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("metric", [metrics.evaluate, metrics.fpr_at_tpr, metrics.auroc, metrics.aupr])
def test_invalid_scores_are_refused_with_their_name(metric: Any, side: int, bad: Any) -> None:
    scores: list[Any] = [[1.0, 2.0], [0.0, 1.0]]
    scores[side] = bad
    with pytest.raises(DataError, match=("id_scores", "ood_scores")[side]):
        metric(*scores)


@pytest.mark.parametrize("kind", [torch.tensor, np.array])
@pytest.mark.parametrize(
    ("scores", "complaint"),
    [
        ([0.0, np.nan, 1.0, np.inf], "ood_scores: 2 of 4 scores are NaN.* first at index 1"),
        ([1.0, np.inf], "ood_scores: 1 of 2 scores .* first at index 1"),
    ],
)
def test_nan_and_infinity_are_counted(kind: Any, scores: list[float], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        metrics.evaluate([1.0], kind(scores))


def test_nan_is_found_among_infinities() -> None:
    with np.errstate(all="ignore"), pytest.raises(DataError, match="2 of 3 scores are NaN"):
        metrics.evaluate([np.inf, -np.inf, np.nan], [0.0])


@pytest.mark.parametrize("tpr", [0, -0.1, 1.5, 95, float("nan")])
def test_rates_outside_the_valid_range_are_refused(tpr: float) -> None:
    with pytest.raises(ArgumentError, match="tpr="):
        metrics.fpr_at_tpr([1.0], [0.0], tpr)


def test_unknown_conventions_are_refused() -> None:
    for metric in (metrics.fpr_at_tpr, metrics.aupr):
        with pytest.raises(ArgumentError, match="'in' must be 'id'"):
            metric([1.0], [0.0], positive="in")


def test_a_row_has_names_counts_and_metrics() -> None:
    row = metrics.evaluate([2.0, 3.0, 4.0], [1.0], detector="dice", id_set="cifar10", ood_set="svhn", run="first")
    ones = dict.fromkeys(("auroc", "aupr_id", "aupr_ood"), 1.0)
    zeros = dict.fromkeys(("fpr95", "fpr95_ood", "detection_error"), 0.0)
    names = {"detector": "dice", "id_set": "cifar10", "ood_set": "svhn", "run": "first"}
    assert row.as_dict() == names | {"n_id": 3, "n_ood": 1, "intervals": {}} | ones | zeros
    with pytest.raises(FrozenInstanceError):
        row.auroc = 0.5  # type: ignore[misc]


# Intervals --------------------------------------------------------------------------------------


def two_sets(n_id: int, n_ood: int, seed: int = 0, decimals: int = 12) -> tuple[Array, Array]:
    generator = np.random.default_rng(seed)
    return generator.normal(1.5, 1, n_id).round(decimals), generator.normal(0, 1, n_ood).round(decimals)


@pytest.mark.parametrize("decimals", [1, 12])
@pytest.mark.parametrize("seed", range(4))
def test_intervals_contain_the_point_estimate(seed: int, decimals: int) -> None:
    row = metrics.evaluate(*two_sets(300, 200, seed, decimals), bootstrap=400, seed=seed)
    assert set(row.intervals) == {"fpr95", "auroc"}
    for name, (low, high) in row.intervals.items():
        assert 0 <= low < getattr(row, name) < high <= 1


def test_intervals_depend_on_the_seed_and_not_on_the_order() -> None:
    ids, oods = two_sets(100, 100)
    first = metrics.evaluate(ids, oods, bootstrap=100, seed=1).intervals
    assert metrics.evaluate(ids[::-1], oods[::-1], bootstrap=100, seed=1).intervals == first
    assert metrics.evaluate(ids, oods, bootstrap=100, seed=2).intervals != first


@pytest.mark.parametrize("decimals", [1, 12])
def test_intervals_agree_with_a_plain_bootstrap(decimals: int) -> None:
    ids, oods = two_sets(60, 40, seed=5, decimals=decimals)
    got = metrics.evaluate(ids, oods, bootstrap=4000).intervals
    want = slow.bootstrap(ids, oods, resamples=300, seed=9)
    # with 300 resamples the ends of the interval are accurate to about a tenth of its length
    for name, (low, high) in want.items():
        assert got[name] == pytest.approx((low, high), abs=0.2 * (high - low))


def test_intervals_of_few_rows() -> None:
    """95 % of ten ID rows is all of them, so the threshold is the smallest row drawn."""
    ids, oods = np.arange(10.0), np.arange(-5.0, 9.0, 0.25)
    got = metrics.evaluate(ids, oods, bootstrap=2000).intervals["fpr95"]
    want = slow.bootstrap(ids, oods, resamples=300, seed=2)["fpr95"]
    assert got == pytest.approx(want, abs=0.1)


def of_resamples(ids: Array, oods: Array, parts: list[int], seed: int) -> dict[str, list[float]]:
    """The intervals from the metrics of each resample, drawn in parts of so many."""
    generator, drawn = np.random.default_rng(seed), []
    ids, oods = np.sort(ids), np.sort(oods)
    for count in parts:
        from_id, from_ood = (generator.integers(0, len(rows), size=(count, len(rows))) for rows in (ids, oods))
        for chosen_id, chosen_ood in zip(from_id, from_ood, strict=True):
            drawn.append(metrics.evaluate(ids[chosen_id], oods[chosen_ood]))
    middle = [0.025, 0.975]
    return {name: list(np.quantile([getattr(row, name) for row in drawn], middle)) for name in ("fpr95", "auroc")}


@pytest.mark.parametrize("decimals", [1, 12])
@pytest.mark.parametrize("sizes", [(7, 30), (40, 9), (1, 1)])
def test_intervals_are_those_of_the_metrics_of_resamples(sizes: tuple[int, int], decimals: int) -> None:
    ids, oods = two_sets(*sizes, seed=3, decimals=decimals)
    for options, seed in (({"seed": 8}, 8), ({}, 0)):
        got = metrics.evaluate(ids, oods, bootstrap=60, **options).intervals
        for name, ends in of_resamples(ids, oods, [60], seed=seed).items():
            assert got[name] == pytest.approx(ends, abs=EXACT)


def test_intervals_of_many_rows_are_computed_in_parts() -> None:
    """At most four million draws are held in memory at once: here those of 104 resamples."""
    ids, oods = two_sets(20_000, 20_000)
    got = metrics.evaluate(ids, oods, bootstrap=107).intervals
    for name, ends in of_resamples(ids, oods, [104, 3], seed=0).items():
        assert got[name] == pytest.approx(ends, abs=EXACT)


def test_a_number_of_resamples_is_not_negative() -> None:
    with pytest.raises(ArgumentError, match="bootstrap=-1 must not be negative"):
        metrics.evaluate([1.0], [0.0], bootstrap=-1)
    assert set(metrics.evaluate([1.0], [0.0], bootstrap=1).intervals) == {"fpr95", "auroc"}


def test_intervals_of_separated_or_equal_scores_are_points() -> None:
    row = metrics.evaluate([2.0, 3.0, 3.0], [0.0, 1.0], bootstrap=50)
    assert row.intervals == {"fpr95": (0.0, 0.0), "auroc": (1.0, 1.0)}
    tied = metrics.evaluate([1.0, 1.0], [1.0, 1.0, 1.0], bootstrap=50)
    assert tied.intervals == {"fpr95": (1.0, 1.0), "auroc": (0.5, 0.5)}


# Keys of scores -----------------------------------------------------------------------------------

KINDS: list[Any] = [np.float16, np.float32, np.float64, np.int64, np.uint8]
VALUES = [0.0, -0.0, 1.0, 5e-324, -5e-324, 1e-45, -1e-45, 3.0, -3.0, 1e-30, 3e38, -3e38, 1.7e308, -1.7e308, -np.inf]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_keys_sort_like_scores(kind: Any, data: st.DataObject) -> None:
    """Also where the range is so wide that the bits of the scores leave none for the label."""
    floats = st.sampled_from(VALUES) | st.floats(-100, 100)
    whole = st.integers(0, 255) if kind == np.uint8 else st.integers(-9, 9)
    drawn = st.lists(floats if np.dtype(kind).kind == "f" else whole, min_size=1, max_size=12)
    with np.errstate(over="ignore"):
        ids, oods = (np.array(data.draw(drawn)).astype(kind) for _ in range(2))
    kept = ids.copy(), oods.copy()
    got = np.argsort(metrics.score_keys(ids, oods), kind="stable").tolist()
    both = np.concatenate([ids, oods]).tolist()
    assert got == sorted(range(len(both)), key=lambda place: (both[place], place >= len(ids)))
    assert np.array_equal(ids, kept[0])
    assert np.array_equal(oods, kept[1])
