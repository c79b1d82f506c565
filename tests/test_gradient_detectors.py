"""ODIN and Generalized ODIN: image by image as their papers have it, no pass too many, and the step chosen by rule."""

import copy

import networks
import numpy as np
import pytest
import torch
from networks import CLASSES, WIDTH, batched, one_thread, pictures, seeded  # noqa: F401
from reference import gradient as slow
from test_extraction import portrait
from test_perturb import classes_of, deconf, plain, small, smooth
from torch import nn

from oodles.calibration import calibrate
from oodles.detectors import GODIN, MSP, ODIN, Energy, Mahalanobis, load_detector, parse
from oodles.detectors import gaussian as gaussian_module
from oodles.detectors.gradient import GODIN_GRID, ODIN_GRID
from oodles.errors import ArgumentError, DataError, HeadError, NotFittedError, ShapeError
from oodles.extraction import extract
from oodles.features import Features
from oodles.functional import msp
from oodles.guard import Guard
from oodles.models.deconf import Cosine, DeConf, cosine_layer, with_head
from oodles.perturbation import Step
from oodles.testing import check_detector, example_features, with_passes
from oodles.tuning import layers_of, steps_of, tune


def seen_by(detectors, model, images, **options):
    """Features with the layers and steps these detectors ask for."""
    return extract(model, [images], steps=steps_of(detectors), layers=layers_of(detectors), **options)


# ODIN ---------------------------------------------------------------------------------------------


def test_without_a_step_odin_is_the_tempered_softmax_bit_for_bit():
    features = extract(smooth(dtype=torch.float32), [small(40, dtype=torch.float32)])
    assert torch.equal(ODIN(epsilon=0.0).score(features), MSP(temperature=1000.0).score(features))
    assert torch.equal(ODIN(epsilon=0.0, temperature=3.0).score(features), MSP(temperature=3.0).score(features))


def test_and_it_costs_one_pass_an_image_and_none_back():
    model = smooth()
    seen_by([ODIN(epsilon=0.0)], model, small(6), layer=False)
    assert (model.forwards, model.backwards) == ([6], [])


@pytest.mark.parametrize("temperature", [1.0, 1000.0])
@pytest.mark.parametrize("std", [(), (0.2, 0.5, 2.0)])
def test_odin_is_its_formula_image_by_image(temperature, std):
    model, images = smooth(), small(8, seed=3)
    detector = ODIN(temperature=temperature, epsilon=0.05, std=std)
    want = [slow.odin(plain(model), image, temperature, 0.05, std) for image in images.numpy()]
    np.testing.assert_allclose(detector.score(seen_by([detector], model, images)), want, rtol=2e-6)


def test_the_temperature_matters_in_the_step_and_in_the_score():
    model, images = smooth(), small(40, seed=3)
    cold, hot = ODIN(temperature=1.0, epsilon=0.3), ODIN(temperature=1000.0, epsilon=0.3)
    features = seen_by([cold, hot], model, images)
    after = [features.column(detector.steps()[0].column) for detector in (cold, hot)]
    assert not torch.allclose(*after, rtol=1e-3), "another temperature, another direction"
    crossed = [msp(column, temperature) for column, temperature in zip(after, (1000.0, 1.0), strict=True)]
    for detector, other in zip((hot, cold), crossed, strict=True):
        assert not torch.allclose(detector.score(features), other, rtol=1e-6)


def test_a_step_raises_the_score():
    model, images = smooth(), small(30)
    still, small_step = ODIN(epsilon=0.0), ODIN(epsilon=0.004)
    features = seen_by([still, small_step], model, images)
    assert bool((small_step.score(features) > still.score(features)).all())


# Passes are shared ----------------------------------------------------------------------------------


def test_odins_of_one_temperature_share_the_way_back():
    model = smooth()
    detectors = [ODIN(epsilon=0.1), ODIN(epsilon=0.2), ODIN(epsilon=0.1, std=(0.5, 0.5, 0.5))]
    seen_by(detectors, model, small(6), layer=False)
    assert (model.forwards, model.backwards) == ([6, 6, 6, 6], [6])


def test_a_further_temperature_is_one_more_way_back():
    model = smooth()
    seen_by([ODIN(epsilon=0.1), ODIN(epsilon=0.1, temperature=1.0)], model, small(6), layer=False)
    assert (model.forwards, model.backwards) == ([6, 6, 6], [6, 6])


def test_a_step_two_detectors_ask_for_is_run_once():
    model = smooth()
    detectors = [ODIN(epsilon=0.1), ODIN(epsilon=0.1), ODIN(epsilon=0.0), Energy()]
    assert len(steps_of(detectors)) == 1
    seen_by(detectors, model, small(6), layer=False)
    assert (model.forwards, model.backwards) == ([6, 6], [6])


def test_tuning_runs_each_step_of_the_grid_once_whoever_asks():
    model = smooth()
    tune([ODIN(), ODIN()], model, [small(6)], layer=False)
    assert (model.forwards, model.backwards) == ([6] * 21, [6])


def test_equal_numbers_are_one_step_however_they_are_written():
    written = [parse("odin(1000, 0.004)"), ODIN(epsilon=0.004), ODIN(temperature=1000, epsilon=0.004)]
    assert len(steps_of(written)) == 1
    assert len(steps_of([ODIN(epsilon=0.1, std=(1, 1, 1)), ODIN(epsilon=0.1, std=(1.0, 1.0, 1.0))])) == 1


def test_steps_that_differ_in_anything_are_two():
    pairs = [
        (ODIN(epsilon=0.004), ODIN(epsilon=0.0040001)),
        (ODIN(epsilon=0.1), ODIN(epsilon=0.1, std=(0.5, 0.5, 0.5))),
        (ODIN(epsilon=0.1), ODIN(epsilon=0.1, temperature=999.0)),
        (GODIN(epsilon=0.1), GODIN(epsilon=0.1, layer="head.cosine")),
        (GODIN(epsilon=0.1), ODIN(epsilon=0.1)),
    ]
    for pair in pairs:
        assert len(steps_of(pair)) == 2, pair


def test_one_name_for_two_objectives_is_refused():
    class Asks(ODIN):
        def __init__(self, identity):
            super().__init__(epsilon=0.1)
            self.identity = identity

        def step(self, epsilon):
            return Step("mine", super().step(epsilon).objective, epsilon, identity=self.identity)

    assert len(steps_of([Asks("a"), Asks("a")])) == 1
    with pytest.raises(ArgumentError, match="'mine'"):
        steps_of([Asks("a"), Asks("b")])


def test_layers_are_asked_for_once_each_in_order():
    detectors = [Mahalanobis(layers=["second", "first"]), GODIN(), ODIN(), GODIN(), Mahalanobis(layers=["first"])]
    assert layers_of(detectors) == ("second", "first", "fc.cosine")


# Choosing the step ------------------------------------------------------------------------------------


def choosing(kind):
    """An open detector, a model for it, and the score of one image after a step of some size."""
    if kind == "odin":
        model = smooth()
        return ODIN(temperature=2.0), model, {}, lambda image, size: slow.odin(plain(model), image, 2.0, size)
    model = deconf()
    cosines = plain(model, "layer.fc.cosine")
    return GODIN(), model, {"layer": False}, lambda image, size: slow.godin(cosines, image, size)


@pytest.mark.parametrize("kind", ["odin", "godin"])
@pytest.mark.parametrize("grid", [(0.0, 0.05, 1.5, 4.0), (0.0, 8.0), (0.0, 0.002, 0.004)])
def test_the_step_with_the_largest_mean_score_is_taken(kind, grid, monkeypatch):
    # sizes far beyond the papers', where a larger step is not always the better one
    detector, model, options, score = choosing(kind)
    monkeypatch.setattr(type(detector), "grid", grid)
    images = small(5, seed=7)
    tune([detector], model, [images], **options)
    assert detector.chosen == slow.best_step(score, images.numpy(), grid)


def test_no_step_may_be_the_best(monkeypatch):
    detector, model = ODIN(temperature=1.0), smooth()
    monkeypatch.setattr(ODIN, "grid", (0.0, 8.0))
    features = extract(model, [small(40)], steps=detector.trials())
    logits = features.logits.double()
    worse = Features(logits=logits, layers={detector.trials()[0].name: torch.zeros_like(logits)})
    detector.tune(worse)
    assert detector.chosen == 0.0
    assert detector.steps() == ()
    assert torch.equal(detector.score(features), MSP().score(features))


def test_of_equal_steps_the_smallest_is_taken():
    detector, logits = ODIN(), torch.randn(9, CLASSES, generator=torch.Generator().manual_seed(0))
    detector.tune(Features(logits=logits, layers={step.name: logits for step in detector.trials()}))
    assert detector.chosen == 0.0


def test_the_grids_are_the_papers():
    assert list(ODIN_GRID) == [round(0.004 * place / 20, 6) for place in range(21)]
    assert GODIN_GRID == (0.0, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08)
    assert [step.epsilon for step in ODIN().trials()] == list(ODIN_GRID[1:])
    assert [step.epsilon for step in GODIN().trials()] == list(GODIN_GRID[1:])
    assert ODIN(epsilon=0.1).trials() == ()


@pytest.mark.parametrize("kind", ["odin", "godin"])
def test_an_open_step_is_said_before_and_kept_on_disk_after(kind, tmp_path):
    detector, model, options, _ = choosing(kind)
    features = extract(model, [small(12)], layers=detector.layers, **options)
    with pytest.raises(NotFittedError, match=r"oodles\.tune"):
        detector.score(features)
    with pytest.raises(NotFittedError):
        detector.save(tmp_path / "early")
    assert detector.needs_network
    tune([detector], model, [small(20)], **options)
    assert detector.chosen == detector.grid[-1], "small steps only help"
    features = seen_by([detector], model, small(12), **options)
    scores = detector.score(features)
    detector.save(tmp_path / "d")
    back = load_detector(tmp_path / "d")
    assert (back.spec, back.chosen, back.epsilon) == (detector.spec, detector.chosen, None)
    assert torch.equal(back.score(features), scores)
    assert [step.name for step in back.steps()] == [step.name for step in detector.steps()]


def test_a_given_step_is_kept_on_disk_however_it_was_written(tmp_path):
    model, images = smooth(), small(9)
    for number, detector in enumerate((ODIN(temperature=1000, epsilon=0.1), ODIN(epsilon=0.1, std=[1, 2, 3]))):
        features = seen_by([detector], model, images)
        detector.save(tmp_path / str(number))
        back = load_detector(tmp_path / str(number))
        assert torch.equal(back.score(features), detector.score(features))


def test_what_is_settled_is_left_alone_and_costs_nothing():
    model, settled = smooth(), ODIN(epsilon=0.1)
    tune([settled, Energy()], model, [small(6)])
    assert (settled.chosen, model.forwards) == (0.1, [])
    tune([settled, opened := ODIN()], model, [small(6)])
    assert settled.chosen == 0.1
    assert opened.tuned


def test_only_as_many_images_as_asked_are_taken():
    model, given = smooth(), []

    def loader():
        for batch in small(30).split(4):
            given.append(len(batch))
            yield batch, classes_of(len(batch))

    tune([ODIN()], model, loader(), rows=10, layer=False)
    assert given == [4, 4, 4]
    assert set(model.forwards) == {10}


def test_labels_do_not_matter_where_none_are_needed():
    model = smooth()
    tune([first := ODIN()], model, [(small(3), ["cat.png", "dog.png", "eel.png"])])
    tune([second := ODIN()], model, [small(3)])
    assert first.chosen == second.chosen


def test_an_empty_loader_is_named():
    with pytest.raises(DataError, match="no batch at all"):
        tune([ODIN()], smooth(), [])


# What they are made of --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ODIN, GODIN, Mahalanobis])
def test_steps_that_cannot_be_made_are_refused(kind):
    for epsilon in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ArgumentError, match="epsilon="):
            kind(epsilon=epsilon)
    for std in ((0.0, 1.0, 1.0), (-1.0,), (float("nan"),)):
        with pytest.raises(ArgumentError, match="std="):
            kind(std=std)
    with pytest.raises(ArgumentError, match="std="):
        kind(std=0.5)


@pytest.mark.parametrize("temperature", [0, -1.0, float("nan")])
def test_a_temperature_is_positive(temperature):
    with pytest.raises(ArgumentError, match="temperature="):
        ODIN(temperature=temperature)


@pytest.mark.parametrize(
    ("text", "spec", "settings"),
    [
        ("odin", "odin", {"temperature": 1000.0, "epsilon": None, "std": ()}),
        ("odin(1000, 0.004)", "odin(epsilon=0.004)", {"temperature": 1000.0, "epsilon": 0.004}),
        ("odin(10, None)", "odin(temperature=10)", {"temperature": 10, "epsilon": None}),
        ("odin(epsilon=0, std=(0.5, 0.5, 0.5))", "odin(epsilon=0, std=(0.5, 0.5, 0.5))", {"std": (0.5, 0.5, 0.5)}),
        ("odin(std=[1, 2, 3])", "odin(std=(1, 2, 3))", {"std": (1, 2, 3)}),
        ("godin", "godin", {"epsilon": None, "layer": "fc.cosine"}),
        ("godin(0.02)", "godin(epsilon=0.02)", {"epsilon": 0.02}),
        ("godin(layer='head.cosine')", "godin(layer='head.cosine')", {"layers": ("head.cosine",)}),
        ("mahalanobis", "mahalanobis", {"layers": (), "epsilon": 0.0}),
        ("mahalanobis(layers=('a',))", "mahalanobis(layers=('a',))", {"layers": ("a",)}),
        ("mahalanobis(['a', 'b'], None)", "mahalanobis(layers=('a', 'b'), epsilon=None)", {"epsilon": None}),
    ],
)
def test_detectors_of_their_own_are_read_and_written(text, spec, settings):
    detector = parse(text)
    assert {name: getattr(detector, name) for name in settings} == settings
    for again in (parse(detector.spec), parse(spec)):
        assert type(again) is type(detector)
        assert again.arguments() == detector.arguments()


@pytest.mark.parametrize(
    "text",
    [
        *("odin+energy", "react(90)+odin", "mahalanobis+godin"),
        *("odin('hot')", "odin(1000, 0.004, (1, 1, 1), 4)", "odin(eps=0.1)", "odin(0)", "odin(epsilon=-1)"),
        *("odin(std=0.5)", "odin(std='abc')", "odin(std=[None])", "odin(epsilon=True)"),
        *("godin(layer=3)", "godin(layer=None)", "godin(epsilon='a')"),
        *("mahalanobis('a')", "mahalanobis(layers='ab')", "mahalanobis(layers=3)", "mahalanobis(layers=(1, 2))"),
    ],
)
def test_what_is_no_such_detector_is_refused(text):
    with pytest.raises(ArgumentError):
        parse(text)


def test_missing_steps_are_named():
    detector, model = ODIN(epsilon=0.1), smooth()
    with pytest.raises(ShapeError, match=r"scores from the layer\.odin.*extract it from the model"):
        detector.score(extract(model, [small(4)]))


# The DeConf head --------------------------------------------------------------------------------------


def test_deconf_divides_cosines_by_confidence():
    model, images = deconf(), small(6)
    head, hidden = model.fc, model.hidden(images).detach()
    with torch.no_grad():
        cosines, logits = head.cosine(hidden), head(hidden)
    linear, norm, _ = head.confidence
    for row in range(6):
        h = hidden[row].numpy()
        raw = float(linear.weight[0].detach().numpy() @ h + linear.bias.item())
        normed = (raw - norm.running_mean.item()) / (norm.running_var.item() + norm.eps) ** 0.5
        confidence = 1 / (1 + np.exp(-(norm.weight.item() * normed + norm.bias.item())))
        for label in range(CLASSES):
            want = slow.cosine(h, head.cosine.weight[label].detach().numpy())
            np.testing.assert_allclose(cosines[row, label], want, rtol=1e-9)
            np.testing.assert_allclose(logits[row, label], want / confidence, rtol=1e-9)


@pytest.mark.parametrize("size", [0.0, 1e-20, 1.0, 1e20])
def test_a_cosine_is_one_whatever_the_lengths(size):
    cosine = seeded(lambda: Cosine(WIDTH, CLASSES))
    rows = size * torch.randn(50, WIDTH, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        values = torch.cat([cosine(rows), cosine(size * cosine.weight)])
    assert bool((values.abs() <= 1).all())
    if size == 1.0:
        np.testing.assert_allclose(cosine(cosine.weight).detach().diagonal(), 1, atol=1e-3)


def test_the_head_takes_the_place_of_fc():
    model = with_head(networks.Net(), "deconf")
    assert isinstance(model.fc, DeConf)
    assert model.fc(torch.rand(4, WIDTH)).shape == (4, CLASSES)
    assert cosine_layer(model) == GODIN().layer == "fc.cosine"
    assert cosine_layer(nn.Sequential(nn.Flatten(), DeConf(3, 2))) == "1.cosine"
    untouched = networks.Net()
    before = untouched.fc
    assert with_head(untouched, "linear") is untouched
    assert untouched.fc is before
    assert cosine_layer(untouched) is None


def test_a_head_that_cannot_be_put_on_is_refused():
    with pytest.raises(ArgumentError, match="'cosine' is neither linear nor deconf"):
        with_head(networks.Net(), "cosine")
    for model in (networks.DenseNetLike(), networks.ConvAfterPool(), with_head(networks.Net(), "deconf")):
        with pytest.raises(ArgumentError, match=f"{type(model).__name__} has no last linear layer called fc"):
            with_head(model, "deconf")


def test_godin_is_the_largest_cosine():
    model, images = deconf(), small(8)
    features = extract(model, [images], layer=False, layers=("fc.cosine",))
    want = [max(row) for row in plain(model, "layer.fc.cosine")(images.numpy()).tolist()]
    np.testing.assert_allclose(GODIN(epsilon=0.0).score(features), want, rtol=1e-6)
    np.testing.assert_allclose(features.logits, plain(model)(images.numpy()), rtol=1e-6)


@pytest.mark.parametrize("std", [(), (0.2, 0.5, 2.0)])
def test_godin_after_a_step_is_its_formula_image_by_image(std):
    model, images = deconf(), small(6)
    detector = GODIN(epsilon=0.08, std=std)
    features = seen_by([detector], model, images, layer=False)
    cosines = plain(model, "layer.fc.cosine")
    want = [slow.godin(cosines, image, 0.08, std) for image in images.numpy()]
    np.testing.assert_allclose(detector.score(features), want, rtol=1e-6)
    still = GODIN(epsilon=0.0).score(features)
    assert bool((detector.score(features) > still).all())


def test_a_deconf_head_is_no_linear_head():
    with pytest.raises(HeadError):
        extract(deconf(), [small(4)])


# Promises of the house ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "detector",
    [
        *(ODIN(epsilon=0.0), ODIN(epsilon=0.004), ODIN(), GODIN(), GODIN(epsilon=0.02)),
        *(Mahalanobis(), Mahalanobis(epsilon=0.01), Mahalanobis(epsilon=None), Mahalanobis(layers=("a", "b"))),
        Mahalanobis(layers=("a",), epsilon=None),
    ],
    ids=str,
)
def test_they_keep_every_promise(detector, monkeypatch):
    # a regression for each step of the grid and each promise takes its time; two steps ask the same of it
    monkeypatch.setattr(gaussian_module, "STEP_GRID", (0.0, 0.01))
    check_detector(detector)


def test_made_up_passes_are_what_the_detector_asks_for():
    features = example_features(rows=30)
    for detector in (ODIN(), GODIN(epsilon=0.02), Mahalanobis(layers=("a",), epsilon=0.01)):
        whole = with_passes(detector, features)
        settled = copy.deepcopy(detector).fit(whole)
        assert {step.name for step in (*settled.trials(), *settled.steps())} | {*detector.layers} == set(whole.layers)
        assert torch.equal(whole.embedding, features.embedding)
        assert detector.shape_ is None, "the detector itself is not fitted by it"


def test_a_detector_that_breaks_a_promise_is_caught():
    class Neighbourly(ODIN):
        def rate(self, values):
            return super().rate(values) - values.mean()

    class Forgetful(ODIN):
        def _load_from_state_dict(self, state_dict, prefix, *rest):
            state_dict.pop(prefix + "choice_", None)

    for broken, complaint in ((Neighbourly(epsilon=0.004), "batch size"), (Forgetful(), "not been fitted")):
        with pytest.raises((AssertionError, NotFittedError), match=complaint):
            check_detector(broken)


# Guard --------------------------------------------------------------------------------------------


def guarded(kind):
    """A model under guard, and the options it was looked at with."""
    options = {}
    if kind == "odin":
        model, detector = networks.spread(seeded(networks.Net)), ODIN(epsilon=0.01)
    elif kind == "odin, softmax":
        model, detector = networks.spread(seeded(networks.Softmax)), ODIN(temperature=2.0, epsilon=0.01)
    elif kind == "odin, tuned":
        model, detector = networks.spread(seeded(networks.Net)), ODIN()
    else:
        model, detector = seeded(lambda: with_head(networks.Net(), "deconf")).eval(), GODIN(epsilon=0.02)
        options = {"layer": False}
    tune([detector], model, [pictures(10)])
    features = seen_by([detector], model, pictures(40), **options)
    return Guard(model, detector, calibrate(detector.score(features), 0.9)), options


@pytest.mark.filterwarnings("ignore:.*returns probabilities")
@pytest.mark.parametrize("kind", ["odin", "odin, softmax", "odin, tuned", "godin"])
def test_a_guard_scores_as_extract_does_and_answers_as_the_model(kind):
    guard, options = guarded(kind)
    images = pictures(13, seed=7)
    verdict = guard(images)
    with torch.no_grad():
        assert torch.equal(verdict.logits, guard.model(images)), "bit for bit"
    want = guard.detector.score(seen_by([guard.detector], guard.model, images, **options))
    torch.testing.assert_close(verdict.score, want, rtol=1e-5, atol=1e-6)
    still = guard.detector.rate(seen_by([guard.detector], guard.model, images, **options).column(guard.detector.column))
    assert float((verdict.score - still).abs().max()) > 1e-5, "the step can be told"
    assert torch.equal(verdict.is_id, verdict.score >= guard.threshold.value)
    assert not verdict.score.requires_grad


@pytest.mark.parametrize("kind", ["odin", "godin"])
def test_a_guard_leaves_the_model_as_it_was(kind):
    guard, _ = guarded(kind)
    guard.model.body.conv1.weight.grad = torch.ones_like(guard.model.body.conv1.weight)
    before = portrait(guard.model)
    guard(pictures(4))
    with pytest.raises(RuntimeError):
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


@pytest.mark.parametrize("kind", ["odin", "odin, tuned", "godin"])
def test_a_guard_is_saved_and_loaded_whole(kind, tmp_path):
    guard, _ = guarded(kind)
    guard.save(tmp_path / "g")
    back = Guard.load(tmp_path / "g", guard.model)
    for mine, theirs in zip(back(pictures(9)), guard(pictures(9)), strict=True):
        assert torch.equal(mine, theirs)


def test_a_guard_serves_in_inference_mode_too():
    (guard, _), (fresh, _) = guarded("odin"), guarded("odin")
    want = guard(pictures(5)).score
    with torch.inference_mode():
        assert torch.equal(guard(pictures(5)).score, want)
        assert torch.equal(fresh(pictures(5)).score, want), "also where the last layer is first looked for there"
    assert torch.equal(fresh(pictures(5)).score, want)


def test_a_guard_takes_no_step_that_is_still_open():
    with pytest.raises(NotFittedError, match=r"oodles\.tune"):
        Guard(seeded(networks.Net), ODIN(), calibrate(torch.arange(40.0)))
