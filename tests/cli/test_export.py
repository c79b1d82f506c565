import json
import shutil

import numpy as np
import pytest
from PIL import Image
from support.command_line import MODEL, WEIGHTS
from support.exported_guards import parts_of
from support.images import write_image
from support.serving import JSON, serving

import oodles
from oodles.deploy.exported import ExportedGuard


def test_a_zip_says_how_well_it_agrees(fitted, succeeded, tmp_path):
    out, err = succeeded("export", fitted / "guard", *WEIGHTS, "--out", tmp_path / "guard.zip")
    assert out == ""
    assert "exported to" in err
    assert "on 64 made-up inputs (--images compares on real ones) torch and onnxruntime decide the same" in err
    assert ExportedGuard.open(tmp_path / "guard.zip").record["agreement"]["inputs"] == "noise"


def test_what_is_refused(fitted, exported, refused, succeeded, tmp_path):
    guard = fitted / "guard"
    assert "holds an exported guard" in refused("export", guard, *WEIGHTS, "--out", exported)
    assert "guards your own model" in refused("export", guard, "--out", tmp_path / "x.zip", notices=False)
    assert "does not exist" in refused("export", tmp_path / "none", "--out", tmp_path / "x.zip", notices=False)
    assert "other preprocessing" in refused("export", guard, *WEIGHTS, "--size", "9", "--out", tmp_path / "x.zip")
    assert "none" in refused("export", guard, *WEIGHTS, "--images", "none", "--out", tmp_path / "x.zip")
    assert not (tmp_path / "x.zip").exists()
    succeeded("export", guard, *WEIGHTS, "--images", "test", "--out", exported, "--force")


@pytest.mark.parametrize(("mode", "mean"), [("L", "0.4"), ("RGBA", "0.4,0.4,0.4,0.9")])
def test_from_image_files_of_other_channels_to_the_service(mode, mean, workspace, succeeded, json_of, tmp_path):
    for number in range(120):
        write_image(tmp_path / "photos" / f"{number:03}.png", size=(10, 9), mode=mode, seed=number)
    model = ["--model", f"{MODEL}(2, {mean.count(',') + 1})"]
    images = ["--size", "8", "--mean", mean, "--std", mean]
    succeeded("extract", tmp_path / "photos", "--out", tmp_path / "train", *model, *images)
    succeeded("fit", tmp_path / "train", "--detector", "energy", "--out", tmp_path / "guard")
    succeeded("export", tmp_path / "guard", *model, "--images", tmp_path / "photos", "--out", tmp_path / "guard.zip")
    photo = tmp_path / "photos" / "007.png"
    (saved,) = json_of("score", tmp_path / "guard", photo, *model)["verdicts"]
    (scored,) = json_of("score", tmp_path / "guard.zip", photo)["verdicts"]
    exported = ExportedGuard.open(tmp_path / "guard.zip")
    array = np.asarray(Image.open(photo))
    found = [scored["score"], exported(photo).score[0], exported(array).score[0]]
    found.append(exported(array.reshape(1, 9, 10, -1)).score[0])  # resized by the graph
    pixels = array.reshape(1, 9, 10, -1)
    tensor = {"name": "pixels", "datatype": "UINT8", "shape": pixels.shape, "data": pixels.flatten().tolist()}
    with serving(tmp_path / "guard.zip") as server:
        found.append(server.score(photo.read_bytes(), headers={"Content-Type": "image/png"}).result["score"])
        answer = server.ask("POST", "/v2/models/guard/infer", json.dumps({"inputs": [tensor]}).encode(), JSON)
        found.append(next(each["data"][0] for each in answer.json["outputs"] if each["name"] == "score"))
    assert found == pytest.approx([saved["score"]] * 6, rel=1e-4)


def test_the_threshold_of_an_exported_guard(exported, refused, succeeded, json_of, tmp_path):
    guard = shutil.copy(exported, tmp_path / "guard.zip")
    before = parts_of(guard)
    out, _ = succeeded("threshold", guard, "--id-rate", "0.5")
    assert "(50 % of ID, set on 50 rows)" in out
    after = ExportedGuard.open(guard)
    assert after.threshold == oodles.calibrate(after.threshold.id_scores, 0.5)
    assert {name for name, content in parts_of(guard).items() if before[name] != content} == {"guard.json"}
    accepted = [row["is_id"] for row in json_of("score", guard, "test")["verdicts"]]
    assert sum(accepted) == pytest.approx(25, abs=1)
    assert "does not hold features" in refused("threshold", guard, "--features", tmp_path)


def test_a_saved_guard_needs_no_features_for_another_rate(fitted, succeeded, tmp_path):
    guard = shutil.copytree(fitted / "guard", tmp_path / "guard")
    assert "of the 50 scores of the calibration set" in succeeded("threshold", guard, "--id-rate", "0.6")[0]


@pytest.mark.slow
def test_the_network_that_comes_with_the_package(succeeded, json_of, tmp_path):
    assert "default: exported to" in succeeded("export", "--out", tmp_path / "shipped.zip")[1]
    (row,) = json_of("score", tmp_path / "shipped.zip", "green/000.png")["verdicts"]
    (known,) = json_of("score", "green/000.png")["verdicts"]
    assert row["score"] == pytest.approx(known["score"], abs=1e-4)
    assert row["p_value"] == pytest.approx(known["p_value"], abs=1e-3)
    assert row["class_name"] == known["class_name"]
