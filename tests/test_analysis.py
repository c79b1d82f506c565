"""The paper's theory as measurements, beside slow twins that make every contribution by hand."""

import resource

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import one_thread  # noqa: F401
from reference import analysis as slow

from oodles.analysis import (
    class_outputs,
    contribution_covariance,
    dice_mask,
    drop_lowest,
    head_of,
    id_order,
    moments,
    near_zero,
    units,
    variance_ratios,
    variances,
)
from oodles.bench.datasets import CIFAR, ImageLoader, open_images
from oodles.detectors import DICE
from oodles.errors import ArgumentError, DataError, ShapeError
from oodles.extraction import extract
from oodles.features import Features, Head
from oodles.models import densenet101, load_checkpoint
from oodles.testing import example_features

ROWS, WIDTH, CLASSES = 14, 6, 3


def make(seed, *, rows=ROWS, width=WIDTH, classes=CLASSES, bias=True, mixed=True):
    """Features with correlated units, some of them negative, and a head."""
    draw = np.random.default_rng(seed)
    embedding = draw.normal(size=(rows, width)) + draw.normal(size=width)
    if mixed:
        embedding = embedding @ draw.normal(size=(width, width))
    weight = torch.from_numpy(draw.normal(size=(classes, width))).float()
    head = Head(weight, torch.from_numpy(draw.normal(size=classes)).float() if bias else None)
    return Features(torch.from_numpy(embedding).float(), head=head)


def arrays(features):
    head = features.head
    bias = np.zeros(head.classes) if head.bias is None else head.bias.double().numpy()
    return head.weight.double().numpy(), bias, features.embedding.double().numpy()


def masks(shape=(CLASSES, WIDTH)):
    entries = shape[0] * shape[1]
    drawn = st.lists(st.booleans(), min_size=entries, max_size=entries)
    return drawn.map(lambda values: torch.tensor(values).view(shape))


seeds = st.integers(0, 9999)


# One class --------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(seed=seeds, label=st.integers(0, CLASSES - 1))
def test_units_are_the_means_and_variances_of_contributions_in_id_order(seed, label):
    known, strange = make(seed), make(seed + 1)
    strange = Features(strange.embedding, head=known.head)
    found = units(known.head, moments(known), moments(strange), label)
    weight, _, embedding = arrays(known)
    order = slow.id_order(weight, embedding, label)
    assert found.label == label
    assert found.order.tolist() == order == id_order(known.head, moments(known), label).tolist()
    assert np.all(np.diff(found.id_mean) >= 0)
    on_id = slow.contributions(weight, embedding, label)[:, order]
    on_ood = slow.contributions(weight, arrays(strange)[2], label)[:, order]
    for got, values in ((found.id_mean, on_id.mean(axis=0)), (found.ood_mean, on_ood.mean(axis=0))):
        np.testing.assert_allclose(got, values, rtol=1e-10, atol=1e-10)
    for got, values in ((found.id_variance, on_id.var(axis=0)), (found.ood_variance, on_ood.var(axis=0))):
        np.testing.assert_allclose(got, values, rtol=1e-10, atol=1e-10)


@settings(max_examples=20, deadline=None)
@given(seed=seeds, label=st.integers(0, CLASSES - 1))
def test_the_covariance_matrix_is_that_of_contributions_in_id_order(seed, label):
    known, strange = make(seed), make(seed + 1)
    got = contribution_covariance(known.head, moments(known), moments(strange), label)
    weight, _, embedding = arrays(known)
    order = slow.id_order(weight, embedding, label)
    wanted = slow.covariance(slow.contributions(weight, arrays(strange)[2], label))[np.ix_(order, order)]
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(got, got.T, rtol=1e-12, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(seed=seeds, mask=masks(), bias=st.booleans(), label=st.integers(0, CLASSES - 1))
def test_class_outputs_are_sums_of_contributions_and_the_bias(seed, mask, bias, label):
    features = make(seed, bias=bias)
    weight, biases, embedding = arrays(features)
    for got, wanted in zip(
        class_outputs(features.head, mask, features, label),
        slow.outputs(weight, biases, mask.numpy(), embedding, label),
        strict=True,
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-10)


def test_with_nothing_dropped_the_outputs_are_the_logits(features):
    whole = torch.ones_like(features.head.weight, dtype=torch.bool)
    for label in range(features.classes):
        dense, kept = class_outputs(features.head, whole, features, label)
        np.testing.assert_allclose(dense, features.logits[:, label].numpy(), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(dense, kept)


def test_equal_contributions_keep_the_order_of_units():
    head = Head(torch.tensor([[1.0, 1.0, -1.0, 1.0, 0.0]]))
    features = Features(torch.ones(3, 5), head=head)
    assert id_order(head, moments(features), 0).tolist() == [2, 4, 0, 1, 3]


# Variances --------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(seed=seeds, mask=masks(), bias=st.booleans())
def test_three_routes_to_the_variance_of_every_class_agree(seed, mask, bias):
    features = make(seed, bias=bias)
    found = variances(features.head, mask, features)
    weight, biases, embedding = arrays(features)
    size = max(1.0, float(found.direct_full.max()))
    np.testing.assert_allclose(found.full, found.direct_full, rtol=1e-9, atol=1e-12 * size)
    np.testing.assert_allclose(found.kept, found.direct_kept, rtol=1e-9, atol=1e-12 * size)
    np.testing.assert_allclose(found.correlated, found.direct_full - found.direct_kept, atol=1e-10 * size)
    for label in range(CLASSES):
        dense, kept = slow.outputs(weight, biases, mask.numpy(), embedding, label)
        assert found.direct_full[label] == pytest.approx(dense.var(), rel=1e-9, abs=1e-12 * size)
        assert found.direct_kept[label] == pytest.approx(kept.var(), rel=1e-9, abs=1e-12 * size)


@settings(max_examples=20, deadline=None)
@given(seed=seeds, mask=masks())
def test_the_remarks_formula_term_by_term(seed, mask):
    features = make(seed)
    found = variances(features.head, mask, features)
    weight, _, embedding = arrays(features)
    size = max(1.0, float(found.full.max()))
    for label in range(CLASSES):
        for name, value in slow.reduction(weight, mask.numpy(), embedding, label).items():
            assert getattr(found, name)[label] == pytest.approx(value, rel=1e-9, abs=1e-11 * size), name


@settings(max_examples=20, deadline=None)
@given(seed=seeds, mask=masks((CLASSES, 4)))
def test_the_lemma_is_exact_where_units_are_independent(seed, mask):
    # a full factorial design: the columns of all sign patterns are uncorrelated, not nearly but exactly
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 4)
    draw = torch.Generator().manual_seed(seed)
    embedding = signs * torch.randint(1, 5, (4,), generator=draw) + torch.randint(0, 9, (4,), generator=draw)
    head = Head(torch.randint(-3, 4, (CLASSES, 4), generator=draw).float())
    found = variances(head, mask, Features(embedding, head=head))
    np.testing.assert_array_equal(found.cross_all, 0.0)
    np.testing.assert_array_equal(found.cross_kept, 0.0)
    np.testing.assert_array_equal(found.correlated, found.independent)
    np.testing.assert_allclose(found.independent, found.direct_full - found.direct_kept, rtol=1e-12, atol=1e-12)


def test_moments_that_are_given_are_used(features):
    mask = dice_mask(features.head, moments(features), 0.5)
    ours, given_ = variances(features.head, mask, features), variances(features.head, mask, features, moments(features))
    for name in ("full", "kept", "independent", "cross_all", "cross_kept", "direct_full", "direct_kept"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(given_, name))


def test_a_large_offset_leaves_the_digits_of_the_measured_variance():
    features = make(5, rows=400, mixed=False)
    far = Features(features.embedding.double() + 1e6, head=Head(features.head.weight.double()))
    mask = torch.arange(WIDTH).expand(CLASSES, WIDTH) % 2 == 0
    near = variances(far.head, mask, Features(far.embedding - 1e6, head=far.head))
    found = variances(far.head, mask, far)
    for name in ("full", "kept", "independent", "direct_full", "direct_kept"):
        np.testing.assert_allclose(getattr(found, name), getattr(near, name), rtol=1e-6)


def test_the_ratio_is_what_is_left(features):
    strange = {"far": Features(example_features(90, 12, 4, seed=8).embedding, head=features.head)}
    mask = dice_mask(features.head, moments(features), 0.7)
    ratios = variance_ratios(features.head, moments(features), 0.7, strange)
    found = variances(features.head, mask, strange["far"])
    assert list(ratios) == ["far"]
    np.testing.assert_array_equal(ratios["far"], found.ratio)
    np.testing.assert_array_equal(found.ratio, found.direct_kept / found.direct_full)


def test_no_array_of_rows_by_classes_by_units_is_made():
    rows, classes, width = 1200, 1000, 1000
    assert rows * classes * width * 8 > 8e9
    draw = torch.Generator().manual_seed(0)
    head = Head(torch.randn(classes, width, generator=draw))
    features = Features(torch.rand(rows, width, generator=draw), head=head)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    part = moments(features)
    found = variances(head, drop_lowest(head, part, 900), features, part)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "kilobytes"
    np.testing.assert_allclose(found.correlated, found.direct_full - found.direct_kept, rtol=1e-8)


# Masks ------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(seed=seeds, dropped=st.integers(0, WIDTH - 1))
def test_drop_lowest_drops_the_units_of_least_id_contribution_in_every_class(seed, dropped):
    features = make(seed)
    mask = drop_lowest(features.head, moments(features), dropped)
    weight, _, embedding = arrays(features)
    for label in range(CLASSES):
        order = slow.id_order(weight, embedding, label)
        assert sorted(torch.nonzero(~mask[label]).flatten().tolist()) == sorted(order[:dropped])


@pytest.mark.parametrize("dropped", [-1, 12, 99])
def test_drop_lowest_refuses_to_drop_what_is_not_there(features, dropped):
    with pytest.raises(ArgumentError, match=rf"dropped={dropped} must lie between 0 and 11"):
        drop_lowest(features.head, moments(features), dropped)


@pytest.mark.parametrize("p", [0.0, 0.3, 0.9])
def test_the_mask_of_dice_is_the_detectors_own(features, p):
    mask = dice_mask(features.head, moments(features), p)
    if p == 0:
        assert mask.all()
        return
    detector = DICE(p=p).fit(features)
    assert torch.equal(detector.weight_, features.head.weight * mask)


def test_near_zero_counts_pairs_off_the_diagonal():
    matrix = np.array([[4.0, 0.03, 1.0], [0.03, 2.0, -0.05], [1.0, -0.05, 1.0]])
    assert near_zero(matrix) == pytest.approx(2 / 6)
    assert near_zero(matrix, 0.02) == pytest.approx(4 / 6)
    assert near_zero(matrix, 1.0) == 1.0
    assert near_zero(np.array([[3.0]])) == 1.0


# What is wrong ----------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [-1, 4, 99])
def test_a_label_that_is_no_class_is_named(features, label):
    head, part = features.head, moments(features)
    mask = torch.ones_like(head.weight, dtype=torch.bool)
    for action in (
        lambda: units(head, part, part, label),
        lambda: id_order(head, part, label),
        lambda: contribution_covariance(head, part, part, label),
        lambda: class_outputs(head, mask, features, label),
    ):
        with pytest.raises(ArgumentError, match=rf"label={label} is no class of this head; it has 4"):
            action()


def test_a_mask_of_another_shape_and_features_without_a_head(features):
    with pytest.raises(ShapeError, match=r"the mask is \(12,\), the head's weight \(4, 12\)"):
        variances(features.head, torch.ones(12, dtype=torch.bool), features)
    with pytest.raises(DataError, match="has no head"):
        head_of(Features(features.embedding))
    assert head_of(features) is features.head


# Real networks ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(data):
    """The authors' CIFAR-10 network on some CIFAR-10 and SVHN images."""
    network = densenet101(10)
    load_checkpoint(network, data / "checkpoints" / "densenet101-cifar10.pth.tar")
    places = {"cifar10": data / "cifar-10-batches-py" / "test_batch", "svhn": data / "svhn" / "test_32x32.mat"}
    return {
        name: extract(network, ImageLoader(open_images(path).sample(150), CIFAR), labels=False)
        for name, path in places.items()
    }


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["cifar10", "svhn"])
def test_the_remark_holds_on_a_real_network_for_all_classes(real, name):
    head, part = real[name].head, moments(real["cifar10"])
    for mask in (dice_mask(head, part, 0.9), drop_lowest(head, part, 307)):
        found = variances(head, mask, real[name])
        np.testing.assert_allclose(found.full, found.direct_full, rtol=1e-9)
        np.testing.assert_allclose(found.kept, found.direct_kept, rtol=1e-9)
        np.testing.assert_allclose(found.correlated, found.direct_full - found.direct_kept, rtol=1e-9)


@pytest.mark.realdata
def test_a_real_class_beside_the_slow_twins(real):
    head, id_moments, label = real["cifar10"].head, moments(real["cifar10"]), 0
    weight, known, strange = head.weight.double().numpy(), real["cifar10"], real["svhn"]
    found = units(head, id_moments, moments(strange), label)
    # equal means of silent units may be put in either order
    means = slow.contributions(weight, known.embedding.double().numpy(), label).mean(axis=0)
    np.testing.assert_allclose(found.id_mean, np.sort(means), rtol=1e-9, atol=1e-12)
    values = slow.contributions(weight, strange.embedding.double().numpy(), label)
    np.testing.assert_allclose(found.ood_variance, values.var(axis=0)[found.order], rtol=1e-9, atol=1e-12)
