"""Shapes, one row at a time, and the ratio of a row's sum to that of its largest activations."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference import adascale as slow

from oodles.functional import (
    between,
    binarise_top,
    clip,
    keep_top,
    prefix_ratio,
    prune_and_scale,
    scale_rows,
    top_ratio,
)
from oodles.functional.shaping import kept_units

eighths = st.integers(-80, 80).map(lambda number: number / 8)


@settings(max_examples=50, deadline=None)
@given(
    rows=st.integers(1, 12).flatmap(
        lambda width: st.lists(
            st.tuples(st.lists(eighths, min_size=width, max_size=width), st.integers(1, width)), min_size=1, max_size=5
        )
    )
)
@example(rows=[([0.0, 0.0, 0.0], 2), ([-1.0, -2.0, -3.0], 1), ([-1.0, 2.0, 2.0], 3)])
def test_ratios_agree_with_the_reference(rows):
    embedding = torch.tensor([row for row, _ in rows])
    got = prefix_ratio(embedding, torch.tensor([kept for _, kept in rows]))
    assert got.shape == (len(rows), 1)
    np.testing.assert_allclose(got[:, 0], [slow.ratio(row, kept) for row, kept in rows], rtol=1e-6)


@pytest.mark.parametrize("percentile", [1, 50, 85, 99])
def test_with_one_number_for_all_rows_it_is_the_ratio_of_scale(percentile):
    embedding = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    kept = max(1, 30 - round(30 * percentile / 100))
    got = prefix_ratio(embedding, torch.full((20,), kept))
    torch.testing.assert_close(got, top_ratio(embedding, percentile))


def test_the_ratio_is_one_if_all_units_are_kept_and_at_most_eighty():
    ones = torch.ones(2, 200)
    assert prefix_ratio(ones, torch.tensor([200, 1]))[:, 0].tolist() == [1.0, 80.0]
    assert torch.isnan(prefix_ratio(torch.tensor([[1.0, float("nan")]]), torch.tensor([1]))).all()


PERCENTILES = (0, 10, 50, 85, 99, 100)
ROWS = torch.randn(20, 30, generator=torch.Generator().manual_seed(1))
"""Rows of both signs without ties."""


@pytest.mark.parametrize(
    ("width", "percentile", "kept"),
    [(4, 50, 2), (10, 0, 10), (10, 85, 2), (10, 65, 4), (10, 75, 2), (3, 100, 1), (200, 99, 2), (1, 50, 1)],
)
def test_the_number_of_kept_units_is_rounded_half_to_even_and_at_least_one(width, percentile, kept):
    assert kept_units(width, percentile) == kept


def largest(row, percentile):
    """The places of a row's largest activations."""
    return sorted(range(len(row)), key=lambda place: -row[place])[: kept_units(len(row), percentile)]


def pruned(row, percentile):
    return [value if place in largest(row, percentile) else 0.0 for place, value in enumerate(row)]


def binarised(row, percentile):
    places = largest(row, percentile)
    return [sum(row) / len(places) if place in places else 0.0 for place in range(len(row))]


def scaled(row, percentile):
    return [value * math.exp(slow.ratio(row, kept_units(len(row), percentile))) for value in row]


def pruned_and_scaled(row, percentile):
    return pruned(scaled(row, percentile), percentile)


@pytest.mark.parametrize("percentile", PERCENTILES)
@pytest.mark.parametrize(
    ("fast", "slow_one"),
    [(keep_top, pruned), (binarise_top, binarised), (scale_rows, scaled), (prune_and_scale, pruned_and_scaled)],
)
def test_shapes_agree_with_one_row_at_a_time(fast, slow_one, percentile):
    embedding = torch.cat([ROWS, -ROWS[:2].abs(), torch.zeros(1, 30)]).double()
    given_rows = embedding.clone()
    want = [slow_one(row, percentile) for row in embedding[:-1].tolist()]
    got = fast(embedding, percentile)
    np.testing.assert_allclose(got[:-1], want, rtol=1e-12, atol=1e-12)
    assert got[-1].tolist() == [0.0] * 30
    assert torch.equal(embedding, given_rows), "what is given stays as it is"


@pytest.mark.parametrize("shape", [scale_rows, prune_and_scale])
def test_a_row_with_one_large_activation_among_many_does_not_overflow(shape):
    assert shape(torch.ones(1, 1000), 100).max().item() == pytest.approx(math.exp(80), rel=1e-5)
    assert top_ratio(torch.ones(1, 1000), 100).tolist() == [[80.0]]
    assert top_ratio(torch.ones(1, 79), 100).tolist() == [[79.0]]


def test_clipping_and_the_ends_of_a_range():
    row = torch.tensor([[-1.0, 0.2, 0.5, 1.0, 3.0, torch.nan]])
    assert clip(row, 1.0)[0, :5].tolist() == pytest.approx([-1.0, 0.2, 0.5, 1.0, 1.0])
    assert clip(row, torch.tensor(0.75))[0, 2:5].tolist() == [0.5, 0.75, 0.75]
    assert row[0, 4] == 3.0, "what is given stays as it is"
    got = between(row, torch.tensor(0.5), torch.tensor(1.0))
    assert got[0, :5].tolist() == [0.0, 0.0, 0.5, 1.0, 1.0], "what equals an end is inside"
    assert got[0, 5].isnan()
    assert clip(row, 1.0)[0, 5].isnan()


@pytest.mark.parametrize("shape", [keep_top, binarise_top, scale_rows, prune_and_scale, top_ratio, prefix_ratio])
def test_units_are_in_the_last_dimension(shape):
    both = torch.stack([ROWS[:10], ROWS[10:]])
    numbers = torch.arange(1, 21).view(2, 10) if shape is prefix_ratio else [80, 80]
    want = torch.stack([shape(part, number) for part, number in zip(both, numbers, strict=True)])
    torch.testing.assert_close(shape(both, numbers if shape is prefix_ratio else 80), want)


@pytest.mark.parametrize("shape", [scale_rows, prune_and_scale])
def test_the_gradient_of_a_row_of_zeros_is_finite(shape):
    embedding = torch.zeros(1, 4, requires_grad=True)
    shape(embedding, 50).sum().backward()
    assert embedding.grad.isfinite().all()
