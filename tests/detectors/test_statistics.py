"""Statistics: the same as over all rows at once, in whatever batches, parts and order the rows arrive."""

import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import ensemble as slow_ensemble
from reference import gradient as slow
from support.detector_data import labelled

from oodles.detectors.statistics import ClassMoments, Mean, Moments, RowSample, row_keys

# Moments ----------------------------------------------------------------------------------------


def rows_of(count, width, *, seed=0, offset=0.0, spread=1.0):
    draw = np.random.default_rng(seed)
    mixed = draw.normal(size=(count, width)) @ draw.normal(size=(width, width))
    return torch.from_numpy(offset + spread * mixed)


def folded(parts):
    moments = Moments()
    for part in parts:
        moments.add(part)
    return moments


def assert_moments_of(moments, rows, *, rtol=1e-10):
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
    assert_moments_of(folded(rows[a:b] for a, b in itertools.pairwise(ends)), rows)


@given(seed=st.integers(0, 999), sizes=st.lists(st.integers(1, 20), min_size=1, max_size=5), order=st.randoms())
def test_merging_in_any_order_is_one_pass(seed, sizes, order):
    rows = rows_of(sum(sizes), 4, seed=seed)
    parts = list(rows.split(sizes))
    order.shuffle(parts)
    pieces = [folded([part]) for part in parts]
    whole = Moments()
    for piece, part in zip(pieces, parts, strict=True):
        whole.merge(piece)
        assert_moments_of(piece, part)
    assert_moments_of(whole, rows)


def test_merging_with_empty_moments_changes_nothing():
    rows = rows_of(9, 3)
    one = folded([rows])
    one.merge(Moments())
    assert_moments_of(one, rows)
    other = Moments()
    other.merge(one)
    other.add(rows_of(5, 3, seed=1))
    assert_moments_of(one, rows)
    assert_moments_of(other, torch.cat([rows, rows_of(5, 3, seed=1)]))


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_a_large_mean_does_not_cost_precision(batch):
    centred = rows_of(1000, 4, seed=2)
    rows = 1e6 + centred
    moments = folded(rows.split(batch))
    exact = np.cov((rows.numpy() - 1e6), rowvar=False, bias=True)
    np.testing.assert_allclose(moments.covariance().numpy(), exact, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(moments.mean().numpy(), 1e6 + (rows.numpy() - 1e6).mean(axis=0), rtol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_rows_are_summed_in_float64(dtype):
    rows = (100 + rows_of(5000, 3, seed=3, spread=0.5)).to(dtype)
    assert_moments_of(folded(rows.split(64)), rows)


def test_the_mean_is_summed_in_float64():
    # in float32 the small rows would vanish next to the large one
    mean = Mean()
    mean.add(torch.tensor([[2.0**25]]))
    for _ in range(8):
        mean.add(torch.ones(1, 1))
    assert mean.value().item() == (2.0**25 + 8) / 9


# Class moments ----------------------------------------------------------------------------------


def class_moments(parts, classes):
    moments = ClassMoments()
    for rows, labels in parts:
        moments.add(rows, labels, classes)
    return moments


def assert_class_moments_of(moments, rows, labels, classes):
    means = slow.class_means(rows.double().numpy(), labels.numpy())
    assert moments.counts.tolist() == [int((labels == label).sum()) for label in range(classes)]
    assert moments.means().dtype == moments.within().dtype == torch.float64
    for label, mean in means.items():
        np.testing.assert_allclose(moments.means()[label], mean, rtol=1e-10, atol=1e-10)
    want = slow.within(rows.double().numpy(), labels.numpy())
    np.testing.assert_allclose(moments.within(), want, rtol=1e-9, atol=1e-9)


COUNTS = st.lists(st.integers(0, 12), min_size=1, max_size=5).filter(any)


@settings(max_examples=40, deadline=None)
@given(counts=COUNTS, width=st.integers(1, 5), seed=st.integers(0, 999), cuts=st.lists(st.integers(1, 59)))
def test_any_split_into_batches_gives_the_moments_of_each_class(counts, width, seed, cuts):
    rows, labels = labelled(counts, width, seed=seed)
    ends = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    parts = [(rows[a:b], labels[a:b]) for a, b in itertools.pairwise(ends)]
    assert_class_moments_of(class_moments(parts, len(counts)), rows, labels, len(counts))


@settings(max_examples=30, deadline=None)
@given(counts=COUNTS, seed=st.integers(0, 999), pieces=st.integers(1, 5), order=st.randoms())
def test_merging_class_moments_in_any_order_is_one_pass(counts, seed, pieces, order):
    rows, labels = labelled(counts, 3, seed=seed)
    parts = list(zip(rows.tensor_split(pieces), labels.tensor_split(pieces), strict=True))
    parts = [part for part in parts if len(part[0])]
    order.shuffle(parts)
    whole = ClassMoments()
    for part in parts:
        piece = class_moments([part], len(counts))
        whole.merge(piece)
        assert_class_moments_of(piece, *part, len(counts))
    assert_class_moments_of(whole, rows, labels, len(counts))


def test_merging_with_empty_class_moments_changes_nothing():
    rows, labels = labelled([4, 5], 3)
    one = class_moments([(rows, labels)], 2)
    one.merge(ClassMoments())
    assert_class_moments_of(one, rows, labels, 2)
    other = ClassMoments()
    other.merge(one)
    other.add(rows + 1, labels, 2)
    assert_class_moments_of(one, rows, labels, 2)
    assert_class_moments_of(other, torch.cat([rows, rows + 1]), torch.cat([labels, labels]), 2)


def test_large_class_means_do_not_cost_precision():
    rows, labels = labelled([300, 200], 3)
    moments = class_moments(zip((rows + 1e6).split(7), labels.split(7), strict=True), 2)
    np.testing.assert_allclose(moments.within(), slow.within(rows.numpy(), labels.numpy()), rtol=1e-7, atol=1e-7)


# Samples ----------------------------------------------------------------------------------------


def sampled(rows, limit):
    sample = RowSample(limit)
    sample.add(rows)
    return sample.rows()


def test_a_sample_does_not_prefer_large_or_small_values():
    rows = torch.rand(500, 7, generator=torch.Generator().manual_seed(0))
    for shift in (0.0, 1.0, 2.0):
        assert abs(float(sampled(rows + shift, 100).mean()) - shift - 0.5) < 0.1


@pytest.mark.parametrize("kind", [torch.float16, torch.float32, torch.float64])
def test_means_of_many_rows_are_as_good_as_in_float64(kind: torch.dtype) -> None:
    rows = (1000 + torch.randn(20_000, 300, generator=torch.Generator().manual_seed(0))).to(kind)
    mean = Mean()
    mean.add(rows)
    torch.testing.assert_close(mean.value(), rows.double().mean(dim=0), rtol=1e-9, atol=0)


@given(st.integers(1, 150), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_keys_agree_with_the_reference(width: int, seed: int) -> None:
    rows = torch.randn(5, width, generator=torch.Generator().manual_seed(seed))
    rows[0, 0], rows[1, -1] = 0.0, -0.0
    assert row_keys(rows).tolist() == slow_ensemble.row_keys(rows)
    assert torch.equal(row_keys(rows.T.contiguous().T), row_keys(rows)), "the memory layout must not matter"


def test_keys_select_about_the_requested_fraction_of_rows() -> None:
    rows = torch.randn(20_000, 7, generator=torch.Generator().manual_seed(0))
    chosen = row_keys(rows) % 1000 < 200
    assert abs(float(chosen.double().mean()) - 0.2) < 4 * math.sqrt(0.2 * 0.8 / len(rows))
    # the keys of two nearly equal rows are independent of each other
    near = row_keys(rows[:2000] * (1 + 1e-6)) % 1000 < 200
    assert abs(float((near & chosen[:2000]).double().mean()) - 0.04) < 0.02


@pytest.mark.parametrize("limit", [1, 10, 40, 100])
def test_samples_are_the_rows_with_the_smallest_keys(limit: int) -> None:
    rows = torch.randn(60, 5, generator=torch.Generator().manual_seed(1))
    keys = slow_ensemble.row_keys(rows)
    order = sorted(range(len(rows)), key=lambda place: keys[place])[:limit]
    sample = RowSample(limit)
    for part in rows.split(7):
        sample.add(part)
    assert torch.equal(sample.rows(), rows[order])


def test_merging_many_samples_keeps_little_more_than_the_limit() -> None:
    whole = RowSample(100)
    for seed in range(50):
        part = RowSample(100)
        part.add(torch.randn(100, 3, generator=torch.Generator().manual_seed(seed)))
        whole.merge(part)
        assert len(whole._rows) <= 125
    assert len(whole.rows()) == 100


def test_a_sample_without_rows_has_their_width() -> None:
    sample = RowSample(10)
    sample.add(torch.empty(0, 4), torch.empty(0, 1))
    sample.merge(RowSample(10))
    assert sample.rows().shape == (0, 5)


def test_a_pickled_sample_has_no_unused_space() -> None:
    sample = RowSample(10_000)
    sample.add(torch.ones(3, 100))
    content = pickle.dumps(sample)
    assert len(content) < 10_000
    again = pickle.loads(content)
    again.add(torch.zeros(2, 100))
    assert again.rows().shape == (5, 100)
    assert again.rows().sum() == 300
