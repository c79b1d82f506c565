"""The ratio of a row's sum to the sum of its largest activations, with a number of them per row."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference import adascale as slow

from oodles.functional import prefix_ratio, top_ratio

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
