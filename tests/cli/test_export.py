import json
import shutil

import pytest
from support.command_line import WEIGHTS

import oodles
from oodles.deploy.exported import ExportedGuard


def verdicts(oodles_run, *arguments):
    code, out, err = oodles_run("score", *arguments, "--json")
    assert code == 0, err
    return json.loads(out)["verdicts"]


def test_a_zip_says_how_well_it_agrees(fitted, oodles_run, tmp_path):
    code, out, err = oodles_run("export", fitted / "guard", *WEIGHTS, "--out", tmp_path / "guard.zip")
    assert (code, out) == (0, "")
    assert "exported to" in err
    assert "on 64 made-up inputs (--images compares on real ones) torch and onnxruntime decide the same" in err
    assert ExportedGuard.open(tmp_path / "guard.zip").record["agreement"]["inputs"] == "noise"


def test_what_is_refused(fitted, exported, refused, oodles_run, tmp_path):
    guard = fitted / "guard"
    assert "holds an exported guard" in refused("export", guard, *WEIGHTS, "--out", exported)
    assert "guards your own model" in refused("export", guard, "--out", tmp_path / "x", notices=False)
    assert "does not exist" in refused("export", tmp_path / "none", "--out", tmp_path / "x", notices=False)
    assert "other preprocessing" in refused("export", guard, *WEIGHTS, "--size", "9", "--out", tmp_path / "x")
    assert "none" in refused("export", guard, *WEIGHTS, "--images", "none", "--out", tmp_path / "x")
    assert not (tmp_path / "x").exists()
    code, _, err = oodles_run("export", guard, *WEIGHTS, "--images", "test", "--out", exported, "--force")
    assert code == 0, err


def test_the_threshold_of_an_exported_guard(exported, refused, oodles_run, tmp_path):
    guard = shutil.copytree(exported, tmp_path / "guard")
    before = {path.name: path.read_bytes() for path in guard.iterdir()}
    code, out, err = oodles_run("threshold", guard, "--id-rate", "0.5")
    assert code == 0, err
    assert "(50 % of ID, set on 50 rows)" in out
    after = ExportedGuard.open(guard)
    assert after.threshold == oodles.calibrate(after.threshold.id_scores, 0.5)
    assert {name for name in before if before[name] != (guard / name).read_bytes()} == {"guard.json"}
    accepted = [row["is_id"] for row in verdicts(oodles_run, guard, "test")]
    assert sum(accepted) == pytest.approx(25, abs=1)
    line = refused("threshold", guard, "--features", tmp_path)
    assert "manifest.json does not exist" in line


def test_a_saved_guard_needs_no_features_for_another_rate(fitted, oodles_run, tmp_path):
    guard = shutil.copytree(fitted / "guard", tmp_path / "guard")
    code, out, err = oodles_run("threshold", guard, "--id-rate", "0.6")
    assert code == 0, err
    assert "of the 50 scores of the calibration set" in out


@pytest.mark.slow
def test_the_network_that_comes_with_the_package(oodles_run, tmp_path):
    code, _, err = oodles_run("export", "--out", tmp_path / "shipped.zip")
    assert code == 0, err
    assert "energy: exported to" in err
    (row,) = verdicts(oodles_run, tmp_path / "shipped.zip", "green/000.png")
    (known,) = verdicts(oodles_run, "green/000.png")
    assert row["score"] == pytest.approx(known["score"], abs=1e-4)
    assert row["p_value"] == pytest.approx(known["p_value"], abs=1e-3)
    assert row["class_name"] == known["class_name"]
