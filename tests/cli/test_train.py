"""``oodles train``: killed and resumed, its messages, and real images."""

import pickle
import shutil
import signal
import sys
import textwrap

import pytest
from support.command_line import SIZE, paint
from support.images import noise
from support.networks import one_thread  # noqa: F401
from support.processes import start, wait_for
from support.training_runs import ENVIRONMENT, contents, empty, metrics_of, same_weights, states, untimed, weights_of

import oodles

MODULE = """
    import os
    import signal
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Killable(nn.Module):
        "Sends SIGNAL to its own process in training batch DIE_AT; returns NaN in batch NAN_AT."

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
"""
NET = "killable_net_of_the_training_tests:Killable"
RUN = ["train", NET, "--data", "train", "--epochs", "3", "--batch-size", "16", "--learning-rate", "0.05", *SIZE]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A module with a network that can be killed, and folders with images of two classes, one, three, and none."""
    root = tmp_path_factory.mktemp("training")
    (root / "killable_net_of_the_training_tests.py").write_text(textwrap.dedent(MODULE))
    for part, count in (("train", 30), ("test", 10)):
        paint(root / part / "blue", count, (30, 60, 200), seed=count)
        paint(root / part / "red", count, (200, 60, 30), seed=count + 1)
    shutil.copytree(root / "test" / "red", root / "single" / "red")
    shutil.copytree(root / "test" / "red", root / "loose")
    shutil.copytree(root / "train", root / "three")
    shutil.copytree(root / "test" / "red", root / "three" / "amber")
    return root


def started(workspace, *arguments, **environment):
    """The command in a separate process."""
    command = [sys.executable, "-m", "oodles", *arguments]
    return start(command, cwd=workspace, env={**ENVIRONMENT, **environment})


# Killed and resumed -----------------------------------------------------------------------------


def test_a_killed_run_is_resumed_as_if_it_had_never_stopped(workspace, succeeded, tmp_path):
    killed, complete = tmp_path / "killed", tmp_path / "complete"
    # four batches per epoch, so in the middle of the second
    with started(workspace, *RUN, "--test", "test", "--out", killed, DIE_AT="7", SIGNAL="SIGKILL") as process:
        process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    assert len(metrics_of(killed)) == 1
    succeeded(*RUN, "--test", "test", "--out", killed, "--resume")
    _, err = succeeded(*RUN, "--test", "test", "--out", complete)
    assert same_weights(weights_of(killed), weights_of(complete))
    assert untimed(metrics_of(killed)) == untimed(metrics_of(complete))
    assert contents(killed).keys() == contents(complete).keys()
    assert states(killed) == states(complete), "their names contain checksums"
    assert f"{100 * metrics_of(complete)[-1]['test_accuracy']:.2f} % accuracy on test" in err


@pytest.mark.slow
def test_an_interrupted_run_exits_130_and_can_be_resumed(workspace, succeeded, tmp_path):
    with started(workspace, *RUN, "--out", tmp_path, DIE_AT="7", SIGNAL="SIGINT") as process:
        _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Traceback" not in err
    last = err.splitlines()[-1]
    assert last == "interrupted; run it again with --resume to continue after the last complete epoch"
    succeeded(*RUN, "--out", tmp_path, "--resume")
    assert [line["epoch"] for line in metrics_of(tmp_path)] == [1, 2, 3]


# Messages and options ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--data", "single"], "single has no labels; put the images of each class in a folder of its own"),
        (["--data", "loose"], "loose has no labels; put the images of each class in a folder of its own"),
        (["--data", "three"], "three holds the label 2, but Killable has 2 classes, 0 to 1"),
        (["--test", "loose"], "loose has no labels"),
        (["--test", "three"], "amber"),
        (["--batch-size", "64"], "train holds 60 images, less than a batch of 64"),
        (["--limit", "0"], "Invalid value for '--limit'"),
        (["--recipe", "secret"], "--recipe 'secret' must be one of paper, godin, one-cycle"),
        (["--head-type", "round"], "--head-type 'round' must be one of linear, deconf"),
        (["--epochs", "0"], "epochs=0 must lie between 1 and 100,000"),
        (["--learning-rate", "nan"], "learning_rate=nan must be positive"),
        (["--device", "abacus"], "device='abacus' cannot be used here"),
        (["--out", "train/red/000.png"], "train/red/000.png"),
    ],
    ids=str,
)
def test_errors_are_one_line(refused, tmp_path, changes, message):
    assert message in refused(*RUN, "--out", tmp_path / "run", *changes)
    assert empty(tmp_path / "run")


def test_the_command_stops_at_a_nan_loss(refused, tmp_path, monkeypatch):
    monkeypatch.setenv("NAN_AT", "6")
    message = "error epoch 2, batch 2 of 4: the loss is nan; the checkpoint of epoch 1 is kept"
    assert refused(*RUN, "--out", tmp_path).startswith(message)
    assert len(metrics_of(tmp_path)) == 1


def test_the_command_reports_the_data_and_where_the_weights_are(workspace, succeeded, tmp_path):
    out, err = succeeded(*RUN, "--out", tmp_path / "run", "--epochs", "2")
    assert out == ""
    first, *epochs, last = err.splitlines()
    assert "60 images of 2 classes" in first
    assert "epochs=2, batch_size=16, learning_rate=0.05" in first
    assert len(epochs) == 2
    loss = metrics_of(tmp_path / "run")[-1]["loss"]
    assert last == f"loss {loss:.4f}; weights in {tmp_path / 'run' / 'weights.safetensors'}"


def test_unreadable_images_are_skipped_on_request(workspace, refused, succeeded, tmp_path):
    shutil.copytree(workspace / "train", tmp_path / "damaged")
    (tmp_path / "damaged" / "red" / "000.png").write_bytes(b"nothing")
    run = [*RUN, "--epochs", "1", "--data", tmp_path / "damaged", "--out", tmp_path / "run"]
    assert "1 of 60 images cannot be read (red/000.png" in refused(*run)
    assert "59 images of 2 classes" in succeeded(*run, "--skip-bad")[1]


def test_a_limit_does_not_change_the_number_of_classes(workspace, succeeded, tmp_path):
    # only one of 200 images has the last class, and it is not among the four sampled
    batch = {"data": noise(200, 3072), "labels": [9] + [row % 9 for row in range(199)]}
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(batch, protocol=2))
    options = ["--limit", "4", "--epochs", "1", "--batch-size", "4", "--out", tmp_path / "run"]
    succeeded("train", "small", "--data", tmp_path, *options)
    assert weights_of(tmp_path / "run")["fc.weight"].shape == (10, 256)


# Real images ------------------------------------------------------------------------------------


FEW = ["--recipe", "one-cycle", "--epochs", "2", "--batch-size", "32", "--limit", "200"]
LAYERS = "mahalanobis(layers=('stage1','stage2'))"
DETECTORS = ["msp", "energy", "dice(0.9)", "odin(epsilon=0.004)", "mahalanobis", LAYERS]


def bench(json_of, data, tmp_path, model, *detectors):
    """Benchmark on a few images; the detectors compared."""
    options = ["--model", model, "--checkpoint", tmp_path / "run" / "weights.safetensors", "--limit", "60"]
    options += ["--without", "places365", "--without", "places_crop", "--store", tmp_path / "store"]
    options += [part for text in detectors for part in ("--detector", text)]
    rows = json_of("bench", "cifar10", "--data", data, *options)
    assert {row["ood_set"] for row in rows} == {"svhn", "textures"}
    for row in rows:
        assert 0 <= row["fpr95"] <= 1
        assert 0 < row["auroc"] < 1, row["detector"]
    return [row["detector"] for row in rows if row["ood_set"] == "svhn"]


@pytest.mark.slow
@pytest.mark.realdata
def test_real_images_a_kill_after_the_first_epoch_and_a_benchmark(data, workspace, succeeded, json_of, tmp_path):
    run = ["train", "small", "--data", data / "cifar-10-batches-py", *FEW, "--out", tmp_path / "run"]
    with started(workspace, *run) as process:
        wait_for((tmp_path / "run" / "training.json").exists, process)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert len(metrics_of(tmp_path / "run")) == 1
    succeeded(*run, "--resume")
    assert [line["epoch"] for line in metrics_of(tmp_path / "run")] == [1, 2]
    assert len(states(tmp_path / "run")) == 1
    compared = bench(json_of, data, tmp_path, "oodles.models:small_resnet", *DETECTORS)
    assert compared == [oodles.parse(text).spec for text in DETECTORS]


@pytest.mark.slow
@pytest.mark.realdata
def test_real_images_with_the_head_of_generalized_odin(data, succeeded, json_of, tmp_path):
    run = ["train", "small", "--data", data / "cifar-10-batches-py", *FEW, "--out", tmp_path / "run"]
    succeeded(*run, "--epochs", "1", "--head-type", "deconf")
    compared = bench(json_of, data, tmp_path, 'oodles.models:small_resnet(head_type="deconf")')
    assert "godin" in compared
    assert "msp" in compared
