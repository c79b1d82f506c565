"""WeiPer and AdaSCALE: each part as its slow twin has it, the step as autograd has it, and no row that is too odd."""

import copy
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from networks import one_thread  # noqa: F401
from scipy.special import logsumexp, softmax
from test_perturb import small, smooth
from torch import nn

import oodles
from oodles.calibration import calibrate
from oodles.detectors import Combination, Detector, load_detector, parse
from oodles.detectors import weiper as weiper_module
from oodles.detectors.adascale import AdaScale
from oodles.detectors.weiper import FLOOR_ACTIVATIONS, FLOOR_LOGITS, WeiPer, divergence, histogram
from oodles.errors import ArgumentError, NotFittedError, OodlesError, ShapeError
from oodles.features import Features, Head
from oodles.functional import energy, prefix_ratio, top_ratio
from oodles.guard import Guard
from oodles.perturbation import Step
from oodles.testing import check_detector, example_features, fit_and_tune, with_passes
from oodles.tuning import steps_of

NAN, INF = float("nan"), float("inf")

# Slow twins: one row and one value at a time ----------------------------------------------------------


def slow_histogram(row, low, high, bins, number=float):
    """The share of values in each bin, exact with fractions; bins hold their lower end, the last one both."""
    low, high = number(low), number(high)
    counts = [0] * bins
    for value in row:
        if not math.isfinite(value):
            continue
        exact = number(value)
        if low <= exact <= high:
            counts[min(bins - 1, math.floor((exact - low) * bins / (high - low)))] += 1
    return np.array([count / len(row) for count in counts])


def slow_divergence(own, mean, width, floor):
    """The mean of the bins around each bin, the outermost repeated; both floored and summing to one; both ways."""
    bins = len(own)
    smoothed = []
    for place in range(bins):
        around = [place - width // 2 + step for step in range(width)]
        smoothed.append(math.fsum(own[min(max(index, 0), bins - 1)] for index in around) / width + floor)
    floored = [value + floor for value in mean]
    p = [value / math.fsum(floored) for value in floored]
    q = [value / math.fsum(smoothed) for value in smoothed]
    there = math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    back = math.fsum(b * math.log(b / a) for a, b in zip(p, q, strict=True))
    return there + back


def slow_weiper(detector, heads, bias, train, test):
    """Every copy of the head, every row; ranges and mean histograms of the training rows."""

    def noisy(row):
        return np.array([[float(np.dot(weights, row)) + b for weights, b in zip(copy_, bias)] for copy_ in heads])  # noqa: B905

    train_logits = [noisy(row) for row in train]
    ends = min(map(np.min, train)), max(map(np.max, train))
    logit_ends = min(map(np.min, train_logits)), max(map(np.max, train_logits))
    mean = np.mean([slow_histogram(row, *ends, detector.bins) for row in train], axis=0)
    logit_mean = np.mean([slow_histogram(rows.ravel(), *logit_ends, detector.bins) for rows in train_logits], axis=0)
    scores = []
    for row in test:
        logits = noisy(row)
        first = slow_divergence(slow_histogram(row, *ends, detector.bins), mean, detector.smooth, 0.01)
        own = slow_histogram(logits.ravel(), *logit_ends, detector.bins)
        second = slow_divergence(own, logit_mean, detector.smooth_logits, 0.025)
        sure = sum(softmax(each).max() for each in logits) / len(logits)
        scores.append(-first - detector.weight * second + detector.confidence * sure)
    return np.array(scores)


def slow_ratio(row, kept):
    """The sum of what is positive over the sum of the largest of it."""
    positive = sorted((max(value, 0.0) for value in row), reverse=True)
    top = math.fsum(positive[:kept])
    return 1.0 if top == 0 else min(math.fsum(positive) / top, 80.0)


def slow_move(image, gradient, epsilon, share, std=()):
    """One image: the values whose gradient is no larger than the k-th smallest go against its sign."""
    sizes = sorted(abs(value) for value in gradient.ravel())
    limit = sizes[max(1, round(share * len(sizes))) - 1]
    after = image.copy()
    for place in np.ndindex(*image.shape):
        size = epsilon / std[place[0]] if std else epsilon
        if abs(gradient[place]) <= limit and gradient[place] != 0:
            after[place] += -size if gradient[place] > 0 else size
    return after


def slow_shift(row, after, shift):
    """How far the largest 1 % of units go, and how large the largest 5 % are then."""
    order = sorted(range(len(row)), key=lambda unit: -row[unit])
    gap = math.fsum(abs(row[unit] - after[unit]) for unit in order[: max(1, int(len(row) * 1 / 100))])
    left = math.fsum(max(after[unit], 0.0) for unit in order[: max(1, int(len(row) * 5 / 100))])
    return shift * gap + left


def slow_kept(width, low, high, below):
    """Units kept where a share of held-out images moves no farther, in exact fractions, half to even."""
    percentile = Fraction(low) + (1 - below) * (Fraction(high) - Fraction(low))
    return max(1, width - round(width * percentile / 100))


def slow_adascale(detector, weight, bias, held_out, test):
    """``held_out`` and ``test`` are rows before and after the step."""
    seen = [slow_shift(row, after, detector.shift) for row, after in zip(*held_out, strict=True)]
    scores = []
    for row, after in zip(*test, strict=True):
        own = slow_shift(row, after, detector.shift)
        below = Fraction(sum(value <= own for value in seen), len(seen))
        ratio = slow_ratio(row, slow_kept(len(row), detector.low, detector.high, below))
        if detector.how == "embedding":
            scores.append(logsumexp(weight @ (math.exp(ratio) * row) + bias))
        else:
            scores.append(logsumexp(ratio**2 * (weight @ row + bias)))
    return np.array(scores)


# What tests share -------------------------------------------------------------------------------------


def arrays(*tensors):
    return [tensor.detach().double().numpy() for tensor in tensors]


def both_passes(embedding, after, head, detector=None):
    """Features before and after a detector's own step."""
    name = (detector or AdaScale()).steps()[0].name
    return Features(embedding, head=head, layers={name: after})


def made_up(rows, width, classes=4, seed=0, *, signed=False, noise=0.3):
    """Embeddings, what a step made of them, and the head."""
    features = example_features(rows, width, classes, seed)
    generator = torch.Generator().manual_seed(seed + 77)
    embedding = features.embedding + 0.05 * torch.rand(rows, width, generator=generator)
    if signed:
        embedding = embedding - 1
    return embedding, embedding + noise * torch.randn(rows, width, generator=generator), features.head


def ready(detector, features):
    """Fitted and tuned on the same rows."""
    detector.fit(features)
    if not detector.tuned:
        detector.tune(features)
    return detector


def complaint_of(action):
    with pytest.raises(ArgumentError) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message, "one line"
    return message


eighths = st.integers(-80, 80).map(lambda number: number / 8)


# Histograms ---------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 9).flatmap(
        lambda width: st.lists(st.lists(eighths, min_size=width, max_size=width), min_size=1, max_size=4)
    ),
    low=eighths,
    spread=st.integers(1, 120).map(lambda number: number / 8),
    bins=st.integers(2, 40),
)
@example(rows=[[3.25]], low=1.0, spread=6.75, bins=63)  # an edge, to be told from the value just below it
@example(rows=[[12.0]], low=7.625, spread=7.0, bins=40)
def test_a_histogram_is_counted_one_by_one(rows, low, spread, bins):
    got = histogram(torch.tensor(rows), torch.tensor([low, low + spread]), bins)
    assert got.dtype == torch.float64
    want = [slow_histogram(row, low, low + spread, bins, Fraction) for row in rows]
    np.testing.assert_allclose(got, want, rtol=1e-12)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), bins=st.integers(2, 150), width=st.integers(1, 60), single=st.booleans())
def test_and_as_numpy_counts_it(seed, bins, width, single):
    rows = np.random.default_rng(seed).normal(size=(3, width)).astype(np.float32 if single else np.float64)
    ends = float(np.float32(rows.min())) - 0.01, float(np.float32(rows.max())) - 0.2
    if ends[0] >= ends[1]:
        ends = ends[0], ends[0] + 1
    want = [np.histogram(row.astype(np.float64), bins, ends)[0] / width for row in rows]
    np.testing.assert_allclose(histogram(torch.tensor(rows), torch.tensor(ends, dtype=torch.float64), bins), want)


def test_both_ends_are_inside_and_nothing_beyond():
    ends = torch.tensor([-1.0, 3.0])
    assert histogram(torch.tensor([[-1.0, 3.0]]), ends, 4).tolist() == [[0.5, 0, 0, 0.5]]
    beyond = [math.nextafter(-1.0, -2), math.nextafter(3.0, 4), -1e30, 1e30, INF, -INF, NAN]
    for value in beyond:
        got = histogram(torch.tensor([[value, 0.5]], dtype=torch.float64), ends, 4)
        assert got.tolist() == [[0, 0.5, 0, 0]], f"{value} is in no bin, and still one of two values"


@pytest.mark.parametrize(
    ("low", "high", "bins"), [(-3.533971081024181, 5.734513843277021, 56), (-1.7185560237397612, 2.436923872421865, 67)]
)
def test_a_value_just_below_the_upper_end_is_not_lost(low, high, bins):
    ends = torch.tensor([low, high], dtype=torch.float64)
    got = histogram(torch.nextafter(ends[1], ends[0]).view(1, 1), ends, bins)
    assert got[0].tolist() == [0.0] * (bins - 1) + [1.0]


def test_more_bins_than_values_leave_most_of_them_empty():
    got = histogram(torch.tensor([[0.0, 1.0]]), torch.tensor([0.0, 1.0]), 500)
    assert got.shape == (1, 500)
    assert (int((got > 0).sum()), float(got.sum())) == (2, 1.0)


# Divergences --------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    bins=st.integers(2, 30),
    width=st.integers(1, 30),
    floor=st.sampled_from([1e-6, 0.01, 0.025]),
)
def test_a_divergence_is_summed_bin_by_bin(seed, bins, width, floor):
    width = min(width, bins)
    generator = np.random.default_rng(seed)
    own, mean = generator.dirichlet(np.full(bins, 0.3), size=3), generator.dirichlet(np.full(bins, 0.5))
    got = divergence(torch.tensor(own), torch.tensor(mean), width, floor)
    np.testing.assert_allclose(got, [slow_divergence(row, mean, width, floor) for row in own], rtol=1e-9, atol=1e-12)


def test_a_box_reaches_one_bin_further_to_the_left_where_it_is_even():
    own = torch.zeros(1, 9, dtype=torch.float64)
    own[0, 4] = 1
    for width, want in ((3, {3, 4, 5}), (4, {3, 4, 5, 6}), (1, {4}), (2, {4, 5})):
        mean = torch.tensor([1.0 / width if place in want else 0.0 for place in range(9)], dtype=torch.float64)
        assert abs(float(divergence(own, mean, width, 0.01)[0])) < 1e-15, f"a width of {width}"


def test_a_divergence_is_none_for_the_same_and_the_same_both_ways():
    generator = torch.Generator().manual_seed(0)
    first, second = torch.rand(2, 12, generator=generator, dtype=torch.float64).unbind()
    first, second = first / first.sum(), second / second.sum()
    assert float(divergence(first[None], first, 1, 0.01)[0]) == 0
    there, back = (float(divergence(a[None], b, 1, 0.01)[0]) for a, b in ((first, second), (second, first)))
    assert there == pytest.approx(back, rel=1e-12)
    assert there > 0


def test_empty_histograms_can_be_compared():
    assert torch.isfinite(divergence(torch.zeros(2, 8).double(), torch.zeros(8), 3, 0.01)).all()


# WeiPer -------------------------------------------------------------------------------------------------


def test_weiper_s_defaults_are_the_authors():
    detector = WeiPer()
    assert (detector.repeats, detector.delta, detector.bins, detector.weight) == (100, 1.8, 100, 2.5)
    assert (detector.smooth, detector.smooth_logits, detector.confidence) == (4, 15, 0.1)
    assert (FLOOR_ACTIVATIONS, FLOOR_LOGITS) == (0.01, 0.025)


@pytest.mark.parametrize("delta", [0.0, 0.3, 1.8])
def test_each_copy_s_weights_are_moved_by_delta_of_their_length(delta, features):
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
        assert float(cosines.abs().max()) < 0.99, "no direction twice"
        assert abs(float(cosines.sum() / (28 * 27))) < 0.05, "and none preferred"


def test_the_copies_are_drawn_from_the_seed_alone(features):
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
    assert torch.equal(torch.rand(3), want), "and the world's own numbers are left alone"


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    repeats=st.integers(1, 5),
    bins=st.integers(15, 40),
    smooth=st.integers(1, 15),
    smooth_logits=st.integers(1, 15),
    biased=st.booleans(),
)
def test_weiper_is_its_formula(seed, repeats, bins, smooth, smooth_logits, biased):
    train, _, head = made_up(12, 10, 3, seed)
    test, _, _ = made_up(4, 10, 3, seed + 1)
    head = head if biased else Head(head.weight)
    detector = WeiPer(repeats=repeats, bins=bins, smooth=smooth, smooth_logits=smooth_logits, weight=1.5, confidence=2)
    detector.fit(Features(train, head=head))
    bias = np.zeros(3) if head.bias is None else arrays(head.bias)[0]
    want = slow_weiper(detector, arrays(detector.heads_)[0], bias, *arrays(train, test))
    np.testing.assert_allclose(detector.score(Features(test, head=head)), want, rtol=1e-5, atol=1e-6)


def test_the_range_holds_every_logit_it_was_taken_of():
    for seed in range(6):
        features = example_features(40, 12, 3, seed)
        detector = WeiPer(repeats=3, bins=20).fit(features)
        low, high = detector.logit_range_.double().tolist()
        logits = torch.cat([part.flatten() for part in detector._copies(features.embedding)])
        assert low <= float(logits.min()), "not rounded inwards"
        assert float(logits.max()) <= high, "not rounded inwards"
        assert float(detector.logit_mean_.double().sum()) == pytest.approx(1, abs=1e-6)


def test_a_single_row_s_logits_are_in_its_own_histogram():
    features = example_features(1, 12, 2)
    detector = WeiPer(repeats=1, bins=20).fit(features)
    assert float(detector.logit_mean_.sum()) == pytest.approx(1)
    assert torch.isfinite(detector.score(features)).all()


def test_without_noise_and_histograms_weiper_is_the_largest_probability(features):
    detector = WeiPer(repeats=3, delta=0, weight=0, confidence=1e6).fit(features)
    want = 1e6 * features.logits.double().softmax(dim=1).amax(dim=1)
    np.testing.assert_allclose(detector.score(features), want, rtol=1e-5)


def test_copies_looked_at_apart_are_copies_looked_at_together(features, monkeypatch):
    whole = WeiPer(repeats=5).fit(features)
    scores = whole.score(features)
    for together in (1, 8, 9):
        monkeypatch.setattr(weiper_module, "TOGETHER", together)
        apart = WeiPer(repeats=5).fit(features)
        torch.testing.assert_close(apart.logit_range_, whole.logit_range_)
        torch.testing.assert_close(apart.score(features), scores, rtol=1e-5, atol=1e-6)


def test_histograms_are_of_a_sample_that_order_does_not_change(features, monkeypatch):
    monkeypatch.setattr(weiper_module, "ROWS", 20)
    first = WeiPer(repeats=3).fit(features)
    second = WeiPer(repeats=3).fit(features[torch.arange(len(features)).flip(0)])
    for name, buffer in first.named_buffers():
        torch.testing.assert_close(buffer, second.get_buffer(name))
    monkeypatch.undo()
    assert not torch.equal(first.mean_, WeiPer(repeats=3).fit(features).mean_)


def test_rows_unlike_those_it_was_fitted_on_score_lower():
    features = example_features(200, 40, 5)
    detector = WeiPer().fit(features)
    generator = torch.Generator().manual_seed(0)
    far = Features(3 * torch.rand(50, 40, generator=generator), head=features.head)
    assert float(detector.score(far).max()) < float(detector.score(features).median())


# Ratios of each row's own number of units ---------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(
    rows=st.integers(1, 12).flatmap(
        lambda width: st.lists(
            st.tuples(st.lists(eighths, min_size=width, max_size=width), st.integers(1, width)), min_size=1, max_size=5
        )
    )
)
@example(rows=[([0.0, 0.0, 0.0], 2), ([-1.0, -2.0, -3.0], 1), ([-1.0, 2.0, 2.0], 3)])
def test_ratios_are_summed_row_by_row(rows):
    embedding = torch.tensor([row for row, _ in rows])
    got = prefix_ratio(embedding, torch.tensor([kept for _, kept in rows]))
    assert got.shape == (len(rows), 1)
    np.testing.assert_allclose(got[:, 0], [slow_ratio(row, kept) for row, kept in rows], rtol=1e-6)


@pytest.mark.parametrize("percentile", [1, 50, 85, 99])
def test_with_one_number_for_all_it_is_the_ratio_of_scale(percentile):
    embedding = made_up(20, 30, signed=True)[0]
    kept = max(1, 30 - round(30 * percentile / 100))
    got = prefix_ratio(embedding, torch.full((20,), kept))
    torch.testing.assert_close(got, top_ratio(embedding, percentile))


def test_all_units_make_a_ratio_of_one_and_few_of_many_at_most_eighty():
    ones = torch.ones(2, 200)
    assert prefix_ratio(ones, torch.tensor([200, 1]))[:, 0].tolist() == [1.0, 80.0]
    assert torch.isnan(prefix_ratio(torch.tensor([[1.0, NAN]]), torch.tensor([1]))).all()


# A step in a share of the values --------------------------------------------------------------------------


def step(share, epsilon=0.5, std=()):
    return Step("a step", lambda columns: columns["logits"].sum(dim=1), epsilon, share=share, std=std)


gradients = st.integers(-3, 3) | st.sampled_from([0, 0.125, -0.125, 100])


@settings(max_examples=60, deadline=None)
@given(
    gradient=st.lists(st.lists(gradients, min_size=12, max_size=12), min_size=1, max_size=4),
    share=st.sampled_from([0.001, 0.05, 0.125, 0.25, 0.5, 0.875, 0.999]) | st.floats(0.001, 0.999),
    std=st.sampled_from([(), (0.25, 0.5, 2.0)]),
)
def test_a_step_in_a_share_moves_the_values_of_smallest_gradient(gradient, share, std):
    gradient = torch.tensor(gradient, dtype=torch.float64).view(-1, 3, 2, 2)
    images = torch.arange(gradient.numel(), dtype=torch.float64).view_as(gradient)
    got = step(share, std=std).move(images, gradient)
    want = [slow_move(*pair, 0.5, share, std) for pair in zip(images.numpy(), gradient.numpy(), strict=True)]
    np.testing.assert_array_equal(got, np.array(want))


def test_as_many_values_move_as_asked_in_each_image_by_itself():
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(3, 3, 10, 10, generator=generator) * torch.tensor([1.0, 1e-6, 1e6]).view(3, 1, 1, 1)
    images = torch.rand(3, 3, 10, 10, generator=generator)
    for share, count in ((0.05, 15), (0.5, 150), (1.0, 300), (0.0001, 1)):
        after = step(share).move(images, gradient)
        assert (after != images).flatten(1).sum(dim=1).tolist() == [count] * 3, share
        for number in range(3):
            alone = step(share).move(images[number : number + 1], gradient[number : number + 1])
            assert torch.equal(alone[0], after[number]), "whatever the other images are"
    moved = step(0.05).move(images, gradient) != images
    for number in range(3):
        size, which = gradient[number].abs(), moved[number]
        assert float(size[which].max()) < float(size[~which].min())


def test_equal_gradients_move_together():
    gradient = torch.tensor([[1.0, -1.0, 1.0, 2.0], [2.0, 2.0, -2.0, -2.0]])
    assert step(0.25).move(torch.zeros(2, 4), gradient).tolist() == [[-0.5, 0.5, -0.5, 0], [-0.5, -0.5, 0.5, 0.5]]


def test_a_value_without_gradient_stays_and_takes_its_place_among_the_smallest():
    gradient = torch.tensor([[0.0, 0.0, 1.0, -2.0], [0.0, 0.0, 0.0, 0.0]])
    images = torch.ones(2, 4)
    assert torch.equal(step(0.5).move(images, gradient), images)
    assert step(0.75).move(images, gradient).tolist() == [[1, 1, 0.5, 1], [1, 1, 1, 1]]


def test_the_whole_share_is_the_step_as_it_was_and_memory_s_order_is_no_matter():
    generator = torch.Generator().manual_seed(0)
    gradient, images = torch.randn(2, 4, 3, 5, 5, generator=generator).unbind()
    whole = Step("whole", lambda columns: columns["logits"], 0.5)
    assert whole.share == 1
    assert torch.equal(step(1.0).move(images, gradient), whole.move(images, gradient))
    last = {"memory_format": torch.channels_last}
    got = step(0.1).move(images.contiguous(**last), gradient.contiguous(**last))
    assert torch.equal(got, step(0.1).move(images, gradient))


def test_a_gradient_that_is_no_number_is_none_of_the_smallest():
    gradient = torch.tensor([[1.0, NAN, 2.0, 3.0], [NAN, NAN, NAN, NAN], [1.0, 2.0, 3.0, 4.0]])
    after = step(0.5).move(torch.zeros(3, 4), gradient)
    assert after.tolist() == [[-0.5, 0, -0.5, 0], [0, 0, 0, 0], [-0.5, -0.5, 0, 0]]


# AdaSCALE -----------------------------------------------------------------------------------------------


def test_adascale_s_defaults_are_the_authors():
    detector = AdaScale()
    assert (detector.low, detector.high, detector.how) == (75, 85, "embedding")
    assert (detector.epsilon, detector.share, detector.shift) == (0.5, 0.05, 10.0)
    (only,) = detector.steps()
    assert (only.epsilon, only.share, only.keep, only.std) == (0.5, 0.05, "embedding", ())
    assert [trial.name for trial in detector.trials()] == [only.name]


@pytest.mark.parametrize("how", ["embedding", "logits"])
@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    width=st.integers(2, 230),
    ends=st.sampled_from([(75, 85), (60, 90), (1, 99), (80, 80), (62.5, 95.5)]),
    shift=st.sampled_from([10.0, 0.0, 1.0]),
    noise=st.sampled_from([0.3, 4.0]),  # the larger one turns some of the largest units negative
    signed=st.booleans(),
    biased=st.booleans(),
)
def test_adascale_is_its_formula(how, seed, width, ends, shift, noise, signed, biased):
    detector = AdaScale(low=ends[0], high=ends[1], how=how, shift=shift)
    embedding, after, head = made_up(16, width, 4, seed, signed=signed, noise=noise)
    test, test_after, _ = made_up(9, width, 4, seed + 1, signed=signed, noise=noise)
    head = head if biased else Head(head.weight)
    held_out = both_passes(embedding, after, head, detector)
    detector.fit(held_out).tune(held_out)
    got = detector.score(both_passes(test, test_after, head, detector))
    bias = np.zeros(4) if head.bias is None else arrays(head.bias)[0]
    want = slow_adascale(detector, *arrays(head.weight), bias, arrays(embedding, after), arrays(test, test_after))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def known(moves, width=20):
    """Rows whose largest unit is 5 and is moved by so much; the step's outcome is 11 times that, or so."""
    embedding = torch.full((len(moves), width), 0.5)
    embedding[:, 3] = 5.0
    after = embedding.clone()
    after[:, 3] += torch.tensor(moves)
    return both_passes(embedding, after, Head(torch.eye(4, width)))


def percentile_of(detector, features):
    """Read back from the score of rows that are all alike but for their percentile."""
    plain = {}
    for kept in range(1, features.width + 1):
        ratio = prefix_ratio(features.embedding[:1], torch.tensor([kept]))
        plain[kept] = float(energy(ratio.exp() * features.logits[:1]))
    return [min(plain, key=lambda kept: abs(plain[kept] - score)) for score in detector.score(features).tolist()]


def test_the_farther_a_row_moves_among_held_out_ones_the_more_units_it_keeps():
    detector = AdaScale(low=10, high=90)
    held_out = known([1.0, 2.0, 3.0, 4.0])
    detector.fit(held_out).tune(held_out)
    # of 20 units: the percentiles 90, 70, 50, 30 and 10; a row as far as a held-out one counts it
    moves = [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 9.0]
    assert percentile_of(detector, known(moves)) == [2, 6, 6, 10, 10, 14, 14, 18, 18]


def test_one_held_out_row_makes_two_percentiles():
    detector = AdaScale(low=10, high=90)
    detector.fit(known([1.0])).tune(known([1.0]))
    assert percentile_of(detector, known([0.5, 1.0, 2.0])) == [2, 18, 18]


def test_held_out_rows_need_not_be_in_order_nor_differ():
    first, second = AdaScale(low=10, high=90), AdaScale(low=10, high=90)
    first.fit(known([1.0])).tune(known([3.0, 1.0, 2.0, 2.0]))
    second.fit(known([1.0])).tune(known([2.0, 2.0, 3.0, 1.0]))
    assert torch.equal(first.reference_, second.reference_)
    assert percentile_of(first, known([1.5, 2.0, 2.5])) == [6, 14, 14]


@pytest.mark.parametrize(
    ("width", "low", "high", "below", "rows"),
    [(50, 10, 95, 10, 25), (50, 10, 95, 80, 100), (100, 10, 75, 9, 10), (50, 75, 85, 8, 10), (24, 60, 90, 7, 10)],
)
def test_half_a_unit_is_rounded_to_even_as_in_the_other_shapes(width, low, high, below, rows):
    detector = AdaScale(low=low, high=high)
    held_out = known([0.01 * (place + 1) for place in range(rows)], width)
    detector.fit(held_out).tune(held_out)
    want = slow_kept(width, low, high, Fraction(below, rows))
    assert percentile_of(detector, known([0.01 * below + 0.005], width)) == [want]


@pytest.mark.parametrize("how", ["embedding", "logits"])
def test_with_one_percentile_adascale_is_the_shape_it_adapts(how):
    embedding, after, head = made_up(40, 30, signed=True)
    detector = AdaScale(low=85, high=85, how=how)
    features = both_passes(embedding, after, head)
    other = parse("scale(85)" if how == "embedding" else "lts(85)")
    torch.testing.assert_close(ready(detector, features).score(features), other.fit(features).score(features))


def test_fitting_anew_forgets_held_out_images_and_says_what_is_missing():
    features = known([1.0, 2.0])
    detector = AdaScale()
    with pytest.raises(NotFittedError, match=r"call \.fit"):
        detector.score(features)
    detector.fit(features)
    assert (detector.tuned, detector.fitted, detector.needs_network) == (False, False, True)
    for action in (lambda: detector.score(features), lambda: detector.save("nowhere")):
        with pytest.raises(NotFittedError):
            action()
    with pytest.raises(NotFittedError, match=r"oodles\.tune"):
        detector(features.embedding, features.logits, features.embedding)
    detector.tune(features)
    assert detector.fitted
    assert not detector.fit(features).tuned


def test_rows_without_the_second_pass_are_named():
    detector = ready(AdaScale(), known([1.0, 2.0]))
    plain = Features(torch.rand(3, 20), head=Head(torch.eye(4, 20)))
    with pytest.raises(ShapeError, match=r"scores from the layer\.adascale.*extract it from the model"):
        detector.score(plain)


# With a network at hand -----------------------------------------------------------------------------------


class Wide(nn.Module):
    """A small network with 120 units before its head, so that 1 % of them is one and 5 % are six."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.hidden = nn.Linear(6 * 5 * 5, 120)
        self.fc = nn.Linear(120, 5)

    def embed(self, images):
        return torch.relu(self.hidden(torch.nn.functional.softplus(self.conv(images)).flatten(1)))

    def forward(self, images):
        return self.fc(self.embed(images))


def wide(seed=0):
    torch.manual_seed(seed)
    return Wide().double().eval()


def by_hand(model, images, epsilon, share):
    """The embeddings of images moved up the gradient of their own largest logit, one image at a time."""
    embeddings = []
    for image in images:
        leaf = image.clone()[None].requires_grad_()
        logits = model(leaf)[0]
        (gradient,) = torch.autograd.grad(logits[int(logits.argmax())], leaf)
        flat, start = gradient.flatten().tolist(), image.flatten().tolist()
        smallest = sorted(range(len(flat)), key=lambda place: abs(flat[place]))[: round(share * len(flat))]
        for place in smallest:
            start[place] += epsilon if flat[place] > 0 else -epsilon if flat[place] < 0 else 0
        with torch.no_grad():
            embeddings.append(model.embed(torch.tensor(start, dtype=image.dtype).view_as(leaf))[0])
    return torch.stack(embeddings)


@pytest.mark.parametrize("share", [0.05, 0.4])
@pytest.mark.parametrize("epsilon", [0.5, 0.01])
def test_the_embedding_after_the_step_is_autograd_s(epsilon, share):
    model, images = wide(), small(8, seed=2)
    detector = AdaScale(epsilon=epsilon, share=share)
    features = oodles.extract(model, [images], steps=steps_of([detector]), progress=False)
    after = features.column(detector.steps()[0].column)
    assert after.shape == (8, 120)
    want = by_hand(model, images, epsilon, share)
    np.testing.assert_allclose(after, want, rtol=1e-5, atol=1e-6)
    assert float((want - model.embed(images).detach()).abs().max()) > 1e-4, "the step can be told"


@pytest.mark.parametrize("how", ["embedding", "logits"])
def test_extracted_tuned_and_scored_it_is_its_formula(how):
    model, (train, held_out, test) = wide(), (small(rows, seed=rows) for rows in (20, 16, 9))
    detector = AdaScale(how=how)
    detector.fit(oodles.extract(model, [train], progress=False))
    oodles.tune([detector], model, [held_out])
    assert detector.reference_.shape == (16,)
    got = detector.score(oodles.extract(model, [test], steps=steps_of([detector]), progress=False))
    passes = [arrays(model.embed(images), by_hand(model, images, 0.5, 0.05)) for images in (held_out, test)]
    want = slow_adascale(detector, *arrays(model.fc.weight, model.fc.bias), *passes)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_it_costs_one_pass_more_and_one_back_whoever_asks():
    model = smooth()
    detectors = [AdaScale(), AdaScale(how="logits"), AdaScale(low=60, high=90), AdaScale(shift=1.0)]
    assert len(steps_of(detectors)) == 1
    oodles.extract(model, [small(6)], steps=steps_of(detectors), progress=False)
    oodles.extract(plain := smooth(), [small(6)], progress=False)
    assert (model.forwards, model.backwards) == ([*plain.forwards, 6], [6])
    assert len(steps_of([AdaScale(), AdaScale(epsilon=0.4), AdaScale(share=0.1)])) == 3


def test_equal_numbers_are_one_step_however_they_are_written():
    written = [AdaScale(epsilon=1), AdaScale(epsilon=1.0), parse("adascale(epsilon=1)")]
    assert len(steps_of(written)) == 1
    assert len(steps_of([AdaScale(share=1), AdaScale(share=1.0)])) == 1


def test_tuning_takes_only_as_many_images_as_asked_and_leaves_what_is_settled():
    model, detector = wide(), AdaScale()
    detector.fit(oodles.extract(model, [small(12)], progress=False))
    oodles.tune([detector], model, [small(12)], rows=7)
    first = detector.reference_
    assert len(first) == 7
    oodles.tune([detector], model, [small(12, seed=5)])
    assert detector.reference_ is first
    with pytest.raises(NotFittedError, match=r"call \.fit"):
        oodles.tune([AdaScale()], model, [small(4)])


@pytest.mark.parametrize("value", [NAN, INF])
def test_a_guard_scores_as_extract_does_and_trusts_no_broken_image(value, tmp_path):
    model, images = wide().float(), small(9, seed=4, dtype=torch.float32)
    detector = AdaScale()
    detector.fit(oodles.extract(model, [small(20, dtype=torch.float32)], progress=False))
    oodles.tune([detector], model, [small(30, seed=1, dtype=torch.float32)])
    seen = oodles.extract(model, [images], steps=steps_of([detector]), progress=False)
    guard = Guard(model, detector, calibrate(detector.score(seen), 0.9))
    calm = guard(images)
    torch.testing.assert_close(calm.score, detector.score(seen), rtol=1e-5, atol=1e-6)
    guard.save(tmp_path / "guard")
    assert torch.equal(Guard.load(tmp_path / "guard", model)(images).score, calm.score)
    broken = images.clone()
    broken[2, 1, 3, 3] = value
    verdict = guard(broken)
    assert not bool(verdict.is_id[2])
    others = [place for place in range(9) if place != 2]
    torch.testing.assert_close(verdict.score[others], calm.score[others])


def test_weiper_scores_a_network_s_own_images_by_its_formula():
    model, train, test = wide(), small(12), small(4, seed=1)
    detector = WeiPer(repeats=2).fit(oodles.extract(model, [train], progress=False))
    seen = oodles.extract(model, [test], progress=False)
    assert not detector.needs_network
    rows = oodles.extract(model, [train], progress=False).embedding
    want = slow_weiper(detector, *arrays(detector.heads_, model.fc.bias, rows, seen.embedding))
    np.testing.assert_allclose(detector.score(seen), want, rtol=1e-4, atol=1e-5)


def test_adascale_in_a_combination_takes_its_ranks_on_held_out_rows():
    detector = Combination(detectors=("adascale", "energy"))
    features = with_passes(AdaScale(), example_features(60))
    assert detector.needs_network
    detector.fit(features)
    assert not detector.tuned
    detector.tune(features)
    assert detector.tuned
    assert torch.isfinite(detector.score(features)).all()


# Promises of the house ------------------------------------------------------------------------------------

SETTINGS = [
    WeiPer(repeats=4),
    WeiPer(repeats=2, bins=16, smooth=16, smooth_logits=1, confidence=0.0, delta=0.0),
    AdaScale(),
    AdaScale(how="logits", low=60, high=90, shift=1.0),
]


@pytest.mark.parametrize("detector", SETTINGS, ids=lambda detector: detector.spec)
def test_they_keep_every_promise(detector):
    check_detector(detector)


@pytest.mark.parametrize("detector", SETTINGS, ids=lambda detector: detector.spec)
def test_and_keep_them_where_embeddings_are_wide(detector):
    check_detector(detector, with_passes(detector, example_features(120, 200, 5)))


@pytest.mark.parametrize("detector", [WeiPer(repeats=4), AdaScale(), AdaScale(how="logits")], ids=str)
@pytest.mark.parametrize("width", [30, 300])
def test_float32_is_as_good_as_float64_on_further_rows(detector, width):
    narrow = copy.deepcopy(detector)
    fit_and_tune(narrow, with_passes(narrow, example_features(200, width, 6)))
    further = with_passes(
        narrow, Features(example_features(60, width, 6, seed=5).embedding, head=example_features(200, width, 6).head)
    )
    scores = narrow.score(further)
    exact = copy.deepcopy(narrow).double().score(further.to(dtype=torch.float64))
    assert (scores.dtype, exact.dtype) == (torch.float32, torch.float64)
    np.testing.assert_allclose(scores, exact, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("detector", SETTINGS, ids=lambda detector: detector.spec)
def test_they_are_saved_and_loaded_whole(detector, tmp_path):
    fitted = copy.deepcopy(detector)
    features = with_passes(detector, example_features(60))
    ready(fitted, features).save(tmp_path / "d")
    back = load_detector(tmp_path / "d")
    assert type(back) is type(fitted)
    assert (back.spec, back.arguments()) == (fitted.spec, fitted.arguments())
    assert torch.equal(back.score(features), fitted.score(features))
    assert [step.name for step in back.steps()] == [step.name for step in fitted.steps()]
    for name, buffer in fitted.named_buffers():
        assert torch.equal(back.get_buffer(name), buffer)


@pytest.mark.parametrize("kind", [WeiPer, AdaScale])
def test_what_is_not_fitted_is_not_saved(kind, tmp_path):
    with pytest.raises(NotFittedError):
        kind().save(tmp_path / "d")


@pytest.mark.parametrize(
    ("text", "spec", "given_"),
    [
        ("weiper", "weiper", {"repeats": 100, "seed": 0}),
        ("weiper(50, 2.4)", "weiper(repeats=50, delta=2.4)", {"repeats": 50, "delta": 2.4, "bins": 100}),
        (
            "weiper(bins=60, smooth=40, smooth_logits=25)",
            "weiper(bins=60, smooth=40, smooth_logits=25)",
            {"smooth": 40},
        ),
        ("weiper(weight=0.1, confidence=5, seed=3)", "weiper(weight=0.1, confidence=5, seed=3)", {"confidence": 5}),
        ("adascale", "adascale", {"low": 75, "high": 85, "how": "embedding"}),
        ("adascale(60, 90)", "adascale(low=60, high=90)", {"low": 60, "high": 90}),
        ("adascale(how='logits')", "adascale(how='logits')", {"how": "logits"}),
        ("adascale(epsilon=0.25, share=1, shift=0)", "adascale(epsilon=0.25, share=1, shift=0)", {"shift": 0}),
    ],
)
def test_they_are_read_and_written(text, spec, given_):
    detector = parse(text)
    assert {name: getattr(detector, name) for name in given_} == given_
    for again in (parse(detector.spec), parse(spec)):
        assert type(again) is type(detector)
        assert again.arguments() == detector.arguments()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("weiper(repeats=0)", "repeats=0"),
        ("weiper(repeats=2.5)", "repeats=2.5"),
        ("weiper(bins=1)", "bins=1"),
        ("weiper(bins=20.5)", "bins=20.5"),
        ("weiper(smooth=0)", "smooth=0"),
        ("weiper(smooth=1.5)", "smooth=1.5"),
        ("weiper(smooth=101)", "smooth=101"),
        ("weiper(smooth_logits=0)", "smooth_logits=0"),
        ("weiper(bins=10)", "smooth_logits=15"),
        ("weiper(delta=-0.1)", "delta=-0.1"),
        ("weiper(seed=1.5)", "seed=1.5"),
        ("weiper(seed=-1)", "seed=-1"),
        ("weiper(seed=99999999999999999999999)", "seed=99999999999999999999999"),
        ("weiper(seed='a')", "seed"),
        ("weiper(copies=3)", "copies"),
        ("weiper+energy", "weiper"),
        ("adascale(0, 85)", "low=0"),
        ("adascale(0.75, 0.85)", "low=0.75"),
        ("adascale(90, 80)", "low=90"),
        ("adascale(high=100)", "high=100"),
        ("adascale(how='a')", "how='a'"),
        ("adascale(how=3)", "how=3"),
        ("adascale(epsilon=0)", "epsilon=0"),
        ("adascale(epsilon=-1)", "epsilon=-1"),
        ("adascale(epsilon=None)", "epsilon=None"),
        ("adascale(share=0)", "share=0"),
        ("adascale(share=1.5)", "share=1.5"),
        ("adascale(shift='a')", "shift"),
        ("scale(85)+adascale", "adascale"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(text, named):
    assert named in complaint_of(lambda: parse(text))


@pytest.mark.parametrize(
    ("kind", "name"),
    [(WeiPer, "delta"), (WeiPer, "weight"), (WeiPer, "confidence")]
    + [(AdaScale, name) for name in ("low", "high", "epsilon", "share", "shift")],
)
@pytest.mark.parametrize("value", [NAN, INF])
def test_and_so_is_what_is_no_number(kind, name, value):
    assert f"{name}={value}" in complaint_of(lambda: kind(**{name: value}))


# Numbers that are not nice --------------------------------------------------------------------------------


def awkward():
    """Training rows by what is odd about them."""
    plain = example_features(40, 24, 4)
    head = plain.head
    dead = plain.embedding.clone()
    dead[:, :9] = 0
    twice = plain.embedding[:8].repeat(5, 1)
    return {
        "dead units": Features(dead, head=head),
        "rows twice": Features(twice, head=head),
        "one row again and again": Features(plain.embedding[:1].repeat(40, 1), head=head),
        "one row": plain[:1],
        "a row of zeros": Features(torch.cat([plain.embedding[:39], torch.zeros(1, 24)]), head=head),
        "nothing but zeros": Features(torch.zeros(5, 24), head=head),
        "equal logits": Features(plain.embedding, head=Head(torch.zeros(4, 24), torch.zeros(4))),
        "one value everywhere": Features(torch.full((6, 24), 1e8), head=Head(torch.ones(4, 24))),
        "logits of ten thousand": Features(plain.embedding * 1e4, head=head),
        "hardly any activation": Features(plain.embedding * 1e-20, head=head),
        "no bias": Features(plain.embedding, head=Head(head.weight)),
        "nothing positive": Features(-plain.embedding - 0.1, head=head),
        "one class": Features(plain.embedding, head=Head(head.weight[:1], torch.zeros(1))),
        "one unit": Features(plain.embedding[:, :1], head=Head(head.weight[:, :1])),
    }


@pytest.mark.parametrize("case", awkward())
@pytest.mark.parametrize(
    "text", ["weiper(repeats=3)", "weiper(repeats=1, bins=1000)", "adascale", "adascale(how='logits')"]
)
def test_awkward_rows_give_finite_scores(text, case):
    detector = parse(text)
    features = with_passes(detector, awkward()[case])
    scores = ready(detector, features).score(features)
    assert scores.shape == (len(features),)
    assert torch.isfinite(scores).all()
    wide_scores = copy.deepcopy(detector).double().score(features.to(dtype=torch.float64))
    np.testing.assert_allclose(scores, wide_scores, rtol=1e-4, atol=1e-5)
    assert torch.equal(ready(parse(text), features).score(features), scores)


@pytest.mark.parametrize("text", ["weiper(repeats=3)", "adascale", "adascale(how='logits')"])
def test_equal_rows_have_equal_scores(text):
    detector = parse(text)
    features = with_passes(detector, example_features(30))
    ready(detector, features)
    scores = detector.score(features[torch.tensor([4] * 9 + [7])])
    assert bool((scores[:9] == scores[0]).all())


@pytest.mark.parametrize("text", ["weiper(repeats=3)", "adascale", "adascale(how='logits')"])
def test_a_head_without_bias_is_one_with_a_bias_of_zeros(text):
    plain = example_features(30)
    scores = []
    for bias in (None, torch.zeros(5)):
        detector = parse(text)
        features = with_passes(detector, Features(plain.embedding, head=Head(plain.head.weight, bias)))
        scores.append(ready(detector, features).score(features))
    assert torch.equal(*scores)


def broken_rows(detector: Detector, features: Features):
    """Columns in the order of ``forward``, once for each way to break one value of row 1 that the method looks at."""
    columns = [features.column(name) for name in ("embedding", "logits", *detector.extras)]
    largest, smallest = int(features.embedding[1].argmax()), int(features.embedding[1].argmin())
    places = [(0, largest), (0, smallest)] if "embedding" in detector.scores_from else []
    places += [(1, 2)] if "logits" in detector.scores_from else []
    places += [(2 + number, largest) for number in range(len(detector.extras))]
    for column, unit in places:
        altered = [each.clone() for each in columns]
        altered[column][1, unit] = NAN
        yield altered
    whole = [each.clone() for each in columns]
    for each in whole:
        each[1] = NAN
    yield whole


@pytest.mark.parametrize(
    "text",
    ["weiper(repeats=3)", "weiper(repeats=3, confidence=0, weight=0)", "adascale", "adascale(60, 90, how='logits')"],
)
def test_a_row_that_is_no_number_gets_no_score_and_harms_no_other(text):
    detector = parse(text)
    features = with_passes(detector, example_features(12))
    scores = ready(detector, features).score(features)
    for columns in broken_rows(detector, features):
        with torch.no_grad():
            got = detector(*columns)
        assert torch.isnan(got[1]), "not a confident one at that"
        others = [place for place in range(12) if place != 1]
        torch.testing.assert_close(got[others], scores[others], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("text", ["weiper(repeats=3)", "adascale"])
def test_rows_of_another_width_are_named(text):
    detector = parse(text)
    ready(detector, with_passes(detector, example_features(12)))
    other = with_passes(detector, example_features(12, 25))
    with pytest.raises(OodlesError, match="width 24, got 25"):
        detector.score(other)
