"""``Tap`` and the names of layers: what is kept of a module's output, which names are refused; modes and threads."""

import re
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from reference import maps as slow
from sklearn.linear_model import LogisticRegression
from support import networks
from support.networks import batched, one_thread, pictures, seeded  # noqa: F401
from support.snapshots import numbers, portrait
from torch import nn

from oodles.detectors import MSP
from oodles.errors import ArgumentError, DataError, HeadError
from oodles.guard import Guard
from oodles.network.extraction import extract
from oodles.network.taps import Tap, eval_mode, needs_eval

ROWS = 6


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (LogisticRegression(), "a LogisticRegression, .*Features"),
        (lambda images: images, "a function, .*Features"),
        ("model.pt", "'model.pt', .*load its weights"),
        (Path("model.pt"), "load its weights"),
        (OrderedDict(weight=torch.ones(2, 2)), "a OrderedDict, .*load its weights"),
        (nn.Linear, r"give an instance of it, Linear\(...\)"),
        (SimpleNamespace(model=nn.Linear(2, 2)), r"which is its \.model"),  # a pipeline, fastai's Learner
        (SimpleNamespace(module_=nn.Linear(2, 2)), r"which is its \.module_"),  # skorch
    ],
)
def test_what_is_no_network_is_refused_in_one_line(given, words):
    calls = (
        lambda: extract(given, [torch.ones(2, 2)]),
        lambda: Guard.fit(given, []),
        lambda: Guard(given, MSP(), None),
    )
    for call in calls:
        with pytest.raises(ArgumentError, match=words) as refused:
            call()
        assert len(str(refused.value).splitlines()) == 1


def kept(model, *layers, rows=ROWS):
    return extract(model, [pictures(rows)], layers=layers, labels=False).layers


def test_a_layer_is_kept_in_several_ways_at_once():
    model = seeded(networks.Net)
    names = ("body", "body:rankfeat", "body:gram(3)", "body:relu+gram(1)")
    layers = kept(model, *names)
    with eval_mode(model):
        maps = model.body(pictures(ROWS)).flatten(2).double().numpy()
    assert set(layers) == set(names)
    np.testing.assert_allclose(layers["body"], maps.mean(axis=2), rtol=1e-5, atol=1e-6)
    without = [slow.without_first_component(each) for each in maps]
    np.testing.assert_allclose(layers["body:rankfeat"], without, rtol=1e-3, atol=1e-5)
    sums = np.array([slow.gram_row_sums(each, 3) for each in maps])
    np.testing.assert_allclose(layers["body:gram(3)"], sums, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(layers["body:relu+gram(1)"], sums[:, : networks.WIDTH], rtol=1e-4, atol=1e-6)


def test_a_relu_that_is_no_module_can_be_named():
    model = seeded(networks.DenseNetLike)
    features = extract(model, [pictures(ROWS)], layers=["norm", "norm:relu"], labels=False)
    torch.testing.assert_close(features.layers["norm:relu"], features.embedding)
    assert not torch.allclose(features.layers["norm"], features.embedding, atol=1e-2)


def test_tokens_are_positions():
    model = seeded(networks.Transformer).eval()
    layers = kept(model, "encoder:rankfeat", "encoder:gram(2)")
    with torch.no_grad():
        tokens = model.encoder(model.patch(pictures(ROWS)).flatten(2).transpose(1, 2))
    matrices = tokens.mT.double().numpy()
    sums = [slow.gram_row_sums(each, 2) for each in matrices]
    np.testing.assert_allclose(layers["encoder:gram(2)"], sums, rtol=1e-3, atol=1e-3)
    assert layers["encoder:rankfeat"].shape == (ROWS, tokens.shape[2])


def test_vectors_are_maps_of_one_position():
    model = seeded(networks.Net)
    layers = kept(model, "fc", "fc:gram(1)")
    logits = layers["fc"].double()
    torch.testing.assert_close(layers["fc:gram(1)"].double(), logits * logits.sum(dim=1, keepdim=True))
    with pytest.raises(HeadError, match="layer fc:rankfeat: its maps have one position"):
        kept(model, "fc:rankfeat")


def test_a_module_whose_name_has_a_colon_is_itself():
    model = nn.Sequential()
    model.add_module("a:relu", nn.Linear(4, 3))
    model.add_module("b", nn.Linear(3, 2))
    _, _, activations = Tap(model, (), ["a:relu"])(lambda network: network(torch.ones(2, 4)))
    torch.testing.assert_close(activations["a:relu"], model[0](torch.ones(2, 4)))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "layers= names 'nowhere', which is not a module of Net"),
        ("nowhere:rankfeat", "layers= names 'nowhere', which is not a module of Net"),
        ("body:rankfeet", "'body:rankfeet', but there is no reduction 'rankfeet'; there are relu"),
        ("body:", "there is no reduction ''"),
        ("body:rankfeat(3)", "there is no reduction 'rankfeat(3)'"),
        ("body:relu+", "there is no reduction ''"),
        *(
            (f"body:gram{orders}", f"'body:gram{orders}'; write gram(orders) with a whole number from 1 to 10")
            for orders in ("", "(0)", "(11)", "(2.5)", "(True)", "(orders=5)")
        ),
        ("body:rankfeat+relu", "which has more than relu and one reduction; there are relu"),
        ("body:__import__('os')", "but there is no reduction"),
    ],
)
def test_names_that_mean_nothing_are_refused_in_one_line_before_anything_runs(name, message):
    model = seeded(networks.Net)
    with pytest.raises(ArgumentError, match=re.escape(message)) as caught:
        kept(model, name)
    assert "\n" not in str(caught.value)
    assert model.body.calls == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_maps_are_reduced_in_float32(dtype):
    """The squares of these activations are beyond the largest float16."""
    model = seeded(networks.Net).eval()
    images = pictures(ROWS) * 300
    names = ("body:gram(5)", "body:rankfeat")
    wide = Tap(model, (), names)(lambda network: network(images))[2]
    half = Tap(model.to(dtype), (), names)(lambda network: network(images.to(dtype)))[2]
    for name in names:
        assert half[name].dtype == torch.float32
        assert (half[name] - wide[name]).abs().max() < 0.05 * wide[name].abs().max()


def test_under_autocast_maps_are_reduced_in_float32():
    model = seeded(networks.Net).eval()
    tap = Tap(model, (), ["body:rankfeat"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = tap(lambda network: network(pictures(ROWS)))[2]["body:rankfeat"]
        maps = model.body(pictures(ROWS))
    assert maps.dtype == torch.bfloat16
    want = [slow.without_first_component(each) for each in maps.flatten(2).double().detach().numpy()]
    np.testing.assert_allclose(got.detach(), want, rtol=1e-3, atol=1e-5)


def test_gradients_pass_through_reductions():
    model = seeded(networks.Net).eval()
    images = pictures(2).requires_grad_()
    layers = Tap(model, (), ["body:rankfeat", "body:gram(1)"])(lambda network: network(images))[2]
    for vectors in layers.values():
        (gradient,) = torch.autograd.grad(vectors.sum(), images, retain_graph=True)
        assert torch.isfinite(gradient).all()
        assert gradient.abs().max() > 0


# Modes and threads --------------------------------------------------------------------------------


def test_the_mode_is_restored_when_the_last_of_two_threads_has_finished():
    """The first thread to begin ends while the second is still running."""
    want = extract(seeded(networks.Net), [pictures(8), pictures(8, seed=1)])
    model = seeded(networks.Net).train()
    model.body.conv2.eval()
    before, statistics = portrait(model), numbers(model)
    first_began, second_began, first_ended = Event(), Event(), Event()

    def first():
        yield pictures(8)
        first_began.set()
        assert second_began.wait(20)

    def second():
        assert first_began.wait(20)
        yield pictures(8)
        second_began.set()
        assert first_ended.wait(20)
        yield pictures(8, seed=1)

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.submit(extract, model, first()), pool.submit(extract, model, second())
        torch.testing.assert_close(one.result(20).embedding, want.embedding[:8])
        assert not model.training, "the second thread still runs it"
        first_ended.set()
        torch.testing.assert_close(other.result(20).embedding, want.embedding)
    assert portrait(model) == before, "flags and hooks"
    torch.testing.assert_close(numbers(model), statistics, rtol=0, atol=0)


def test_models_that_share_a_module_leave_it_in_eval_mode_for_each_other():
    one, other = seeded(networks.Net), seeded(networks.Net)
    other.body = one.body
    with eval_mode(one):
        with eval_mode(other):
            assert needs_eval([one.body])
        assert not one.body.training
        assert other.training
    assert one.body.training
    assert not needs_eval([one.eval()])


def test_wrappers_of_a_network_are_the_network():
    model = seeded(networks.Net)
    wrapped = nn.DataParallel(model)
    with eval_mode(model):
        with eval_mode(wrapped):
            assert not wrapped.training
        assert wrapped.training
        assert not model.training
    assert model.training


def test_a_model_in_use_is_not_moved_to_another_device(monkeypatch):
    model = seeded(networks.Net)
    before = portrait(model)
    with eval_mode(model, "cpu"), eval_mode(model, "cpu"):
        monkeypatch.setattr("oodles.network.taps.usable_device", lambda name: torch.device("meta"))
        with pytest.raises(ArgumentError, match="Net is in use on cpu"), eval_mode(model, "cuda"):
            pass
    assert portrait(model) == before


@pytest.mark.parametrize(("device", "fact"), [("meta", "holds no numbers"), ("abacus", "cannot be used here")])
def test_a_device_without_numbers_is_refused_and_the_weights_stay(device, fact):
    model = seeded(networks.Net)
    before = portrait(model)
    with pytest.raises(ArgumentError, match=f"^device='{device}' {fact}"):
        extract(model, [pictures(4)], device=device)
    assert portrait(model) == before


@pytest.mark.parametrize("failing", [1, 2], ids=["at once", "in the middle"])
def test_a_model_that_raises_is_named_and_left_as_it_was(failing):
    class Fails(networks.Net):
        def forward(self, images):
            if failing == 1 or images.amax() > 90:
                raise OSError("the lookup table is gone\nsecond line")
            return super().forward(images)

    model = seeded(Fails).train()
    before = portrait(model)
    with pytest.raises(DataError, match=r"^Fails .* \(the lookup table is gone\); .*$") as caught:
        extract(model, [pictures(4), pictures(4) * 100])
    assert isinstance(caught.value.__cause__, OSError)
    assert portrait(model) == before
    assert not needs_eval([model.eval()]), "no call holds it any more"
