"""``oodles report`` on what the other commands wrote."""

import json
import subprocess
import sys
from pathlib import Path

from support.command_line import NETWORK, bench_arguments
from support.pages import check_page
from support.scored import scored, write_scored

GOLDEN = Path(__file__).parents[1] / "golden" / "demo_rows.json"


def test_rows_of_a_benchmark(succeeded, tmp_path):
    more = ("--detector", "msp", "--detector", "knn(3)", "--intervals", "--out", tmp_path)
    succeeded(*bench_arguments(*more))
    said = f"report: {tmp_path / 'report.html'}   the same as JSON: {tmp_path / 'report.json'}\n"
    assert succeeded("report", tmp_path / "rows.json", "--out", tmp_path / "report.html") == (said, "")
    text = check_page(tmp_path / "report.html").text
    for word in ("Recommended", "green", "grey", "knn(k=3)", "bootstrap"):
        assert word in text, word


def test_a_guard_with_features_of_its_classes_and_others(succeeded, fitted, tmp_path):
    succeeded("extract", "green", "--out", tmp_path / "green", *NETWORK)
    options = ["--features", fitted / "test", "--ood", f"green={tmp_path / 'green'}", "--train", fitted / "train"]
    images = ["--images", "id=test", "--images", "green=green", "--images", "train=train"]
    out = tmp_path / "report.html"
    command = ["report", fitted / "guard", *options, *images, "--out", out, "--title", "Blue & red"]
    assert succeeded(*command)[1] == ""
    page = check_page(out)
    assert page.text.startswith("Blue & red")
    assert "green: " in page.text
    assert page.all("img")
    assert len(page.all("svg")) == 2


def test_scored_inputs_and_rows_in_one_report(succeeded, tmp_path):
    results = write_scored(tmp_path / "results.csv", [scored("test/blue/000.png", 1.0), scored("green/000.png", -1.0)])
    assert succeeded("report", GOLDEN, results, "--out", tmp_path / "report.html")[1] == ""
    assert len(check_page(tmp_path / "report.html").all("img")) > 0
    titles = [part["title"] for part in json.loads((tmp_path / "report.json").read_text())["parts"]]
    assert titles == ["Detectors compared", "Scored inputs, results.csv"]


def test_files_need_no_torch(tmp_path):
    results = write_scored(tmp_path / "results.jsonl", [scored("a.png", 1.0)])
    script = "import sys; from oodles.cli import app; app(standalone_mode=False); sys.exit('torch' in sys.modules)"
    arguments = ["report", str(GOLDEN), str(results), "--out", str(tmp_path / "report.html")]
    subprocess.run([sys.executable, "-c", script, *arguments], check=True, timeout=120)


def test_what_cannot_be_reported_is_refused(refused, fitted, tmp_path):
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "bad.csv").write_text("a,b\n")
    out = ["--out", tmp_path / "report.html"]
    assert "does not exist" in refused("report", tmp_path / "missing.json", *out)
    assert "must end in" in refused("report", tmp_path / "notes.txt", *out)
    assert "guard.json" in refused("report", tmp_path, *out)
    assert "does not hold rows" in refused("report", tmp_path / "bad.json", *out)
    assert "does not hold results" in refused("report", tmp_path / "bad.csv", *out)
    assert "--features" in refused("report", fitted / "guard", *out)
    assert "no source is one" in refused("report", GOLDEN, "--features", fitted / "test", *out)
    assert "no source is one" in refused("report", GOLDEN, "--train", fitted / "train", *out)
    guard = [fitted / "guard", "--features", fitted / "test"]
    assert "NAME=PATH" in refused("report", *guard, "--ood", "green", *out)
    assert "NAME=PATH" in refused("report", *guard, "--images", "green", *out)
    assert "belong to no features" in refused("report", *guard, "--images", "green=green", *out)
    assert "60 images" in refused("report", *guard, "--images", "id=train/red", *out)
    assert "does not hold features" in refused("report", *guard, "--train", fitted / "guard", *out)
    assert "must end in .html" in refused("report", GOLDEN, "--out", tmp_path / "report.pdf")
    assert not (tmp_path / "report.html").exists()
