"""``oodles train``: killed and resumed, its messages, and real images."""

import json
import math
import pickle
import shutil
import signal
import sys
import textwrap

import numpy as np
import pytest
from PIL import Image
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

    def headless():
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
"""


NET = "killable_net_of_the_training_tests:Killable"


SHAPE = ["--size", "8", "--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25"]


RUN = ["train", NET, "--data", "train", "--epochs", "3", "--batch-size", "16", "--learning-rate", "0.05", *SHAPE]


def paint(folder, count, colour, seed):
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    for number in range(count):
        pixels = np.clip(np.array(colour) + rng.normal(0, 60, (8, 8, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03}.png")


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


def test_a_killed_run_is_resumed_as_if_it_had_never_stopped(workspace, oodles_run, tmp_path):
    killed, complete = tmp_path / "killed", tmp_path / "complete"
    # four batches per epoch, so in the middle of the second
    with started(workspace, *RUN, "--test", "test", "--out", killed, DIE_AT="7", SIGNAL="SIGKILL") as process:
        process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    assert len(metrics_of(killed)) == 1
    assert oodles_run(*RUN, "--test", "test", "--out", killed, "--resume")[0] == 0
    code, _, err = oodles_run(*RUN, "--test", "test", "--out", complete)
    assert code == 0
    assert same_weights(weights_of(killed), weights_of(complete))
    assert untimed(metrics_of(killed)) == untimed(metrics_of(complete))
    assert contents(killed).keys() == contents(complete).keys()
    assert states(killed) == states(complete), "their names contain checksums"
    assert f"{100 * metrics_of(complete)[-1]['test_accuracy']:.2f} % accuracy on test" in err


@pytest.mark.slow
def test_an_interrupted_run_exits_130_and_can_be_resumed(workspace, oodles_run, tmp_path):
    with started(workspace, *RUN, "--out", tmp_path, DIE_AT="7", SIGNAL="SIGINT") as process:
        _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Traceback" not in err
    last = err.splitlines()[-1]
    assert last == "interrupted; run it again with --resume to continue after the last complete epoch"
    assert oodles_run(*RUN, "--out", tmp_path, "--resume")[0] == 0
    assert [line["epoch"] for line in metrics_of(tmp_path)] == [1, 2, 3]


# Messages and options ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--data", "single"], "single has no labels; put the images of each class in a folder of its own"),
        (["--data", "loose"], "loose has no labels; put the images of each class in a folder of its own"),
        (["--data", "nowhere"], "nowhere does not exist"),
        (["--data", "three"], "three holds the label 2, but Killable has 2 classes, 0 to 1"),
        (["--test", "loose"], "loose has no labels"),
        (["--test", "three"], "amber"),
        (["--batch-size", "64"], "train holds 60 images, less than a batch of 64"),
        (["--limit", "0"], "a limit of 0 images leaves none of train"),
        (["--recipe", "secret"], "--recipe 'secret' must be one of paper, godin, one-cycle"),
        (["--head-type", "round"], "--head-type 'round' must be one of linear, deconf"),
        (["--epochs", "0"], "--epochs 0 must be at least 1"),
        (["--learning-rate", "nan"], "learning_rate=nan must be positive"),
        (["--device", "abacus"], "device='abacus' cannot be used here"),
        (["--out", "train/red/000.png"], "train/red/000.png"),
    ],
    ids=str,
)
def test_errors_are_one_line(workspace, oodles_run, tmp_path, changes, message):
    code, out, err = oodles_run(*RUN, "--out", tmp_path / "run", *changes)
    assert code == 2
    assert out == ""
    assert message in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith("error ")
    assert empty(tmp_path / "run")


def test_the_command_stops_at_a_nan_loss(workspace, oodles_run, tmp_path, monkeypatch):
    monkeypatch.setenv("NAN_AT", "6")
    code, _, err = oodles_run(*RUN, "--out", tmp_path)
    assert code == 2
    message = "error epoch 2, batch 2 of 4: the loss is nan; the checkpoint of epoch 1 is kept"
    assert err.splitlines()[-1].startswith(message)
    assert len(metrics_of(tmp_path)) == 1


def test_the_command_reports_the_data_and_where_the_weights_are(workspace, oodles_run, tmp_path):
    code, out, err = oodles_run(*RUN, "--out", tmp_path / "run", "--epochs", "2")
    assert code == 0
    assert out == ""
    first, *epochs, last = err.splitlines()
    assert "60 images of 2 classes" in first
    assert "epochs=2, batch_size=16, learning_rate=0.05" in first
    assert len(epochs) == 2
    loss = metrics_of(tmp_path / "run")[-1]["loss"]
    assert last == f"loss {loss:.4f}; weights in {tmp_path / 'run' / 'weights.safetensors'}"


def test_unreadable_images_are_skipped_on_request(workspace, oodles_run, tmp_path):
    shutil.copytree(workspace / "train", tmp_path / "damaged")
    (tmp_path / "damaged" / "red" / "000.png").write_bytes(b"nothing")
    run = [*RUN, "--epochs", "1", "--data", tmp_path / "damaged", "--out", tmp_path / "run"]
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


def test_a_limit_does_not_change_the_number_of_classes(workspace, oodles_run, tmp_path):
    # only one of 200 images has the last class, and it is not among the four sampled
    cifar_batch(tmp_path / "cifar" / "data_batch_1", [9] + [row % 9 for row in range(199)])
    options = [
        "--data",
        tmp_path / "cifar",
        "--limit",
        "4",
        "--epochs",
        "1",
        "--batch-size",
        "4",
        "--out",
        tmp_path / "run",
    ]
    assert oodles_run("train", "small", *options)[0] == 0
    assert weights_of(tmp_path / "run")["fc.weight"].shape == (10, 256)


# Real images ------------------------------------------------------------------------------------


FEW = ["--recipe", "one-cycle", "--epochs", "2", "--batch-size", "32", "--limit", "200"]


DETECTORS = [
    "msp",
    "energy",
    "dice(0.9)",
    "odin(epsilon=0.004)",
    "mahalanobis",
    "mahalanobis(layers=('stage1','stage2'))",
]


def bench(oodles_run, data, tmp_path, model, *detectors):
    """Benchmark on a few images; the detectors compared."""
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


@pytest.mark.slow
@pytest.mark.realdata
def test_real_images_a_kill_after_the_first_epoch_and_a_benchmark(data, workspace, oodles_run, tmp_path):
    run = ["train", "small", "--data", data / "cifar-10-batches-py", *FEW, "--out", tmp_path / "run"]
    with started(workspace, *run) as process:
        wait_for((tmp_path / "run" / "training.json").exists, process)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert len(metrics_of(tmp_path / "run")) == 1
    code, _, err = oodles_run(*run, "--resume")
    assert code == 0, err
    assert [line["epoch"] for line in metrics_of(tmp_path / "run")] == [1, 2]
    assert len(states(tmp_path / "run")) == 1
    compared = bench(oodles_run, data, tmp_path, "oodles.models:small_resnet", *DETECTORS)
    assert compared == [oodles.parse(text).spec for text in DETECTORS]


@pytest.mark.slow
@pytest.mark.realdata
def test_real_images_with_the_head_of_generalized_odin(data, workspace, oodles_run, tmp_path):
    run = ["train", "small", "--data", data / "cifar-10-batches-py", *FEW, "--out", tmp_path / "run"]
    code, _, err = oodles_run(*run, "--epochs", "1", "--head-type", "deconf")
    assert code == 0, err
    compared = bench(oodles_run, data, tmp_path, 'oodles.models:small_resnet(head_type="deconf")')
    assert "godin" in compared
    assert "msp" in compared
