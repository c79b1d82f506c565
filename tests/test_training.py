"""Training: the recipes, the arithmetic of every step, runs that are stopped in every way, and what is refused."""

import copy
import json
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import (
    Compiled,
    ReturnsDict,
    one_thread,  # noqa: F401
    pictures,
    seeded,
)
from PIL import Image
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_pre_hook
from training_worker import PLAIN, UNEVEN, Restless, Tiny, coloured, network

import oodles
from oodles.bench.datasets import CIFAR, ImageSet, Transform, open_images, read_pixels
from oodles.errors import ArgumentError, DataError, FileError
from oodles.models import load_checkpoint, small_resnet
from oodles.models.deconf import with_head
from oodles.recipes import RECIPES, Recipe
from oodles.training import accuracy, augment, train

WORKER = Path(__file__).with_name("training_worker.py")
ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}  # as many threads as in this process: sums come out the same
SHORT = Recipe(epochs=2, batch=16, rate=0.05)
QUIET = {"progress": False}


def weights_of(folder):
    return load_file(folder / "weights.safetensors")


def same_weights(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def untimed(metrics):
    return [
        {key: value for key, value in line.items() if key not in ("seconds", "images_per_second")} for line in metrics
    ]


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def states(folder):
    return sorted(path.name for path in folder.glob("state-*.safetensors"))


def untouched(folder):
    return not folder.exists() or not any(folder.iterdir())


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# Recipes ----------------------------------------------------------------------------------------


def test_the_papers_recipe_is_what_the_optimiser_is_told(tmp_path):
    told = []

    def note(optimiser, *_):
        (group,) = optimiser.param_groups
        told.append([group[name] for name in ("lr", "momentum", "weight_decay", "nesterov")])

    watch = register_optimizer_step_pre_hook(note)
    try:
        metrics = train(nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), coloured(128), out=tmp_path, **QUIET)
    finally:
        watch.remove()
    assert len(metrics) == 100
    assert len(told) == 200, "two batches of 64 an epoch"
    rates = [0.1] * 100 + [0.01] * 50 + [0.001] * 30 + [0.0001] * 20
    np.testing.assert_allclose([lr for lr, *_ in told], rates, rtol=1e-12)
    assert {tuple(rest) for _, *rest in told} == {(0.9, 1e-4, False)}


@pytest.mark.parametrize("batches", [1, 3, 7, 131, 782])
def test_the_rate_falls_at_the_first_batch_of_an_epoch(batches):
    paper = RECIPES["paper"]
    assert (paper.epochs, paper.batch, paper.rate) == (100, 64, 0.1)
    for epoch, before, after in ((50, 0.1, 0.01), (75, 0.01, 0.001), (90, 0.001, 0.0001)):
        first = epoch * batches
        assert paper.rate_at((first - 1) / (100 * batches)) == pytest.approx(before)
        assert paper.rate_at(first / (100 * batches)) == pytest.approx(after)


def test_the_recipe_of_generalized_odin():
    godin = RECIPES["godin"]
    assert (godin.epochs, godin.batch, godin.momentum, godin.weight_decay) == (200, 64, 0.9, 1e-4)
    rates = [godin.rate_at(epoch / 200) for epoch in (0, 99, 100, 149, 150, 199)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_one_cycle_climbs_for_a_fifth_and_comes_down_to_nothing():
    recipe = RECIPES["one-cycle"]
    assert [recipe.rate_at(share) for share in (0, 0.1, 0.2, 0.6, 1)] == pytest.approx([0, 0.1, 0.2, 0.1, 0])
    rates = [recipe.rate_at(step / 1000) for step in range(1001)]
    assert np.all(np.diff(rates[:201]) > 0)
    assert np.all(np.diff(rates[200:]) < 0)


@pytest.mark.parametrize(
    "values",
    [
        {"epochs": 0},
        {"epochs": -1},
        {"batch": 1},
        {"rate": 0.0},
        {"rate": -0.1},
        {"rate": math.nan},
        {"drops": (0.5, 1.0)},
        {"drops": (0.0,)},
        {"drops": (50, 75)},
        {"drops": (math.nan,)},
        {"momentum": -0.1},
        {"weight_decay": -1e-4},
        {"momentum": 0.0, "nesterov": True},
    ],
    ids=str,
)
def test_recipes_that_mean_nothing_are_refused(values):
    with pytest.raises(ArgumentError, match=next(iter(values))):
        Recipe(**values)


# Augmentation -----------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9))
def test_crops_and_flips_are_those_of_one_image_at_a_time(data, count, height, width):
    pixels = np.random.default_rng(data.draw(st.integers(0, 99))).integers(1, 256, (count, 3, height, width), np.uint8)
    down = data.draw(st.lists(st.integers(0, 8), min_size=count, max_size=count))
    across = data.draw(st.lists(st.integers(0, 8), min_size=count, max_size=count))
    flips = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    found = augment(torch.from_numpy(pixels), torch.tensor([down, across]), torch.tensor(flips))
    for row in range(count):
        canvas = np.zeros((3, height + 8, width + 8), np.uint8)
        canvas[:, 4 : 4 + height, 4 : 4 + width] = pixels[row]
        cut = canvas[:, down[row] : down[row] + height, across[row] : across[row] + width]
        wanted = cut[:, :, ::-1] if flips[row] else cut
        assert np.array_equal(found[row].numpy(), wanted)


def watched(model):
    """The training batches ``model`` sees, as they come."""
    seen = []
    model.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].clone()) if module.training else None)
    return seen


def test_every_epoch_goes_over_all_images_once_in_an_order_of_its_own(tmp_path):
    # one number tells the image, another its left half from its right
    numbered = torch.arange(40, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 16, 16).clone() + 100
    numbered[:, 1, :, :8] = 0
    model = network(Tiny)
    seen = watched(model)
    data = replace(coloured(40, size=16), pixels=numbered)
    train(model, data, out=tmp_path, recipe=Recipe(epochs=3, batch=16, rate=0.05), **QUIET)
    assert [len(batch) for batch in seen] == [16, 16, 8] * 3
    images = torch.cat(seen).mul(0.25).add(0.5).mul(255).round()
    orders = (images[:, 0, 8, 8] - 100).view(3, 40)
    assert all(sorted(order.tolist()) == list(range(40)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 3
    rightmost = [int(image[0, 8].nonzero().max()) for image in images]  # of the picture, not of the black around it
    mirrored = sum(bool(image[1, 8, column] == 0) for image, column in zip(images, rightmost, strict=True))
    assert 40 < mirrored < 80, "about half of 120"
    corners = [(image[0, 0, 8] == 0, image[0, -1, 8] == 0) for image in images]
    assert {(bool(top), bool(bottom)) for top, bottom in corners} == {(True, False), (False, True), (False, False)}


def test_a_last_batch_of_one_image_is_left_out(tmp_path):
    # batch norm over one image of one pixel has no spread
    model = nn.Sequential(nn.Conv2d(3, 4, 8), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 3))
    seen = watched(model)
    train(model, coloured(33), out=tmp_path, recipe=SHORT, **QUIET)
    assert [len(batch) for batch in seen] == [16, 16] * 2


# Learning ---------------------------------------------------------------------------------------


def test_training_learns_and_writes_what_it_learned(tmp_path):
    model, test = network(Restless), coloured(60, seed=1)
    before = accuracy(model, test)
    metrics = train(
        model,
        coloured(200),
        out=tmp_path / "new" / "run",
        test=test,
        recipe=replace(SHORT, epochs=4, rate=0.2),
        **QUIET,
    )
    folder = tmp_path / "new" / "run"
    assert before < 0.7
    assert metrics[-1]["loss"] < 0.5 * metrics[0]["loss"]
    assert metrics[-1]["accuracy"] > 0.9
    assert lines_of(folder) == metrics
    assert [line["epoch"] for line in metrics] == [1, 2, 3, 4]
    keys = {"epoch", "loss", "accuracy", "rate", "seconds", "images_per_second", "test_accuracy"}
    assert all(line.keys() == keys for line in metrics)
    assert [line["rate"] for line in metrics] == pytest.approx([0.2, 0.2, 0.02, 0.0002]), "that of the last batch"
    assert metrics[-1]["test_accuracy"] == accuracy(model, test) > 0.9
    fresh = Restless()
    load_checkpoint(fresh, folder / "weights.safetensors")
    images = pictures(9)
    torch.testing.assert_close(fresh.eval()(images), model.eval()(images), rtol=1e-6, atol=1e-6)
    assert sorted(path.name for path in folder.iterdir()) == [
        *("metrics.jsonl", *states(folder), "training.json", "weights.safetensors")
    ]


def test_no_test_accuracy_without_a_test_set(tmp_path):
    (line, _) = train(network(Tiny), coloured(), out=tmp_path, recipe=SHORT, **QUIET)
    assert "test_accuracy" not in line
    assert line["images_per_second"] > 0


def test_accuracy_is_that_of_the_model_at_rest():
    model, data = network(Restless).train(), coloured(130)
    with torch.no_grad():
        logits = copy.deepcopy(model).eval()(data.normalise(data.pixels))
    wanted = (logits.argmax(dim=1) == data.labels).double().mean()
    assert 0 < wanted < 1
    assert accuracy(model, data) == pytest.approx(float(wanted))
    assert model.training
    assert torch.equal(model.bn.running_mean, torch.zeros(8))


def test_a_line_on_stderr_for_each_epoch_or_none(tmp_path, capsys):
    train(network(Tiny), coloured(), out=tmp_path / "told", test=coloured(9), recipe=SHORT)
    told = capsys.readouterr()
    assert told.out == ""
    assert [line.split()[:4] for line in told.err.splitlines()] == [["epoch", str(n), "of", "2"] for n in (1, 2)]
    train(network(Tiny), coloured(), out=tmp_path / "silent", recipe=SHORT, **QUIET)
    assert capsys.readouterr().err == ""


def test_the_same_seed_gives_the_same_bits_and_another_one_others(tmp_path):
    runs = []
    for folder, seed in (("a", 3), ("b", 3), ("c", 4)):
        torch.rand(len(folder) + seed)  # what was drawn before does not matter
        metrics = train(network(Restless), coloured(), out=tmp_path / folder, recipe=SHORT, seed=seed, **QUIET)
        runs.append((untimed(metrics), weights_of(tmp_path / folder)))
    (a, first), (b, second), (c, third) = runs
    assert a == b
    assert same_weights(first, second)
    assert a != c
    assert not any(torch.equal(first[name], third[name]) for name in ("conv.weight", "fc.weight", "bn.running_mean"))


def class_at_the_centre(images):
    """A crop moved by at most four pixels still shows its class in the middle."""
    return images[:, :, images.shape[2] // 2, images.shape[3] // 2].argmax(dim=1)


@pytest.mark.parametrize("head", ["linear", "deconf"])
@pytest.mark.parametrize("nesterov", [False, True], ids=["plain", "nesterov"])
def test_steps_are_those_of_sgd_written_out(tmp_path, head, nesterov):
    recipe = Recipe(epochs=2, batch=8, rate=0.1, drops=(0.5,), momentum=0.8, nesterov=nesterov, weight_decay=0.05)
    model = with_head(network(Tiny), head)
    slow = copy.deepcopy(model).train()
    seen = watched(model)
    metrics = train(model, coloured(20, size=16), out=tmp_path, recipe=recipe, **QUIET)
    assert [len(images) for images in seen] == [8, 8, 4] * 2
    velocity, losses = {}, []
    for images, rate in zip(seen, [0.1] * 3 + [0.01] * 3, strict=True):
        labels = class_at_the_centre(images)
        loss = -slow(images).log_softmax(dim=1)[torch.arange(len(images)), labels].mean()
        losses += [loss.item()] * len(images)
        slow.zero_grad()
        loss.backward()
        with torch.no_grad():
            for name, weight in slow.named_parameters():
                decay = 0 if name == "fc.cosine.weight" else 0.05
                gradient = weight.grad + decay * weight
                velocity[name] = 0.8 * velocity[name] + gradient if name in velocity else gradient
                weight -= rate * (gradient + 0.8 * velocity[name] if nesterov else velocity[name])
    for name, value in slow.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-6, atol=1e-6, msg=name)
    assert [line["loss"] for line in metrics] == pytest.approx([np.mean(losses[:20]), np.mean(losses[20:])], rel=1e-5)


def test_weights_decay_in_all_parts_but_the_cosines(tmp_path):
    # nothing to learn and no step but decay: a gradient of zero everywhere
    class Still(Tiny):
        def forward(self, images):
            return 0 * super().forward(images)

    model = with_head(seeded(Still), "deconf")
    before = copy.deepcopy(model.state_dict())
    recipe = Recipe(epochs=1, batch=8, rate=0.1, drops=(), momentum=0.0, weight_decay=0.5)
    train(model, coloured(16), out=tmp_path, recipe=replace(recipe, drops=(0.9,)), **QUIET)
    for name, weight in model.named_parameters():
        shrunk = 1 if name == "fc.cosine.weight" else 0.95**2
        torch.testing.assert_close(weight.detach(), shrunk * before[name], msg=name)


@pytest.mark.parametrize("wrap", [Compiled, nn.DataParallel])
def test_a_wrapped_model_is_trained_inside_its_wrapper(tmp_path, wrap):
    plain, inner = network(Tiny), network(Tiny)
    train(plain, coloured(), out=tmp_path / "plain", recipe=SHORT, **QUIET)
    train(wrap(inner), coloured(), out=tmp_path / "wrapped", recipe=SHORT, **QUIET)
    assert same_weights(plain.state_dict(), inner.state_dict())
    assert weights_of(tmp_path / "wrapped").keys() == plain.state_dict().keys()


def test_a_model_that_returns_more_than_logits_is_trained(tmp_path):
    metrics = train(seeded(ReturnsDict), coloured(), out=tmp_path, recipe=SHORT, **QUIET)
    assert metrics[1]["loss"] < metrics[0]["loss"]


def test_a_network_that_flattens_with_view_is_trained(tmp_path):
    class LeNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.fc = nn.Linear(4 * 3 * 3, 3)

        def forward(self, images):
            x = F.max_pool2d(F.relu(self.conv(images)), 2)
            return self.fc(x.view(len(x), -1))

    metrics = train(seeded(LeNet), coloured(), out=tmp_path, recipe=SHORT, **QUIET)
    assert metrics[1]["loss"] < metrics[0]["loss"]


def test_a_network_without_convolutions_may_flatten_with_view(tmp_path):
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(192, 3)

        def forward(self, images):
            return self.fc(images.view(len(images), -1))

    metrics = train(seeded(Flat), coloured(), out=tmp_path, recipe=SHORT, **QUIET)
    assert metrics[1]["loss"] < metrics[0]["loss"]


def test_weights_that_two_parts_share_are_kept(tmp_path):
    class Shared(Tiny):
        def __init__(self):
            super().__init__()
            self.again = self.fc

    model = seeded(Shared)
    train(model, coloured(), out=tmp_path, recipe=SHORT, **QUIET)
    fresh = Shared()
    load_checkpoint(fresh, tmp_path / "weights.safetensors")
    assert torch.equal(fresh.fc.weight, model.fc.weight)


def test_weights_that_stand_still_stay_as_they_are(tmp_path):
    model = network(Tiny)
    model.conv.requires_grad_(False)
    before = model.conv.weight.clone()
    train(model, coloured(), out=tmp_path, recipe=SHORT, **QUIET)
    resumed = network(Tiny)
    resumed.conv.requires_grad_(False)
    train(resumed, coloured(), out=tmp_path, recipe=SHORT, resume=True, **QUIET)
    assert torch.equal(model.conv.weight, before)
    assert same_weights(resumed.state_dict(), model.state_dict())


# Stopped and resumed ----------------------------------------------------------------------------

MODULE = """
    import os
    import signal
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Killable(nn.Module):
        "Kills its own process in the training batch that DIE_AT counts; turns to NaN in that of NAN_AT."

        def __init__(self, classes=2):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
            self.bn = nn.BatchNorm2d(8)
            self.fc = nn.Linear(8, classes)
            self.steps = 0

        def forward(self, images):
            self.steps += self.training
            if str(self.steps) == os.environ.get("DIE_AT"):
                os.kill(os.getpid(), getattr(signal, os.environ["SIGNAL"]))
            hidden = F.relu(self.bn(self.conv(images))).mean(dim=(2, 3))
            logits = self.fc(F.dropout(hidden, 0.2, self.training))
            return logits * float("nan") if str(self.steps) == os.environ.get("NAN_AT") else logits

    def headless():
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
"""
NET = "killable_net_of_the_training_tests:Killable"
SHAPE = ["--size", "8", "--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25"]
RUN = ["train", NET, "--data", "train", "--epochs", "3", "--batch", "16", "--rate", "0.05", *SHAPE]


def paint(folder, count, colour, seed):
    folder.mkdir(parents=True)
    draw = np.random.default_rng(seed)
    for number in range(count):
        pixels = np.clip(np.array(colour) + draw.normal(0, 60, (8, 8, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03}.png")


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    """A module with a network that can be stopped, and images of two classes, of one, of three, and of none."""
    root = tmp_path_factory.mktemp("workshop")
    (root / "killable_net_of_the_training_tests.py").write_text(textwrap.dedent(MODULE))
    for part, count in (("train", 30), ("test", 10)):
        paint(root / part / "blue", count, (30, 60, 200), seed=count)
        paint(root / part / "red", count, (200, 60, 30), seed=count + 1)
    shutil.copytree(root / "test" / "red", root / "single" / "red")
    shutil.copytree(root / "test" / "red", root / "loose")
    shutil.copytree(root / "train", root / "three")
    shutil.copytree(root / "test" / "red", root / "three" / "amber")
    return root


def start(workshop, *arguments, **environment):
    """The command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "oodles", *map(str, arguments)],
        cwd=workshop,
        env={**ALONE, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_killed_run_goes_on_as_if_it_had_never_stopped(workshop, oodles_run, tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    # four batches an epoch, so in the middle of the second
    with start(workshop, *RUN, "--test", "test", "--out", killed, DIE_AT="7", SIGNAL="SIGKILL") as process:
        process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    assert len(lines_of(killed)) == 1
    assert oodles_run(*RUN, "--test", "test", "--out", killed, "--resume")[0] == 0
    code, _, told = oodles_run(*RUN, "--test", "test", "--out", whole)
    assert code == 0
    assert same_weights(weights_of(killed), weights_of(whole))
    assert untimed(lines_of(killed)) == untimed(lines_of(whole))
    assert contents(killed).keys() == contents(whole).keys()
    assert states(killed) == states(whole), "their names are checksums"
    assert f"{100 * lines_of(whole)[-1]['test_accuracy']:.2f} % right on test" in told


@pytest.mark.skipif(signal.getsignal(signal.SIGINT) is signal.SIG_IGN, reason="started where nothing can interrupt")
def test_an_interrupted_run_exits_130_and_can_be_resumed(workshop, oodles_run, tmp_path):
    with start(workshop, *RUN, "--out", tmp_path, DIE_AT="7", SIGNAL="SIGINT") as process:
        _, told = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Traceback" not in told
    assert oodles_run(*RUN, "--out", tmp_path, "--resume")[0] == 0
    assert [line["epoch"] for line in lines_of(tmp_path)] == [1, 2, 3]


@pytest.fixture(scope="module")
def unstopped(tmp_path_factory):
    """What the worker would have written, had nothing happened to it."""
    folder = tmp_path_factory.mktemp("unstopped")
    train(network(Restless), coloured(), out=folder, recipe=UNEVEN, seed=5, **QUIET)
    return folder


def resumed_as(unstopped, folder):
    """Resume the worker's run here, to the same bits as without a stop; whether its one state is there alone."""
    metrics = train(network(Restless), coloured(), out=folder, recipe=UNEVEN, seed=5, resume=True, **QUIET)
    assert untimed(metrics) == untimed(lines_of(folder)) == untimed(lines_of(unstopped))
    assert same_weights(weights_of(folder), weights_of(unstopped))
    return states(folder) == states(unstopped)


@pytest.mark.parametrize("file", ["state", "weights", "training"])
def test_a_run_killed_while_it_writes_goes_on(unstopped, tmp_path, file):
    done = subprocess.run([sys.executable, WORKER, tmp_path, "kill", file], env=ALONE, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.glob(f".{file}*")), "killed in the middle of writing"
    load_checkpoint(Restless(), tmp_path / "weights.safetensors")
    assert resumed_as(unstopped, tmp_path)


def test_a_kill_between_the_record_and_the_tidying_leaves_nothing_for_good(unstopped, tmp_path):
    done = subprocess.run([sys.executable, WORKER, tmp_path, "untidy", "state"], env=ALONE, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(states(tmp_path)) == 2
    assert resumed_as(unstopped, tmp_path)


@pytest.mark.parametrize("file", ["state", "weights", "training"])
def test_a_full_disk_ends_in_one_line_and_the_checkpoint_before_stands(unstopped, tmp_path, file):
    done = subprocess.run(
        [sys.executable, WORKER, tmp_path, "fill", file],
        env=ALONE,
        timeout=300,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert not list(tmp_path.glob(".*")), "no half-written file is left"
    load_checkpoint(Restless(), tmp_path / "weights.safetensors")
    assert done.stderr.splitlines()[-1] == (
        f"oodles.errors.FileError: the checkpoint of epoch 2 cannot be written to {tmp_path} (File too large); "
        "the checkpoint of epoch 1 stands; make room and go on with --resume"
    )
    assert resumed_as(unstopped, tmp_path)


def test_resuming_a_finished_run_gives_what_it_gave(unstopped, tmp_path):
    shutil.copytree(unstopped, tmp_path / "run")
    before = contents(tmp_path / "run")
    model = network(Restless)
    metrics = train(model, coloured(), out=tmp_path / "run", recipe=UNEVEN, seed=5, resume=True, **QUIET)
    assert metrics == lines_of(unstopped)
    assert same_weights({**model.state_dict()}, weights_of(unstopped))
    assert contents(tmp_path / "run") == before


def test_resuming_where_there_is_nothing_starts_anew(unstopped, tmp_path):
    assert resumed_as(unstopped, tmp_path / "new")


OTHER = {
    "recipe": {"recipe": replace(UNEVEN, rate=0.06)},
    "seed": {"seed": 6},
    "data": {"data": coloured(seed=9)},
    "network": {"model": Tiny()},
}


@pytest.mark.parametrize("what", OTHER)
def test_another_run_is_not_taken_up(unstopped, what):
    given = {"model": Restless(), "data": coloured(), "recipe": UNEVEN, "seed": 5, **OTHER[what]}
    before = contents(unstopped)
    with pytest.raises(FileError, match=f"{unstopped} holds a run with another {what}; .*another folder") as caught:
        train(given.pop("model"), given.pop("data"), out=unstopped, resume=True, **given, **QUIET)
    assert "\n" not in str(caught.value)
    assert contents(unstopped) == before


def test_a_folder_with_a_run_is_not_written_over(unstopped):
    before = contents(unstopped)
    with pytest.raises(FileError, match=r"holds a training run already; go on with it \(--resume\)"):
        train(Restless(), coloured(), out=unstopped, recipe=UNEVEN, seed=5, **QUIET)
    assert contents(unstopped) == before


def flip_last_byte(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def change_loss(path):
    record = json.loads(path.read_text())
    record["metrics"][0]["loss"] = 0.0
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("file", "harm", "message"),
    [
        ("state-*.safetensors", flip_last_byte, "altered or cut short"),
        ("state-*.safetensors", Path.unlink, "cannot be read"),
        ("training.json", change_loss, "altered after it was written"),
        ("training.json", lambda path: path.write_text("{"), "not readable JSON"),
    ],
    ids=["state altered", "state missing", "record altered", "record cut"],
)
def test_a_damaged_run_is_not_taken_up(unstopped, tmp_path, file, harm, message):
    shutil.copytree(unstopped, tmp_path / "run")
    (path,) = (tmp_path / "run").glob(file)
    harm(path)
    with pytest.raises(FileError, match=message):
        train(Restless(), coloured(), out=tmp_path / "run", recipe=UNEVEN, seed=5, resume=True, **QUIET)


# Two processes ----------------------------------------------------------------------------------


def test_two_processes_train_as_one_does(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, WORKER, tmp_path / "two"], env=ALONE, timeout=300, check=True, capture_output=True, text=True
    )
    assert sorted(done.stdout.splitlines()) == ["3 epochs, 0 files", "3 epochs, 12 files"]
    model = network(Tiny)
    alone = train(model, coloured(), out=tmp_path / "one", recipe=UNEVEN, seed=5, **QUIET)
    together = lines_of(tmp_path / "two")
    assert [line["accuracy"] for line in together] == [line["accuracy"] for line in alone]
    assert [line["loss"] for line in together] == pytest.approx([line["loss"] for line in alone], abs=1e-5)
    for name, value in weights_of(tmp_path / "two").items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-4, atol=1e-5, msg=name)
    names = {path.name for path in (tmp_path / "two").iterdir()}
    assert names == {"metrics.jsonl", *states(tmp_path / "two"), "training.json", "weights.safetensors"}
    assert len(names) == 4


# What is wrong with what was given --------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (replace(coloured(20), labels=torch.ones(20, dtype=torch.int64)), r"one class alone \(20 images\)"),
        (replace(coloured(20), labels=torch.arange(20) % 4), "the label 3, but Tiny has 3 classes, 0 to 2"),
        (replace(coloured(20), labels=torch.arange(20) % 3 - 1), "the label -1, but Tiny has 3 classes"),
        (coloured(15), "holds 15 images, less than a batch of 16; give a smaller batch"),
    ],
    ids=["one class", "label too large", "label below zero", "less than a batch"],
)
def test_data_that_cannot_be_learned_from_is_refused(tmp_path, data, message):
    with pytest.raises(DataError, match=message) as caught:
        train(network(Tiny), data, out=tmp_path / "run", recipe=SHORT, **QUIET)
    assert "\n" not in str(caught.value)
    assert untouched(tmp_path / "run")


def test_images_the_network_does_not_take_are_refused(tmp_path):
    flat = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    with pytest.raises(DataError, match=r"\(3, 16, 16\)"):
        train(flat, coloured(20, size=16), out=tmp_path / "run", recipe=SHORT, **QUIET)


def test_a_folder_that_cannot_be_is_refused_before_an_epoch_is_spent(tmp_path):
    (tmp_path / "file").write_text("")
    model = network(Tiny)
    seen = watched(model)
    with pytest.raises(FileError, match="file"):
        train(model, coloured(), out=tmp_path / "file", recipe=SHORT, **QUIET)
    assert seen == []


def test_a_device_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="device='abacus' cannot be used here"):
        train(network(Tiny), coloured(), out=tmp_path, recipe=SHORT, device="abacus", **QUIET)


class TurnsToNan(Tiny):
    """Its logits are NaN from the training batch ``last`` on."""

    last = 0

    def forward(self, images):
        self.last -= self.training
        return super().forward(images) * (math.nan if self.last < 0 and self.training else 1)


def test_a_loss_that_is_none_stops_the_run_and_the_checkpoint_before_stands(tmp_path):
    model = seeded(TurnsToNan)
    model.last = 4  # three batches an epoch
    message = r"epoch 2, batch 2 of 3: the loss is nan; the checkpoint of epoch 1 stands"
    with pytest.raises(DataError, match=message) as caught:
        train(model, coloured(), out=tmp_path, recipe=SHORT, **QUIET)
    assert "\n" not in str(caught.value)
    good = network(Tiny)
    load_checkpoint(good, tmp_path / "weights.safetensors")
    assert all(value.isfinite().all() for value in good.state_dict().values())
    assert [line["epoch"] for line in lines_of(tmp_path)] == [1]
    metrics = train(network(Tiny), coloured(), out=tmp_path, recipe=SHORT, resume=True, **QUIET)
    assert [line["epoch"] for line in metrics] == [1, 2]


def test_an_absurd_rate_stops_in_the_first_epoch_and_nothing_is_written(tmp_path):
    with pytest.raises(DataError, match=r"epoch 1, batch \d of 3: the loss is (nan|inf); nothing was written"):
        train(network(Tiny), coloured(), out=tmp_path / "run", recipe=replace(SHORT, rate=1e38), **QUIET)
    assert untouched(tmp_path / "run")


def test_weights_that_the_last_step_of_an_epoch_ruined_are_no_checkpoint(tmp_path):
    class Steep(Tiny):
        """A loss that is finite with a gradient that is not."""

        def forward(self, images):
            logits = super().forward(images)
            return logits + (logits - logits.detach()).abs().sqrt()

    with pytest.raises(DataError, match="epoch 1"):
        train(seeded(Steep), coloured(16), out=tmp_path / "run", recipe=replace(SHORT, epochs=1), **QUIET)
    assert untouched(tmp_path / "run")


# The command ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--data", "single"], "single has no labels; put the images of each class in a folder of its own"),
        (["--data", "loose"], "loose has no labels; put the images of each class in a folder of its own"),
        (["--data", "nowhere"], "nowhere does not exist"),
        (["--data", "three"], "three holds the label 2, but Killable has 2 classes, 0 to 1"),
        (["--test", "loose"], "loose has no labels"),
        (["--test", "three"], "amber"),
        (["--batch", "64"], "train holds 60 images, less than a batch of 64"),
        (["--limit", "0"], "a limit of 0 images leaves none of train"),
        (["--recipe", "secret"], "--recipe 'secret' is none of paper, godin, one-cycle"),
        (["--head", "round"], "head='round' is neither linear nor deconf"),
        (["--epochs", "0"], "epochs=0 must be at least 1"),
        (["--rate", "nan"], "rate=nan must be positive"),
        (["--device", "abacus"], "device='abacus' cannot be used here"),
        (["--out", "train/red/000.png"], "train/red/000.png"),
    ],
    ids=str,
)
def test_the_command_says_what_is_wrong_in_one_line(workshop, oodles_run, tmp_path, changes, message):
    code, out, err = oodles_run(*RUN, "--out", tmp_path / "run", *changes)
    assert code == 2
    assert out == ""
    assert message in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith("error ")
    assert untouched(tmp_path / "run")


@pytest.mark.parametrize(
    ("arch", "options", "message"),
    [
        ("resnet9000", [], "'resnet9000' is none of densenet101, small, and no package.module:factory"),
        ("nowhere.at.all:net", [], "nowhere.at.all cannot be imported"),
        (NET.replace("Killable", "headless"), ["--head", "deconf"], "Sequential has no last linear layer called fc"),
    ],
)
def test_the_command_says_which_network_it_cannot_build(workshop, oodles_run, tmp_path, arch, options, message):
    code, _, err = oodles_run("train", arch, *RUN[2:], "--out", tmp_path / "run", *options)
    assert code == 2
    assert message in err.splitlines()[-1]


def test_the_command_does_not_go_on_with_another_run(workshop, oodles_run, tmp_path):
    run = [*RUN, "--out", tmp_path / "run", "--epochs", "1"]
    assert oodles_run(*run)[0] == 0
    before = contents(tmp_path / "run")
    for changes, message in (
        ([], "holds a training run already"),
        (["--resume", "--seed", "1"], "another seed"),
        (["--resume", "--epochs", "2"], "another recipe"),
        (["--resume", "--limit", "40"], "another data"),
        (["--resume", "--head", "deconf"], "another network"),
    ):
        code, _, err = oodles_run(*run, *changes)
        assert code == 2
        assert message in err.splitlines()[-1]
    assert contents(tmp_path / "run") == before


def test_the_command_stops_at_a_loss_that_is_none(workshop, oodles_run, tmp_path, monkeypatch):
    monkeypatch.setenv("NAN_AT", "6")
    code, _, err = oodles_run(*RUN, "--out", tmp_path)
    assert code == 2
    told = "error epoch 2, batch 2 of 4: the loss is nan; the checkpoint of epoch 1 stands"
    assert err.splitlines()[-1].startswith(told)
    assert len(lines_of(tmp_path)) == 1


def test_the_commands_seed_decides_the_first_weights(workshop, oodles_run, tmp_path):
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert oodles_run(*RUN, "--epochs", "1", "--out", tmp_path / folder, "--seed", seed)[0] == 0
    a, b, c = (weights_of(tmp_path / folder) for folder in "abc")
    assert same_weights(a, b)
    assert not torch.equal(a["conv.weight"], c["conv.weight"])


def test_the_command_says_what_it_trains_and_where_the_weights_are(workshop, oodles_run, tmp_path):
    code, out, err = oodles_run(*RUN, "--out", tmp_path / "run", "--epochs", "2")
    assert code == 0
    assert out == ""
    first, *epochs, last = err.splitlines()
    assert "60 images of 2 classes" in first
    assert "epochs=2, batch=16, rate=0.05" in first
    assert len(epochs) == 2
    loss = lines_of(tmp_path / "run")[-1]["loss"]
    assert last == f"loss {loss:.4f}; weights in {tmp_path / 'run' / 'weights.safetensors'}"


def test_images_that_cannot_be_read_are_left_out_on_demand(workshop, oodles_run, tmp_path):
    shutil.copytree(workshop / "train", tmp_path / "spoilt")
    (tmp_path / "spoilt" / "red" / "000.png").write_bytes(b"nothing")
    run = [*RUN, "--epochs", "1", "--data", tmp_path / "spoilt", "--out", tmp_path / "run"]
    code, _, err = oodles_run(*run)
    assert code == 2
    assert "1 of 60 images cannot be read (red/000.png" in err.splitlines()[-1]
    code, _, err = oodles_run(*run, "--skip-bad")
    assert code == 0
    assert "59 images of 2 classes" in err


def cifar_batch(path, labels):
    pixels = np.random.default_rng(0).integers(0, 256, (len(labels), 3072), np.uint8)
    path.parent.mkdir()
    path.write_bytes(pickle.dumps({"data": pixels, "labels": labels}, protocol=2))


def test_a_limit_does_not_take_classes_from_the_network(workshop, oodles_run, tmp_path):
    # of 200 images one has the last class, and it is not among the four
    cifar_batch(tmp_path / "cifar" / "data_batch_1", [9] + [row % 9 for row in range(199)])
    options = ["--data", tmp_path / "cifar", "--limit", "4", "--epochs", "1", "--batch", "4", "--out", tmp_path / "run"]
    assert oodles_run("train", "small", *options)[0] == 0
    assert weights_of(tmp_path / "run")["fc.weight"].shape == (10, 256)


# Images in memory -------------------------------------------------------------------------------


def test_pixels_are_what_pillow_decodes(tmp_path):
    draw = np.random.default_rng(0)
    wanted = []
    for number in range(6):
        picture = Image.fromarray(draw.integers(0, 256, (11, 14, 3), np.uint8))
        folder = tmp_path / "set" / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        picture.save(folder / f"{number}.png")
        small = picture.resize((10, 8), Image.Resampling.BILINEAR).crop((2, 1, 8, 7))
        wanted.append((number % 2, np.asarray(small).transpose(2, 0, 1)))
    data = read_pixels(open_images(tmp_path / "set"), Transform(6, 8, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)))
    wanted.sort(key=lambda pair: pair[0])
    assert data.pixels.dtype == torch.uint8
    assert np.array_equal(data.pixels.numpy(), np.stack([pixels for _, pixels in wanted]))
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert (data.name, data.classes, len(data)) == ("set", ("cat", "dog"), 6)
    floats = (data.pixels.double() / 255 - torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)) / torch.tensor(
        [0.5, 0.6, 0.7]
    ).view(3, 1, 1)
    torch.testing.assert_close(data.normalise(data.pixels).double(), floats, rtol=1e-5, atol=1e-5)


def changed(tensor, *place):
    copied = tensor.clone()
    copied[place] = (copied[place] + 1) % 3
    return copied


def test_a_fingerprint_tells_pixels_labels_and_transforms_apart():
    data = coloured(12)
    others = [
        replace(data, pixels=changed(data.pixels, 3, 1, 4, 5)),
        replace(data, labels=changed(data.labels, 7)),
        replace(data, transform=replace(data.transform, mean=(0.5, 0.5, 0.4))),
        replace(data, transform=replace(data.transform, resize=9)),
        replace(data, pixels=data.pixels.flip(0), labels=data.labels.flip(0)),
    ]
    assert len({data.fingerprint(), *(other.fingerprint() for other in others)}) == 6
    turned = data.pixels.transpose(2, 3).contiguous().transpose(2, 3)
    assert not turned.is_contiguous()
    assert replace(data, name="elsewhere", pixels=turned).fingerprint() == data.fingerprint()


def test_a_set_without_labels_is_no_training_set(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"has no labels; put the images of each class in a folder of its own"):
        read_pixels(open_images(tmp_path), PLAIN)


def test_more_images_than_fit_in_memory_are_refused_before_one_is_read():
    def read(row):
        raise AssertionError(row)

    labels = np.arange(10_000) % 2
    images = ImageSet("huge", [str(row) for row in range(10_000)], read, labels)
    with pytest.raises(DataError, match=r"huge: 10,000 images of 1000x1000 take 30 GB .* more than the 16 GB"):
        read_pixels(images, Transform(1000, 1000, CIFAR.mean, CIFAR.std))


def test_broken_images_stop_the_reading_or_are_skipped(tmp_path):
    for name in ("cat/a.png", "cat/b.png", "dog/c.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), "red").save(tmp_path / name)
    (tmp_path / "cat" / "b.png").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"1 of 3 images cannot be read \(cat/b\.png"):
        read_pixels(open_images(tmp_path), PLAIN)
    assert read_pixels(open_images(tmp_path), PLAIN, skip_bad=True).labels.tolist() == [0, 1]


# The compact network ----------------------------------------------------------------------------


@pytest.mark.parametrize(("classes", "head"), [(10, "linear"), (7, "deconf")])
def test_the_compact_network_has_the_stages_it_says(classes, head):
    model = seeded(lambda: small_resnet(classes, head)).eval()
    shapes, pooled = {}, []
    for name in ("stage1", "stage2", "stage3"):
        note = lambda _, __, maps, name=name: shapes.update({name: tuple(maps.shape)})  # noqa: E731
        model.get_submodule(name).register_forward_hook(note)
    model.fc.register_forward_pre_hook(lambda _, inputs: pooled.append(inputs[0]))
    assert model(pictures(2, size=32)).shape == (2, classes)
    assert shapes == {"stage1": (2, 64, 16, 16), "stage2": (2, 128, 8, 8), "stage3": (2, 256, 4, 4)}
    assert pooled[0].shape == (2, 256)
    assert pooled[0].min() >= 0


def test_the_compact_network_has_no_other_heads():
    with pytest.raises(ArgumentError, match="head='square' is neither linear nor deconf"):
        small_resnet(head="square")


# Real images ------------------------------------------------------------------------------------

FEW = ["--recipe", "one-cycle", "--epochs", "2", "--batch", "32", "--limit", "200"]
DETECTORS = [
    "msp",
    "energy",
    "dice(0.9)",
    "odin(epsilon=0.004)",
    "mahalanobis",
    "mahalanobis(layers=('stage1','stage2'))",
]


def bench(oodles_run, data, tmp_path, model, *detectors):
    """The rows of a benchmark on few images, by detector."""
    code, out, err = oodles_run(
        *(
            "bench",
            "cifar10",
            "--data",
            data,
            "--model",
            model,
            "--checkpoint",
            tmp_path / "run" / "weights.safetensors",
        ),
        *(
            "--limit",
            "60",
            "--without",
            "places365",
            "--without",
            "places_crop",
            "--store",
            tmp_path / "store",
            "--json",
        ),
        *(part for text in detectors for part in ("--detector", text)),
    )
    assert code == 0, err
    rows = json.loads(out)
    assert {row["ood_set"] for row in rows} == {"svhn", "textures"}
    for row in rows:
        assert math.isfinite(row["auroc"])
        assert 0 <= row["fpr95"] <= 1
        assert 0 < row["auroc"] < 1, row["detector"]
    return [row["detector"] for row in rows if row["ood_set"] == "svhn"]


@pytest.mark.realdata
def test_real_images_a_kill_after_the_first_epoch_and_a_benchmark(data, workshop, oodles_run, tmp_path):
    run = ["train", "small", "--data", data / "cifar-10-batches-py", *FEW, "--out", tmp_path / "run"]
    with start(workshop, *run) as process:
        while not (tmp_path / "run" / "training.json").exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert len(lines_of(tmp_path / "run")) == 1
    code, _, err = oodles_run(*run, "--resume")
    assert code == 0, err
    assert [line["epoch"] for line in lines_of(tmp_path / "run")] == [1, 2]
    assert len(states(tmp_path / "run")) == 1
    compared = bench(oodles_run, data, tmp_path, "oodles.models:small_resnet", *DETECTORS)
    assert compared == [oodles.parse(text).spec for text in DETECTORS]


@pytest.mark.realdata
def test_real_images_with_the_head_of_generalized_odin(data, workshop, oodles_run, tmp_path):
    run = ["train", "small", "--data", data / "cifar-10-batches-py", *FEW, "--out", tmp_path / "run"]
    code, _, err = oodles_run(*run, "--epochs", "1", "--head", "deconf")
    assert code == 0, err
    compared = bench(oodles_run, data, tmp_path, 'oodles.models:small_resnet(head="deconf")')
    assert "godin" in compared
    assert "msp" in compared
