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

KINDS = pytest.mark.parametrize("kind", [Moments, ClassMoments])
COUNTS = st.lists(st.integers(0, 12), min_size=1, max_size=5).filter(any)


def folded(moments, parts, classes):
    """Add parts, each rows and labels."""
    for rows, labels in parts:
        moments.add(rows, *((labels, classes) if isinstance(moments, ClassMoments) else ()))
    return moments


def assert_moments_of(moments, rows, labels, *, tolerance=1e-10):
    if isinstance(moments, ClassMoments):
        counts, means, covariance = moments.counts.tolist(), moments.means(), moments.within()
    else:  # those of one class
        counts, means, covariance = [moments.count], moments.mean()[None], moments.covariance()
        labels = torch.zeros_like(labels)
    assert counts == torch.bincount(labels, minlength=len(counts)).tolist()
    assert means.dtype == covariance.dtype == torch.float64
    for label, mean in slow.class_means(rows.double().numpy(), labels.numpy()).items():
        np.testing.assert_allclose(means[label], mean, rtol=1e-14, atol=1e-12)
    want = slow.within(rows.double().numpy(), labels.numpy())
    np.testing.assert_allclose(covariance, want, rtol=tolerance, atol=tolerance * max(1.0, np.abs(want).max()))


@KINDS
@settings(max_examples=60, deadline=None)
@given(counts=COUNTS, width=st.integers(1, 6), seed=st.integers(0, 999), cuts=st.lists(st.integers(1, 59)))
def test_any_split_into_batches_gives_the_same_moments(kind, counts, width, seed, cuts):
    rows, labels = labelled(counts, width, seed=seed)
    ends = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    parts = [(rows[a:b], labels[a:b]) for a, b in itertools.pairwise(ends)]
    assert_moments_of(folded(kind(), parts, len(counts)), rows, labels)


@KINDS
@settings(max_examples=60, deadline=None)
@given(counts=COUNTS, seed=st.integers(0, 999), pieces=st.integers(1, 5), order=st.randoms())
def test_merging_in_any_order_is_one_pass(kind, counts, seed, pieces, order):
    rows, labels = labelled(counts, 4, seed=seed)
    parts = list(zip(rows.tensor_split(pieces), labels.tensor_split(pieces), strict=True))
    parts = [part for part in parts if len(part[0])]
    order.shuffle(parts)
    whole = kind()
    for part in parts:
        piece = folded(kind(), [part], len(counts))
        whole.merge(piece)
        assert_moments_of(piece, *part)
    assert_moments_of(whole, rows, labels)


@KINDS
def test_merging_with_empty_moments_changes_nothing(kind):
    rows, labels = labelled([4, 5], 3)
    one = folded(kind(), [(rows, labels)], 2)
    one.merge(kind())
    assert_moments_of(one, rows, labels)
    other = kind()
    other.merge(one)
    folded(other, [(rows + 1, labels)], 2)
    assert_moments_of(one, rows, labels)
    assert_moments_of(other, torch.cat([rows, rows + 1]), torch.cat([labels, labels]))


@KINDS
@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_a_large_mean_does_not_cost_precision(kind, batch):
    rows, labels = labelled([300, 200], 3)
    moments = folded(kind(), zip((rows + 1e6).split(batch), labels.split(batch), strict=True), 2)
    assert_moments_of(moments, rows + 1e6, labels, tolerance=1e-8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_rows_are_summed_in_float64(dtype):
    rows, labels = labelled([5000], 3)
    rows = (100 + rows).to(dtype)
    assert_moments_of(folded(Moments(), zip(rows.split(64), labels.split(64), strict=True), 1), rows, labels)


def test_the_mean_is_summed_in_float64():
    # in float32 the small rows would vanish next to the large one
    mean = Mean()
    mean.add(torch.tensor([[2.0**25]]))
    for _ in range(8):
        mean.add(torch.ones(1, 1))
    assert mean.value().item() == (2.0**25 + 8) / 9


# Samples ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [0.0, 1.0, 2.0])
def test_a_sample_does_not_prefer_large_or_small_values(shift):
    sample = RowSample(100)
    sample.add(torch.rand(500, 7, generator=torch.Generator().manual_seed(0)) + shift)
    assert abs(float(sample.rows().mean()) - shift - 0.5) < 0.1


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
