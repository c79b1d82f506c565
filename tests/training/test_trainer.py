"""The trainer: augmentation, the arithmetic of every step, several processes, and invalid input."""

import copy
import math
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.networks import Compiled, ReturnsDict, one_thread, pictures, seeded  # noqa: F401
from support.processes import torchrun
from support.training_runs import (
    ENVIRONMENT,
    QUIET,
    SHORT,
    WORKER,
    empty,
    files_of,
    metrics_of,
    recorded_batches,
    same_weights,
    states,
    untimed,
    weights_of,
)
from support.training_worker import UNEVEN, Stateful, Tiny, coloured
from torch import nn

from oodles.errors import DataError, FileError
from oodles.models import load_checkpoint
from oodles.models.deconf import with_head
from oodles.records.files import locked
from oodles.training import Recipe, train
from oodles.training.trainer import accuracy, augment

# Augmentation -----------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9))
def test_crops_and_flips_equal_those_of_one_image_at_a_time(data, count, height, width):
    pixels = np.random.default_rng(data.draw(st.integers(0, 99))).integers(1, 256, (count, 3, height, width), np.uint8)
    down = data.draw(st.lists(st.integers(0, 8), min_size=count, max_size=count))
    across = data.draw(st.lists(st.integers(0, 8), min_size=count, max_size=count))
    flips = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    augmented = augment(torch.from_numpy(pixels), torch.tensor([down, across]), torch.tensor(flips))
    for row in range(count):
        canvas = np.zeros((3, height + 8, width + 8), np.uint8)
        canvas[:, 4 : 4 + height, 4 : 4 + width] = pixels[row]
        cut = canvas[:, down[row] : down[row] + height, across[row] : across[row] + width]
        expected = cut[:, :, ::-1] if flips[row] else cut
        assert np.array_equal(augmented[row].numpy(), expected)


def test_every_epoch_has_all_images_once_in_a_new_order(tmp_path):
    # the first channel identifies the image, the second its left half
    numbered = torch.arange(40, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 16, 16).clone() + 100
    numbered[:, 1, :, :8] = 0
    model = seeded(Tiny)
    seen = recorded_batches(model)
    data = replace(coloured(40, size=16), pixels=numbered)
    train(model, data, out=tmp_path, recipe=Recipe(epochs=3, batch_size=16, learning_rate=0.05), **QUIET)
    assert [len(batch) for batch in seen] == [16, 16, 8] * 3
    images = torch.cat(seen).mul(0.25).add(0.5).mul(255).round()
    orders = (images[:, 0, 8, 8] - 100).view(3, 40)
    assert all(sorted(order.tolist()) == list(range(40)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 3
    rightmost = [int(image[0, 8].nonzero().max()) for image in images]  # of the image, not of the black padding
    mirrored = sum(bool(image[1, 8, column] == 0) for image, column in zip(images, rightmost, strict=True))
    assert 40 < mirrored < 80, "about half of 120"
    corners = [(image[0, 0, 8] == 0, image[0, -1, 8] == 0) for image in images]
    assert {(bool(top), bool(bottom)) for top, bottom in corners} == {(True, False), (False, True), (False, False)}


def test_a_last_batch_of_one_image_is_dropped(tmp_path):
    # batch norm of a single value has no variance
    model = nn.Sequential(nn.Conv2d(3, 4, 8), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 3))
    seen = recorded_batches(model)
    train(model, coloured(33), out=tmp_path, recipe=SHORT, **QUIET)
    assert [len(batch) for batch in seen] == [16, 16] * 2


# Learning ---------------------------------------------------------------------------------------


def test_training_learns_and_writes_its_weights_and_metrics(tmp_path):
    model, test, folder = seeded(Stateful), coloured(60, seed=1), tmp_path / "new" / "run"
    recipe = replace(SHORT, epochs=4, learning_rate=0.2)
    assert accuracy(model, test) < 0.7
    metrics = train(model, coloured(200), out=folder, test=test, recipe=recipe, **QUIET)
    assert metrics[-1]["loss"] < 0.5 * metrics[0]["loss"]
    assert metrics[-1]["accuracy"] > 0.9
    assert metrics_of(folder) == metrics
    assert [line["epoch"] for line in metrics] == [1, 2, 3, 4]
    keys = {"epoch", "loss", "accuracy", "learning_rate", "seconds", "images_per_second", "test_accuracy"}
    assert all(line.keys() == keys for line in metrics)
    assert [line["learning_rate"] for line in metrics] == pytest.approx([0.2, 0.2, 0.02, 0.0002]), "of the last batch"
    assert metrics[-1]["test_accuracy"] == accuracy(model, test) > 0.9
    fresh = Stateful()
    load_checkpoint(fresh, folder / "weights.safetensors")
    images = pictures(9)
    torch.testing.assert_close(fresh.eval()(images), model.eval()(images), rtol=1e-6, atol=1e-6)
    assert files_of(folder) == {"metrics.jsonl", *states(folder), "training.json", "weights.safetensors"}


def test_two_runs_do_not_share_a_folder(tmp_path):
    with locked(tmp_path / "run"), ThreadPoolExecutor(1) as other:
        run = other.submit(train, seeded(Tiny), coloured(), out=tmp_path / "run", recipe=SHORT, **QUIET)
        with pytest.raises(FileError, match="run is being written by another process"):
            run.result()
        assert empty(tmp_path / "run")


def test_accuracy_is_computed_in_eval_mode():
    model, data = seeded(Stateful).train(), coloured(130)
    with torch.no_grad():
        logits = copy.deepcopy(model).eval()(data.normalise(data.pixels))
    expected = (logits.argmax(dim=1) == data.labels).double().mean()
    assert 0 < expected < 1
    assert accuracy(model, data) == pytest.approx(float(expected))
    assert model.training
    assert torch.equal(model.bn.running_mean, torch.zeros(8))


def test_progress_is_a_line_on_stderr_for_each_epoch(tmp_path, capsys):
    train(seeded(Tiny), coloured(), out=tmp_path / "shown", test=coloured(9), recipe=SHORT)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert [line.split()[:4] for line in shown.err.splitlines()] == [["epoch", str(n), "of", "2"] for n in (1, 2)]
    train(seeded(Tiny), coloured(), out=tmp_path / "silent", recipe=SHORT, **QUIET)
    assert capsys.readouterr().err == ""


def test_the_result_depends_on_the_seed_alone(tmp_path):
    runs = []
    for folder, seed in (("a", 3), ("b", 3), ("c", 4)):
        torch.rand(len(folder) + seed)  # the global random state does not matter
        metrics = train(seeded(Stateful), coloured(), out=tmp_path / folder, recipe=SHORT, seed=seed, **QUIET)
        runs.append((untimed(metrics), weights_of(tmp_path / folder)))
    (a, first), (b, second), (c, third) = runs
    assert a == b
    assert same_weights(first, second)
    assert a != c
    assert not any(torch.equal(first[name], third[name]) for name in ("conv.weight", "fc.weight", "bn.running_mean"))


@pytest.mark.parametrize("head_type", ["linear", "deconf"])
@pytest.mark.parametrize("nesterov", [False, True], ids=["plain", "nesterov"])
def test_steps_equal_those_of_sgd_written_out(tmp_path, head_type, nesterov):
    recipe = Recipe(
        epochs=2, batch_size=8, learning_rate=0.1, drops=(0.5,), momentum=0.8, nesterov=nesterov, weight_decay=0.05
    )
    model = seeded(lambda: with_head(seeded(Tiny), head_type))
    slow = copy.deepcopy(model).train()
    seen = recorded_batches(model)
    metrics = train(model, coloured(20, size=16), out=tmp_path, recipe=recipe, **QUIET)
    assert [len(images) for images in seen] == [8, 8, 4] * 2
    velocity, losses = {}, []
    for images, rate in zip(seen, [0.1] * 3 + [0.01] * 3, strict=True):
        labels = images[:, :, 8, 8].argmax(dim=1)  # a crop is shifted by at most four pixels from the centre
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


@pytest.mark.parametrize("wrap", [Compiled, nn.DataParallel])
def test_a_wrapped_model_is_trained_inside_its_wrapper(tmp_path, wrap):
    plain, inner = seeded(Tiny), seeded(Tiny)
    train(plain, coloured(), out=tmp_path / "plain", recipe=SHORT, **QUIET)
    train(wrap(inner), coloured(), out=tmp_path / "wrapped", recipe=SHORT, **QUIET)
    assert same_weights(plain.state_dict(), inner.state_dict())
    assert weights_of(tmp_path / "wrapped").keys() == plain.state_dict().keys()


class View(nn.Module):
    """Flattens with ``view``, which needs the memory format that the layers before it give."""

    def __init__(self, body, width):
        super().__init__()
        self.body, self.fc = body, nn.Linear(width, 3)

    def forward(self, images):
        hidden = self.body(images)
        return self.fc(hidden.view(len(hidden), -1))


@pytest.mark.parametrize(
    "make",
    [ReturnsDict, lambda: View(nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2)), 36), lambda: View(nn.ReLU(), 192)],
    ids=["more than logits", "view after a convolution", "view of the images"],
)
def test_networks_of_other_kinds_are_trained(tmp_path, make):
    metrics = train(seeded(make), coloured(), out=tmp_path, recipe=SHORT, **QUIET)
    assert metrics[1]["loss"] < metrics[0]["loss"]
    assert "test_accuracy" not in metrics[0]


def test_shared_weights_are_saved(tmp_path):
    class Shared(Tiny):
        def __init__(self):
            super().__init__()
            self.again = self.fc

    model = seeded(Shared)
    train(model, coloured(), out=tmp_path, recipe=SHORT, **QUIET)
    fresh = Shared()
    load_checkpoint(fresh, tmp_path / "weights.safetensors")
    assert torch.equal(fresh.fc.weight, model.fc.weight)


def test_frozen_weights_are_unchanged(tmp_path):
    model = seeded(Tiny)
    model.conv.requires_grad_(False)
    before = model.conv.weight.clone()
    train(model, coloured(), out=tmp_path, recipe=SHORT, **QUIET)
    resumed = seeded(Tiny)
    resumed.conv.requires_grad_(False)
    train(resumed, coloured(), out=tmp_path, recipe=SHORT, resume=True, **QUIET)
    assert torch.equal(model.conv.weight, before)
    assert same_weights(resumed.state_dict(), model.state_dict())


# Two processes ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes_train_like_one(tmp_path):
    command = [*torchrun(2), WORKER, tmp_path / "two"]
    done = subprocess.run(command, env=ENVIRONMENT, timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["3 epochs, 0 files", "3 epochs, 13 files"]
    model = seeded(Tiny)
    alone = train(model, coloured(), out=tmp_path / "one", recipe=UNEVEN, seed=5, **QUIET)
    together = metrics_of(tmp_path / "two")
    assert [line["accuracy"] for line in together] == [line["accuracy"] for line in alone]
    assert [line["loss"] for line in together] == pytest.approx([line["loss"] for line in alone], abs=1e-5)
    for name, value in weights_of(tmp_path / "two").items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-4, atol=1e-5, msg=name)
    names = files_of(tmp_path / "two")
    assert names == {"metrics.jsonl", *states(tmp_path / "two"), "training.json", "weights.safetensors"}
    assert len(names) == 4


# Invalid data and diverging runs ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (replace(coloured(20), labels=torch.ones(20, dtype=torch.int64)), r"only one class \(20 images\)"),
        (replace(coloured(20), labels=torch.arange(20) % 4), "the label 3, but Tiny has 3 classes, 0 to 2"),
        (replace(coloured(20), labels=torch.arange(20) % 3 - 1), "the label -1, but Tiny has 3 classes"),
        (coloured(15), "holds 15 images, less than a batch of 16; give a smaller batch size"),
    ],
    ids=["one class", "label too large", "label below zero", "less than a batch"],
)
def test_invalid_training_data_is_refused(tmp_path, data, message):
    with pytest.raises(DataError, match=message) as caught:
        train(seeded(Tiny), data, out=tmp_path / "run", recipe=SHORT, **QUIET)
    assert "\n" not in str(caught.value)
    assert empty(tmp_path / "run")


def test_images_of_another_shape_are_refused(tmp_path):
    flat = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    with pytest.raises(DataError, match=r"\(3, 16, 16\)"):
        train(flat, coloured(20, size=16), out=tmp_path / "run", recipe=SHORT, **QUIET)


def test_an_unusable_folder_is_refused_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    model = seeded(Tiny)
    seen = recorded_batches(model)
    with pytest.raises(FileError, match="file"):
        train(model, coloured(), out=tmp_path / "file", recipe=SHORT, **QUIET)
    assert seen == []


class TurnsToNan(Tiny):
    """Its logits are NaN after ``last`` training batches."""

    last = 0

    def forward(self, images):
        self.last -= self.training
        return super().forward(images) * (math.nan if self.last < 0 and self.training else 1)


def test_a_nan_loss_stops_the_run_and_keeps_the_last_checkpoint(tmp_path):
    model = seeded(TurnsToNan)
    model.last = 4  # three batches per epoch
    message = r"epoch 2, batch 2 of 3: the loss is nan; the checkpoint of epoch 1 is kept"
    with pytest.raises(DataError, match=message) as caught:
        train(model, coloured(), out=tmp_path, recipe=SHORT, **QUIET)
    assert "\n" not in str(caught.value)
    good = seeded(Tiny)
    load_checkpoint(good, tmp_path / "weights.safetensors")
    assert all(value.isfinite().all() for value in good.state_dict().values())
    assert [line["epoch"] for line in metrics_of(tmp_path)] == [1]
    metrics = train(seeded(Tiny), coloured(), out=tmp_path, recipe=SHORT, resume=True, **QUIET)
    assert [line["epoch"] for line in metrics] == [1, 2]


def test_divergence_in_the_first_epoch_writes_nothing(tmp_path):
    with pytest.raises(DataError, match=r"epoch 1, batch \d of 3: the loss is (nan|inf)"):
        train(seeded(Tiny), coloured(), out=tmp_path / "run", recipe=replace(SHORT, learning_rate=1e38), **QUIET)
    assert empty(tmp_path / "run")


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    class Steep(Tiny):
        """The loss is finite, its gradient is not."""

        def forward(self, images):
            logits = super().forward(images)
            return logits + (logits - logits.detach()).abs().sqrt()

    with pytest.raises(DataError, match="epoch 1"):
        train(seeded(Steep), coloured(16), out=tmp_path / "run", recipe=replace(SHORT, epochs=1), **QUIET)
    assert empty(tmp_path / "run")
