import csv
import json
import re
import shutil

import numpy as np
import pytest
import torch
from support.command_line import MODEL, bench_arguments, complete_stores, paint
from support.images import write_cifar_batch

import oodles
from oodles.bench.run import benchmark
from oodles.bench.sets import load_sets
from oodles.bench.suites import ALL_SUITES
from oodles.detectors import Detector, parse
from oodles.features import Features
from oodles.paper.published import TABLES
from oodles.paper.sweep import SWEEP_GRID

SETS = ["bench", "--model", MODEL, "--train", "train", "--test", "test"]
CIFAR = ["bench", "cifar10", "--data", "data"]


def test_the_rows_are_those_of_the_library(succeeded, json_of, tmp_path):
    arguments = bench_arguments("--detector", "msp", "--detector", "dice(0.5)", "--store", tmp_path / "s")
    rows = json_of(*arguments, "--out", tmp_path / "out")
    assert rows == json.loads((tmp_path / "out" / "rows.json").read_text())
    assert [(row["detector"], row["ood_set"]) for row in rows] == [
        ("msp", "green"),
        ("msp", "grey"),
        ("dice(0.5)+energy", "green"),
        ("dice(0.5)+energy", "grey"),
    ]
    sets = {name: Features.load(tmp_path / "s" / "id" / "one" / name) for name in ("train", "test", "green", "grey")}
    ood = {name: sets[name] for name in ("green", "grey")}
    expected = oodles.benchmark([oodles.MSP(), oodles.DICE(p=0.5)], train=sets["train"], test=sets["test"], ood=ood)
    assert [(row["fpr95"], row["auroc"]) for row in rows] == [(row.fpr95, row.auroc) for row in expected]
    assert sets["green"].labels is None
    out, _ = succeeded(*arguments)
    for word in ("green", "grey", "average", "msp", "dice(0.5)", "accuracy"):
        assert word in out


def test_every_table_with_every_option(succeeded, tmp_path):
    options = ["--table", "all", "--intervals", "--p", "0.5", "--out", tmp_path / "out", "--store", tmp_path / "s"]
    out, _ = succeeded(*bench_arguments(*options, "--detector", "msp", "--detector", "dice"))
    for title in TABLES.values():
        assert title.partition(" (")[0] in " ".join(out.split())
    assert "(table" not in out, "those of the paper have nothing to do with one's own images"
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


def test_every_phase_is_announced_and_how_long_the_network_takes(succeeded, tmp_path):
    paint(tmp_path / "many", 520, (200, 60, 30), 1)
    options = ["--train", tmp_path / "many", "--detector", "odin", "--detector", "knn", "--store", tmp_path / "s"]
    _, said = succeeded(*bench_arguments(*options))
    phases = ["train: 520", r"takes about \d+ \w+ for all \d+ images", "fitting 2 det", "tuning", "test: ", "green: "]
    found = [re.search(phase, said) for phase in phases]
    assert all(found), said
    assert sorted(each.start() for each in found) == [each.start() for each in found]


def test_every_detector_by_default(json_of, benched):
    rows = json_of(*bench_arguments("--store", "kept"))
    features = load_sets(benched)
    ood = {name: features[name] for name in ("green", "grey")}
    specs = list(dict.fromkeys(row["detector"] for row in rows))
    detectors = [parse(spec) for spec in specs]
    expected = benchmark(detectors, train=features["train"], test=features["test"], ood=ood, run="one")
    assert rows == json.loads(json.dumps([row.as_dict() for row in expected]))
    assert len(specs) > 10


def test_several_checkpoints_give_mean_and_deviation(succeeded, json_of, tmp_path):
    arguments = bench_arguments("--checkpoint", "two.pt", "--store", tmp_path / "s", "--table", "msp", "--p", "0.5")
    rows = json_of(*arguments)
    assert [row["run"] for row in rows if row["detector"] == "msp"] == ["one", "one", "two", "two"]
    out, _ = succeeded(*arguments)
    assert re.search(r"^msp\s+\d+\.\d±\d+\.\d/\d+\.\d±\d+\.\d", out, re.MULTILINE)
    assert len(re.findall(r"\d+\.\d\d%", out.splitlines()[0])) == 2, "the accuracy of both"
    assert len(complete_stores(tmp_path / "s")) == 8


def test_a_suite_on_small_files_with_the_papers_numbers(succeeded, json_of, tmp_path):
    arguments = [*CIFAR, "--model", f"{MODEL}(10)", "--checkpoint", "ten.pt", "--published"]
    arguments += ["--store", tmp_path / "s", "--limit", "9"]
    out, err = succeeded(*arguments)
    assert re.search(r"not under data: .*svhn", " ".join(err.split()))
    assert "(64.2/88.2)" in out, "the paper's MSP on textures"
    assert "average is over other sets" in " ".join(out.split())
    home = tmp_path / "s" / "cifar10" / "ten-9"
    assert {path.parent.name for path in complete_stores(home)} == {"train", "test", "isun", "textures"}
    assert all(len(part) == 9 for part in load_sets(home).values())
    rows = json_of(*arguments, "--without", "isun")
    assert {(row["id_set"], row["ood_set"]) for row in rows} == {("cifar10", "textures")}


def test_class_folders_are_matched_with_the_names_in_a_file(succeeded, tmp_path):
    titles = []
    for names in ("blue red", "red blue"):
        (tmp_path / "names.txt").write_text("\n".join(names.split()))
        options = ("--classes", tmp_path / "names.txt", "--store", tmp_path / names, "--detector", "msp")
        titles.append(succeeded(*bench_arguments(*options))[0].splitlines()[0])
    first, second = (float(re.search(r"accuracy (\d+\.\d+)%", title)[1]) for title in titles)
    assert first + second == pytest.approx(100)


def test_suites_are_listed(succeeded):
    out, _ = succeeded("bench", "--list", "--data", "data")
    for name, suite in ALL_SUITES.items():
        assert re.search(rf"^{name}: .*{suite.classes} classes, DICE at p={suite.p}", out, re.MULTILINE)
    assert re.search(r"textures +data/dtd/images", out)
    assert re.search(r"svhn +not found", out)
    assert re.search(r"^  near OOD: ssb_hard, ninco$", out, re.MULTILINE)
    for table in TABLES:
        assert re.search(rf"^  {table} ", out, re.MULTILINE)


# OpenOOD ----------------------------------------------------------------------------------------

OPENOOD_RUN = ["bench", "openood-cifar10", "--data", "data", "--model", f"{MODEL}(10)"]


def test_a_suite_of_openood_with_two_checkpoints(succeeded, tmp_path, workspace):
    weights = torch.load(workspace / "ten.pt")
    weights["state_dict"]["4.weight"] *= 2
    torch.save(weights, tmp_path / "eleven.pt")
    write_cifar_batch(workspace / "data" / "cifar-100-python" / "test", 20, seed=11, labels="fine_labels")
    checkpoints = ["--checkpoint", "ten.pt", "--checkpoint", tmp_path / "eleven.pt"]
    arguments = [*OPENOOD_RUN, *checkpoints, "--store", tmp_path / "s", "--detector", "msp", "--detector", "energy"]
    out, err = succeeded(*arguments, "--published", "--out", tmp_path / "out")
    said = " ".join(err.split())
    assert "not under data: tin, mnist, svhn, places365" in said
    assert "without OpenOOD's image lists, so with every image that is there: train, test, cifar100, textures" in said
    assert "OpenOOD's preprocessing: mean (0.4914, 0.4822, 0.4465), std (0.247, 0.2435, 0.2616)" in said
    rows = json.loads((tmp_path / "out" / "rows.json").read_text())
    assert {row["id_set"] for row in rows} == {"openood-cifar10"}
    near = [100 * row["fpr95_ood"] for row in rows if (row["detector"], row["ood_set"]) == ("energy", "cifar100")]
    assert len(near) == 2
    line = next(line for line in (tmp_path / "out" / "main.md").read_text().splitlines() if line.startswith("| energy"))
    assert f"{np.mean(near):.1f}±{np.std(near):.1f}" in line.replace("*", "").split("|")[3]
    assert "(87.6)" in line
    assert "(87.6)" in out
    tables = {f"{name}{suffix}" for name in ("main", "main-aupr") for suffix in (".md", ".tex")}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*tables, "rows.json", "rows.csv"}
    stored = json.loads((tmp_path / "s" / "openood-cifar10" / "ten" / "test" / "manifest.json").read_text())
    assert stored["about"]["preprocessing"]["std"] == [0.2470, 0.2435, 0.2616]


def test_image_lists_of_openood_are_read(succeeded, refused, tmp_path):
    data = tmp_path / "data"
    home = data / "benchmark_imglist" / "cifar10"
    home.mkdir(parents=True)
    for name, colour in (("cifar10", (30, 60, 200)), ("texture", (128, 128, 128))):
        paint(data / "images_classic" / name, 12, colour, seed=4)
    for part, rows in (("train", range(10)), ("test", range(10, 12))):
        lines = [f"cifar10/{row:03}.png {row % 10}\n" for row in rows]
        (home / f"{part}_cifar10.txt").write_text("".join(lines))
    (home / "test_texture.txt").write_text("texture/000.png -1\ntexture/003.png -1\n")
    arguments = ["bench", "openood-cifar10", "--data", data, *OPENOOD_RUN[4:], "--checkpoint", "ten.pt"]
    out, err = succeeded(*arguments, "--detector", "msp", "--store", tmp_path / "s", "--json")
    assert [(row["ood_set"], row["n_id"], row["n_ood"]) for row in json.loads(out)] == [("textures", 2, 2)]
    assert "without OpenOOD's image lists" not in err
    (home / "test_texture.txt").write_text("texture/000.png -1\ntexture/999.png -1\n")
    assert "1 of 2 images are not below" in refused(*arguments, "--detector", "msp", "--store", tmp_path / "t")


def test_only_the_detectors_that_are_asked_for_are_built(succeeded, benched, monkeypatch):
    built, make = [], Detector.__init__
    monkeypatch.setattr(
        Detector, "__init__", lambda self, *rest: built.append(type(self).__name__) or make(self, *rest)
    )
    succeeded(*bench_arguments("--store", "kept", "--detector", "msp", "--detector", "knn(3)"))
    assert {*built} == {"MSP", "KNN", "DICE"}, "and one to check --p"


# Errors -----------------------------------------------------------------------------------------


def test_other_weights_under_the_same_name_are_refused(refused, benched):
    before = {path: path.read_bytes() for path in benched.rglob("*.safetensors")}
    line = refused(*bench_arguments("--store", "kept", "--detector", "msp", checkpoint="elsewhere/one.pt"))
    assert "kept/id/one/train was written with another model" in line
    assert before == {path: path.read_bytes() for path in benched.rglob("*.safetensors")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "imagenet", "--data", "data"], "data has no imagenet/train"),
        (bench_arguments("--table", "all", "--table", "nope"), "table 'nope' must be one of main, sparsification"),
        (bench_arguments("--detector", "dise(0.9)"), "dise"),
        (bench_arguments("--detector", "dice(90)"), "p is a fraction: 0.9, not 90"),
        (bench_arguments("--p", "90"), "p is a fraction: 0.9, not 90"),
        (bench_arguments("--published"), "--published has no numbers for your own sets"),
        ([*OPENOOD_RUN, "--intervals"], "--intervals does not apply to OpenOOD's metrics"),
        ([*OPENOOD_RUN, "--ood", "far=grey"], "--ood far=... is the name of a group of OpenOOD's sets"),
        ([*OPENOOD_RUN, "--without", "lsun_crop"], "--without 'lsun_crop' must be one of cifar100, tin, mnist, svhn"),
        (["bench", "openood-imagenet200", "--data", "data", "--published"], "has no numbers for openood-imagenet200"),
        (["bench", "openood-imagenet", "--data", "data"], "images_largescale or imagenet/train"),
        (SETS, "at least one --ood NAME=PATH"),
        (["bench", "--train", "train", "--test", "test", "--ood", "green=green"], "bench needs a suite, or --model"),
        ([*SETS, "--ood", "green"], "must be NAME=PATH"),
        (bench_arguments("--ood", "average=grey"), "NAME is a word other than train"),
        (bench_arguments("--ood", "../escaped=grey"), "must be NAME=PATH"),
        ([*CIFAR, "--size", "224"], "cifar10 has its own preprocessing; leave out --size"),
        ([*CIFAR, "--checkpoint", "ten.pt"], "ten.pt does not fit DenseNet"),
        (bench_arguments(checkpoint="ten.pt"), "does not fit Sequential: 4.weight is (10, 12), the model has (2, 12)"),
        (bench_arguments("--checkpoint", "elsewhere/one.pt"), "two checkpoints are called 'one'"),
        (bench_arguments("--limit", "0"), "Invalid value for '--limit'"),
        (bench_arguments("--out", "one.pt"), "'one.pt' is a file"),
        (bench_arguments("--device", "nowhere"), "device='nowhere' cannot be used here"),
        (bench_arguments("--device", "privateuseone"), "device='privateuseone' cannot be used here"),
        (bench_arguments("--without", "svhn"), "--without svhn leaves out a set of a suite; name a suite"),
        ([*CIFAR, "--without", "svnh"], "--without 'svnh' must be one of svhn, lsun_crop, "),
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_read(refused, tmp_path, arguments, message):
    bench, *options = arguments
    assert message in refused(bench, "--store", tmp_path / "s", "--out", tmp_path / "out", *options)
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_cifar_batch(refused, workspace, tmp_path):
    batch = tmp_path / "data" / "cifar-10-batches-py" / "data_batch_1"
    shutil.copytree(workspace / "data" / "cifar-10-batches-py", batch.parent)
    batch.write_bytes(batch.read_bytes()[: batch.stat().st_size // 2])
    arguments = ["bench", "cifar10", "--data", tmp_path / "data", "--model", f"{MODEL}(10)", "--checkpoint", "ten.pt"]
    line = refused(*arguments, "--store", tmp_path / "s", "--out", tmp_path / "out")
    assert "data_batch_1 is not a CIFAR batch (" in line
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_network_with_fewer_classes_than_the_data(refused, succeeded, tmp_path):
    arguments = [*CIFAR, "--store", tmp_path / "s", "--out", tmp_path / "out"]
    line = refused(*arguments, "--model", f"{MODEL}(7)")
    assert "label" in line
    assert "7" in line
    assert complete_stores(tmp_path) == []
    assert not (tmp_path / "out").exists()
    succeeded(*arguments, "--model", f"{MODEL}(10)", "--detector", "msp")  # an incomplete store is replaced


def test_an_unreadable_image_leaves_no_complete_store(refused, succeeded, tmp_path):
    paint(tmp_path / "some", 3, (30, 220, 60), seed=5)
    (tmp_path / "some" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    more = ["--ood", f"some={tmp_path / 'some'}", "--store", tmp_path / "s", "--out", tmp_path / "out"]
    assert "1 of 4 images cannot be read (broken.png" in refused(*bench_arguments(*more))
    assert "some" not in {path.parent.name for path in complete_stores(tmp_path / "s")}
    assert not (tmp_path / "out").exists()
    _, err = succeeded(*bench_arguments(*more, "--skip-bad", "--detector", "msp"))
    assert re.search(r"skipped: .*broken\.png", " ".join(err.split()))
    assert len(Features.load(tmp_path / "s" / "id" / "one" / "some")) == 3
