"""The paper's theory as measurements, against slow versions that compute every contribution separately."""

import resource

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import analysis as slow
from support.networks import one_thread  # noqa: F401

from oodles.data.loaders import ImageLoader
from oodles.data.readers import open_images
from oodles.data.transforms import CIFAR
from oodles.detectors import DICE
from oodles.errors import ArgumentError, DataError, ShapeError
from oodles.features import Features, Head
from oodles.models import densenet101, load_checkpoint
from oodles.network.extraction import extract
from oodles.paper.analysis import (
    class_outputs,
    contribution_covariance,
    contribution_moments,
    dice_mask,
    drop_lowest,
    head_of,
    id_order,
    moments,
    near_zero,
    variances,
)
from oodles.testing import example_features

ROWS, WIDTH, CLASSES = 14, 6, 3


def make_features(seed, *, rows=ROWS, width=WIDTH, classes=CLASSES, bias=True, mixed=True):
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
def test_mean_and_variance_of_contributions_in_id_order(seed, label):
    id_features, ood_features = make_features(seed), make_features(seed + 1)
    head, (weight, _, embedding) = id_features.head, arrays(id_features)
    order = id_order(head, moments(id_features), label)
    assert order.tolist() == slow.id_order(weight, embedding, label)
    for features in (id_features, ood_features):
        mean, variance = contribution_moments(head, moments(features), label, order)
        values = slow.contributions(weight, arrays(features)[2], label)[:, order]
        np.testing.assert_allclose(mean, values.mean(axis=0), rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(variance, values.var(axis=0), rtol=1e-10, atol=1e-10)
        if features is id_features:
            assert np.all(np.diff(mean) >= 0)


@settings(max_examples=20, deadline=None)
@given(seed=seeds, label=st.integers(0, CLASSES - 1))
def test_the_covariance_matrix_is_that_of_contributions_in_id_order(seed, label):
    id_features, ood_features = make_features(seed), make_features(seed + 1)
    weight, _, embedding = arrays(id_features)
    order = slow.id_order(weight, embedding, label)
    got = contribution_covariance(id_features.head, moments(ood_features), label, torch.tensor(order))
    wanted = slow.covariance(slow.contributions(weight, arrays(ood_features)[2], label))[np.ix_(order, order)]
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(got, got.T, rtol=1e-12, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(seed=seeds, mask=masks(), bias=st.booleans(), label=st.integers(0, CLASSES - 1))
def test_class_outputs_are_sums_of_contributions_and_the_bias(seed, mask, bias, label):
    features = make_features(seed, bias=bias)
    weight, biases, embedding = arrays(features)
    for got, wanted in zip(
        class_outputs(features.head, mask, features, label),
        slow.outputs(weight, biases, mask.numpy(), embedding, label),
        strict=True,
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-10)


def test_equal_contributions_keep_the_order_of_units():
    head = Head(torch.tensor([[1.0, 1.0, -1.0, 1.0, 0.0]]))
    features = Features(torch.ones(3, 5), head=head)
    assert id_order(head, moments(features), 0).tolist() == [2, 4, 0, 1, 3]


# Variances --------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(seed=seeds, mask=masks(), bias=st.booleans())
def test_three_ways_to_compute_the_variance_of_every_class_agree(seed, mask, bias):
    features = make_features(seed, bias=bias)
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
def test_the_formula_of_remark_1_term_by_term(seed, mask):
    features = make_features(seed)
    found = variances(features.head, mask, features)
    weight, _, embedding = arrays(features)
    size = max(1.0, float(found.full.max()))
    for label in range(CLASSES):
        for name, value in slow.reduction(weight, mask.numpy(), embedding, label).items():
            assert getattr(found, name)[label] == pytest.approx(value, rel=1e-9, abs=1e-11 * size), name


@settings(max_examples=20, deadline=None)
@given(seed=seeds, mask=masks((CLASSES, 4)))
def test_the_lemma_is_exact_for_independent_units(seed, mask):
    # a full factorial design: the columns of all sign patterns are exactly uncorrelated
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 4)
    draw = torch.Generator().manual_seed(seed)
    embedding = signs * torch.randint(1, 5, (4,), generator=draw) + torch.randint(0, 9, (4,), generator=draw)
    head = Head(torch.randint(-3, 4, (CLASSES, 4), generator=draw).float())
    found = variances(head, mask, Features(embedding, head=head))
    np.testing.assert_array_equal(found.cross_all, 0.0)
    np.testing.assert_array_equal(found.cross_kept, 0.0)
    np.testing.assert_array_equal(found.correlated, found.independent)
    np.testing.assert_allclose(found.independent, found.direct_full - found.direct_kept, rtol=1e-12, atol=1e-12)


def test_a_large_offset_does_not_cost_the_variance_its_precision():
    features = make_features(5, rows=400, mixed=False)
    far = Features(features.embedding.double() + 1e6, head=Head(features.head.weight.double()))
    mask = torch.arange(WIDTH).expand(CLASSES, WIDTH) % 2 == 0
    near = variances(far.head, mask, Features(far.embedding - 1e6, head=far.head))
    found = variances(far.head, mask, far)
    for name in ("full", "kept", "independent", "direct_full", "direct_kept"):
        np.testing.assert_allclose(getattr(found, name), getattr(near, name), rtol=1e-6)


def test_the_ratio_of_variances(features):
    far = Features(example_features(90, 12, 4, seed=8).embedding, head=features.head)
    found = variances(features.head, dice_mask(features.head, moments(features), 0.7), far)
    np.testing.assert_array_equal(found.ratio, found.direct_kept / found.direct_full)
    same = variances(features.head, torch.ones_like(features.head.weight, dtype=torch.bool), far[[0, 0]])
    np.testing.assert_array_equal(same.ratio, 1.0)


def test_no_array_of_rows_by_classes_by_units_is_built():
    rows, classes, width = 1200, 1000, 1000
    assert rows * classes * width * 8 > 8e9
    draw = torch.Generator().manual_seed(0)
    head = Head(torch.randn(classes, width, generator=draw))
    features = Features(torch.rand(rows, width, generator=draw), head=head)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    set_moments = moments(features)
    found = variances(head, drop_lowest(head, set_moments, 900), features, set_moments)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "kilobytes"
    np.testing.assert_allclose(found.correlated, found.direct_full - found.direct_kept, rtol=1e-8)


# Masks ------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(seed=seeds, dropped=st.integers(0, WIDTH - 1))
def test_drop_lowest_drops_the_units_of_smallest_id_contribution_in_every_class(seed, dropped):
    features = make_features(seed)
    mask = drop_lowest(features.head, moments(features), dropped)
    weight, _, embedding = arrays(features)
    for label in range(CLASSES):
        order = slow.id_order(weight, embedding, label)
        assert sorted(torch.nonzero(~mask[label]).flatten().tolist()) == sorted(order[:dropped])


@pytest.mark.parametrize("dropped", [-1, 12, 99])
def test_drop_lowest_checks_the_number_of_units(features, dropped):
    with pytest.raises(ArgumentError, match=rf"dropped={dropped} must lie between 0 and 11 for 12 units"):
        drop_lowest(features.head, moments(features), dropped)


@pytest.mark.parametrize("p", [0.0, 0.3, 0.9])
def test_the_mask_of_dice_is_that_of_the_detector(features, p):
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


# Errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [-1, 4, 99])
def test_a_label_that_is_not_a_class(features, label):
    head, set_moments = features.head, moments(features)
    mask, order = torch.ones_like(head.weight, dtype=torch.bool), torch.arange(head.width)
    for action in (
        lambda: id_order(head, set_moments, label),
        lambda: contribution_moments(head, set_moments, label, order),
        lambda: contribution_covariance(head, set_moments, label, order),
        lambda: class_outputs(head, mask, features, label),
    ):
        with pytest.raises(ArgumentError, match=rf"label={label} must lie between 0 and 3 for 4 classes"):
            action()


def test_a_mask_of_another_shape_and_features_without_a_head(features):
    with pytest.raises(ShapeError, match=r"the mask has shape \(12,\), the head's weight \(4, 12\)"):
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
def test_remark_1_holds_on_a_real_network_for_all_classes(real, name):
    head, id_moments = real[name].head, moments(real["cifar10"])
    for mask in (dice_mask(head, id_moments, 0.9), drop_lowest(head, id_moments, 307)):
        found = variances(head, mask, real[name])
        np.testing.assert_allclose(found.full, found.direct_full, rtol=1e-9)
        np.testing.assert_allclose(found.kept, found.direct_kept, rtol=1e-9)
        np.testing.assert_allclose(found.correlated, found.direct_full - found.direct_kept, rtol=1e-9)


@pytest.mark.realdata
def test_a_class_of_a_real_network_against_the_slow_version(real):
    head, id_moments, label = real["cifar10"].head, moments(real["cifar10"]), 0
    order = id_order(head, id_moments, label)
    id_mean, _ = contribution_moments(head, id_moments, label, order)
    _, ood_variance = contribution_moments(head, moments(real["svhn"]), label, order)
    id_values, ood_values = (
        slow.contributions(head.weight.double().numpy(), real[name].embedding.double().numpy(), label)
        for name in ("cifar10", "svhn")
    )
    # units that are never active have equal means, so their order may differ
    np.testing.assert_allclose(id_mean, np.sort(id_values.mean(axis=0)), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ood_variance, ood_values.var(axis=0)[order], rtol=1e-9, atol=1e-12)
