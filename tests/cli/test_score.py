import csv
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from pyarrow import parquet
from support.command_line import MODEL, NETWORK, SIZE, WATCHED, WEIGHTS, loader, network

import oodles
from oodles.deploy.results.reading import read_rows
from oodles.deploy.saving import load_guard
from oodles.detectors.network_detector import steps_of
from oodles.models import build_model
from oodles.network.extraction import extract

COLUMNS = ["path", "label", "class_name", "probability", "score", "p_value", "is_id", "error"]


@pytest.fixture
def watched(workspace, tmp_path):
    """A guard for a network that remembers its batches, saved with the names of its classes."""
    options = {"detector": "energy", "classes": ["night", "day"]}
    train = loader(workspace / "train", labels=False)
    oodles.Guard.fit(build_model(WATCHED), train, **options).save(tmp_path / "watched")
    return tmp_path / "watched"


def scores_of(document):
    return torch.tensor([verdict["score"] for verdict in document["verdicts"]])


def test_images_and_their_features_get_the_same_scores(fitted, json_of):
    images = json_of("score", fitted / "guard", "test", *NETWORK)
    stored = json_of("score", fitted / "guard", fitted / "test")
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
def test_scores_are_those_of_extract_and_the_detector(workspace, json_of, tmp_path, spec):
    model, train, test = network(workspace), loader(workspace / "train"), loader(workspace / "test")
    guard = oodles.Guard.fit(model, train, calibration=test, detector=spec)
    guard.save(tmp_path / "g")
    document = json_of("score", tmp_path / "g", "test", "grey", *NETWORK, "--batch-size", "7")
    parts = [loader(workspace / part, labels=False) for part in ("test", "grey")]
    features = [extract(model, part, steps=steps_of([guard.detector])) for part in parts]
    expected = torch.cat([guard.detector.score(each) for each in features])
    torch.testing.assert_close(scores_of(document), expected, rtol=1e-5, atol=1e-5)


def test_results_in_a_file(fitted, succeeded, json_of, tmp_path):
    command = ["score", fitted / "guard", "test", "damaged", *NETWORK]
    out, _ = succeeded(*command, "--csv")
    rows = json_of(*command)["verdicts"]
    assert len(rows) == 54
    assert all(list(row) == COLUMNS for row in rows)
    for name in ("v.csv", "v.jsonl", "v.parquet"):
        printed, err = succeeded(*command, "--out", tmp_path / name)
        assert printed == ""
        assert "of 53 in-distribution (dice(0.5)+energy >= " in err
        assert err.rstrip().endswith(f", 1 with an error; written to {tmp_path / name}")
    assert (tmp_path / "v.csv").read_text() == out
    assert out.splitlines()[0].split(",") == COLUMNS
    assert [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()] == rows
    assert parquet.read_table(tmp_path / "v.parquet").to_pylist() == rows
    jobs = {f"v.{kind}.job" for kind in ("csv", "jsonl", "parquet")}
    assert {path.name for path in tmp_path.iterdir()} == jobs | {"v.csv", "v.jsonl", "v.parquet"}


def test_stored_features_in_a_file(fitted, succeeded, tmp_path):
    assert succeeded("score", fitted / "guard", fitted / "test", "--out", tmp_path / "scores.parquet")[0] == ""
    scores = load_guard(fitted / "guard")[0].score(oodles.Features.load(fitted / "test"))
    found = parquet.read_table(tmp_path / "scores.parquet")["score"].to_numpy()
    np.testing.assert_array_equal(found, scores.double().numpy())


def test_options_for_files_that_exclude_each_other(fitted, refused, tmp_path):
    command = ["score", fitted / "guard", "test", *NETWORK]
    assert "leave out --csv and --json" in refused(*command, "--out", tmp_path / "v.csv", "--json")
    assert "must end in .jsonl, .csv, .parquet to hold results" in refused(*command, "--out", tmp_path / "v.txt")
    for option in ("--resume", "--force"):
        assert "give its name with --out" in refused(*command, option)
    assert "--resume continues an output and --force replaces it" in refused(
        *command, "--out", tmp_path / "v.csv", "--resume", "--force"
    )
    assert "must lie between 0 and 1" in refused(*command, "--max-ood-rate", "10")
    assert "must lie between 0 and 1" in refused(*command, "--max-ood-rate", "nan")
    assert "--ray writes a folder, --out FOLDER" in refused(*command, "--ray")
    assert "leave out --resume, --force, --max" in refused(*command, "--ray", "--out", tmp_path / "new", "--force")
    ray = [*command, "--ray", "--out"]
    assert "exists already; give a new folder" in refused(*ray, tmp_path)
    assert "has --ray-workers in place of --workers" in refused(*ray, tmp_path / "new", "--workers", "2")
    assert "Invalid value for '--ray-workers'" in refused(*ray, tmp_path / "new", "--ray-workers", "0")
    assert "Invalid value for '--ray-cpus'" in refused(*ray, tmp_path / "new", "--ray-cpus", "0")
    cifar = ["score", fitted / "guard", "data/cifar-10-batches-py/test_batch", "--ray", "--out", tmp_path / "new"]
    assert "is not a file of its own; --ray reads image files and Parquet" in refused(*cifar)
    stored = ["score", fitted / "guard", fitted / "test", "--ray", "--out", tmp_path / "new"]
    assert "holds features, which need no cluster" in refused(*stored)
    (tmp_path / "rows.parquet").touch()
    both = ["score", fitted / "guard", tmp_path / "rows.parquet", "test", "--ray", "--out", tmp_path / "new"]
    assert "some inputs are Parquet files and some are images" in refused(*both)
    assert not (tmp_path / "new").exists()


def test_the_network_is_given_a_batch_at_a_time(workspace, watched, succeeded):
    sizes = sys.modules[WATCHED.partition(":")[0]].Watched.sizes
    options = ["--model", WATCHED, "--csv"]
    for more, largest in (([], 32), (["--batch-size", "7", "--workers", "1"], 7)):
        sizes.clear()
        out, _ = succeeded("score", watched, "train", "test", *options, *more)
        assert max(sizes) == largest
        assert len(out.splitlines()) == 1 + 170


def test_an_output_that_is_not_finite_is_never_in_distribution(workspace, watched, succeeded, json_of, tmp_path):
    shutil.copy(workspace / "test" / "red" / "000.png", tmp_path / "a.png")
    Image.new("RGB", (8, 8)).save(tmp_path / "b.png")
    command = ["score", watched, tmp_path / "a.png", tmp_path / "b.png", "--model", WATCHED]
    bright, dark = json_of(*command)["verdicts"]
    assert bright["score"] is not None
    assert bright["class_name"] == ("night", "day")[bright["label"]], "the guard knows the names of the classes"
    assert (dark["score"], dark["is_id"]) == (None, False)
    assert dark["error"] == "the network gives NaN or infinite values for it"
    assert bright["error"] is None
    assert {dark[name] for name in ("label", "class_name", "probability", "p_value")} == {None}
    rows = list(csv.DictReader(succeeded(*command, "--csv")[0].splitlines()))
    assert [rows[0]["class_name"], rows[1]["score"], rows[1]["is_id"]] == [bright["class_name"], "", "false"]


def test_a_file_that_cannot_be_read_is_a_row_with_an_error(fitted, workspace, succeeded):
    command = ["score", fitted / "guard", "damaged", "test/red/003.png", *NETWORK, "--batch-size", "2"]
    out, err = succeeded(*command, "--json")
    verdicts = json.loads(out)["verdicts"]
    good = [f"damaged/00{place}.png" for place in range(3)]
    assert [row["path"] for row in verdicts] == [*good, "damaged/broken.png", "test/red/003.png"]
    bad = verdicts.pop(3)
    assert bad["error"]
    assert bad == dict.fromkeys(COLUMNS) | {"path": "damaged/broken.png", "is_id": False, "error": bad["error"]}
    assert {row["error"] for row in verdicts} == {None}
    assert "1 with an error, of 5" in err
    out, _ = succeeded(*command, "--csv")
    assert list(csv.reader(out.splitlines()))[4] == ["damaged/broken.png", *[""] * 5, "false", bad["error"]]
    out, err = succeeded(*command)
    assert out.splitlines()[3] == f"error  damaged/broken.png: {bad['error']}"
    assert " of 4 in-distribution " in err
    assert err.rstrip().endswith(", 1 with an error")


def test_a_job_of_bad_files_alone_goes_on(fitted, json_of, tmp_path):
    files = [tmp_path / name for name in ("notes.txt", "broken.zip", "broken.npy")]
    for path in files:
        path.write_bytes(b"PK, but neither image, archive nor array")
    rows = json_of("score", fitted / "guard", "damaged/broken.png", *files, *NETWORK)["verdicts"]
    assert [row["path"] for row in rows] == ["damaged/broken.png", *map(str, files)]
    assert all(row["error"] and not row["is_id"] for row in rows)
    assert rows[2]["error"].startswith("is not a complete zip archive")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["empty", *NETWORK], "empty holds no images"),
        (["test/*.gif", *NETWORK], "test/*.gif does not exist"),
        (["test"], "so images need --model and --checkpoint"),
        (["test", "--model", MODEL, *SIZE], "guards another model: the weights or hyperparameters differ"),
        (["test", *NETWORK, "--device", "abacus"], "device='abacus' cannot be used here"),
        (["test", *NETWORK, "--size", "7"], "was fitted with other preprocessing"),
    ],
)
def test_what_the_guard_cannot_score_is_refused(fitted, refused, inputs, message):
    assert message in refused("score", fitted / "guard", *inputs)


def test_a_check_sets_the_exit_code(fitted, oodles_run, succeeded, json_of, tmp_path):
    command = ["score", fitted / "guard", "test", *NETWORK]
    rows = json_of(*command)["verdicts"]
    rate = sum(not row["is_id"] for row in rows) / len(rows)
    assert rate <= 0.1
    succeeded(*command, "--max-ood-rate", rate)  # the largest rate itself is allowed
    code, _, err = oodles_run(*command[:3], "damaged/broken.png", *command[3:], "--max-ood-rate", rate)
    assert code == 3, "an input with an error is not ID"
    assert "check failed: " in err.splitlines()[-1]
    succeeded("score", fitted / "guard", "damaged/broken.png", *NETWORK, "--max-ood-rate", 1)
    out = tmp_path / "r.csv"
    for more in ([], ["--resume"]):
        assert (
            oodles_run("score", fitted / "guard", "damaged", *NETWORK, "--max-ood-rate", 0.1, "--out", out, *more)[0]
            == 3
        )


def test_files_that_are_not_images_are_pointed_out(fitted, workspace, succeeded, tmp_path):
    shutil.copytree(workspace / "grey", tmp_path / "mixed")
    (tmp_path / "mixed" / "clip.mp4").write_bytes(b"0")
    _, err = succeeded("score", fitted / "guard", tmp_path / "mixed", *NETWORK)
    assert "1 file is not an image that oodles reads: clip.mp4" in err


def test_the_guard_remembers_the_preprocessing(fitted, json_of):
    assert json_of("score", fitted / "guard", "test", *NETWORK) == json_of("score", fitted / "guard", "test", *WEIGHTS)


def test_a_guard_fitted_on_logits_alone_scores_images(workspace, succeeded, json_of, tmp_path):
    features = extract(network(workspace), loader(workspace / "train"), head=False, store=tmp_path / "logits")
    succeeded("fit", tmp_path / "logits", "--detector", "msp", "--out", tmp_path / "g")
    scores = scores_of(json_of("score", tmp_path / "g", "train", *NETWORK))
    torch.testing.assert_close(scores, oodles.MSP().score(features), rtol=1e-5, atol=1e-5)


def test_features_of_another_model(fitted, refused, succeeded, tmp_path):
    succeeded("extract", "test", *NETWORK, "--checkpoint", "two.pt", "--out", tmp_path / "two")
    inputs = ["test", tmp_path / "two"]
    assert "two has features of another model than" in refused("score", fitted / "guard", *inputs, *NETWORK)


def test_a_guard_saved_from_python_is_not_given_imagenet_statistics(workspace, json_of, refused, tmp_path):
    """Without a record, images used to be resized to 224 pixels and normalised as for ImageNet, without a word."""
    model, images = network(workspace), loader(workspace / "train")
    known = oodles.Guard.fit(model, images, detector="energy")
    assert known.preprocessing == images.transform.as_record()
    known.save(tmp_path / "known")
    accepted = [verdict["is_id"] for verdict in json_of("score", tmp_path / "known", "train", *WEIGHTS)["verdicts"]]
    assert sum(accepted) >= 0.9 * len(accepted)
    unknown = oodles.Guard(model, known.detector, known.threshold)
    unknown.save(tmp_path / "unknown")
    line = refused("score", tmp_path / "unknown", "train", *WEIGHTS)
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
