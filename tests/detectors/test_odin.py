"""ODIN and Generalized ODIN: their formulas image by image, no unnecessary passes, and the choice of the step."""

import numpy as np
import pytest
import torch
from reference import gradient as slow
from support.networks import CLASSES, WIDTH, batched, one_thread, pictures, seeded  # noqa: F401
from support.smooth import classes_of, deconf, plain, small, smooth

from oodles.detectors import GODIN, IODIN, MSP, ODIN, Energy
from oodles.detectors.network_detector import layers_of, steps_of
from oodles.errors import DataError
from oodles.features import Features
from oodles.network.extraction import extract
from oodles.selection.tuning import tune


def features_for(detectors, model, images, **options):
    """Features with the layers and steps that these detectors need."""
    return extract(model, [images], steps=steps_of(detectors), layers=layers_of(detectors), **options)


# ODIN ---------------------------------------------------------------------------------------------


def test_without_a_step_odin_is_the_tempered_softmax_bit_for_bit():
    features = extract(smooth(dtype=torch.float32), [small(40, dtype=torch.float32)])
    assert torch.equal(ODIN(epsilon=0.0).score(features), MSP(temperature=1000.0).score(features))
    assert torch.equal(ODIN(epsilon=0.0, temperature=3.0).score(features), MSP(temperature=3.0).score(features))


@pytest.mark.parametrize("temperature", [1.0, 1000.0])
@pytest.mark.parametrize("std", [(), (0.2, 0.5, 2.0)])
@pytest.mark.parametrize(("kind", "twin", "epsilon"), [(ODIN, slow.odin, 0.05), (IODIN, slow.iodin, 0.5)])
def test_scores_match_the_reference_image_by_image(kind, twin, epsilon, temperature, std):
    model, images = smooth(), small(8, seed=3)
    detector = kind(temperature=temperature, epsilon=epsilon, std=std)
    want = [twin(plain(model), image, temperature, epsilon, std) for image in images.numpy()]
    np.testing.assert_allclose(detector.score(features_for([detector], model, images)), want, rtol=2e-6)
    if kind is IODIN:
        full = ODIN(temperature=temperature, epsilon=epsilon, std=std)
        assert not np.allclose(full.score(features_for([full], model, images)), want, rtol=1e-5)


# Passes are shared ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("detectors", "steps", "backwards"),
    [
        ([ODIN(epsilon=0.0)], 0, []),
        ([ODIN(epsilon=0.1), ODIN(epsilon=0.1), ODIN(epsilon=0.0), Energy()], 1, [6]),
        ([ODIN(epsilon=0.1), ODIN(epsilon=0.2), ODIN(epsilon=0.1, std=(0.5, 0.5, 0.5))], 3, [6]),
        ([ODIN(epsilon=0.1), IODIN(epsilon=0.1)], 2, [6]),
        ([ODIN(epsilon=0.1), ODIN(epsilon=0.1, temperature=1.0)], 2, [6, 6]),
    ],
)
def test_a_step_is_one_forward_pass_and_a_temperature_one_backward_pass(detectors, steps, backwards):
    model = smooth()
    assert len({step.name for step in steps_of(detectors)}) == len(steps_of(detectors)) == steps
    features_for(detectors, model, small(6), head=False)
    assert (model.forwards, model.backwards) == ([6] * (1 + steps), backwards)


def test_tuning_runs_each_step_of_the_grid_once_for_all_detectors():
    model = smooth()
    tune([ODIN(), ODIN()], model, [small(6)], head=False)
    assert (model.forwards, model.backwards) == ([6] * 21, [6])


# Choosing the step ------------------------------------------------------------------------------------


def choosing(kind):
    """A detector that is not tuned, a model for it, and the score of one image after a step of some size."""
    if kind == "odin":
        model = smooth()
        return ODIN(temperature=2.0), model, {}, lambda image, size: slow.odin(plain(model), image, 2.0, size)
    model = deconf()
    cosines = plain(model, "layer.fc.cosine")
    return GODIN(), model, {"head": False}, lambda image, size: slow.godin(cosines, image, size)


@pytest.mark.parametrize("kind", ["odin", "godin"])
@pytest.mark.parametrize("grid", [(0.0, 0.05, 1.5, 4.0), (0.0, 8.0), (0.0, 0.002, 0.004)])
def test_the_step_with_the_largest_mean_score_is_chosen(kind, grid, monkeypatch):
    # sizes far beyond the papers', for which a larger step is not always better
    detector, model, options, score = choosing(kind)
    monkeypatch.setattr(type(detector), "grid", grid)
    images = small(5, seed=7)
    tune([detector], model, [images], **options)
    assert detector.step_size == slow.best_step(score, images.numpy(), grid)


def test_no_step_may_be_the_best(monkeypatch):
    detector, model = ODIN(temperature=1.0), smooth()
    monkeypatch.setattr(ODIN, "grid", (0.0, 8.0))
    features = extract(model, [small(40)], steps=detector.trials())
    logits = features.logits.double()
    worse = Features(logits=logits, layers={detector.trials()[0].name: torch.zeros_like(logits)})
    detector.tune(worse)
    assert detector.step_size == 0.0
    assert detector.steps() == ()
    assert torch.equal(detector.score(features), MSP().score(features))


def test_of_equally_good_steps_the_smallest_is_chosen():
    detector, logits = ODIN(), torch.randn(9, CLASSES, generator=torch.Generator().manual_seed(0))
    detector.tune(Features(logits=logits, layers={step.name: logits for step in detector.trials()}))
    assert detector.step_size == 0.0


def test_a_tuned_detector_is_left_alone_and_costs_nothing():
    model, tuned = smooth(), ODIN(epsilon=0.1)
    tune([tuned, Energy()], model, [small(6)])
    assert (tuned.step_size, model.forwards) == (0.1, [])
    tune([tuned, opened := ODIN()], model, [small(6)])
    assert tuned.step_size == 0.1
    assert opened.tuned


def test_no_more_than_max_images_are_used():
    model, given = smooth(), []

    def loader():
        for batch in small(30).split(4):
            given.append(len(batch))
            yield batch, classes_of(len(batch))

    tune([ODIN()], model, loader(), max_images=10, head=False)
    assert given == [4, 4, 4]
    assert set(model.forwards) == {2, 4}, "in the loader's batches, the last one cut"


def test_labels_do_not_matter_if_none_are_needed():
    model = smooth()
    tune([first := ODIN()], model, [(small(3), ["cat.png", "dog.png", "eel.png"])])
    tune([second := ODIN()], model, [small(3)])
    assert first.step_size == second.step_size


def test_an_empty_loader_is_named():
    with pytest.raises(DataError, match="the loader gave no batch"):
        tune([ODIN()], smooth(), [])


# Generalized ODIN ---------------------------------------------------------------------------------------


def test_godin_is_the_largest_cosine():
    model, images = deconf(), small(8)
    features = extract(model, [images], head=False, layers=("fc.cosine",))
    want = [max(row) for row in plain(model, "layer.fc.cosine")(images.numpy()).tolist()]
    np.testing.assert_allclose(GODIN(epsilon=0.0).score(features), want, rtol=1e-6)
    np.testing.assert_allclose(features.logits, plain(model)(images.numpy()), rtol=1e-6)


@pytest.mark.parametrize("std", [(), (0.2, 0.5, 2.0)])
def test_godin_after_a_step_matches_the_reference_image_by_image(std):
    model, images = deconf(), small(6)
    detector = GODIN(epsilon=0.08, std=std)
    features = features_for([detector], model, images, head=False)
    cosines = plain(model, "layer.fc.cosine")
    want = [slow.godin(cosines, image, 0.08, std) for image in images.numpy()]
    np.testing.assert_allclose(detector.score(features), want, rtol=1e-6)
    still = GODIN(epsilon=0.0).score(features)
    assert bool((detector.score(features) > still).all())
