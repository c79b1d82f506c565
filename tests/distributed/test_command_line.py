"""``torchrun -m oodles extract|fit|bench``: the same results as one process, and only the first process speaks."""

import json
import os
import shutil
import subprocess
import textwrap

import pytest
import torch
from support.command_line import MODEL, MODULE, NETWORK, bench_arguments, paint
from support.processes import PATIENCE, command, launch, torchrun
from support.snapshots import same

from oodles.deploy.saving import load_guard
from oodles.features import Features
from oodles.models import build_model
from oodles.store import read_manifest

BLUE, RED, GREEN = (30, 60, 200), (200, 60, 30), (30, 220, 60)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A network and images of three colours; those to train on are three batches."""
    root = tmp_path_factory.mktemp("user")
    (root / "tiny_net_of_the_cli_tests.py").write_text(textwrap.dedent(MODULE))
    for part, count in (("train", 300), ("test", 20)):
        paint(root / part / "blue", count, BLUE, seed=1 + count)
        paint(root / part / "red", count, RED, seed=2 + count)
    paint(root / "green", 30, GREEN, seed=5)
    paint(root / "grey", 20, (128, 128, 128), seed=6)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(root))
        torch.save(build_model(MODEL).state_dict(), root / "one.pt")
    return root


def run(size, folder, *arguments):
    """Exit code and output of the first process; the others end with the same code and say nothing."""
    outcomes = launch(size, command, folder, *map(str, arguments))
    assert [outcome.error for outcome in outcomes] == [""] * size
    code, printed = outcomes[0].value
    assert [outcome.value for outcome in outcomes[1:]] == [(code, "")] * (size - 1)
    return code, printed


@pytest.fixture(scope="module")
def store(workspace):
    """The features of the training images, by one process."""
    code, printed = run(1, workspace, "extract", "train", *NETWORK, "--out", "features")
    assert (code, printed.splitlines()[0]) == (0, "Features(rows=600, width=12, classes=2, labels=yes) in features")
    return workspace / "features"


@pytest.mark.parametrize("size", [2, 3])
def test_extract_gives_the_same_features(workspace, store, size):
    code, printed = run(size, workspace, "extract", "train", *NETWORK, "--out", f"by-{size}")
    assert code == 0
    assert [line.partition(" in ")[0] for line in printed.splitlines()] == [
        "Features(rows=600, width=12, classes=2, labels=yes)",
        "the model's accuracy by these labels is 100.0%",
    ]
    same(Features.load(workspace / f"by-{size}"), Features.load(store))
    assert Features.load(workspace / f"by-{size}").class_names == ("blue", "red")
    assert len(read_manifest(workspace / f"by-{size}")["shards"]) == 3


@pytest.mark.slow
def test_torchrun_starts_it(workspace, store):
    asked = [*torchrun(2), "-m", "oodles", "extract", "train", *NETWORK, "--out", "by-torchrun"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(asked, cwd=workspace, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("rows=600") == 1
    same(Features.load(workspace / "by-torchrun"), Features.load(store))


@pytest.mark.parametrize("detector", ["default", "mahalanobis"])
def test_fit_gives_the_same_guard(workspace, store, detector):
    guards = []
    for size in (1, 3):
        code, printed = run(size, workspace, "fit", store, "--detector", detector, "--out", f"{detector}-{size}")
        assert (code, printed.count("saved in")) == (0, 1)
        guards.append(load_guard(workspace / f"{detector}-{size}"))
    features = Features.load(store)
    (one, limit, _), (three, other_limit, _) = guards
    torch.testing.assert_close(three.score(features), one.score(features), rtol=1e-5, atol=1e-5)
    assert other_limit.value == pytest.approx(limit.value, rel=1e-5)


def test_bench_prints_the_same_tables_once(workspace):
    detectors = ["--detector", "dice(0.5)", "--detector", "odin", "--json"]
    printed = [run(size, workspace, *bench_arguments(*detectors, "--store", f"store-{size}"))[1] for size in (1, 2)]
    tables = [json.loads(text[text.index("[") :]) for text in printed]
    assert len(tables[0]) == 4
    assert tables[0] == tables[1]


def test_an_error_is_one_line_of_the_first_process(workspace):
    code, printed = run(2, workspace, "extract", "nowhere", *NETWORK, "--out", "refused")
    assert (code, printed) == (2, "error nowhere does not exist\n")
    code, printed = run(2, workspace, "detectors")
    assert (code, printed) == (2, "error oodles detectors runs in one process; start it without torchrun\n")
    shutil.copytree(workspace / "train", workspace / "damaged")
    (workspace / "damaged" / "red" / "299.png").write_bytes(b"nothing")
    code, printed = run(2, workspace, "extract", "damaged", *NETWORK, "--out", "refused")
    assert code == 2
    assert printed.startswith("error process 1 of 2 failed: damaged: 1 of 600 images cannot be read (red/299.png: not")
    assert len(printed.splitlines()) == 1
    code, printed = run(2, workspace, "extract", "damaged", *NETWORK, "--out", "refused", "--skip-bad")
    assert (code, printed.splitlines()[0].partition(" (")[0]) == (0, "skipped: damaged: 1 of 600 images cannot be read")
    assert len(Features.load(workspace / "refused")) == 599
