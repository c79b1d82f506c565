import shutil

import pytest
from support.command_line import WEIGHTS
from support.exported_guards import parts_of

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
