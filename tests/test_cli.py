"""The command line: the whole way on real files, and one line on stderr for whatever is wrong."""

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from networks import one_thread  # noqa: F401
from PIL import Image
from typer.testing import CliRunner

import oodles
from oodles import cli
from oodles.bench.datasets import ImageLoader, Transform, open_images
from oodles.extraction import extract
from oodles.features import Features
from oodles.guard import read_guard
from oodles.models import build_model, load_checkpoint

MODEL = "tiny_net_of_the_cli_tests:net"
SHAPE = ["--size", "8", "--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25"]

MODULE = """
    import torch
    from torch import nn

    def net(classes=2):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return nn.Sequential(
                nn.Conv2d(3, 12, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, classes)
            )
"""


def paint(folder, count, colour, seed):
    """Small pictures of one colour with noise on it."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(seed)
    for number in range(count):
        pixels = np.clip(np.array(colour) + draw.normal(0, 40, (8, 8, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03}.png")


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    """A folder as a user has it: a module with a network, a checkpoint, images of two classes and others."""
    root = tmp_path_factory.mktemp("workshop")
    (root / "tiny_net_of_the_cli_tests.py").write_text(textwrap.dedent(MODULE))
    for part, count in (("train", 60), ("test", 25)):
        paint(root / part / "blue", count, (30, 60, 200), seed=1 + count)
        paint(root / part / "red", count, (200, 60, 30), seed=2 + count)
    paint(root / "green", 30, (30, 220, 60), seed=5)
    paint(root / "grey", 20, (128, 128, 128), seed=6)
    (root / "empty").mkdir()
    paint(root / "spoilt", 3, (30, 60, 200), seed=7)
    (root / "spoilt" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    sys.path.insert(0, str(root))
    try:
        model = build_model(MODEL)
    finally:
        sys.path.remove(str(root))
    with torch.no_grad():
        model[4].weight.mul_(20)
    torch.save({"state_dict": model.state_dict(), "epoch": 9}, root / "net.pt")
    torch.save(torch.nn.Linear(3, 3).state_dict(), root / "other.pt")
    return root


@pytest.fixture(scope="module")
def fitted(workshop, tmp_path_factory):
    """Features and a guard made by the commands themselves, the first in a process of its own."""
    out = tmp_path_factory.mktemp("fitted")
    options = ["--model", MODEL, "--checkpoint", str(workshop / "net.pt"), *SHAPE]
    shell = [sys.executable, "-c", "from oodles.cli import main; main()"]
    subprocess.run(
        [*shell, "extract", "train", "--out", out / "train", *options], cwd=workshop, check=True, timeout=120
    )
    fit = ["fit", out / "train", "--held-out", out / "test", "--detector", "dice(0.5)", "--out", out / "guard"]
    for arguments in (["extract", workshop / "test", "--out", out / "test", *options], fit):
        assert CliRunner().invoke(cli.app, list(map(str, arguments)), catch_exceptions=False).exit_code == 0
    return out


def network(workshop):
    model = build_model(MODEL)
    load_checkpoint(model, workshop / "net.pt")
    return model


def loader(path, **options):
    return ImageLoader(open_images(path), Transform(8, 8, (0.5,) * 3, (0.25,) * 3), **options)


# Help -------------------------------------------------------------------------------------------

COMMANDS = [command.name or command.callback.__name__ for command in cli.app.registered_commands]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_reads(command):
    result = CliRunner().invoke(cli.app, [command, "--help"], env={"COLUMNS": "160", "NO_COLOR": "1"})
    assert result.exit_code == 0
    assert f"oodles {command}" in result.output or f"{command} [OPTIONS]" in result.output
    callback = next(one.callback for one in cli.app.registered_commands if command in (one.name, one.callback.__name__))
    summary = callback.__doc__.strip().splitlines()[0]
    assert " ".join(summary.split()[:4]) in " ".join(result.output.split())


def test_help_lists_every_command_and_does_not_wait_for_torch():
    shell = [sys.executable, "-X", "importtime", "-c", "from oodles.cli import main; main()", "--help"]
    done = subprocess.run(shell, capture_output=True, text=True, check=True, timeout=60)
    for command in COMMANDS:
        assert re.search(rf"\b{command}\b", done.stdout), command
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "oodles.cli" in imported, "the import times are there to be read"
    for heavy in ("torch", "numpy", "scipy", "matplotlib", "PIL"):
        assert heavy not in imported, heavy


def test_the_stages_are_listed(oodles_run):
    code, out, _ = oodles_run("detectors")
    assert code == 0
    for stage in ("dice", "react", "energy", "msp"):
        assert re.search(rf"^  {stage}\b", out, re.MULTILINE), stage
    assert "dice(0.9)+energy" in out
    assert int(re.search(r"^(\d+) names", out, re.MULTILINE)[1]) >= 28


# The whole way ----------------------------------------------------------------------------------


def test_extract_writes_what_the_library_gives(fitted, workshop, oodles_run):
    code, _, err = oodles_run(
        *("extract", "train", "--out", fitted / "train", "--model", MODEL, "--checkpoint", "net.pt", *SHAPE)
    )
    assert code == 0, "the second time reads what is there"
    assert "rows=120" in err
    features = Features.load(fitted / "train")
    by_hand = extract(network(workshop), loader(workshop / "train"))
    assert torch.equal(features.labels, torch.tensor([0] * 60 + [1] * 60))
    torch.testing.assert_close(features.embedding, by_hand.embedding, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(features.logits, by_hand.logits, rtol=1e-5, atol=1e-5)


def test_extract_options(workshop, oodles_run, tmp_path):
    options = ["--model", MODEL, "--checkpoint", "net.pt", *SHAPE]
    code, _, err = oodles_run(
        *("extract", "spoilt", "--out", tmp_path / "s", "--skip-bad", "--no-labels", "--half", *options)
    )
    assert code == 0
    assert "left out" in err
    assert "broken.png" in err
    stored = Features.load(tmp_path / "s")
    assert (len(stored), stored.labels, stored.embedding.dtype) == (3, None, torch.float16)
    code, _, _ = oodles_run("extract", "train", "--out", tmp_path / "few", "--limit", "7", "--layer", "4", *options)
    assert code == 0
    assert len(Features.load(tmp_path / "few")) == 7


def test_fit_writes_a_guard_for_that_model(fitted, workshop):
    detector, threshold, _ = read_guard(fitted / "guard")
    test = Features.load(fitted / "test")
    assert detector.spec == "dice(0.5)+energy"
    assert threshold == oodles.calibrate(oodles.DICE(p=0.5).fit(Features.load(fitted / "train")).score(test), 0.95)
    guard = oodles.Guard.load(fitted / "guard", network(workshop))
    (images,) = loader(workshop / "test", labels=False)
    torch.testing.assert_close(guard(images).score, detector.score(test), rtol=1e-5, atol=1e-5)


def test_fit_without_held_out_keeps_a_fifth_back(fitted, oodles_run, tmp_path):
    code, _, err = oodles_run("fit", fitted / "train", "--out", tmp_path / "g", "--id-rate", "0.8")
    assert code == 0
    assert "24 training rows" in err
    _, threshold, _ = read_guard(tmp_path / "g")
    assert (threshold.id_rate, threshold.held_out) == (0.8, 24)


def test_score_of_images_and_of_features_agree(fitted, oodles_run):
    options = ["--model", MODEL, "--checkpoint", "net.pt", *SHAPE, "--json"]
    code, out, _ = oodles_run("score", fitted / "guard", "test", *options)
    assert code == 0
    images = json.loads(out)
    code, out, _ = oodles_run("score", fitted / "guard", fitted / "test", "--json")
    assert code == 0
    stored = json.loads(out)
    assert images["detector"] == stored["detector"] == "dice(0.5)+energy"
    assert len(images["verdicts"]) == len(stored["verdicts"]) == 50
    assert [one["input"] for one in images["verdicts"]][24:26] == ["blue/024.png", "red/000.png"]
    for one, other in zip(images["verdicts"], stored["verdicts"], strict=True):
        assert one["label"] == other["label"]
        assert one["score"] == pytest.approx(other["score"], rel=1e-4, abs=1e-5)
        assert one["is_id"] == (one["score"] >= images["threshold"])
    assert sum(one["is_id"] for one in stored["verdicts"]) >= 47, "the guard was calibrated on these"


def test_score_in_words(fitted, oodles_run):
    code, out, err = oodles_run(
        *("score", fitted / "guard", "test/red/003.png", "--model", MODEL, "--checkpoint", "net.pt", *SHAPE)
    )
    assert code == 0
    assert re.fullmatch(r"(ID |OOD)  +-?\d+\.\d+  class [01] +test/red/003\.png\n", out)
    assert "of 1 in-distribution" in err


def test_features_of_logits_alone_make_a_guard_that_scores_images(workshop, oodles_run, tmp_path):
    model = network(workshop)
    features = extract(model, loader(workshop / "train"), layer=False, store=tmp_path / "logits")
    code, _, _ = oodles_run("fit", tmp_path / "logits", "--detector", "msp", "--out", tmp_path / "g")
    assert code == 0
    code, out, err = oodles_run(
        *("score", tmp_path / "g", "train", "--model", MODEL, "--checkpoint", "net.pt", *SHAPE, "--json")
    )
    assert code == 0, err
    scores = [one["score"] for one in json.loads(out)["verdicts"]]
    torch.testing.assert_close(torch.tensor(scores), oodles.MSP().score(features), rtol=1e-4, atol=1e-5)


def test_bench_gives_the_rows_the_library_gives(workshop, oodles_run, tmp_path):
    arguments = ["bench", "--model", MODEL, "--checkpoint", "net.pt", "--train", "train", "--test", "test"]
    arguments += ["--ood", "green=green", "--ood", "grey=grey", "--detector", "msp", "--detector", "dice(0.5)", *SHAPE]
    code, out, _ = oodles_run(*arguments, "--json", "--store", tmp_path / "s", "--out", tmp_path / "out")
    assert code == 0
    rows = json.loads(out)
    assert rows == json.loads((tmp_path / "out" / "rows.json").read_text())
    assert [(row["detector"], row["ood_set"]) for row in rows] == [
        ("msp", "green"),
        ("msp", "grey"),
        ("dice(0.5)+energy", "green"),
        ("dice(0.5)+energy", "grey"),
    ]
    sets = {name: Features.load(tmp_path / "s" / "id" / "net" / name) for name in ("train", "test", "green", "grey")}
    by_hand = oodles.benchmark(
        [oodles.MSP(), oodles.DICE(p=0.5)],
        train=sets["train"],
        test=sets["test"],
        ood={"green": sets["green"], "grey": sets["grey"]},
    )
    assert [(row["fpr95"], row["auroc"]) for row in rows] == [(row.fpr95, row.auroc) for row in by_hand]
    assert sets["green"].labels is None
    code, out, _ = oodles_run(*arguments, "--store", tmp_path / "s")
    assert code == 0
    for word in ("green", "grey", "average", "msp", "dice(0.5)", "accuracy"):
        assert word in out


# What is wrong ----------------------------------------------------------------------------------

TRAIN = ["extract", "train", "--out", "features/new"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["extract", "nowhere", "--out", "o", "--model", MODEL], "nowhere does not exist"),
        (["extract", "empty", "--out", "o", "--model", MODEL], "empty holds no images"),
        (
            ["extract", "spoilt", "--out", "o1", "--model", MODEL, "--checkpoint", "net.pt", *SHAPE],
            "spoilt: 1 of 4 images cannot be read (broken.png: ",
        ),
        ([*TRAIN, "--model", MODEL, "--checkpoint", "other.pt"], "other.pt does not fit Sequential: "),
        ([*TRAIN, "--model", MODEL, "--checkpoint", "nowhere.pt"], "nowhere.pt does not exist"),
        ([*TRAIN, "--model", MODEL, "--checkpoint", "train/red/000.png"], "000.png is not a checkpoint"),
        ([*TRAIN, "--model", "tiny_net_of_the_cli_tests"], "is not of the form package.module:factory"),
        ([*TRAIN, "--model", "tiny_net_of_the_cli_tests:nothing"], "has no nothing to call"),
        ([*TRAIN, "--model", "no_such_module_here:f"], "cannot be imported"),
        ([*TRAIN, "--model", f"{MODEL}(classes="], "is not of the form"),
        ([*TRAIN, "--model", ":net"], ":net"),
        ([*TRAIN, "--model", MODEL, "--mean", "1,2"], "must be three numbers"),
        ([*TRAIN, "--model", MODEL, "--size", "9", "--resize", "8"], "size=9 must lie between"),
        ([*TRAIN, "--model", MODEL, "--limit", "0"], "a limit of 0 images"),
        ([*TRAIN, "--model", MODEL, "--layer", "fc", *SHAPE], "layer='fc' names no module"),
        (["extract", "train", "--out", "train", "--model", MODEL, *SHAPE], "train holds other files"),
        (["fit", "nowhere", "--out", "g"], "nowhere is not there"),
        (["fit", "train", "--out", "g"], "manifest.json is not there"),
        (["fit", "nowhere", "--out", "g", "--detector", "dice(2"], "is no detector"),
        (["score", "nowhere", "train"], "guard.json is not there"),
        (["bench", "--model", MODEL, "--train", "train", "--test", "test", "--ood", "green"], "must be NAME=PATH"),
        (["bench", "--model", MODEL, "--train", "train", "--test", "test", "--ood", "test=green"], "NAME=PATH"),
        (["bench", "--model", MODEL, "--train", "train", "--test", "test"], "at least one --ood NAME=PATH"),
        (["bench", "mnist"], "'mnist' is no suite"),
        (["bench", "cifar10", "--data", "nowhere"], "nowhere has no cifar-10-batches-py"),
    ],
)
def test_whatever_is_wrong_ends_in_one_line(oodles_run, arguments, message):
    code, out, err = oodles_run(*arguments)
    assert code == 2
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith("no --checkpoint")]
    assert len(lines) == 1, err
    assert lines[0].startswith("error ")
    assert message in lines[0]
    assert "Traceback" not in err


def test_a_guard_of_another_model_and_images_without_a_model(fitted, oodles_run):
    code, _, err = oodles_run("score", fitted / "guard", "test")
    assert code == 2
    assert "--model and --checkpoint are needed" in err
    code, _, err = oodles_run("score", fitted / "guard", "test", "--model", MODEL, *SHAPE)
    assert code == 2
    assert "was fitted on another model" in err


def test_too_few_rows_to_split(fitted, oodles_run, tmp_path):
    code, _, err = oodles_run("fit", fitted / "test", "--out", tmp_path / "g")
    assert code == 2
    assert "(--held-out)" in err
    assert not (tmp_path / "g").exists()


def test_a_message_with_markup_in_it_is_shown_as_it_is(oodles_run):
    code, _, err = oodles_run("extract", "[red]x[/red]", "--out", "o", "--model", MODEL)
    assert code == 2
    assert "[red]x[/red] does not exist" in err


def test_an_interrupt_is_no_traceback(oodles_run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("oodles.bench.datasets.open_images", interrupted)
    code, _, err = oodles_run("extract", "train", "--out", "o", "--model", MODEL)
    assert code == 130
    assert "Traceback" not in err


def test_the_installed_command_ends_in_one_line_and_exit_code_2(workshop):
    command = Path(sys.executable).with_name("oodles")
    done = subprocess.run(
        [command, "extract", "nowhere", "--out", "o", "--model", MODEL],
        cwd=workshop,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "error nowhere does not exist\n"
