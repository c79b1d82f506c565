"""ODIN and Generalized ODIN: their formulas image by image, no unnecessary passes, and the choice of the step."""

import numpy as np
import pytest
import torch
from reference import gradient as slow
from support import networks
from support.networks import CLASSES, WIDTH, batched, one_thread, pictures, seeded  # noqa: F401
from support.smooth import classes_of, deconf, plain, small, smooth
from support.snapshots import portrait

from oodles.calibration import calibrate
from oodles.deploy.saving import load_detector, save_detector
from oodles.detectors import GODIN, IODIN, MSP, ODIN, Energy
from oodles.detectors.network_detector import layers_of, needs_network, steps_of
from oodles.detectors.odin import ODIN_GRID
from oodles.errors import DataError, NotFittedError
from oodles.features import Features
from oodles.functional import msp
from oodles.guard import Guard
from oodles.models.deconf import with_head
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


def test_without_a_step_odin_costs_one_forward_pass_and_no_backward_pass():
    model = smooth()
    features_for([ODIN(epsilon=0.0)], model, small(6), head=False)
    assert (model.forwards, model.backwards) == ([6], [])


@pytest.mark.parametrize("temperature", [1.0, 1000.0])
@pytest.mark.parametrize("std", [(), (0.2, 0.5, 2.0)])
def test_odin_matches_the_reference_image_by_image(temperature, std):
    model, images = smooth(), small(8, seed=3)
    detector = ODIN(temperature=temperature, epsilon=0.05, std=std)
    want = [slow.odin(plain(model), image, temperature, 0.05, std) for image in images.numpy()]
    np.testing.assert_allclose(detector.score(features_for([detector], model, images)), want, rtol=2e-6)


def test_the_temperature_matters_in_the_step_and_in_the_score():
    model, images = smooth(), small(40, seed=3)
    cold, hot = ODIN(temperature=1.0, epsilon=0.3), ODIN(temperature=1000.0, epsilon=0.3)
    features = features_for([cold, hot], model, images)
    after = [features.column(detector.steps()[0].column) for detector in (cold, hot)]
    assert not torch.allclose(*after, rtol=1e-3), "another temperature gives another direction"
    crossed = [msp(column, temperature) for column, temperature in zip(after, (1000.0, 1.0), strict=True)]
    for detector, other in zip((hot, cold), crossed, strict=True):
        assert not torch.allclose(detector.score(features), other, rtol=1e-6)


def test_a_step_raises_the_score():
    model, images = smooth(), small(30)
    still, small_step = ODIN(epsilon=0.0), ODIN(epsilon=0.004)
    features = features_for([still, small_step], model, images)
    assert bool((small_step.score(features) > still.score(features)).all())


# iODIN --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 1000.0])
@pytest.mark.parametrize("std", [(), (0.2, 0.5, 2.0)])
def test_iodin_matches_the_reference_image_by_image(temperature, std):
    model, images = smooth(), small(8, seed=3)
    detector = IODIN(temperature=temperature, epsilon=0.5, std=std)
    want = [slow.iodin(plain(model), image, temperature, 0.5, std) for image in images.numpy()]
    got = detector.score(features_for([detector], model, images))
    np.testing.assert_allclose(got, want, rtol=2e-6)
    full = ODIN(temperature=temperature, epsilon=0.5, std=std)
    assert not np.allclose(full.score(features_for([full], model, images)), want, rtol=1e-5)


def test_iodin_and_odin_share_the_backward_pass_and_not_the_step():
    model = smooth()
    detectors = [ODIN(epsilon=0.1), IODIN(epsilon=0.1)]
    assert len({step.name for step in steps_of(detectors)}) == 2
    features_for(detectors, model, small(6), head=False)
    assert (model.forwards, model.backwards) == ([6, 6, 6], [6])


def test_iodin_chooses_its_own_step_and_is_saved_with_it(tmp_path):
    model, images = smooth(), small(6)
    tune([detector := IODIN(temperature=2.0)], model, [images])
    scores = [
        sum(slow.iodin(plain(model), image, 2.0, size) for image in images.numpy()) for size in (0.0, ODIN_GRID[-1])
    ]
    assert scores[1] > scores[0], "a larger step of one value is better here"
    assert float(detector.step_size) == ODIN_GRID[-1]
    save_detector(detector, tmp_path / "detector")
    loaded = load_detector(tmp_path / "detector")
    assert type(loaded) is IODIN
    features = features_for([loaded], model, images)
    assert torch.equal(loaded.score(features), detector.score(features))


# Passes are shared ----------------------------------------------------------------------------------


def test_steps_at_one_temperature_share_the_backward_pass():
    model = smooth()
    detectors = [ODIN(epsilon=0.1), ODIN(epsilon=0.2), ODIN(epsilon=0.1, std=(0.5, 0.5, 0.5))]
    features_for(detectors, model, small(6), head=False)
    assert (model.forwards, model.backwards) == ([6, 6, 6, 6], [6])


def test_another_temperature_is_one_more_backward_pass():
    model = smooth()
    features_for([ODIN(epsilon=0.1), ODIN(epsilon=0.1, temperature=1.0)], model, small(6), head=False)
    assert (model.forwards, model.backwards) == ([6, 6, 6], [6, 6])


def test_a_step_that_two_detectors_need_runs_once():
    model = smooth()
    detectors = [ODIN(epsilon=0.1), ODIN(epsilon=0.1), ODIN(epsilon=0.0), Energy()]
    assert len(steps_of(detectors)) == 1
    features_for(detectors, model, small(6), head=False)
    assert (model.forwards, model.backwards) == ([6, 6], [6])


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


@pytest.mark.parametrize("kind", ["odin", "godin"])
def test_a_step_is_required_before_scoring_and_saved_once_chosen(kind, tmp_path):
    detector, model, options, _ = choosing(kind)
    features = extract(model, [small(12)], layers=detector.layers, **options)
    with pytest.raises(NotFittedError, match=r"oodles\.selection\.tune"):
        detector.score(features)
    with pytest.raises(NotFittedError):
        save_detector(detector, tmp_path / "early")
    assert needs_network(detector)
    tune([detector], model, [small(20)], **options)
    assert detector.step_size == detector.grid[-1], "small steps only help"
    features = features_for([detector], model, small(12), **options)
    scores = detector.score(features)
    save_detector(detector, tmp_path / "d")
    back = load_detector(tmp_path / "d")
    assert (back.spec, back.step_size, back.epsilon) == (detector.spec, detector.step_size, None)
    assert torch.equal(back.score(features), scores)
    assert [step.name for step in back.steps()] == [step.name for step in detector.steps()]


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


# Guard --------------------------------------------------------------------------------------------


def guarded(kind):
    """A guard, and the options for extracting features from its model."""
    options = {}
    if kind == "odin":
        model, detector = networks.spread(seeded(networks.Net)), ODIN(epsilon=0.01)
    elif kind == "odin, softmax":
        model, detector = networks.spread(seeded(networks.Softmax)), ODIN(temperature=2.0, epsilon=0.01)
    elif kind == "odin, tuned":
        model, detector = networks.spread(seeded(networks.Net)), ODIN()
    else:
        model, detector = seeded(lambda: with_head(networks.Net(), "deconf")).eval(), GODIN(epsilon=0.02)
        options = {"head": False}
    tune([detector], model, [pictures(10)])
    features = features_for([detector], model, pictures(40), **options)
    return Guard(model, detector, calibrate(detector.score(features), 0.9)), options


@pytest.mark.filterwarnings("ignore:.*returns probabilities")
@pytest.mark.parametrize("kind", ["odin", "odin, softmax", "odin, tuned", "godin"])
def test_a_guard_scores_as_extract_does_and_returns_the_models_logits(kind):
    guard, options = guarded(kind)
    images = pictures(13, seed=7)
    verdict = guard(images)
    with torch.no_grad():
        assert torch.equal(verdict.logits, guard.model(images)), "bit for bit"
    want = guard.detector.score(features_for([guard.detector], guard.model, images, **options))
    torch.testing.assert_close(verdict.score, want, rtol=1e-5, atol=1e-6)
    still = guard.detector.score_values(
        features_for([guard.detector], guard.model, images, **options).column(guard.detector.column)
    )
    assert float((verdict.score - still).abs().max()) > 1e-5, "the step makes a difference"
    assert torch.equal(verdict.is_id, verdict.score >= guard.threshold.value)
    assert not verdict.score.requires_grad


@pytest.mark.parametrize("kind", ["odin", "godin"])
def test_a_guard_does_not_change_the_model(kind):
    guard, _ = guarded(kind)
    guard.model.body.conv1.weight.grad = torch.ones_like(guard.model.body.conv1.weight)
    before = portrait(guard.model)
    guard(pictures(4))
    with pytest.raises(DataError, match="does not accept"):
        guard(torch.zeros(2, 7, 8, 8))
    assert portrait(guard.model) == before
    assert bool((guard.model.body.conv1.weight.grad == 1).all())
    assert all(parameter.grad is None for parameter in guard.model.fc.parameters())


@pytest.mark.parametrize("kind", ["odin", "godin"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_image_that_is_not_finite_is_never_in_distribution(kind, value):
    guard, _ = guarded(kind)
    images = pictures(5, seed=3)
    calm = guard(images)
    images[2, 1, 3, 3] = value
    verdict = guard(images)
    assert not bool(verdict.is_id[2])
    others = [0, 1, 3, 4]
    torch.testing.assert_close(verdict.score[others], calm.score[others])


def test_a_guard_works_in_inference_mode():
    (guard, _), (fresh, _) = guarded("odin"), guarded("odin")
    want = guard(pictures(5)).score
    with torch.inference_mode():
        assert torch.equal(guard(pictures(5)).score, want)
        assert torch.equal(fresh(pictures(5)).score, want), "also if the head is located in inference mode"
    assert torch.equal(fresh(pictures(5)).score, want)


def test_a_guard_refuses_a_detector_that_is_not_tuned():
    with pytest.raises(NotFittedError, match=r"oodles\.selection\.tune"):
        Guard(seeded(networks.Net), ODIN(), calibrate(torch.arange(40.0)))
