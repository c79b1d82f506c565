import csv
import json
import math
import os
import re
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from PIL import Image
from pyarrow import parquet
from support.command_line import MODEL, NETWORK, SIZE, loader, network

import oodles
from oodles.data.loaders import ImageLoader
from oodles.data.readers import read_folder
from oodles.data.transforms import Transform
from oodles.deploy.results.reading import read_rows
from oodles.deploy.saving import load_guard
from oodles.detectors.network_detector import steps_of
from oodles.models import build_model, load_checkpoint
from oodles.network.extraction import extract

WATCHED = """
    import torch
    from torch import nn

    sizes = []

    class Watched(nn.Sequential):
        "Remembers how many images it was given at a time; NaN for images that are black."

        def forward(self, images):
            sizes.append(len(images))
            dark = images.amax(dim=(1, 2, 3), keepdim=True) <= -2
            return super().forward(torch.where(dark, torch.nan, images))

    def net():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            layers = nn.Conv2d(3, 12, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 2)
        return Watched(*layers)
"""
WATCHED_MODULE = "watched_net_of_the_cli_tests"


@pytest.fixture
def watched(workspace, tmp_path):
    """A guard for a network that remembers its batches, saved with the names of its classes."""
    (workspace / f"{WATCHED_MODULE}.py").write_text(textwrap.dedent(WATCHED))
    sys.path.insert(0, str(workspace))
    try:
        model = build_model(f"{WATCHED_MODULE}:net")
    finally:
        sys.path.remove(str(workspace))
    options = {"detector": "energy", "classes": ["night", "day"]}
    oodles.Guard.fit(model, loader(workspace / "train", labels=False), **options).save(tmp_path / "watched")
    return tmp_path / "watched"


COLUMNS = ["path", "label", "class_name", "probability", "score", "p_value", "is_id", "error"]


def scores_of(out):
    return torch.tensor([verdict["score"] for verdict in json.loads(out)["verdicts"]])


def test_images_and_their_features_get_the_same_scores(fitted, oodles_run):
    code, out, _ = oodles_run("score", fitted / "guard", "test", *NETWORK, "--json")
    assert code == 0
    images = json.loads(out)
    code, out, _ = oodles_run("score", fitted / "guard", fitted / "test", "--json")
    assert code == 0
    stored = json.loads(out)
    assert images["detector"] == stored["detector"] == "dice(0.5)+energy"
    assert len(images["verdicts"]) == len(stored["verdicts"]) == 50
    assert [one["path"] for one in images["verdicts"]][24:26] == ["test/blue/024.png", "test/red/000.png"]
    assert [one["path"] for one in stored["verdicts"]][24:26] == [f"{fitted / 'test'}[24]", f"{fitted / 'test'}[25]"]
    for one, other in zip(images["verdicts"], stored["verdicts"], strict=True):
        assert one["label"] == other["label"]
        assert one["score"] == pytest.approx(other["score"], rel=1e-5, abs=1e-5)
        assert one["is_id"] == (one["score"] >= images["threshold"])
        assert one["probability"] == pytest.approx(other["probability"], rel=1e-4)
    assert sum(one["is_id"] for one in stored["verdicts"]) >= 47, "the guard was calibrated on these"


@pytest.mark.parametrize("spec", ["odin(epsilon=0.004)", "mahalanobis(epsilon=0.002)", "react(90)+dice(0.5)", "knn(3)"])
def test_scores_are_those_of_extract_and_the_detector(workspace, oodles_run, tmp_path, spec):
    model, train, test = network(workspace), loader(workspace / "train"), loader(workspace / "test")
    guard = oodles.Guard.fit(model, train, calibration=test, detector=spec)
    guard.save(tmp_path / "g")
    code, out, err = oodles_run("score", tmp_path / "g", "test", "grey", *NETWORK, "--json", "--batch-size", "7")
    assert code == 0, err
    parts = [loader(workspace / part, labels=False) for part in ("test", "grey")]
    features = [extract(model, part, steps=steps_of([guard.detector])) for part in parts]
    expected = torch.cat([guard.detector.score(each) for each in features])
    torch.testing.assert_close(scores_of(out), expected, rtol=1e-5, atol=1e-5)


def test_results_in_a_file(fitted, oodles_run, tmp_path):
    _, out, _ = oodles_run("score", fitted / "guard", "test", "damaged", *NETWORK, "--csv")
    _, document, _ = oodles_run("score", fitted / "guard", "test", "damaged", *NETWORK, "--json")
    rows = json.loads(document)["verdicts"]
    assert len(rows) == 54
    assert all(list(row) == COLUMNS for row in rows)
    for name in ("v.csv", "v.jsonl", "v.parquet", "v.npy"):
        code, printed, err = oodles_run(
            "score", fitted / "guard", "test", "damaged", *NETWORK, "--out", tmp_path / name
        )
        assert (code, printed) == (0, ""), err
        assert "of 53 in-distribution (dice(0.5)+energy >= " in err
        assert err.rstrip().endswith(f", 1 with an error; written to {tmp_path / name}")
    assert (tmp_path / "v.csv").read_text() == out
    assert out.splitlines()[0].split(",") == COLUMNS
    assert [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()] == rows
    assert parquet.read_table(tmp_path / "v.parquet").to_pylist() == rows
    scores = [math.nan if row["score"] is None else row["score"] for row in rows]
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), scores)
    jobs = {f"v.{kind}.job" for kind in ("csv", "jsonl", "parquet")}
    assert {path.name for path in tmp_path.iterdir()} == jobs | {"v.csv", "v.jsonl", "v.parquet", "v.npy"}


def test_stored_features_in_a_file(fitted, oodles_run, tmp_path):
    code, out, err = oodles_run("score", fitted / "guard", fitted / "test", "--out", tmp_path / "scores.npy")
    assert (code, out) == (0, ""), err
    scores = load_guard(fitted / "guard")[0].score(oodles.Features.load(fitted / "test"))
    np.testing.assert_array_equal(np.load(tmp_path / "scores.npy"), scores.double().numpy())


def test_options_for_files_that_exclude_each_other(fitted, refused, tmp_path):
    command = ["score", fitted / "guard", "test", *NETWORK]
    assert "leave out --csv and --json" in refused(*command, "--out", tmp_path / "v.csv", "--json")
    assert "must end in .jsonl, .csv, .parquet or .npy" in refused(*command, "--out", tmp_path / "v.txt")
    for option in ("--resume", "--force"):
        assert "give its name with --out" in refused(*command, option)
    assert "--resume continues an output and --force replaces it" in refused(
        *command, "--out", tmp_path / "v.csv", "--resume", "--force"
    )
    assert "v.npy cannot be resumed" in refused(*command, "--out", tmp_path / "v.npy", "--resume")
    assert "--max-ood-rate 0.2 is for --check" in refused(*command, "--max-ood-rate", "0.2")
    assert "must lie between 0 and 1" in refused(*command, "--check", "--max-ood-rate", "10")
    assert "must lie between 0 and 1" in refused(*command, "--check", "--max-ood-rate", "nan")
    assert "--ray writes a folder, --out FOLDER" in refused(*command, "--ray")
    assert "leave out --resume, --force, --check" in refused(*command, "--ray", "--out", tmp_path / "new", "--check")
    ray = [*command, "--ray", "--out"]
    assert "exists already; give a new folder" in refused(*ray, tmp_path)
    assert "has --ray-workers in place of --workers" in refused(*ray, tmp_path / "new", "--workers", "2")
    assert "--ray-workers 0 must be at least 1" in refused(*ray, tmp_path / "new", "--ray-workers", "0")
    assert "--ray-cpus 0.0 must be more than 0" in refused(*ray, tmp_path / "new", "--ray-cpus", "0")
    cifar = ["score", fitted / "guard", "data/cifar-10-batches-py/test_batch", "--ray", "--out", tmp_path / "new"]
    assert "is not a file of its own; --ray reads image files and Parquet" in refused(*cifar)
    stored = ["score", fitted / "guard", fitted / "test", "--ray", "--out", tmp_path / "new"]
    assert "holds features, which need no cluster" in refused(*stored)
    (tmp_path / "rows.parquet").touch()
    both = ["score", fitted / "guard", tmp_path / "rows.parquet", "test", "--ray", "--out", tmp_path / "new"]
    assert "some inputs are Parquet files and some are images" in refused(*both)
    assert not (tmp_path / "new").exists()


def test_the_network_is_given_a_batch_at_a_time(workspace, watched, oodles_run):
    module = sys.modules[WATCHED_MODULE]
    options = ["--model", f"{WATCHED_MODULE}:net", "--csv"]
    for more, largest in (([], 32), (["--batch-size", "7", "--workers", "1"], 7)):
        module.sizes.clear()
        code, out, err = oodles_run("score", watched, "train", "test", *options, *more)
        assert code == 0, err
        assert max(module.sizes) == largest
        assert len(out.splitlines()) == 1 + 170


def test_an_output_that_is_not_finite_is_never_in_distribution(workspace, watched, oodles_run, tmp_path):
    shutil.copy(workspace / "test" / "red" / "000.png", tmp_path / "a.png")
    Image.new("RGB", (8, 8)).save(tmp_path / "b.png")
    options = ["--model", f"{WATCHED_MODULE}:net"]
    code, out, err = oodles_run("score", watched, tmp_path / "a.png", tmp_path / "b.png", *options, "--json")
    assert code == 0, err
    bright, dark = json.loads(out, parse_constant=pytest.fail)["verdicts"]
    assert bright["score"] is not None
    assert bright["class_name"] == ("night", "day")[bright["label"]], "the guard knows the names of the classes"
    assert (dark["score"], dark["is_id"]) == (None, False)
    assert dark["error"] == "the network gives NaN or infinite values for it"
    assert bright["error"] is None
    assert {dark[name] for name in ("label", "class_name", "probability", "p_value")} == {None}
    code, out, _ = oodles_run("score", watched, tmp_path / "a.png", tmp_path / "b.png", *options, "--csv")
    rows = list(csv.DictReader(out.splitlines()))
    assert [rows[0]["class_name"], rows[1]["score"], rows[1]["is_id"]] == [bright["class_name"], "", "false"]


def test_a_file_that_cannot_be_read_is_a_row_with_an_error(fitted, workspace, oodles_run):
    command = ["score", fitted / "guard", "damaged", "test/red/003.png", *NETWORK, "--batch-size", "2"]
    code, out, err = oodles_run(*command, "--json")
    assert code == 0, err
    verdicts = json.loads(out)["verdicts"]
    assert [row["path"] for row in verdicts] == [
        *(f"damaged/00{place}.png" for place in range(3)),
        "damaged/broken.png",
        "test/red/003.png",
    ]
    bad = verdicts.pop(3)
    assert bad["error"]
    assert bad == dict.fromkeys(COLUMNS) | {"path": "damaged/broken.png", "is_id": False, "error": bad["error"]}
    assert {row["error"] for row in verdicts} == {None}
    assert "1 with an error, of 5" in err
    code, out, _ = oodles_run(*command, "--csv")
    assert code == 0
    assert list(csv.reader(out.splitlines()))[4] == ["damaged/broken.png", *[""] * 5, "false", bad["error"]]
    code, out, err = oodles_run(*command)
    assert code == 0
    assert out.splitlines()[3] == f"error  damaged/broken.png: {bad['error']}"
    assert " of 4 in-distribution " in err
    assert err.rstrip().endswith(", 1 with an error")


def test_a_job_of_bad_files_alone_goes_on(fitted, workspace, oodles_run, tmp_path):
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "broken.zip").write_bytes(b"PK no archive")
    (tmp_path / "broken.npy").write_bytes(b"no array")
    files = [tmp_path / name for name in ("notes.txt", "broken.zip", "broken.npy")]
    code, out, err = oodles_run("score", fitted / "guard", "damaged/broken.png", *files, *NETWORK, "--json")
    assert code == 0, err
    rows = json.loads(out)["verdicts"]
    assert [row["path"] for row in rows] == ["damaged/broken.png", *map(str, files)]
    assert all(row["error"] and not row["is_id"] for row in rows)
    assert rows[2]["error"].startswith("is not a complete zip archive")


def test_nothing_to_score_is_an_error(fitted, workspace, refused):
    assert "empty holds no images" in refused("score", fitted / "guard", "empty", *NETWORK)
    assert "test/*.gif does not exist, and as a pattern it matches no file" in refused(
        "score", fitted / "guard", "test/*.gif", *NETWORK
    )


def test_a_check_sets_the_exit_code(fitted, workspace, oodles_run, tmp_path):
    command = ["score", fitted / "guard", "test", *NETWORK, "--check"]
    code, out, err = oodles_run(*command, "--json")
    rows = json.loads(out)["verdicts"]
    rate = sum(not row["is_id"] for row in rows) / len(rows)
    assert (code, rate <= 0.1) == (0, True), err
    code, _, err = oodles_run(*command, "--max-ood-rate", rate)
    assert code == 0, "the largest rate itself is allowed"
    code, _, err = oodles_run(*command[:3], "damaged/broken.png", *command[3:], "--max-ood-rate", rate)
    assert code == 3, "an input with an error is not ID"
    assert "check failed: " in err.splitlines()[-1]
    code, _, err = oodles_run("score", fitted / "guard", "damaged/broken.png", *NETWORK, "--check", "--max-ood-rate", 1)
    assert code == 0, err
    out = tmp_path / "r.csv"
    for more in ([], ["--resume"]):
        assert oodles_run("score", fitted / "guard", "damaged", *NETWORK, "--check", "--out", out, *more)[0] == 3


def test_files_that_are_not_images_are_pointed_out(fitted, workspace, oodles_run, tmp_path):
    shutil.copytree(workspace / "grey", tmp_path / "mixed")
    (tmp_path / "mixed" / "clip.mp4").write_bytes(b"0")
    code, _, err = oodles_run("score", fitted / "guard", tmp_path / "mixed", *NETWORK)
    assert code == 0
    assert "1 file is not an image that oodles reads: clip.mp4" in err


def test_the_guard_remembers_the_preprocessing(fitted, oodles_run):
    with_options, without = (
        oodles_run("score", fitted / "guard", "test", "--model", MODEL, "--checkpoint", "one.pt", *options, "--json")
        for options in (SIZE, [])
    )
    assert with_options[:2] == without[:2]


def test_a_guard_fitted_on_logits_alone_scores_images(workspace, oodles_run, tmp_path):
    features = extract(network(workspace), loader(workspace / "train"), head=False, store=tmp_path / "logits")
    code, _, _ = oodles_run("fit", tmp_path / "logits", "--detector", "msp", "--out", tmp_path / "g")
    assert code == 0
    code, out, err = oodles_run("score", tmp_path / "g", "train", *NETWORK, "--json")
    assert code == 0, err
    torch.testing.assert_close(scores_of(out), oodles.MSP().score(features), rtol=1e-5, atol=1e-5)


def test_a_missing_guard(refused):
    assert "nowhere does not exist" in refused("score", "nowhere", "train", notices=False)
    line = refused("score", "train", "test", *NETWORK, notices=False)
    assert "--model needs a guard, and train is none" in line


def test_images_without_a_model_and_a_guard_of_another_model(fitted, refused):
    assert "so images need --model and --checkpoint" in refused("score", fitted / "guard", "test")
    assert "guards another model: the weights or hyperparameters differ" in refused(
        "score", fitted / "guard", "test", "--model", MODEL, *SIZE
    )


def test_features_of_another_model(fitted, refused, oodles_run, tmp_path):
    other = ["--model", MODEL, "--checkpoint", "two.pt", *SIZE, "--out", tmp_path / "two"]
    assert oodles_run("extract", "test", *other)[0] == 0
    line = refused("score", fitted / "guard", "test", tmp_path / "two", *NETWORK)
    assert "two has features of another model than" in line


def test_an_unknown_device(fitted, refused):
    line = refused("score", fitted / "guard", "test", *NETWORK, "--device", "abacus")
    assert "device='abacus' cannot be used here" in line


def test_other_preprocessing_than_that_of_the_guard(fitted, refused):
    line = refused("score", fitted / "guard", "test", *NETWORK, "--size", "7")
    assert "was fitted with other preprocessing" in line


def test_a_guard_saved_from_python_is_not_given_imagenet_statistics(workspace, oodles_run, refused, tmp_path):
    """Without a record, images used to be resized to 224 pixels and normalised as for ImageNet, without a word."""
    model = build_model(MODEL)
    load_checkpoint(model, workspace / "one.pt")
    images = ImageLoader(read_folder(workspace / "train"), Transform(8, 8, (0.5,) * 3, (0.25,) * 3))
    known = oodles.Guard.fit(model, images, detector="energy")
    assert known.preprocessing == images.transform.as_record()
    known.save(tmp_path / "known")
    options = ("--model", MODEL, "--checkpoint", workspace / "one.pt")
    code, out, err = oodles_run("score", tmp_path / "known", "train", *options, "--json")
    assert code == 0, err
    accepted = [verdict["is_id"] for verdict in json.loads(out)["verdicts"]]
    assert sum(accepted) >= 0.9 * len(accepted)
    unknown = oodles.Guard(model, known.detector, known.threshold)
    unknown.save(tmp_path / "unknown")
    line = refused("score", tmp_path / "unknown", "train", *options)
    assert "does not record how images were preprocessed" in line


def test_a_bar_on_a_terminal_counts_rejected_inputs_and_errors(fitted, workspace, tmp_path):
    out = tmp_path / "r.csv"
    line = [sys.executable, "-m", "oodles", "score", fitted / "guard", "grey", "damaged", *NETWORK, "--out", out]
    terminal, end = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160"}
    subprocess.run(line, cwd=workspace, env=environment, stderr=end, check=True, timeout=60)
    os.close(end)
    shown = re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", os.read(terminal, 1 << 16).decode())
    os.close(terminal)
    rejected = sum(not row.is_id and row.error is None for row in read_rows(out))
    assert f"24/24 {rejected} OOD, 1 errors" in shown
