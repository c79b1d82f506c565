"""``Moments``: the same mean and covariance as NumPy's, however the rows arrive."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oodles.detectors.statistics import Mean, Moments


def rows_of(count, width, *, seed=0, offset=0.0, spread=1.0):
    draw = np.random.default_rng(seed)
    mixed = draw.normal(size=(count, width)) @ draw.normal(size=(width, width))
    return torch.from_numpy(offset + spread * mixed)


def folded(parts):
    moments = Moments()
    for part in parts:
        moments.add(part)
    return moments


def assert_is(moments, rows, *, rtol=1e-10):
    values = rows.double().numpy()
    covariance = np.atleast_2d(np.cov(values, rowvar=False, bias=True))
    size = max(float(np.abs(covariance).max()), 1e-300)
    assert moments.count == len(rows)
    assert moments.mean().dtype == moments.covariance().dtype == torch.float64
    np.testing.assert_allclose(moments.mean().numpy(), values.mean(axis=0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(moments.covariance().numpy() / size, covariance / size, atol=rtol)


@given(count=st.integers(1, 60), width=st.integers(1, 6), seed=st.integers(0, 999), cuts=st.lists(st.integers(1, 59)))
def test_any_split_into_batches_gives_numpys_mean_and_covariance(count, width, seed, cuts):
    rows = rows_of(count, width, seed=seed)
    ends = sorted({0, count, *(cut for cut in cuts if cut < count)})
    assert_is(folded(rows[a:b] for a, b in itertools.pairwise(ends)), rows)


@given(seed=st.integers(0, 999), sizes=st.lists(st.integers(1, 20), min_size=1, max_size=5), order=st.randoms())
def test_merging_in_any_order_is_one_fold(seed, sizes, order):
    rows = rows_of(sum(sizes), 4, seed=seed)
    parts = list(rows.split(sizes))
    order.shuffle(parts)
    pieces = [folded([part]) for part in parts]
    whole = Moments()
    for piece, part in zip(pieces, parts, strict=True):
        whole.merge(piece)
        assert_is(piece, part)
    assert_is(whole, rows)


def test_an_empty_one_merges_as_nothing_and_into_nothing():
    rows = rows_of(9, 3)
    one = folded([rows])
    one.merge(Moments())
    assert_is(one, rows)
    other = Moments()
    other.merge(one)
    other.add(rows_of(5, 3, seed=1))
    assert_is(one, rows)
    assert_is(other, torch.cat([rows, rows_of(5, 3, seed=1)]))


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_a_large_mean_does_not_eat_the_digits_of_the_spread(batch):
    centred = rows_of(1000, 4, seed=2)
    rows = 1e6 + centred
    moments = folded(rows.split(batch))
    exact = np.cov((rows.numpy() - 1e6), rowvar=False, bias=True)
    np.testing.assert_allclose(moments.covariance().numpy(), exact, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(moments.mean().numpy(), 1e6 + (rows.numpy() - 1e6).mean(axis=0), rtol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_rows_are_summed_in_float64(dtype):
    rows = (100 + rows_of(5000, 3, seed=3, spread=0.5)).to(dtype)
    assert_is(folded(rows.split(64)), rows)


def test_rows_are_left_as_they_are_and_need_no_gradient():
    rows = rows_of(6, 2).requires_grad_()
    before = rows.detach().clone()
    moments = folded([rows])
    assert torch.equal(rows.detach(), before)
    assert not moments.mean().requires_grad
    assert not moments.covariance().requires_grad


def test_mean_and_moments_agree():
    rows = rows_of(50, 4, offset=3.0)
    mean = Mean()
    for part in rows.split(11):
        mean.add(part)
    torch.testing.assert_close(mean.value(), folded([rows]).mean(), rtol=1e-13, atol=1e-13)
