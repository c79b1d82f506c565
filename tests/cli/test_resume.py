"""``oodles score`` is killed with SIGKILL and continued: the file is that of an uninterrupted run."""

import os
import shutil
import signal
import sys
import textwrap

import pytest
from support.command_line import NETWORK, loader
from support.processes import start, wait_for

import oodles
from oodles.deploy.results.reading import read_rows
from oodles.deploy.results.writing import rows_path
from oodles.deploy.saving import load_guard
from oodles.models import build_model
from oodles.network.extraction import extract

MODULE = "halting_net_of_the_cli_tests"
HALTING = """
    import os, time
    from pathlib import Path
    from tiny_net_of_the_cli_tests import net as plain
    from torch import nn

    class Halting(nn.Sequential):
        "Waits, once a file has as many lines as the environment says, for a signal."

        def forward(self, images):
            rows = Path(os.environ.get("ROWS", ""))
            if rows.is_file() and rows.read_bytes().count(b"\\n") >= int(os.environ["HALT_AFTER"]):
                Path(os.environ["HALTED"]).touch()
                time.sleep(600)
            return super().forward(images)

    def net():
        return Halting(*plain())
"""
NAMES = ["a\nID  9.9  cat.png", 'q",\r.png', "\udcff.png", "\u202egnp.png", "[red]x.png", "a,b.png"]
KINDS = [".csv", ".jsonl", ".parquet"]


@pytest.fixture(scope="module")
def halting(workspace, tmp_path_factory):
    """A guard for a network that can wait, and images with hostile names beside two files that are not images."""
    folder = tmp_path_factory.mktemp("halting")
    (workspace / f"{MODULE}.py").write_text(textwrap.dedent(HALTING))
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


def interrupt(sign, rows, folder, out, workspace, *more):
    """Start the command and send a signal once that many rows are there, while the network waits for it.

    Returns the exit code and what was printed.
    """
    halted = out.with_name("halted")
    halted.unlink(missing_ok=True)
    environment = {**os.environ, "ROWS": str(rows_path(out)), "HALT_AFTER": str(rows), "HALTED": str(halted)}
    line = [sys.executable, "-m", "oodles", *map(str, command(folder, out, *more))]
    with start(line, cwd=workspace, env={**environment, "OMP_NUM_THREADS": "1"}) as process:
        wait_for(halted.exists, process)
        process.send_signal(sign)
        said = process.stderr.read()
    halted.unlink()
    return process.returncode, said


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_job_is_continued_bit_by_bit(halting, workspace, succeeded, tmp_path, kind):
    straight, out = tmp_path / f"straight{kind}", tmp_path / f"r{kind}"
    succeeded(*command(halting, straight))
    code, err = interrupt(signal.SIGKILL, 20, halting, out, workspace)
    assert code == -signal.SIGKILL, err
    assert rows_in(out) in (20, 21), "a CSV file has a header"
    if kind == ".parquet":
        assert not out.exists(), "a file under the final name must be complete"
    with rows_path(out).open("r+b") as file:  # what a kill in the middle of a write leaves
        file.truncate(rows_path(out).stat().st_size - 7)
    code, err = interrupt(signal.SIGKILL, 40, halting, out, workspace, "--resume")
    assert code == -signal.SIGKILL, err
    assert rows_in(out) in (40, 41)
    _, err = succeeded(*command(halting, out, "--resume"))
    assert out.read_bytes() == straight.read_bytes()
    rows = list(read_rows(out))
    assert len(rows) == 128
    assert sum(row.error is not None for row in rows) == 2
    limit = load_guard(halting / "guard")[1].value
    assert f"of 126 in-distribution (energy >= {limit:.7g})" in err
    assert {path.name for path in tmp_path.glob("*r.*")} == {out.name, f"{out.name}.job"}


def test_another_guard_threshold_or_input_is_refused(halting, fitted, workspace, succeeded, refused, tmp_path):
    out = tmp_path / "r.csv"
    succeeded(*command(halting, out))
    before = out.read_bytes()
    options = ["--out", out, "--resume", "--batch-size", "5"]
    line = refused("score", fitted / "guard", halting / "images", *NETWORK, *options)
    assert "r.csv was begun with detector energy, not dice(0.5)+energy; resume it with the same" in line
    shutil.copytree(halting / "guard", tmp_path / "guard")
    extract(build_model(f"{MODULE}:net"), loader(workspace / "test"), store=tmp_path / "features", progress=False)
    calibrated = ["--features", tmp_path / "features", "--id-rate", "0.5"]
    succeeded("threshold", tmp_path / "guard", *calibrated)
    line = refused("score", tmp_path / "guard", halting / "images", "--model", f"{MODULE}:net", *options)
    assert "r.csv was begun with threshold " in line
    line = refused("score", halting / "guard", "grey", "--model", f"{MODULE}:net", *options)
    assert "as row 1, where grey/000.png is now; resume it with the same inputs" in line
    assert "exists already; --resume continues it, --force replaces it" in refused(*command(halting, out))
    assert out.read_bytes() == before
    succeeded("score", halting / "guard", "grey", "--model", f"{MODULE}:net", "--out", out, "--force")
    assert len(list(read_rows(out))) == 20


def test_an_interrupt_says_how_to_go_on(halting, workspace, tmp_path):
    out = tmp_path / "r.jsonl"
    code, said = interrupt(signal.SIGINT, 10, halting, out, workspace)
    assert code == 130, said
    assert f"10 results are in {out}; run the same command with --resume to continue" in said
