"""What is kept of feature maps, against a full decomposition and explicit Gram matrices in float64."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from reference import maps as slow

from oodles.functional import gram_row_sums, without_first_component

shapes = st.tuples(st.integers(1, 9), st.integers(1, 9))
positive = shapes.flatmap(lambda shape: arrays(np.float64, shape, elements=st.integers(0, 40).map(lambda n: n / 8)))
signed = shapes.flatmap(lambda shape: arrays(np.float64, shape, elements=st.integers(-40, 40).map(lambda n: n / 8)))


def batch(matrix, dtype=torch.float64):
    return torch.tensor(np.array(matrix), dtype=dtype)[None]


@settings(max_examples=100, deadline=None)
@given(matrix=positive, sign=st.sampled_from([1, -1]), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_the_first_component_is_that_of_the_full_decomposition(matrix, sign, dtype):
    """Maps of one sign; the smaller the gap to the second singular value, the slower iterations converge."""
    values = slow.singular_values(matrix)
    assume(len(values) == 1 or values[0] == 0 or values[1] <= 0.6 * values[0])
    got = without_first_component(batch(sign * matrix, dtype))[0].double()
    np.testing.assert_allclose(got, slow.without_first_component(sign * matrix), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(64, 16), (16, 64), (512, 49), (32, 32)])
def test_maps_after_a_relu_need_no_more_iterations(shape):
    maps = torch.rand(4, *shape, generator=torch.Generator().manual_seed(1)).mul(2).sub(0.7).relu()
    want = [slow.without_first_component(each) for each in maps.double().numpy()]
    np.testing.assert_allclose(without_first_component(maps), want, rtol=1e-4, atol=1e-5)


def test_a_map_of_one_position_or_of_zeros_leaves_nothing():
    maps = torch.randn(3, 5, 1, generator=torch.Generator().manual_seed(0))
    assert torch.equal(without_first_component(maps), torch.zeros(3, 5))
    assert torch.equal(without_first_component(torch.zeros(2, 3, 4)), torch.zeros(2, 3))
    assert torch.equal(without_first_component(torch.zeros(2, 4, 3)), torch.zeros(2, 4))


def test_a_map_whose_channels_average_to_zero_loses_nothing():
    """The first component has mean 0 then, so its removal does not change the average."""
    matrix = np.array([[5.0, -5.0, 0.0], [1.0, 1.0, -2.0]])
    assert np.abs(slow.without_first_component(matrix)).max() < 1e-12
    assert without_first_component(batch(matrix)).abs().max() < 1e-12


@pytest.mark.parametrize("factor", [1e-18, 1e15])
def test_the_scale_of_a_map_does_not_matter(factor):
    maps = torch.rand(2, 6, 4, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(without_first_component(maps * factor) / factor, without_first_component(maps))
    torch.testing.assert_close(gram_row_sums(maps * factor, 10) / factor**2, gram_row_sums(maps, 10), rtol=1e-4, atol=0)


@pytest.mark.parametrize("function", [without_first_component, lambda maps: gram_row_sums(maps, 3)])
def test_nan_stays_nan_and_other_rows_are_untouched(function):
    maps = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(3))
    broken = maps.clone()
    broken[1, 2, 3] = torch.nan
    got, want = function(broken), function(maps)
    assert got[1].isnan().all()
    torch.testing.assert_close(got[[0, 2]], want[[0, 2]])


@settings(max_examples=100, deadline=None)
@given(matrix=signed, orders=st.integers(1, 10))
def test_row_sums_are_those_of_explicit_gram_matrices(matrix, orders):
    got = gram_row_sums(batch(matrix), orders)[0]
    assert got.shape == (orders * len(matrix),)
    # a root magnifies what rounding leaves of sums that cancel, so compare the powers of sums near zero
    want = slow.gram_row_sums(matrix, orders)
    order = np.repeat(np.arange(1, orders + 1), len(matrix))
    largest = max(1.0, np.abs(matrix).max()) ** 2 * matrix.size
    close = np.isclose(got, want, rtol=1e-9, atol=0)
    cancelled = (np.abs(got.numpy()) / largest) ** order + (np.abs(want) / largest) ** order < 1e-12
    assert (close | cancelled).all()


def test_tenth_powers_neither_overflow_nor_vanish_in_float32():
    matrix = np.array([[3e4, 0.0, 1e4], [0.0, 2e-3, 0.0], [7.0, 5.0, 0.0]])
    got = gram_row_sums(batch(matrix, torch.float32), 10)[0]
    np.testing.assert_allclose(got, slow.gram_row_sums(matrix, 10), rtol=1e-4)


def test_row_sums_of_zeros_are_zeros():
    assert torch.equal(gram_row_sums(torch.zeros(2, 3, 4), 5), torch.zeros(2, 15))
