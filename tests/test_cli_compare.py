"""``bench``, ``select-p``, ``analyze`` and ``data`` as the shell runs them, on a tiny network and small files."""

import csv
import json
import pickle
import re
import sys
import textwrap

import numpy as np
import pytest
import torch
from networks import one_thread  # noqa: F401
from PIL import Image

from oodles.bench.experiment import load_experiment
from oodles.bench.fetch import SOURCES
from oodles.bench.run import benchmark
from oodles.bench.suites import SUITES
from oodles.bench.sweep import PAPER_GRID, SWEEP_GRID
from oodles.bench.tables import TABLES
from oodles.detectors import parse
from oodles.features import Features
from oodles.models import build_model
from oodles.selection import FINE_GRID

MODEL = "tiny_net_of_the_compare_tests:net"
SHAPE = ["--size", "8", "--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25"]
SETS = ["--train", "train", "--test", "test", "--ood", "green=green", "--ood", "grey=grey"]

MODULE = """
    import torch
    from torch import nn

    def net(classes=2, size=12):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return nn.Sequential(
                nn.Conv2d(3, size, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(size, classes)
            )
"""


def paint(folder, count, colour, seed):
    folder.mkdir(parents=True)
    draw = np.random.default_rng(seed)
    for number in range(count):
        pixels = np.clip(np.array(colour) + draw.normal(0, 40, (8, 8, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03}.png")


def cifar_batch(path, labels, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    path.write_bytes(pickle.dumps({"data": pixels, "labels": list(labels)}, protocol=2))


def save_weights(model, path, scale):
    with torch.no_grad():
        model[4].weight.mul_(scale)
    torch.save({"state_dict": model.state_dict()}, path)


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    """A folder as a user has it: networks and weights, images of two classes and others, a small CIFAR-10."""
    root = tmp_path_factory.mktemp("workshop")
    (root / "tiny_net_of_the_compare_tests.py").write_text(textwrap.dedent(MODULE))
    for part, count in (("train", 40), ("test", 20)):
        paint(root / part / "blue", count, (30, 60, 200), seed=1 + count)
        paint(root / part / "red", count, (200, 60, 30), seed=2 + count)
    paint(root / "green", 24, (30, 220, 60), seed=5)
    paint(root / "grey", 18, (128, 128, 128), seed=6)
    cifar_batch(root / "data" / "cifar-10-batches-py" / "data_batch_1", [*range(10)] * 3, seed=7)
    cifar_batch(root / "data" / "cifar-10-batches-py" / "test_batch", [*range(10)] * 2, seed=8)
    paint(root / "data" / "dtd" / "images" / "banded", 12, (128, 128, 128), seed=9)
    paint(root / "data" / "iSUN" / "iSUN_patches", 12, (30, 220, 60), seed=10)
    sys.path.insert(0, str(root))
    try:
        for name, scale in (("one", 20), ("two", 35)):
            save_weights(build_model(MODEL), root / f"{name}.pt", scale)
        (root / "elsewhere").mkdir()
        save_weights(build_model(MODEL), root / "elsewhere" / "one.pt", 50)
        save_weights(build_model(f"{MODEL}(10)"), root / "ten.pt", 20)
        save_weights(build_model(f"{MODEL}(7)"), root / "seven.pt", 20)
    finally:
        sys.path.remove(str(root))
    return root


@pytest.fixture
def refused(oodles_run):
    """Run what must be refused: exit code 2, nothing on stdout, one line that says what; returns the line."""

    def run(*arguments):
        code, out, err = oodles_run(*arguments)
        assert code == 2, err
        assert out == ""
        assert "Traceback" not in err
        *before, last = err.splitlines()
        assert last.startswith("error ")
        assert not any(line.startswith("error ") for line in before)
        return last

    return run


def bench(*more, checkpoint="one.pt", model=MODEL):
    return ["bench", "--model", model, "--checkpoint", checkpoint, *SETS, *SHAPE, *more]


def complete(folder):
    """The stores below ``folder`` that call themselves whole."""
    return [path for path in folder.rglob("manifest.json") if json.loads(path.read_text())["complete"]]


# Bench ------------------------------------------------------------------------------------------


@pytest.fixture
def benched(oodles_run, workshop):
    """The features that one ``bench`` kept, made once."""
    home = workshop / "kept" / "id" / "one"
    if not home.is_dir():
        assert oodles_run(*bench("--store", "kept", "--detector", "msp"))[0] == 0
    return home


def test_every_table_with_everything(oodles_run, tmp_path):
    options = ["--table", "all", "--intervals", "--p", "0.5", "--out", tmp_path / "out"]
    code, out, err = oodles_run(*bench(*options, "--store", tmp_path / "s", "--detector", "msp", "--detector", "dice"))
    assert code == 0, err
    for words in TABLES.values():
        assert words in " ".join(out.split())
    assert "…" not in out
    for word in ("green", "grey", "average", "random_k(0.5)", "unit_dropout(0.5)", "p=0.99", "±", "accuracy"):
        assert word in out
    names = {f"{table}{suffix}" for table in TABLES for suffix in (".md", ".tex")}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*names, "rows.json", "rows.csv"}
    rows = json.loads((tmp_path / "out" / "rows.json").read_text())
    keys = [(row["run"], row["detector"], row["ood_set"]) for row in rows]
    assert len(set(keys)) == len(keys)
    with (tmp_path / "out" / "rows.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["detector"], float(line["auroc"])) for line in lines] == [(r["detector"], r["auroc"]) for r in rows]
    by_detector = {row["detector"]: row for row in rows if row["ood_set"] == "green"}
    assert {f"dice({p})+energy" for p in SWEEP_GRID} <= set(by_detector)
    low, high = by_detector["msp"]["intervals"]["auroc"]
    assert low <= by_detector["msp"]["auroc"] <= high
    assert r"random\_k(0.5)" in (tmp_path / "out" / "selection.tex").read_text()
    assert (tmp_path / "out" / "main.md").read_text().startswith("| | green | grey | average |")


def test_every_detector_unless_told_and_rows_as_the_library_gives(oodles_run, benched, workshop):
    code, out, _ = oodles_run(*bench("--store", "kept", "--json"))
    assert code == 0
    features = load_experiment(benched)
    ood = {name: features[name] for name in ("green", "grey")}
    specs = list(dict.fromkeys(row["detector"] for row in json.loads(out)))
    wanted = benchmark(
        [parse(spec) for spec in specs], train=features["train"], test=features["test"], ood=ood, run="one"
    )
    assert json.loads(out) == json.loads(json.dumps([row.as_dict() for row in wanted]))
    assert len(specs) > 10


def test_several_checkpoints_are_mean_and_deviation(oodles_run, tmp_path):
    arguments = bench("--checkpoint", "two.pt", "--store", tmp_path / "s", "--table", "msp", "--p", "0.5")
    code, out, err = oodles_run(*arguments, "--json")
    assert code == 0, err
    rows = json.loads(out)
    assert [row["run"] for row in rows if row["detector"] == "msp"] == ["one", "one", "two", "two"]
    code, out, _ = oodles_run(*arguments)
    assert code == 0
    assert re.search(r"^msp\s+\d+\.\d±\d+\.\d/\d+\.\d±\d+\.\d", out, re.MULTILINE)
    assert len(re.findall(r"\d+\.\d\d%", out.splitlines()[0])) == 2, "the accuracy of both"
    assert len(complete(tmp_path / "s")) == 8


def test_json_is_all_there_is_on_stdout(oodles_run, benched):
    code, out, err = oodles_run(*bench("--store", "kept", "--table", "all", "--json", "--detector", "msp"))
    assert code == 0
    assert {row["detector"] for row in json.loads(out)} >= {"msp", "dice(0.0)+energy", "dice(0.9)+msp"}
    assert "train: 80 images" in err


def test_a_suite_on_small_files_beside_the_paper(oodles_run, tmp_path):
    arguments = ["bench", "cifar10", "--data", "data", "--model", f"{MODEL}(10)", "--checkpoint", "ten.pt", "--paper"]
    code, out, err = oodles_run(*arguments, "--store", tmp_path / "s", "--limit", "9")
    assert code == 0, err
    assert re.search(r"not under data: .*svhn", " ".join(err.split()))
    assert "(64.2/88.2)" in out, "the paper's MSP on textures"
    assert "average is over other sets" in " ".join(out.split())
    assert {path.parent.name for path in complete(tmp_path / "s" / "cifar10" / "ten-9")} == {
        "train",
        "test",
        "isun",
        "textures",
    }
    assert all(len(part) == 9 for part in load_experiment(tmp_path / "s" / "cifar10" / "ten-9").values())
    code, out, _ = oodles_run(*arguments, "--store", tmp_path / "s", "--limit", "9", "--without", "isun", "--json")
    assert {row["ood_set"] for row in json.loads(out)} == {"textures"}
    assert {row["id_set"] for row in json.loads(out)} == {"cifar10"}


def test_suites_are_listed(oodles_run):
    code, out, _ = oodles_run("bench", "--list", "--data", "data")
    assert code == 0
    for name, suite in SUITES.items():
        assert re.search(rf"^{name}: .*{suite.classes} classes, DICE at p={suite.p}", out, re.MULTILINE)
    assert re.search(r"textures +data/dtd/images", out)
    assert re.search(r"svhn +not found", out)
    for table in TABLES:
        assert re.search(rf"^  {table} ", out, re.MULTILINE)


def test_weights_that_changed_under_the_same_name_are_refused(refused, benched):
    before = {path: path.read_bytes() for path in benched.rglob("*.safetensors")}
    line = refused(*bench("--store", "kept", "--detector", "msp", checkpoint="elsewhere/one.pt"))
    assert "kept/id/one/train holds features of another model" in line
    assert before == {path: path.read_bytes() for path in benched.rglob("*.safetensors")}


def test_other_images_under_the_same_name_are_refused(refused, benched):
    arguments = ["bench", "--model", MODEL, "--checkpoint", "one.pt", "--train", "train", "--test", "test", *SHAPE]
    line = refused(*arguments, "--ood", "green=grey", "--ood", "grey=grey", "--store", "kept")
    assert "kept/id/one/green was made from other images" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "mnist"], "'mnist' is no suite; there are cifar10, cifar100, imagenet"),
        (["bench", "cifar10", "--data", "nowhere"], "nowhere has no cifar-10-batches-py"),
        (["bench", "imagenet", "--data", "data"], "data has no imagenet/train"),
        (bench("--table", "seven"), "'seven' is no table; there are main, sparsification"),
        (bench("--detector", "dise(0.9)"), "dise"),
        (bench("--detector", "dice(90)"), "p is a fraction: 0.9, not 90"),
        (["bench", "--model", MODEL, "--train", "train", "--test", "test"], "at least one --ood NAME=PATH"),
        (["bench", "--train", "train", "--test", "test", "--ood", "green=green"], "bench needs a suite, or --model"),
        (bench("--ood", "more=nowhere"), "nowhere does not exist"),
        (bench("--mean", "1,2"), "must be three numbers"),
    ],
)
def test_what_bench_refuses_before_it_begins(refused, tmp_path, arguments, message):
    more = ["--store", tmp_path / "s", "--out", tmp_path / "out"]
    assert message in refused(*arguments, *more)
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_archive(refused, workshop, tmp_path):
    home = tmp_path / "data" / "cifar-10-batches-py"
    home.mkdir(parents=True)
    source = workshop / "data" / "cifar-10-batches-py"
    (home / "test_batch").write_bytes((source / "test_batch").read_bytes())
    whole = (source / "data_batch_1").read_bytes()
    (home / "data_batch_1").write_bytes(whole[: len(whole) // 2])
    arguments = ["bench", "cifar10", "--data", tmp_path / "data", "--model", f"{MODEL}(10)", "--checkpoint", "ten.pt"]
    line = refused(*arguments, "--store", tmp_path / "s", "--out", tmp_path / "out")
    assert "data_batch_1 is no image set that oodles reads, nor a CIFAR batch" in line
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_checkpoint_of_another_network(refused, tmp_path):
    more = ["--store", tmp_path / "s", "--out", tmp_path / "out"]
    line = refused("bench", "cifar10", "--data", "data", "--checkpoint", "ten.pt", *more)
    assert "ten.pt does not fit DenseNet" in line
    line = refused(*bench(*more, checkpoint="ten.pt"))
    assert "ten.pt does not fit Sequential: 4.weight is (10, 12), the model has (2, 12)" in line
    assert list(tmp_path.iterdir()) == []


def test_a_network_with_fewer_classes_than_the_data(refused, oodles_run, tmp_path):
    arguments = ["bench", "cifar10", "--data", "data", "--store", tmp_path / "s", "--out", tmp_path / "out"]
    line = refused(*arguments, "--model", f"{MODEL}(7)")
    assert "label" in line
    assert "7" in line
    assert complete(tmp_path) == []
    assert not (tmp_path / "out").exists()
    code, _, err = oodles_run(*arguments, "--model", f"{MODEL}(10)", "--detector", "msp")
    assert code == 0, f"what the first left behind must not stand in the way: {err}"


def test_an_unreadable_image_leaves_no_whole_store(refused, oodles_run, workshop, tmp_path):
    paint(tmp_path / "some", 3, (30, 220, 60), seed=5)
    (tmp_path / "some" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    arguments = bench("--ood", f"some={tmp_path / 'some'}", "--store", tmp_path / "s", "--out", tmp_path / "out")
    assert "1 of 4 images cannot be read (broken.png" in refused(*arguments)
    assert "some" not in {path.parent.name for path in complete(tmp_path / "s")}
    assert not (tmp_path / "out").exists()
    code, _, err = oodles_run(*arguments, "--skip-bad", "--detector", "msp")
    assert code == 0, err
    assert "left out" in err
    assert len(Features.load(tmp_path / "s" / "id" / "one" / "some")) == 3


# Select -----------------------------------------------------------------------------------------

SELECT = [
    "select-p",
    "train",
    "--held-out",
    "test",
    "--model",
    MODEL,
    "--checkpoint",
    "one.pt",
    *SHAPE,
    "--noise",
    "30",
]


def test_select_in_words_and_as_json(oodles_run, tmp_path):
    code, out, err = oodles_run(*SELECT, "--out", tmp_path / "curve.png")
    assert code == 0, err
    assert [float(p) for p in re.findall(r"^p=(\S+)", out, re.MULTILINE)] == list(PAPER_GRID)
    assert out.count("<- chosen") == 1
    with Image.open(tmp_path / "curve.png") as picture:
        picture.load()
    code, again, _ = oodles_run(*SELECT, "--json")
    assert code == 0
    found = json.loads(again)
    assert list(found["curve"]) == [str(p) for p in PAPER_GRID]
    assert f"p={found['p']:<5g} AUROC {100 * found['curve'][str(found['p'])]['auroc']:6.2f}" in out
    best = max(row["auroc"] for row in found["curve"].values())
    tied = [float(p) for p, row in found["curve"].items() if row["auroc"] >= best - found["standard_error"]]
    assert found["p"] == max(tied)
    assert {(row["n_id"], row["n_ood"]) for row in found["curve"].values()} == {(40, 30)}


def test_select_options(oodles_run):
    options = ["--fine", "--detector", "react(95)+weight_pruning", "--limit", "15", "--seed", "3", "--json"]
    code, out, err = oodles_run(*SELECT, *options)
    assert code == 0, err
    found = json.loads(out)
    assert list(found["curve"]) == [str(p) for p in FINE_GRID]
    assert found["curve"]["0.5"]["detector"] == "react(95)+weight_pruning(0.5)+energy"
    assert found["curve"]["0.5"]["n_id"] == 15


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--detector", "msp"], "has no sparsifier, so no p to choose"),
        (["--detector", "dise"], "dise"),
        (["--noise", "0"], "ask for at least one"),
        (["--limit", "0"], "a limit of 0 images"),
        (["--held-out", "nowhere"], "nowhere does not exist"),
        (["--checkpoint", "ten.pt"], "ten.pt does not fit Sequential"),
    ],
)
def test_what_select_refuses(refused, tmp_path, more, message):
    assert message in refused(*SELECT, "--out", tmp_path / "curve.png", *more)
    assert list(tmp_path.iterdir()) == []


def test_a_picture_of_an_unknown_kind_is_refused(refused, tmp_path):
    assert "curve.txt" in refused(*SELECT, "--out", tmp_path / "curve.txt")
    assert list(tmp_path.iterdir()) == []


# Analyze ----------------------------------------------------------------------------------------


def test_analyze_draws_and_measures(oodles_run, benched, tmp_path):
    code, out, err = oodles_run("analyze", benched, "--out", tmp_path, "--class", "1", "--p", "0.5", "--ood", "grey")
    assert code == 0, err
    assert len(list(tmp_path.iterdir())) == 16
    assert "16 files" in err
    assert re.search(r"^  test +from \d+\.\d\d to \d+\.\d\d, mean", out, re.MULTILINE)
    for name in ("test", "green", "grey"):
        assert re.search(rf"^  {name} ", out, re.MULTILINE)
    with (tmp_path / "figure2-outputs.csv").open(newline="") as file:
        assert {row["set"] for row in csv.DictReader(file)} == {"id", "grey"}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--class", "99"], "label=99 is no class of this head; it has 2"),
        (["--class", "-1"], "label=-1 is no class of this head; it has 2"),
        (["--ood", "pink"], "'pink' is none of the OOD sets; there are green, grey"),
        (["--p", "90"], "p is a fraction: 0.9, not 90"),
    ],
)
def test_what_analyze_refuses(refused, benched, tmp_path, more, message):
    assert message in refused("analyze", benched, "--out", tmp_path / "out", *more)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_no_experiment(refused, benched, tmp_path):
    for folder, message in (("nowhere", "nowhere holds no train"), ("train", "train holds no train")):
        assert message in refused("analyze", folder, "--out", tmp_path / "out")
    assert "holds no train" in refused("analyze", benched / "train", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Data -------------------------------------------------------------------------------------------


def test_datasets_are_listed(oodles_run):
    code, out, _ = oodles_run("data", "list", "--data", "data")
    assert code == 0
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert list(lines) == list(SOURCES)
    for name, state in (("cifar10", "here"), ("textures", "here"), ("svhn", "can be fetched"), ("imagenet", "by hand")):
        assert state in lines[name]


def test_a_set_that_is_here_is_not_fetched(oodles_run):
    code, out, _ = oodles_run("data", "fetch", "cifar10", "--data", "data")
    assert code == 0
    assert out.strip() == "data/cifar-10-batches-py is there already"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("imagenet", "ImageNet-1k cannot be fetched for you: with an account at image-net.org"),
        ("places365", "Places365 cannot be fetched for you"),
        ("mnist", "'mnist' is no set that can be fetched; there are cifar10"),
    ],
)
def test_what_cannot_be_fetched(refused, tmp_path, name, message):
    assert message in refused("data", "fetch", name, "--data", tmp_path / "data")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--paper"], "--paper compares with the paper's suites"),
        (["--p", "90"], "p is a fraction: 0.9, not 90"),
        (["--table", "all", "--table", "nope"], "'nope' is no table"),
        (["--ood", "average=grey"], "none of train, test, average"),
        (["--ood", "../escaped=grey"], "must be NAME=PATH"),
        (["--out", "one.pt"], "is a file; it takes a folder"),
        (["--checkpoint", "other/one.pt"], "two checkpoints are called 'one'"),
        (["--device", "nowhere"], "device='nowhere' cannot be used here"),
    ],
)
def test_what_cannot_work_is_said_before_any_image_is_read(oodles_run, tmp_path, options, words):
    code, out, err = oodles_run(*bench("--store", tmp_path / "s", *options))
    assert code == 2
    assert out == ""
    assert words in " ".join(err.split())
    assert not list(tmp_path.glob("s/**/shard-*"))
