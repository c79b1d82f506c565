"""Gram: deviations from the range of each class, against the formula written out in float64."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import maps as slow
from support.ensembles import fit_in_parts
from support.networks import batched, one_thread, pictures, seeded, spread  # noqa: F401

import oodles as ood
from oodles.detectors import Gram
from oodles.detectors import gram as gram_module
from oodles.detectors.gram import HELD_OUT_PERCENT, ClassRange
from oodles.detectors.statistics import row_keys
from oodles.errors import DataError, FitWarning, ShapeError
from oodles.features import Features
from oodles.functional import gram_row_sums
from oodles.network.taps import eval_mode

LAYERS = ("a", "b")


def features_of(maps, logits, orders):
    """Features of a network with these maps, each ``(n, channels, positions)``."""
    layers = {f"{name}:gram({orders})": gram_row_sums(part, orders) for name, part in zip(LAYERS, maps, strict=True)}
    return Features(logits=logits, layers=layers)


def made_up(rows=200, classes=3, orders=2, seed=0, sign=1.0):
    generator = torch.Generator().manual_seed(seed)
    maps = [sign * torch.randn(rows, *size, generator=generator).add(0.3).relu() for size in ((12, 9), (9, 4))]
    return maps, 2 * torch.randn(rows, classes, generator=generator)


def held_out_rows(features, detector):
    rows = torch.cat([features.column(column) for column in detector.columns], dim=1)
    return row_keys(rows) % 100 < HELD_OUT_PERCENT


@pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")
@settings(max_examples=10, deadline=None)
@given(orders=st.integers(1, 10), classes=st.integers(2, 4), seed=st.integers(0, 10**6), sign=st.sampled_from([1, -1]))
def test_scores_are_those_of_explicit_gram_matrices(orders, classes, seed, sign):
    maps, logits = made_up(200, classes, orders, seed, sign)
    features = features_of(maps, logits, orders)
    detector = Gram(layers=LAYERS, orders=orders)
    held_out = held_out_rows(features, detector)
    detector.fit(features)

    def rows_of(maps, logits, chosen):
        for row in chosen.nonzero()[:, 0].tolist():
            yield [slow.gram_row_sums(part[row].double(), orders) for part in maps], logits[row].double().numpy()

    new_maps, new_logits = made_up(20, classes, orders, seed + 1, sign)
    new = list(rows_of(new_maps, new_logits, torch.ones(20, dtype=torch.bool)))
    want = slow.gram_scores(list(rows_of(maps, logits, ~held_out)), list(rows_of(maps, logits, held_out)), new)
    got = detector.score(features_of(new_maps, new_logits, orders))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


def test_a_tenth_of_the_rows_is_held_out_and_training_rows_do_not_deviate():
    features = features_of(*made_up(2000), 2)
    detector = Gram(layers=LAYERS, orders=2)
    held_out = held_out_rows(features, detector)
    assert 140 < int(held_out.sum()) < 260
    scores = detector.fit(features).score(features)
    assert torch.equal(scores[~held_out], torch.zeros(int((~held_out).sum())))
    assert (scores[held_out] < 0).any()


def test_the_held_out_sample_is_bounded(monkeypatch):
    monkeypatch.setattr(gram_module, "MAX_ROWS", 25)
    features = features_of(*made_up(1500), 2)
    detector = Gram(layers=LAYERS, orders=2).partial_fit(features)
    assert len(detector._statistics["held_out"].rows()) == 25
    order = torch.randperm(1500, generator=torch.Generator().manual_seed(1))
    again = fit_in_parts(Gram(layers=LAYERS, orders=2), features[order].batches(100))
    assert torch.equal(again.scale_, detector.finish().scale_)


def test_the_range_of_classes_by_hand():
    whole, part = ClassRange(), ClassRange()
    whole.add(torch.tensor([[1.0, -1.0], [3.0, -5.0]]), torch.tensor([0, 0]), 3)
    part.add(torch.tensor([[2.0, 7.0], [-4.0, 0.0]]), torch.tensor([2, 0]), 3)
    kept = copy.deepcopy(part)
    whole.merge(part)
    assert whole.seen().tolist() == [True, False, True]
    assert whole.low().tolist() == [[-4, -5], [-4, -5], [2, 7]]
    assert whole.high().tolist() == [[3, 0], [3, 7], [2, 7]]
    assert torch.equal(part.low(), kept.low())
    empty = ClassRange()
    whole.merge(empty)
    empty.merge(whole)
    assert torch.equal(empty.low(), whole.low())
    assert torch.equal(empty.high(), whole.high())
    empty.add(torch.tensor([[-9.0, 9.0]]), torch.tensor([0]), 3)
    assert whole.low()[0].tolist() == [-4, -5], "a merged copy has its own numbers"


# Rows that leave little to learn ------------------------------------------------------------------


def test_classes_that_are_never_predicted_get_the_range_of_all_and_a_warning():
    maps, logits = made_up(300)
    logits[:, 2] = -50
    features = features_of(maps, logits, 2)
    with pytest.warns(FitWarning, match="1 of 3 classes are never predicted"):
        detector = Gram(layers=LAYERS, orders=2).fit(features)
    assert torch.equal(detector.low_[2], detector.low_[:2].amin(dim=0))
    assert torch.equal(detector.high_[2], detector.high_[:2].amax(dim=0))
    assert torch.isfinite(detector.score(features_of(*made_up(20, seed=4), 2))).all()


def test_a_layer_that_is_always_zero_is_reported_and_still_counts():
    maps, logits = made_up(300)
    maps[1] = torch.zeros_like(maps[1])
    with pytest.warns(FitWarning, match="layer b never deviates on held-out rows"):
        detector = Gram(layers=LAYERS, orders=2).fit(features_of(maps, logits, 2))
    same = [maps[0][:5], maps[1][:5]]
    other = [maps[0][:5], torch.ones_like(maps[1][:5])]
    before, after = (detector.score(features_of(each, logits[:5], 2)) for each in (same, other))
    assert torch.isfinite(after).all()
    assert (after < before).all()


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_a_few_rows_give_finite_scores_and_a_warning(rows, seed):
    features = features_of(*made_up(rows, seed=seed), 2)
    with pytest.warns(FitWarning, match="rows are held out"):
        detector = Gram(layers=LAYERS, orders=2).fit(features)
    assert torch.isfinite(detector.score(features_of(*made_up(20, seed=99), 2))).all()


# What is refused ----------------------------------------------------------------------------------


def test_more_numbers_than_can_be_kept_are_refused(monkeypatch):
    features = features_of(*made_up(), 2)
    monkeypatch.setattr(gram_module, "MAX_NUMBERS", 3 * 42)
    Gram(layers=LAYERS, orders=2).partial_fit(features)
    monkeypatch.setattr(gram_module, "MAX_NUMBERS", 3 * 42 - 1)
    with pytest.raises(DataError, match="3 classes x 42 values, more than 125"):
        Gram(layers=LAYERS, orders=2).fit(features)


def test_layers_of_another_width_are_refused():
    maps, logits = made_up(300)
    detector = Gram(layers=LAYERS, orders=2).fit(features_of(maps, logits, 2))
    with pytest.raises(ShapeError, match="was fitted on layers of width 42, got 24"):
        detector.score(features_of([maps[0][:, :3], maps[1]], logits, 2))
    with pytest.raises(ShapeError, match=r"the layer\.b:gram\(2\), which .* does not have"):
        detector.score(Features(logits=logits, layers={"a:gram(2)": torch.ones(300, 24)}))


# With a network -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")
def test_the_shipped_network_on_real_images(data):
    from oodles.bench.suites import SUITES
    from oodles.data.loaders import ImageLoader
    from oodles.data.readers import open_images

    suite, model = SUITES["cifar10"], ood.models.load("cifar10-small")
    detector = Gram(layers=("stage1", "stage2", "stage3"), orders=5)
    sets = suite.open_sets(data)
    train, test = (ImageLoader(sets[part].sample(600), suite.transform) for part in ("train", "test"))
    guard = ood.Guard.fit(model, train, calibration=test, detector=detector)
    digits = ImageLoader(open_images(data / "svhn" / "test_32x32.mat").sample(100), suite.transform, labels=False)
    images = next(iter(digits))
    images = images[0] if isinstance(images, tuple | list) else images
    assert guard(images).is_id.float().mean() < 0.5, "digits are unlike photographs"
    with eval_mode(model):
        maps = model.stage1(model.bn(model.conv(images[:4])).relu()).flatten(2).double().numpy()
    column = ood.extract(model, [images[:4]], layers=detector.layers, labels=False).layers["stage1:gram(5)"]
    np.testing.assert_allclose(column, [slow.gram_row_sums(each, 5) for each in maps], rtol=1e-3, atol=1e-5)
