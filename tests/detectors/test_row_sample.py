"""Row keys and the samples chosen by them: the same rows in whatever order and parts they arrive."""

import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import ensemble as slow

from oodles.detectors.statistics import RowSample, row_keys


@given(st.integers(1, 150), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_keys_agree_with_the_reference(width: int, seed: int) -> None:
    rows = torch.randn(5, width, generator=torch.Generator().manual_seed(seed))
    rows[0, 0], rows[1, -1] = 0.0, -0.0
    assert row_keys(rows).tolist() == slow.row_keys(rows)
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
    keys = slow.row_keys(rows)
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
