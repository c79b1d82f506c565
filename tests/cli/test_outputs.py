"""An output never replaces an input, nor a file that is not an earlier output of the same kind, not even by force."""

import shutil
from pathlib import Path

import pytest
from support.command_line import NETWORK, SIZE, bench_arguments
from support.scored import scored, write_scored

ROWS = Path(__file__).parents[1] / "golden" / "demo_rows.json"
REPORT, SCORE = (
    ["report", "{out}/rows.json", "--out"],
    ["score", "{fitted}/guard", "test", *NETWORK, "--force", "--out"],
)
MINE = "mine, not written by oodles"


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.mark.parametrize(
    ("file", "command"),
    [
        ("rows.json", [*REPORT, "{out}/rows.html"]),
        ("guard/guard.json", [*REPORT, "{out}/guard/guard.html"]),
        ("store/manifest.json", [*REPORT, "{out}/store/manifest.html"]),
        ("page.html", [*REPORT, "{out}/page.html"]),
        (
            "photos.csv",
            ["score", "{fitted}/guard", "{out}/photos.csv", *NETWORK, "--force", "--out", "{out}/photos.csv"],
        ),
        ("photos.jsonl", [*SCORE, "{out}/photos.jsonl"]),
        ("photos.parquet", [*SCORE, "{out}/photos.parquet"]),
        ("g/guard.json", ["fit", "{fitted}/train", "--calibration", "{fitted}/test", "--force", "--out", "{out}/g"]),
        ("me.zip", ["export", "{fitted}/guard", *NETWORK, "--force", "--out", "{out}/me.zip"]),
        ("main.md", bench_arguments("--detector", "msp", "--out", "{out}")),
        ("rows.csv", bench_arguments("--detector", "msp", "--out", "{out}")),
        ("figure2-outputs.csv", ["analyze", "{benched}", "--out", "{out}"]),
        ("figure4-units.svg", ["analyze", "{benched}", "--out", "{out}"]),
        ("me.png", ["select-p", "train", "--held-out", "test", *NETWORK, "--out", "{out}/me.png"]),
        (
            "chart.pdf",
            ["monitor", "{out}/old.csv", "--guard", "{fitted}/guard", "--in-order", "--out", "{out}/chart.pdf"],
        ),
        (
            "state.json",
            ["monitor", "{out}/old.csv", "--guard", "{fitted}/guard", "--in-order", "--state", "{out}/state.json"],
        ),
        ("weights.safetensors", ["train", "small", "--data", "train", "--epochs", "1", *SIZE, "--out", "{out}"]),
        ("metrics.jsonl", ["train", "small", "--data", "train", "--epochs", "1", *SIZE, "--out", "{out}"]),
        ("rows.json", ["demo", "--out", "{out}"]),
        ("old.csv", ["score", "{fitted}/guard", "{out}/old.csv", *NETWORK, "--force", "--out", "{out}/old.csv"]),
    ],
)
def test_nothing_else_is_replaced(oodles_run, fitted, benched, tmp_path, file, command):
    out = tmp_path / "out"
    shutil.copytree(fitted / "guard", out / "guard")
    shutil.copytree(fitted / "test", out / "store")
    write_scored(out / "old.csv", [scored("a.png", 1.0)])
    if "report" in command:
        shutil.copy(ROWS, out / "rows.json")
    if not (out / file).exists():
        (out / file).parent.mkdir(exist_ok=True)
        (out / file).write_text(MINE)
    before = contents(out)
    places = {"out": out, "fitted": fitted, "benched": benched}
    code, _, said = oodles_run(*(str(word).format(**places) for word in command))
    assert code == 2, said
    assert str(out / file) in said.splitlines()[-1].replace("\n", "")
    assert before.items() <= contents(out).items()


def test_what_the_same_command_wrote_is_replaced(succeeded, benched, fitted, tmp_path):
    write_scored(tmp_path / "r.csv", [scored("a.png", 1.0)])
    for command in (
        bench_arguments("--detector", "msp", "--table", "all", "--intervals", "--out", tmp_path),
        ["report", tmp_path / "rows.json", "--out", tmp_path / "report.html"],
        ["analyze", benched, "--out", tmp_path, "--class", "1"],
        ["select-p", "train", "--held-out", "test", *NETWORK, "--noise", "30", "--out", tmp_path / "curve.pdf"],
        ["score", fitted / "guard", "grey", *NETWORK, "--out", tmp_path / "r.csv", "--force"],
    ):
        succeeded(*command)
        succeeded(*(0 if word == "1" else word for word in command))


def test_a_picture_among_the_inputs_is_not_replaced(succeeded, refused, workspace, tmp_path):
    shutil.copytree(workspace / "test", tmp_path / "test")
    command = ["select-p", "train", "--held-out", tmp_path / "test", *NETWORK, "--noise", "30", "--out"]
    succeeded(*command, tmp_path / "test" / "blue" / "curve.png")
    assert "curve.png is an input" in refused(*command, tmp_path / "test" / "blue" / "curve.png")
