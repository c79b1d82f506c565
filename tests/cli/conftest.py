"""A folder as a user has it, features and a guard made from it, and commands that must succeed or be refused."""

import json
import subprocess
import sys
import textwrap

import pytest
import torch
from support.command_line import MODEL, MODULE, NETWORK, WEIGHTS, bench_arguments, paint
from support.images import write_cifar_batch
from support.networks import one_thread  # noqa: F401
from typer.testing import CliRunner

from oodles import cli
from oodles.models import build_model

BLUE, RED, GREEN, GREY = (30, 60, 200), (200, 60, 30), (30, 220, 60), (128, 128, 128)


@pytest.fixture(scope="session")
def workspace(tmp_path_factory):
    """A module with a network, checkpoints, images of two classes and of none, and a small CIFAR-10 suite."""
    root = tmp_path_factory.mktemp("user")
    (root / "tiny_net_of_the_cli_tests.py").write_text(textwrap.dedent(MODULE))
    for part, count in (("train", 60), ("test", 25)):
        paint(root / part / "blue", count, BLUE, seed=1 + count)
        paint(root / part / "red", count, RED, seed=2 + count)
    paint(root / "green", 30, GREEN, seed=5)
    paint(root / "grey", 20, GREY, seed=6)
    (root / "empty").mkdir()
    paint(root / "damaged", 3, BLUE, seed=7)
    (root / "damaged" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    (root / "data").mkdir()
    write_cifar_batch(root / "data" / "cifar-10-batches-py" / "data_batch_1", 30, seed=7)
    write_cifar_batch(root / "data" / "cifar-10-batches-py" / "test_batch", 20, seed=8)
    paint(root / "data" / "dtd" / "images" / "banded", 12, GREY, seed=9)
    paint(root / "data" / "iSUN" / "iSUN_patches", 12, GREEN, seed=10)
    (root / "elsewhere").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(root))
        for name, factory, scale in (
            ("one.pt", MODEL, 20),
            ("two.pt", MODEL, 35),
            ("elsewhere/one.pt", MODEL, 50),
            ("ten.pt", f"{MODEL}(10)", 20),
        ):
            model = build_model(factory)
            with torch.no_grad():
                model[4].weight.mul_(scale)  # logits as far apart as those of a trained network
            torch.save({"state_dict": model.state_dict(), "epoch": 9}, root / name)
    torch.save(torch.nn.Linear(3, 3).state_dict(), root / "other.pt")
    return root


def invoke(workspace, *arguments):
    """Run a command that must succeed where a fixture of the session needs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workspace)
        result = CliRunner().invoke(cli.app, [str(each) for each in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output


@pytest.fixture(scope="session")
def fitted(workspace, tmp_path_factory):
    """Features and a guard made by the commands themselves, the first in a separate process."""
    out = tmp_path_factory.mktemp("fitted")
    command = [sys.executable, "-m", "oodles", "extract", "train", "--out", out / "train", *NETWORK]
    subprocess.run(command, cwd=workspace, check=True, timeout=120)
    invoke(workspace, "extract", "test", "--out", out / "test", *NETWORK)
    calibration = ["--calibration", out / "test"]
    invoke(workspace, "fit", out / "train", *calibration, "--detector", "dice(0.5)", "--out", out / "guard")
    return out


@pytest.fixture(scope="session")
def exported(fitted, workspace, tmp_path_factory):
    """An exported guard, made by the command."""
    out = tmp_path_factory.mktemp("export") / "exported.zip"
    invoke(workspace, "export", fitted / "guard", *WEIGHTS, "--images", "test", "--out", out)
    return out


@pytest.fixture
def benched(succeeded, workspace):
    """The features that one ``oodles bench`` stored, computed once."""
    home = workspace / "kept" / "id" / "one"
    if not home.is_dir():
        succeeded(*bench_arguments("--store", "kept", "--detector", "msp"))
    return home


@pytest.fixture
def succeeded(oodles_run):
    """Run a command that must succeed; what it printed on both streams."""

    def run(*arguments):
        code, out, err = oodles_run(*arguments)
        assert code == 0, err
        return out, err

    return run


@pytest.fixture
def json_of(succeeded):
    """What a command that must succeed prints with ``--json``, without NaN or infinity."""
    return lambda *arguments: json.loads(succeeded(*arguments, "--json")[0], parse_constant=pytest.fail)


@pytest.fixture
def refused(oodles_run):
    """Run a command that must be refused: exit code 2, nothing on stdout, one line with the error, which is returned.

    With ``notices=False`` nothing else may be printed, except that there is no checkpoint.
    """

    def run(*arguments, notices=True):
        code, out, err = oodles_run(*arguments)
        assert code == 2, err
        assert out == ""
        assert "Traceback" not in err
        *before, last = err.splitlines()
        assert last.startswith("error ")
        assert not any(line.startswith("error ") for line in before)
        assert notices or all(line.startswith("no --checkpoint") for line in before), err
        return last

    return run
