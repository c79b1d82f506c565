"""``oodles score`` is killed with SIGKILL and continued: the file is that of an uninterrupted run."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from support.command_line import NETWORK, loader

import oodles
from oodles.deploy.results.reading import read_rows
from oodles.deploy.results.writing import rows_path
from oodles.models import build_model
from oodles.network.extraction import extract

MODULE = "slow_net_of_the_cli_tests"
SLOW = """
    import os, time
    import torch
    from torch import nn

    class Slow(nn.Sequential):
        "As slow as the environment says."

        def forward(self, images):
            time.sleep(float(os.environ.get("PAUSE", "0")))
            return super().forward(images)

    def net():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            layers = nn.Conv2d(3, 12, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 2)
        return Slow(*layers)
"""
NAMES = ["a\nID  9.9  cat.png", 'q",\r.png', "\udcff.png", "\u202egnp.png", "[red]x.png", "a,b.png"]
KINDS = [".csv", ".jsonl", ".parquet"]


@pytest.fixture(scope="module")
def slow(workspace, tmp_path_factory):
    """A guard for a slow network, and a folder of images with hostile names and two files that are no images."""
    folder = tmp_path_factory.mktemp("slow")
    (workspace / f"{MODULE}.py").write_text(textwrap.dedent(SLOW))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(workspace))
        model = build_model(f"{MODULE}:net")
    guard = oodles.Guard.fit(model, loader(workspace / "train", labels=False), detector="energy", classes=["a\nb", "c"])
    guard.save(folder / "guard")
    images = folder / "images"
    shutil.copytree(workspace / "train", images)
    for number, name in enumerate(NAMES):
        shutil.copy(workspace / "grey" / f"{number:03}.png", images / name)
    for name in ("blue/007b.png", "red/late.png"):
        (images / name).write_bytes(b"no image")
    return folder


def command(folder, out, *more):
    options = ["--model", f"{MODULE}:net", "--batch-size", "5", "--out", out]
    return ["score", folder / "guard", folder / "images", *options, *more]


def rows_in(path):
    return rows_path(path).read_bytes().count(b"\n") if rows_path(path).exists() else 0


def kill_after(rows, folder, out, workspace, *more):
    """Start the command and kill it as soon as that many rows are there."""
    environment = {**os.environ, "PAUSE": "0.05", "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "oodles", *map(str, command(folder, out, *more))]
    with subprocess.Popen(line, cwd=workspace, env=environment, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while rows_in(out) < rows and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        said = process.stderr.read()
    assert process.returncode == -signal.SIGKILL, said


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_job_is_continued_bit_by_bit(slow, workspace, oodles_run, tmp_path, kind):
    straight, out = tmp_path / f"straight{kind}", tmp_path / f"r{kind}"
    code, _, err = oodles_run(*command(slow, straight))
    assert code == 0, err
    kill_after(20, slow, out, workspace)
    kept = rows_in(out)
    assert 20 <= kept < 128
    if kind == ".parquet":
        assert not out.exists(), "a file under the final name must be complete"
    with rows_path(out).open("r+b") as file:  # what a kill in the middle of a write leaves
        file.truncate(rows_path(out).stat().st_size - 7)
    kill_after(kept + 20, slow, out, workspace, "--resume")
    assert kept + 20 <= rows_in(out) < 128
    code, _, err = oodles_run(*command(slow, out, "--resume"))
    assert code == 0, err
    assert out.read_bytes() == straight.read_bytes()
    rows = list(read_rows(out))
    assert len(rows) == 128
    assert sum(row.error is not None for row in rows) == 2
    assert (
        f"of 126 in-distribution (energy >= {oodles.Guard.load(slow / 'guard', _model()).threshold.value:.7g})" in err
    )
    assert {path.name for path in tmp_path.glob("*r.*")} == {out.name, f"{out.name}.job"}


def _model():
    return build_model(f"{MODULE}:net")


def test_another_guard_threshold_or_input_is_refused(slow, fitted, workspace, oodles_run, refused, tmp_path):
    out = tmp_path / "r.csv"
    assert oodles_run(*command(slow, out))[0] == 0
    before = out.read_bytes()
    options = ["--out", out, "--resume", "--batch-size", "5"]
    line = refused("score", fitted / "guard", slow / "images", *NETWORK, *options)
    assert "r.csv was begun with detector energy, not dice(0.5)+energy; resume it with the same" in line
    shutil.copytree(slow / "guard", tmp_path / "guard")
    extract(_model(), loader(workspace / "test"), store=tmp_path / "features", progress=False)
    calibrated = ["--features", tmp_path / "features", "--id-rate", "0.5"]
    assert oodles_run("threshold", tmp_path / "guard", *calibrated)[0] == 0
    line = refused("score", tmp_path / "guard", slow / "images", "--model", f"{MODULE}:net", *options)
    assert "r.csv was begun with threshold " in line
    line = refused("score", slow / "guard", "grey", "--model", f"{MODULE}:net", *options)
    assert "as row 1, where grey/000.png is now; resume it with the same inputs" in line
    assert "exists already; --resume continues it, --force replaces it" in refused(*command(slow, out))
    assert out.read_bytes() == before
    code, _, err = oodles_run("score", slow / "guard", "grey", "--model", f"{MODULE}:net", "--out", out, "--force")
    assert code == 0, err
    assert len(list(read_rows(out))) == 20


def test_an_interrupt_says_how_to_go_on(slow, workspace, tmp_path):
    environment = {**os.environ, "PAUSE": "0.05", "OMP_NUM_THREADS": "1"}
    out = tmp_path / "r.jsonl"
    line = [sys.executable, "-m", "oodles", *map(str, command(slow, out))]
    with subprocess.Popen(line, cwd=workspace, env=environment, stderr=subprocess.PIPE, text=True) as process:
        while rows_in(out) < 10 and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 130, said
    assert f"results are in {out}; run the same command with --resume to continue" in said
