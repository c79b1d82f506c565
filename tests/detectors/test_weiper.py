"""WeiPer: histograms, divergences, the copies of the head, and the score as the reference computes it."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference import weiper as slow
from support.detector_data import active
from support.networks import one_thread  # noqa: F401
from torch import nn

from oodles.detectors import WeiPer
from oodles.detectors import weiper as weiper_module
from oodles.detectors.weiper import divergence, histogram
from oodles.errors import ArgumentError
from oodles.features import Features, Head
from oodles.testing import example_features

NAN, INF = float("nan"), float("inf")

eighths = st.integers(-80, 80).map(lambda number: number / 8)


def arrays(*tensors):
    return [tensor.detach().double().numpy() for tensor in tensors]


# Histograms -----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 9).flatmap(
        lambda width: st.lists(st.lists(eighths, min_size=width, max_size=width), min_size=1, max_size=4)
    ),
    low=eighths,
    spread=st.integers(1, 120).map(lambda number: number / 8),
    bins=st.integers(2, 40),
)
@example(rows=[[3.25]], low=1.0, spread=6.75, bins=63)  # exactly on an edge, where rounding down would be wrong
@example(rows=[[12.0]], low=7.625, spread=7.0, bins=40)
def test_histograms_agree_with_exact_counting(rows, low, spread, bins):
    got = histogram(torch.tensor(rows), torch.tensor([low, low + spread]), bins)
    assert got.dtype == torch.float64
    want = [slow.histogram(row, low, low + spread, bins, Fraction) for row in rows]
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_both_ends_are_counted_and_nothing_outside():
    ends = torch.tensor([-1.0, 3.0])
    assert histogram(torch.tensor([[-1.0, 3.0]]), ends, 4).tolist() == [[0.5, 0, 0, 0.5]]
    outside = [math.nextafter(-1.0, -2), math.nextafter(3.0, 4), -1e30, 1e30, INF, -INF, NAN]
    for value in outside:
        got = histogram(torch.tensor([[value, 0.5]], dtype=torch.float64), ends, 4)
        assert got.tolist() == [[0, 0.5, 0, 0]], f"{value} is in no bin, and still one of two values"


@pytest.mark.parametrize(
    ("low", "high", "bins"), [(-3.533971081024181, 5.734513843277021, 56), (-1.7185560237397612, 2.436923872421865, 67)]
)
def test_a_value_just_below_the_upper_end_is_counted(low, high, bins):
    ends = torch.tensor([low, high], dtype=torch.float64)
    got = histogram(torch.nextafter(ends[1], ends[0]).view(1, 1), ends, bins)
    assert got[0].tolist() == [0.0] * (bins - 1) + [1.0]


# Divergences ----------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    bins=st.integers(2, 30),
    width=st.integers(1, 30),
    floor=st.sampled_from([1e-6, 0.01, 0.025]),
)
def test_divergences_agree_with_the_reference(seed, bins, width, floor):
    width = min(width, bins)
    generator = np.random.default_rng(seed)
    own, mean = generator.dirichlet(np.full(bins, 0.3), size=3), generator.dirichlet(np.full(bins, 0.5))
    got = divergence(torch.tensor(own), torch.tensor(mean), width, floor)
    np.testing.assert_allclose(got, [slow.divergence(row, mean, width, floor) for row in own], rtol=1e-9, atol=1e-12)


def test_a_box_of_even_width_extends_one_bin_further_to_the_right():
    own = torch.zeros(1, 9, dtype=torch.float64)
    own[0, 4] = 1
    for width, want in ((3, {3, 4, 5}), (4, {3, 4, 5, 6}), (1, {4}), (2, {4, 5})):
        mean = torch.tensor([1.0 / width if place in want else 0.0 for place in range(9)], dtype=torch.float64)
        assert abs(float(divergence(own, mean, width, 0.01)[0])) < 1e-15, f"a width of {width}"


# The detector ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.0, 0.3, 1.8])
def test_the_weights_of_each_copy_are_moved_by_delta_times_their_norm(delta, features):
    detector, weight = WeiPer(repeats=7, delta=delta).fit(features), features.head.weight
    assert detector.heads_.shape == (7, *weight.shape)
    for number in range(7):
        for label in range(len(weight)):
            moved = math.dist(detector.heads_[number, label].tolist(), weight[label].tolist())
            assert moved == pytest.approx(delta * math.hypot(*weight[label].tolist()), rel=1e-5, abs=1e-7)
    directions = detector.heads_ - weight
    if delta:
        flat = nn.functional.normalize(directions.flatten(0, 1), dim=1)
        cosines = (flat @ flat.T).fill_diagonal_(0)
        assert float(cosines.abs().max()) < 0.99, "no direction occurs twice"
        assert abs(float(cosines.sum() / (28 * 27))) < 0.05, "no direction is preferred"


def test_the_copies_depend_on_the_seed_alone(features):
    drawn = [WeiPer(repeats=3, seed=seed).fit(features).heads_ for seed in (0, 0, 1)]
    torch.manual_seed(4)
    drawn.append(WeiPer(repeats=3, seed=0).fit(features[:50]).heads_)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(drawn[0], drawn[3])
    torch.manual_seed(4)
    want = torch.rand(3)
    torch.manual_seed(4)
    WeiPer(repeats=3).fit(features)
    assert torch.equal(torch.rand(3), want), "the global random state must not change"


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    repeats=st.integers(1, 5),
    bins=st.integers(15, 40),
    smooth_=st.integers(1, 15),
    smooth_logits=st.integers(1, 15),
    biased=st.booleans(),
)
def test_scores_agree_with_the_reference(seed, repeats, bins, smooth_, smooth_logits, biased):
    plain, test = active(12, 10, 3, seed), active(4, 10, 3, seed + 1).embedding
    train, head = plain.embedding, plain.head if biased else Head(plain.head.weight)
    detector = WeiPer(repeats=repeats, bins=bins, smooth=smooth_, smooth_logits=smooth_logits, weight=1.5, confidence=2)
    detector.fit(Features(train, head=head))
    bias = np.zeros(3) if head.bias is None else arrays(head.bias)[0]
    want = slow.scores(detector, arrays(detector.heads_)[0], bias, *arrays(train, test))
    np.testing.assert_allclose(detector.score(Features(test, head=head)), want, rtol=1e-5, atol=1e-6)


def test_the_range_includes_every_training_logit():
    for seed in range(6):
        features = example_features(40, 12, 3, seed)
        detector = WeiPer(repeats=3, bins=20).fit(features)
        low, high = detector.logit_range_.double().tolist()
        logits = torch.cat([part.flatten() for part in detector._copies(features.embedding)])
        assert low <= float(logits.min()), "not rounded inwards"
        assert float(logits.max()) <= high, "not rounded inwards"
        assert float(detector.logit_mean_.double().sum()) == pytest.approx(1, abs=1e-6)


def test_scores_do_not_depend_on_how_many_copies_are_computed_at_a_time(features, monkeypatch):
    whole = WeiPer(repeats=5).fit(features)
    scores = whole.score(features)
    sizes = []
    copies = WeiPer._copies

    def counted(self, embedding):
        parts = list(copies(self, embedding))
        sizes.append(len(parts))
        return iter(parts)

    monkeypatch.setattr(WeiPer, "_copies", counted)
    for together, parts in ((1, 5), (8, 3), (9, 3)):  # of four classes each
        monkeypatch.setattr(weiper_module, "TOGETHER", together)
        sizes.clear()
        split = WeiPer(repeats=5).fit(features)
        torch.testing.assert_close(split.logit_range_, whole.logit_range_)
        torch.testing.assert_close(split.score(features), scores, rtol=1e-5, atol=1e-6)
        assert set(sizes) == {parts}


def test_histograms_are_of_a_sample_that_does_not_depend_on_the_order(features, monkeypatch):
    monkeypatch.setattr(weiper_module, "ROWS", 20)
    first = WeiPer(repeats=3).fit(features)
    second = WeiPer(repeats=3).fit(features[torch.arange(len(features)).flip(0)])
    for name, buffer in first.named_buffers():
        torch.testing.assert_close(buffer, second.get_buffer(name))
    monkeypatch.undo()
    assert not torch.equal(first.mean_, WeiPer(repeats=3).fit(features).mean_)


# Conformance, text and files ------------------------------------------------------------------------


def test_copies_that_would_not_fit_in_memory_are_refused_before_they_are_made():
    features = example_features(rows=4, width=3000, classes=3)
    with pytest.raises(ArgumentError, match=r"100,000 copies of a head of 3 x 3000 .* fewer repeats"):
        WeiPer(repeats=100_000).fit(features)
