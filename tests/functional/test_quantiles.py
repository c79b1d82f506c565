"""Quantiles: exact below the limit, within the stated error beyond it, and mergeable in any order."""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from oodles.functional import Quantiles, quantile, quantiles

STATED = 2.0**-12
# a counting stream takes 16 MB, so failing examples are not shrunk over hundreds of runs
UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
TINY = 1e-41  # the bins next to zero are a few subnormals wide: an absolute error, not a relative one

number = st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 3.0, 3.0])
levels = st.floats(0, 1) | st.sampled_from([0.0, 0.5, 0.9, 0.95, 1.0])


def interpolated(values: Sequence[float], q: float) -> float:
    """The q-quantile by sorting and exact fractions."""
    ordered = sorted(Fraction(value) for value in values)
    position = Fraction(q) * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low] + (position - low) * (ordered[high] - ordered[low]))


def streamed(chunks: Sequence[Sequence[float]]) -> Quantiles:
    stream = Quantiles()
    for chunk in chunks:
        stream.add(torch.tensor(chunk, dtype=torch.float32))
    return stream


def assert_within_stated_error(stream: Quantiles, values: Sequence[float], q: float) -> None:
    """Between the two values around the quantile, up to the stated relative error."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    position = q * (len(ordered) - 1)
    low, high = ordered[math.floor(position)], ordered[math.ceil(position)]
    got = stream.quantile(q)
    assert low - STATED * abs(low) - TINY <= got <= high + STATED * abs(high) + TINY


@settings(max_examples=80, deadline=None)
@given(values=st.lists(number, min_size=1, max_size=40), q=levels)
def test_quantile_is_the_interpolated_one(values: list[float], q: float) -> None:
    assert quantile(torch.tensor(values, dtype=torch.float64), q) == pytest.approx(
        interpolated(values, q), rel=1e-12, abs=1e-9
    )
    assert quantile(torch.tensor(values, dtype=torch.float64), q) == np.quantile(np.array(values), q)


def test_quantile_works_in_float64() -> None:
    """The median of two neighbouring float32 numbers is not a float32 number."""
    low, high = np.float32(1), np.nextafter(np.float32(1), np.float32(2))
    got = quantile(torch.tensor([low, high]), 0.5)
    assert float(low) < got < float(high)
    assert quantile(torch.tensor([0.1], dtype=torch.float64), 0.5) == 0.1, "not rounded to float32"


def test_quantile_accepts_more_values_than_torch_did() -> None:
    values = torch.arange(16_777_216 + 2, dtype=torch.float32)
    assert quantile(values, 0.5) == float(np.median(values.numpy().astype(np.float64)))


@settings(max_examples=60, deadline=None)
@given(chunks=st.lists(st.lists(number, max_size=12), min_size=1, max_size=5), q=levels)
def test_stream_is_exact_below_the_limit(chunks: list[list[float]], q: float) -> None:
    chunks = [*chunks, [1.0]]
    assert streamed(chunks).quantile(q) == np.quantile(np.concatenate(chunks), q)


@settings(max_examples=30, deadline=None, phases=UNSHRUNK)
@given(chunks=st.lists(st.lists(number, max_size=15), min_size=1, max_size=4), q=levels)
def test_stream_is_within_the_stated_error_beyond_the_limit(chunks: list[list[float]], q: float) -> None:
    chunks = [*chunks, [2.0] * 5]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantiles, "EXACT_VALUES", 4)
        stream = streamed(chunks)
        assert stream.count == sum(map(len, chunks))
        assert_within_stated_error(stream, [value for chunk in chunks for value in chunk], q)


def test_the_limit_is_inclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantiles, "EXACT_VALUES", 1000)
    values = torch.rand(1001, generator=torch.Generator().manual_seed(0)) + 1
    at, beyond = Quantiles(), Quantiles()
    at.add(values[:1000])
    beyond.add(values)
    want = np.quantile(values[:1000].double().numpy(), 0.123)
    assert at.quantile(0.123) == want
    assert beyond.quantile(0.123) != np.quantile(values.double().numpy(), 0.123)
    one, two = Quantiles(), Quantiles()
    one.add(values[:400])
    two.add(values[400:1000])
    one.merge(two)
    assert one.quantile(0.123) == want, "also of merged streams"


@pytest.mark.parametrize("q", [0.0, 0.3, 0.5, 1.0])
def test_values_of_one_bin_are_taken_as_evenly_spread(monkeypatch: pytest.MonkeyPatch, q: float) -> None:
    monkeypatch.setattr(quantiles, "EXACT_VALUES", 4)
    low, high = 1.0, float(np.nextafter(np.float32(1 + STATED), np.float32(0)))
    got = streamed([[1.0] * 10]).quantile(q)
    assert (got - low) / (high - low) == pytest.approx((9 * q + 0.5) / 10, abs=1e-9)


@pytest.mark.parametrize("sign", [1, -1])
def test_dense_values_are_within_the_stated_error_of_numpy(monkeypatch: pytest.MonkeyPatch, sign: int) -> None:
    monkeypatch.setattr(quantiles, "EXACT_VALUES", 100)
    generator = torch.Generator().manual_seed(1)
    values = sign * torch.randn(60_000, generator=generator).abs()
    stream = streamed([values[:100].tolist()])
    stream.add(values[100:].view(100, -1))
    for q in (0.05, 0.25, 0.5, 0.9, 0.95, 0.99):
        want = np.quantile(values.double().numpy(), q)
        assert stream.quantile(q) == pytest.approx(want, rel=STATED)


@pytest.mark.parametrize("constant", [0.0, -0.0, 1.0, -1.0, 0.1, -123.456, 1e-30, 3e38])
def test_constants(monkeypatch: pytest.MonkeyPatch, constant: float) -> None:
    monkeypatch.setattr(quantiles, "EXACT_VALUES", 3)
    stream = streamed([[constant] * 10])
    for q in (0.0, 0.5, 1.0):
        assert stream.quantile(q) == pytest.approx(constant, rel=STATED, abs=TINY)


def test_zeros_and_signs_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a ReLU network's activations are zero; the sign bit must not change their place in the order."""
    monkeypatch.setattr(quantiles, "EXACT_VALUES", 3)
    stream = streamed([[-2.0] * 10 + [0.0] * 40 + [-0.0] * 10 + [5.0] * 40])
    assert stream.quantile(0.05) == pytest.approx(-2, rel=STATED)
    assert stream.quantile(0.3) == pytest.approx(0, abs=TINY)
    assert stream.quantile(0.55) == pytest.approx(0, abs=TINY)
    assert stream.quantile(0.8) == pytest.approx(5, rel=STATED)


@pytest.mark.parametrize("exact_values", [3, 1 << 24])
@settings(max_examples=12, deadline=None, phases=UNSHRUNK)
@given(
    chunks=st.lists(st.lists(number, min_size=1, max_size=8), min_size=2, max_size=4),
    order=st.randoms(use_true_random=False),
    q=levels,
)
def test_merging_in_any_order_equals_one_stream(exact_values: int, chunks: list[list[float]], order, q: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantiles, "EXACT_VALUES", exact_values)
        whole = streamed(chunks)
        parts = [streamed([chunk]) for chunk in chunks]
        order.shuffle(parts)
        merged = parts[0]
        for part in parts[1:]:
            merged.merge(part)
        assert merged.count == whole.count
        assert merged.quantile(q) == whole.quantile(q)
        # also starting from an empty stream, with parts that may be beyond the limit or not
        parts = [streamed([chunk]) for chunk in chunks]
        order.shuffle(parts)
        empty = Quantiles()
        empty.merge(parts[-1])
        for part in parts[:-1]:
            empty.merge(part)
        assert empty.quantile(q) == whole.quantile(q)


@pytest.mark.parametrize("exact_values", [3, 1 << 24])
def test_merging_leaves_the_other_as_it_was(monkeypatch: pytest.MonkeyPatch, exact_values: int) -> None:
    monkeypatch.setattr(quantiles, "EXACT_VALUES", exact_values)
    one, other = streamed([[1.0, 2.0, 3.0, 4.0]]), streamed([[10.0, 20.0, 30.0, 40.0]])
    before = [other.quantile(q) for q in (0.0, 0.4, 1.0)]
    one.merge(other)
    one.add(torch.full((100,), 7.0))
    assert [other.quantile(q) for q in (0.0, 0.4, 1.0)] == before
    assert other.count == 4
    assert one.count == 108


def test_added_values_are_copied() -> None:
    values = torch.tensor([1.0, 2.0, 3.0])
    stream = Quantiles()
    stream.add(values)
    values.fill_(100)
    assert stream.quantile(1.0) == 3


@pytest.mark.parametrize("exact_values", [0, 10, 1 << 24])
def test_half_precision_counts_as_the_same_numbers_in_single(monkeypatch, exact_values):
    monkeypatch.setattr(quantiles, "EXACT_VALUES", exact_values)
    generator = torch.Generator().manual_seed(0)
    values = torch.cat([torch.randn(500, generator=generator), torch.tensor([0.0, -0.0, 6e-8, -6e-8, 65504.0])]).half()
    half, single, mixed = Quantiles(), Quantiles(), Quantiles()
    for place, part in enumerate(values.split(100)):
        half.add(part)
        single.add(part.float())
        mixed.add(part if place % 2 else part.float())
    for q in (0.0, 0.3, 0.5, 0.9, 1.0):
        assert half.quantile(q) == single.quantile(q) == mixed.quantile(q)


@pytest.mark.parametrize("kind", [torch.float16, torch.float32, torch.float64])
def test_quantile_of_nan_is_nan_and_infinite_ends_are_values(kind: torch.dtype) -> None:
    assert math.isnan(quantile(torch.tensor([1.0, math.nan, 2.0], dtype=kind), 0.1))
    assert quantile(torch.tensor([-math.inf, 1.0, 2.0], dtype=kind), 0.5) == 1.0
    assert quantile(torch.tensor([7.0], dtype=kind), 0.3) == 7.0
