"""Resuming: runs that were killed or ran out of disk space end with the same bits as uninterrupted ones."""

import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from support.networks import one_thread, seeded  # noqa: F401
from support.training_runs import (
    ENVIRONMENT,
    QUIET,
    WORKER,
    contents,
    files_of,
    metrics_of,
    same_weights,
    states,
    untimed,
    weights_of,
)
from support.training_worker import UNEVEN, Stateful, Tiny, coloured

from oodles.errors import FileError
from oodles.models import load_checkpoint
from oodles.training import train


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """What the worker writes if nothing happens to it."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    train(seeded(Stateful), coloured(), out=folder, recipe=UNEVEN, seed=5, **QUIET)
    return folder


def run_worker(*arguments):
    command = [sys.executable, WORKER, *arguments]
    return subprocess.run(command, env=ENVIRONMENT, timeout=300, capture_output=True, text=True)


def check_resumed(uninterrupted, folder):
    """Resume the worker's run in this process and compare all that it writes."""
    metrics = train(seeded(Stateful), coloured(), out=folder, recipe=UNEVEN, seed=5, resume=True, **QUIET)
    assert untimed(metrics) == untimed(metrics_of(folder)) == untimed(metrics_of(uninterrupted))
    assert same_weights(weights_of(folder), weights_of(uninterrupted))
    assert states(folder) == states(uninterrupted)


@pytest.mark.parametrize(
    ("fault", "file"), [("kill", "state"), ("kill", "weights"), ("kill", "training"), ("untidy", "state")]
)
def test_a_killed_run_is_resumed(uninterrupted, tmp_path, fault, file):
    done = run_worker(tmp_path, fault, file)
    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.glob(f".{file}*")) or len(states(tmp_path)) == 2, "killed while writing, or before the cleanup"
    load_checkpoint(Stateful(), tmp_path / "weights.safetensors")
    check_resumed(uninterrupted, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["state", "weights", "training"])
def test_a_full_disk_is_one_error_and_keeps_the_last_checkpoint(uninterrupted, tmp_path, file):
    done = run_worker(tmp_path, "fill", file)
    assert done.returncode == 1
    assert not any(name.startswith(".") for name in files_of(tmp_path)), "no half-written file is left"
    load_checkpoint(Stateful(), tmp_path / "weights.safetensors")
    assert done.stderr.splitlines()[-1] == (
        f"oodles.errors.FileError: the checkpoint of epoch 2 cannot be written to {tmp_path} (File too large); "
        "the checkpoint of epoch 1 is kept; free some space and continue with --resume"
    )
    check_resumed(uninterrupted, tmp_path)


def test_resuming_a_finished_run_returns_its_metrics(uninterrupted, tmp_path):
    shutil.copytree(uninterrupted, tmp_path / "run")
    before = contents(tmp_path / "run")
    model = seeded(Stateful)
    metrics = train(model, coloured(), out=tmp_path / "run", recipe=UNEVEN, seed=5, resume=True, **QUIET)
    assert metrics == metrics_of(uninterrupted)
    assert same_weights({**model.state_dict()}, weights_of(uninterrupted))
    assert contents(tmp_path / "run") == before


def test_resuming_in_an_empty_folder_starts_a_new_run(uninterrupted, tmp_path):
    check_resumed(uninterrupted, tmp_path / "new")


@pytest.mark.parametrize(
    ("what", "value"),
    [("recipe", replace(UNEVEN, learning_rate=0.06)), ("seed", 6), ("data", coloured(seed=9)), ("network", Tiny())],
    ids=["recipe", "seed", "data", "network"],
)
def test_a_different_run_is_not_resumed(uninterrupted, what, value):
    given = {"network": Stateful(), "data": coloured(), "recipe": UNEVEN, "seed": 5, what: value}
    before = contents(uninterrupted)
    message = f"{uninterrupted} holds a run with a different {what}; .*another folder"
    with pytest.raises(FileError, match=message) as caught:
        train(given.pop("network"), given.pop("data"), out=uninterrupted, resume=True, **given, **QUIET)
    assert "\n" not in str(caught.value)
    assert contents(uninterrupted) == before


def test_a_run_is_not_overwritten(uninterrupted):
    before = contents(uninterrupted)
    with pytest.raises(FileError, match=r"already holds a training run; resume it \(--resume\)"):
        train(Stateful(), coloured(), out=uninterrupted, recipe=UNEVEN, seed=5, **QUIET)
    assert contents(uninterrupted) == before


@pytest.mark.parametrize("file", ["state-*.safetensors", "training.json"])
def test_a_damaged_run_is_not_resumed(uninterrupted, tmp_path, file):
    shutil.copytree(uninterrupted, tmp_path / "run")
    (path,) = (tmp_path / "run").glob(file)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"altered|not readable JSON"):
        train(Stateful(), coloured(), out=tmp_path / "run", recipe=UNEVEN, seed=5, resume=True, **QUIET)
