"""What works without torch, both where importing it fails and in an environment that was installed without it."""

import importlib
import json
import os
import pkgutil
import shutil
import sys
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from support.images import write_image
from support.networks import Net, seeded
from support.pages import check_page
from support.scored import scored, write_scored
from support.serving import environment, running
from support.without_torch import BLOCKER, COMMAND, install_without_torch, without_torch

from oodles import cli, data, deploy, explanation, monitor, records, serve, store
from oodles.data.loaders import normalise
from oodles.data.transforms import Transform
from oodles.deploy import results
from oodles.guard import Guard

SMALL = Transform(8, 10, (0.5,) * 3, (0.25,) * 3)

WITH_TORCH = {  # the modules of these packages that need it
    *("oodles.data.batches", "oodles.data.inputs", "oodles.data.loaders"),
    *(f"oodles.deploy.{name}" for name in ("export", "graph", "preprocessing", "saved", "saving", "user_graph")),
    *("oodles.explanation.explaining", "oodles.records.tensors"),
    *(f"oodles.store.{name}" for name in ("reading", "writing")),
}
PACKAGES = (cli, data, deploy, explanation, monitor, records, results, serve, store)
MODULES = (
    *("oodles", "oodles.calibration", "oodles.errors", "oodles.extras", "oodles.metrics", "oodles.plots"),
    *("oodles.network.graph_check", "oodles.network.sessions"),
    *("oodles.bench.tables", "oodles.paper.published", "oodles.report.document", "oodles.report.rows"),
    "oodles.report.scored",
    *(
        module.name
        for package in PACKAGES
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
        if module.name not in WITH_TORCH
    ),
)
IMPORT = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
REMEDY = "needs PyTorch, which is not installed; install it with: pip install 'oodles[torch]'"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The interpreter of an environment without torch, which the processes of pytest share; the last one removes it."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    shared = tmp_path_factory.getbasetemp().parent if worker else tmp_path_factory.getbasetemp()
    folder, lock = shared / "without-torch", FileLock(shared / "without-torch.lock")
    known, user = folder / "python.txt", folder / f"used-by-{worker}"
    with lock:
        folder.mkdir(exist_ok=True)
        if not known.exists():
            known.write_text(str(install_without_torch(folder)))
        user.touch()
    yield Path(known.read_text())
    with lock:
        user.unlink()
        if not list(folder.glob("used-by-*")):
            shutil.rmtree(folder)


@pytest.fixture(params=["refused", pytest.param("not installed", marks=pytest.mark.slow)])
def run(request, tmp_path):
    """Run a script where torch cannot be imported; the folder is a new one."""
    if request.param == "refused":
        return without_torch(Path(sys.executable), prelude=BLOCKER, folder=tmp_path)
    return without_torch(request.getfixturevalue("installed"), folder=tmp_path)


def succeeded(done):
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_torch_is_really_missing(run):
    script = "try:\n    import torch\nexcept ModuleNotFoundError as error:\n    print(error.name)\n"
    assert succeeded(run(script)) == "torch\n"


def test_modules_that_need_no_torch_are_imported(run):
    succeeded(run(IMPORT, *MODULES))


def test_modules_that_need_no_torch_do_not_import_it(tmp_path):
    script = f"{IMPORT}    assert 'torch' not in sys.modules, name\n"
    assert importlib.util.find_spec("torch"), "it could be imported"
    succeeded(without_torch(Path(sys.executable), folder=tmp_path)(script, *MODULES))


def test_help_and_version(run):
    assert "Start with oodles demo" in succeeded(run(COMMAND, "--help"))
    assert succeeded(run(COMMAND, "--version")).strip() == importlib.import_module("oodles").__version__
    script = """
from typer.main import get_command
from typer.testing import CliRunner
from oodles.cli import app
names = list(get_command(app).commands)
for name in names:
    done = CliRunner().invoke(app, [name, "--help"])
    assert done.exit_code == 0 and f"{name} [OPTIONS]" in done.output, done.output
print(len(names))
"""
    assert int(succeeded(run(script))) > len(cli.COMMANDS)


def test_rows_and_scored_inputs_are_reported(run, tmp_path):
    rows = Path(__file__).parent / "golden" / "demo_rows.json"
    write_scored(tmp_path / "results.csv", [scored("a.png", 1.0), scored("b.png", -1.0)])
    succeeded(run(COMMAND, "report", rows, "results.csv", "--out", "report.html"))
    check_page(tmp_path / "report.html")


@pytest.mark.parametrize("name", ["extract", "DICE", "detectors", "benchmark"])
def test_a_public_name_that_needs_torch_says_what_to_install(run, name):
    script = """
import sys
import oodles as ood
name = sys.argv[1]
for attempt in (lambda: getattr(ood, name), lambda: exec(f"from oodles import {name}")):
    try:
        attempt()
    except ImportError as error:
        assert isinstance(error, ood.MissingPackageError) and isinstance(error, ood.OodlesError), type(error)
        assert error.name == "torch"
        print(error)
"""
    assert succeeded(run(script, name)).splitlines() == [f"oodles.{name} {REMEDY}"] * 2


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """An exported guard, written where torch is."""
    path = tmp_path_factory.mktemp("exported") / "guard.zip"
    images = [normalise(SMALL, torch.randint(0, 256, (60, 3, 8, 8), dtype=torch.uint8)) for _ in range(2)]
    Guard.fit(seeded(Net), images, detector="dice(0.5)", labels=False, preprocessing=SMALL).export(path)
    return path


def test_a_folder_is_scored_by_an_exported_guard(run, exported, tmp_path):
    photos = [write_image(tmp_path / "photos" / f"{number}.png", size=(9 + number, 30)) for number in range(5)]
    (tmp_path / "photos" / "broken.png").write_bytes(b"no image")
    succeeded(run(COMMAND, "score", str(exported), "photos", "--out", "results.jsonl"))
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    found = {Path(row["path"]).name: row["score"] for row in rows}
    verdict = Guard.open(exported)(photos)
    assert found.pop("broken.png") is None
    assert list(found.values()) == pytest.approx(verdict.score.tolist(), abs=1e-5)
    assert [row["is_id"] for row in rows] == [*verdict.is_id.tolist(), False]
    script = """
import sys
import oodles as ood
from oodles import Guard
guard = Guard.open(sys.argv[1])
assert type(guard) is Guard is ood.Guard
print(guard(sys.argv[2]).score.item())
"""
    assert float(succeeded(run(script, str(exported), str(photos[0])))) == pytest.approx(verdict.score[0], abs=1e-5)


def test_images_are_explained_by_an_exported_guard(run, exported, tmp_path):
    photos = [write_image(tmp_path / f"{number}.png", size=(9 + number, 30), seed=number) for number in range(2)]
    wanted = Guard.open(exported).explain(photos)
    command = (COMMAND, "explain", str(exported), *(photo.name for photo in photos))
    records = json.loads(succeeded(run(*command, "--json")))["explanations"]
    for record, expected in zip(records, wanted, strict=True):
        assert record["label"] == expected.label
        assert record["score"] == pytest.approx(expected.score, abs=1e-5)
        kept = float(expected.findings[0].contributions.kept.sum())
        assert record["findings"][0]["contributions"]["kept"] == pytest.approx(kept, abs=1e-5)
    assert succeeded(run(*command)).startswith("0.png:\n  ")


@pytest.mark.parametrize("how", ["refused", pytest.param("not installed", marks=pytest.mark.slow)])
def test_a_guard_is_served(how, request, exported, tmp_path):
    """The service scores a photograph as ``Guard.open`` does where torch is, and its page and monitor work."""
    photo = write_image(tmp_path / "photo.png", size=(40, 30))
    refused = how == "refused"
    python = sys.executable if refused else request.getfixturevalue("installed")
    start = ("-c", BLOCKER + COMMAND) if refused else ("-m", "oodles")
    variables = environment() if refused else {"PATH": os.environ["PATH"]}
    with running([python, *start, "serve", exported, "--port", 0], variables, folder=tmp_path) as server:
        result = server.score(photo.read_bytes()).result
        assert result["score"] == pytest.approx(Guard.open(exported)(photo).score[0], abs=1e-5)
        assert server.score(photo.read_bytes(), "?explain=1").result["explanation"]["findings"]
        assert server.get("/guards/guard/monitor").json["inputs"] == 2
        assert server.get("/").status == 200
        assert server.stop() == 0
        assert not server.other_lines


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (("explain", "photos"), "explain"),
        (("fit", "features", "--out", "guard"), "fit"),
        (("select-p", "photos", "--held-out", "photos", "--model", "nets:net"), "select-p"),
        (("detectors",), "detectors"),
        (("demo",), "demo"),
    ],
)
def test_a_command_that_needs_torch_ends_with_one_line(run, tmp_path, arguments, command):
    (tmp_path / "features").mkdir()
    (tmp_path / "features" / "manifest.json").write_text("{}")
    write_image(tmp_path / "photos" / "a.png")
    done = run(COMMAND, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error oodles {command} {REMEDY}\n"


def test_mistakes_are_reported_before_missing_packages(run):
    done = run(COMMAND, "fit", "nowhere", "--out", "guard")
    assert done.returncode == 2
    assert done.stderr.startswith("error nowhere does not exist; give a folder written by")
