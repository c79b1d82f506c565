"""Mahalanobis: the distances of a loop over classes, and the paper's method over layers and after input steps."""

import copy
import re
import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference import gradient as slow
from reference.metrics import fpr_at_tpr
from support.detector_data import labelled
from support.networks import CLASSES, batched, one_thread, pictures, seeded  # noqa: F401
from support.smooth import classes_of, distance_twin, fitted, plain, small, smooth

from oodles.data.inputs import Inputs
from oodles.detectors import ODIN, Mahalanobis
from oodles.detectors.mahalanobis import combine_layers
from oodles.detectors.network_detector import steps_of
from oodles.errors import (
    ArgumentError,
    DataError,
    FitWarning,
    MissingPackageError,
    NotFittedError,
    OodlesError,
    ShapeError,
)
from oodles.features import Features
from oodles.network.extraction import extract
from oodles.network.perturbation import channel_bounds, fgsm
from oodles.selection.tuning import tune
from oodles.testing import example_features

# Distances ------------------------------------------------------------------------------------------


def as_features(rows, labels=None, classes=None):
    classes = classes or int(labels.max()) + 1
    return Features(rows.float(), logits=torch.zeros(len(rows), classes), labels=labels)


def far_rows(width, *, seed=0, rows=25):
    return torch.from_numpy(3 * np.random.default_rng(seed + 1).normal(size=(rows, width))).float()


def relative_error(got, want):
    return float(np.abs(np.asarray(got, dtype=float) - want).max() / max(1.0, np.abs(want).max()))


def warnings_of(detector, features):
    """What a user is shown in a fit: Python shows equal warnings of one line once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        detector.fit(features)
    assert all(warning.category is FitWarning for warning in caught)
    return [str(warning.message) for warning in caught]


@pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")
@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(lambda counts: max(counts) > 1),
    width=st.integers(1, 12),
    dead=st.integers(0, 4),
    value=st.sampled_from([0.0, 3.7]),
    seed=st.integers(0, 999),
)
def test_scores_match_a_loop_over_classes(counts, width, dead, value, seed):
    # fewer rows than units, classes of one row or of none, constant units
    assume(dead < width)
    rows, labels = labelled(counts, width, seed=seed)
    rows[:, :dead] = value
    rows = rows.float()
    detector = Mahalanobis().fit(as_features(rows, labels, len(counts)))
    others = torch.cat([rows, far_rows(width, seed=seed)])
    want = -slow.distance(rows.double().numpy(), labels.numpy())(others.double().numpy())
    assert relative_error(detector.score(as_features(others, classes=len(counts))), want) < 1e-4


@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_float32_agrees_with_float64(spread):
    # classes far apart and narrow, as those of a fully trained network
    rows, labels = labelled([200] * 10, 64, spread=spread)
    features = as_features(rows, labels)
    detector = Mahalanobis().fit(features)
    narrow = detector.score(features)
    wide = copy.deepcopy(detector).double().score(features.to(dtype=torch.float64))
    assert (narrow.dtype, wide.dtype) == (torch.float32, torch.float64)
    assert relative_error(narrow, wide.numpy()) < 1e-4
    assert (
        relative_error(wide, -slow.distance(features.embedding.double().numpy(), labels.numpy())(rows.numpy())) < 1e-4
    )


@pytest.mark.parametrize(("thin", "left_out"), [(1e-2, 0), (1e-4, 0), (1e-6, 1)])
def test_directions_below_1e_10_of_the_largest_variance_are_left_out(thin, left_out):
    rows, labels = labelled([100, 80], 4, spread=1.0)
    rows, others = (part * torch.tensor([1, 1, 1, thin]) for part in (rows, far_rows(4)))
    features = as_features(rows, labels)
    assert len(warnings_of(detector := Mahalanobis(), features)) == left_out
    want = -slow.distance(rows.float().double().numpy(), labels.numpy())(others.double().numpy())
    assert relative_error(detector.score(as_features(others, classes=2)), want) < 1e-4
    assert detector.gaussians[0].whitening_.shape == (4, 4 - left_out)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_labels_are_integers_of_any_type(dtype):
    rows, labels = labelled([30, 40], 5)
    features = as_features(rows, labels)
    detector = Mahalanobis().fit(as_features(rows, labels.to(dtype)))
    assert torch.equal(detector.score(features), Mahalanobis().fit(features).score(features))


# Warnings of a fit ------------------------------------------------------------------------------------


def test_warnings_say_what_was_left_out():
    rows, labels = labelled([30, 1, 0, 20, 1, 0, 0], 5)
    rows[:, 1] = 2.5
    assert warnings_of(Mahalanobis(), as_features(rows, labels, 7)) == [
        "3 of 7 classes have no training row and are left out",
        "2 of 7 classes have a single training row, which says nothing about their variance",
        "embedding: 1 of 5 directions do not vary within classes and are left out",
    ]
    few = as_features(*labelled([3, 2], 10))
    assert warnings_of(Mahalanobis(), few) == [
        "embedding: 7 of 10 directions do not vary within classes and are left out"
    ]


def test_warnings_name_the_layer_and_do_not_repeat_the_classes():
    rows, labels = labelled([30, 0, 20], 4)
    flat = torch.cat([rows[:, :2], torch.zeros(len(rows), 3)], dim=1).float()
    features = Features(rows.float(), logits=torch.zeros(50, 3), labels=labels, layers={"a": flat})
    assert warnings_of(Mahalanobis(layers=["a"]), features) == [
        "1 of 3 classes have no training row and are left out",
        "layer.a: 3 of 5 directions do not vary within classes and are left out",
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_do_not_vary_within_classes_are_refused(dtype):
    labels = torch.arange(30) % 3
    # thirds and tenths are not binary fractions, so even a mean in float64 has a rounding error
    rows = (torch.tensor([[0.1, 0.7], [1 / 3, 0.3], [0.9, 0.1]], dtype=dtype))[labels]
    with pytest.raises(DataError, match="embedding does not vary within any class"):
        Mahalanobis().fit(Features(rows, logits=torch.zeros(30, 3), labels=labels))
    varied = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    layered = Features(varied, logits=torch.zeros(30, 3), labels=labels, layers={"a": rows})
    with pytest.raises(DataError, match=r"layer\.a does not vary"):
        Mahalanobis(layers=["a"]).fit(layered)


@pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")
def test_a_layer_of_another_width_is_named():
    detector = Mahalanobis(layers=["a"])
    plain_rows = example_features(rows=60, width=6, classes=3)
    one, other = (
        Features(plain_rows.embedding, labels=plain_rows.labels, head=plain_rows.head, layers={"a": torch.rand(60, n)})
        for n in (4, 5)
    )
    detector.fit(one).tune(one, one[torch.randperm(60)])
    with pytest.raises(ShapeError):
        detector.score(other)


# After an input step ----------------------------------------------------------------------------------


@pytest.mark.parametrize("std", [(), (0.2, 0.5, 2.0)])
def test_scores_after_a_step_match_the_reference_image_by_image(std):
    model, images = smooth(dtype=torch.float32), small(6, seed=4)
    detector = fitted(model, Mahalanobis(epsilon=0.05, std=std))
    features = extract(model, [images.float()], steps=detector.steps())
    twin = distance_twin(model)
    want = [-float(twin(slow.stepped(twin, image, 0.05, std)[None])[0]) for image in images.numpy()]
    np.testing.assert_allclose(detector.score(features), want, rtol=1e-3)
    still = fitted(model, Mahalanobis()).score(features)
    assert bool((detector.score(features) > still).all()), "a step towards the nearest class"


def test_a_detector_fitted_in_float32_works_on_a_network_in_float64():
    narrow, wide = smooth(dtype=torch.float32), smooth()
    detector = fitted(narrow, Mahalanobis(layers=["first"], epsilon=0.05))
    one, other = (
        extract(model, [small(6, dtype=dtype)], layers=["first"], steps=detector.steps())
        for model, dtype in ((narrow, torch.float32), (wide, torch.float64))
    )
    for step in detector.steps():
        torch.testing.assert_close(one.column(step.column), other.column(step.column), rtol=1e-4, atol=1e-4)


def test_steps_are_known_once_it_is_fitted():
    detector = Mahalanobis(layers=["first"], epsilon=0.05)
    assert detector.steps() == ()
    steps = fitted(smooth(), detector).steps()
    assert [step.keep for step in steps] == ["layer.first", "embedding"]
    assert all(step.identity for step in steps)
    assert fitted(smooth(), Mahalanobis(layers=["first"])).steps() == ()


def test_steps_learned_from_different_rows_are_not_confused():
    model = smooth()
    one, twin, other = (fitted(model, Mahalanobis(epsilon=0.05), rows=rows) for rows in (80, 80, 60))
    assert len(steps_of([one, twin])) == 1
    with pytest.raises(
        ArgumentError, match="fitted on different rows need the step " + re.escape(repr(one.steps()[0].name))
    ):
        steps_of([one, other])


def test_the_step_with_the_lowest_fpr95_is_chosen(monkeypatch):
    sizes = (0.0, 0.05, 0.2, 0.6)
    monkeypatch.setattr(Mahalanobis, "grid", sizes)
    model, images, labels = smooth(dtype=torch.float32), small(61, seed=2), classes_of(61, seed=9)
    # without layers there is nothing to combine, so scikit-learn is not needed
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    detector = fitted(model, Mahalanobis(epsilon=None))
    tune([detector], model, [(images.float(), labels)])
    copies = fgsm(smooth(), Inputs((images,)), labels, channel_bounds(images)).args[0].numpy()
    ids, oods = (slow.closeness([distance_twin(model)], rows, sizes) for rows in (images.numpy(), copies))
    rates = [fpr_at_tpr(ids[size][30:60, 0].tolist(), oods[size][30:60, 0].tolist()) for size in sizes]
    assert min(rates) not in (rates[0], rates[-1]), "otherwise the test could pass without a choice"
    assert detector.step_size == sizes[rates.index(min(rates))]


# Several layers -----------------------------------------------------------------------------------

LAYERS = ("first", "second")
HELD_OUT = 40


def held_out():
    return small(HELD_OUT, seed=1), classes_of(HELD_OUT, seed=9)


def layered(epsilon):
    """A detector fitted and tuned on a small convolutional network, and that network."""
    model = smooth(seed=1, dtype=torch.float32)
    detector = fitted(model, Mahalanobis(layers=LAYERS, epsilon=epsilon))
    images, labels = held_out()
    tune([detector], model, list(zip(images.float().split(16), labels.split(16), strict=True)))
    return detector, model


def features_for(detector, model, images):
    return extract(model, [images], layers=detector.layers, steps=detector.steps())


def distance_twins(model):
    return [distance_twin(model, column) for column in ("layer.first", "layer.second", "embedding")]


def tuned_twin(model, sizes):
    """The step size and the combination of layers, by the reference."""
    images, labels = (part.numpy() for part in held_out())
    low, high = images.min(axis=(0, 2, 3)), images.max(axis=(0, 2, 3))
    network, copies = plain(model), []
    for image, label in zip(images, labels.tolist(), strict=True):

        def loss(rows, label=label):
            logits = network(rows)
            return np.log(np.exp(logits - logits[:, [label]]).sum(axis=1))

        copies.append(slow.fgsm(loss, image, 0.05, low, high))
    inside, outside = (slow.closeness(distance_twins(model), rows, sizes) for rows in (images, np.stack(copies)))
    return slow.best_combination(inside, outside, sizes)


@pytest.mark.parametrize(("epsilon", "sizes"), [(0.0, (0.0,)), (0.05, (0.05,)), (None, (0.0, 0.05, 0.2))])
def test_layers_are_combined_as_by_a_loop_and_the_step_has_the_lowest_fpr95(epsilon, sizes, monkeypatch):
    monkeypatch.setattr(Mahalanobis, "grid", sizes)
    detector, model = layered(epsilon)
    size, decide = tuned_twin(model, sizes)
    assert detector.step_size == size
    assert size == (0.05 if epsilon is None else epsilon), "neither the first nor the last, so it was chosen"
    images = small(10, seed=12)
    features = features_for(detector, model, images.float())
    closeness = slow.closeness(distance_twins(model), images.numpy(), [size])[size]
    for gaussian, column, want in zip(detector.gaussians, detector.scores_from, closeness.T, strict=True):
        np.testing.assert_allclose(-gaussian(features.column(column)), want, rtol=1e-3, err_msg=column)
    want = decide(closeness)
    np.testing.assert_allclose(detector.score(features), want, rtol=1e-3, atol=1e-3 * np.abs(want).max())


def test_a_constant_layer_does_not_break_the_regression():
    draw = np.random.default_rng(0)
    inside, outside = (torch.from_numpy(draw.normal(size=(40, 2)) + shift) for shift in (1.0, -1.0))
    inside[:, 1] = outside[:, 1] = 4.0
    weights, offset = combine_layers(inside, outside)
    assert bool(torch.isfinite(weights).all())
    assert float((inside @ weights + offset).mean()) > 0 > float((outside @ weights + offset).mean())


def test_the_extra_is_named_if_scikit_learn_is_missing(monkeypatch):
    for name in ("sklearn", "sklearn.linear_model"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackageError, match=r"scikit-learn, .*'oodles\[layers\]'"):
        combine_layers(torch.rand(9, 2), torch.rand(9, 2))
    with pytest.raises(MissingPackageError, match=r"oodles\[layers\]"):
        layered(0.0)


def test_fitting_again_discards_what_was_tuned():
    detector, model = layered(0.0)
    assert detector.fitted
    fitted(model, detector)
    assert not detector.tuned
    with pytest.raises(NotFittedError, match=r"oodles\.selection\.tune"):
        detector.score(features_for(detector, model, small(4, dtype=torch.float32)))


# What tuning needs ------------------------------------------------------------------------------------


def test_adversarial_copies_need_labels():
    detector = fitted(smooth(), Mahalanobis(layers=LAYERS))
    images, labels = held_out()
    with pytest.raises(DataError, match="no labels"):
        tune([detector], smooth(), [images])
    with pytest.raises(DataError, match="some batches have labels and some do not"):
        tune([ODIN(), detector], smooth(), [(images[:20], labels[:20]), images[20:]])
    with pytest.raises(ArgumentError, match="adversarial copies"):
        detector.tune(extract(smooth(), [images], layers=LAYERS))
    assert not detector.tuned


def test_labels_that_are_not_classes_are_named():
    detector = fitted(smooth(), Mahalanobis(layers=LAYERS))
    images, _ = held_out()
    with pytest.raises(DataError, match="labels"):
        tune([detector], smooth(), [(images, torch.full((HELD_OUT,), CLASSES))])


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_too_few_images_to_tune_on_are_refused(rows):
    detector = fitted(smooth(), Mahalanobis(layers=LAYERS))
    with pytest.raises(OodlesError):
        tune([detector], smooth(), [held_out()], max_images=rows)


def test_every_step_runs_once_for_all_detectors():
    model = smooth(dtype=torch.float32)
    detectors = [fitted(model, Mahalanobis(epsilon=None)) for _ in range(2)]
    model.forwards.clear()
    model.backwards.clear()
    images, labels = held_out()
    tune(detectors, model, [(images[:20].float(), labels[:20])])
    steps = len(Mahalanobis.grid) - 1
    # held-out images and their copies: one pass without a step and one for each step, and one more to make the copies;
    # the passes of two rows or so are the search for the last layer
    assert [rows for rows in model.forwards if rows == 20] == [20] * (2 * (1 + steps) + 1)
    assert model.backwards == [20, 20, 20]
