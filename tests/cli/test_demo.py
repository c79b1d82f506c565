"""``oodles demo``: its features, its rows and its files."""

import json
import re
from importlib.resources import files
from pathlib import Path

import pytest
from PIL import Image
from support.pages import check_page
from typer.testing import CliRunner

from oodles import cli
from oodles.bench.demo import MAIN, load_pack

GOLDEN = Path(__file__).parents[1] / "golden" / "demo_rows.json"
"""Rows of `oodles demo` when its features were built. They are float16, so every machine gives these to a tenth."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("demo")
    result = CliRunner(env={"COLUMNS": "80"}).invoke(cli.app, ["demo", "--out", str(folder)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return folder, result.stdout


def test_the_rows_are_the_golden_ones(ran: tuple[Path, str]) -> None:
    rows = {(row["detector"], row["ood_set"]): row for row in json.loads((ran[0] / "rows.json").read_text())}
    golden = {(row["detector"], row["ood_set"]): row for row in json.loads(GOLDEN.read_text())}
    assert rows.keys() == golden.keys()
    for key, row in golden.items():
        for metric in ("fpr95", "auroc", "aupr_id", "aupr_ood", "detection_error", "fpr95_ood"):
            # a single one of the 1,017 ID rows on the other side of the threshold changes FPR95 by a few tenths
            assert rows[key][metric] == pytest.approx(row[metric], abs=0.004), (key, metric)


def test_the_table_has_one_line_of_at_most_80_columns_per_detector(ran: tuple[Path, str]) -> None:
    text = ran[1]
    assert "…" not in text, "no number is cut off at 80 columns"
    lines = text.partition("\nrows: ")[0].splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[:2] for line in lines if line.startswith("dice(0.9) ")] == [["dice(0.9)", "33.3/92.5"]]
    detectors = [line.split()[0] for line in lines if re.match(r"[\w()+.=]+ +\d+\.\d/\d+\.\d ", line)]
    assert len(detectors) == len(set(detectors)) == len(MAIN)
    for word in ("svhn", "average", "took", "On average DICE accepts"):
        assert word in text, word


def test_the_report_has_the_details_and_its_path_comes_last(ran: tuple[Path, str]) -> None:
    folder, text = ran
    assert text.rstrip().endswith(f"report: {folder / 'report.html'}")
    page = check_page(folder / "report.html")
    for word in ("Recommended: default", "(47.2)", "What differs from the paper", "bottom_k(0.9)", "airplane"):
        assert word in page.text, word
    for heading in ("How much to drop", "Inputs to look at", "nearest training rows"):
        assert heading in page.text, heading
    assert len(page.all("svg")) == 6


def test_the_histograms_are_a_complete_png(ran: tuple[Path, str]) -> None:
    with Image.open(ran[0] / "scores.png") as picture:
        picture.load()
        assert picture.width > 800
        assert len(picture.convert("RGB").getcolors(maxcolors=1 << 20)) > 50


def test_the_features_are_small_and_match_their_card() -> None:
    train, test, ood, card = load_pack()
    assert {"train": len(train), "test": len(test)} | {name: len(part) for name, part in ood.items()} == card["rows"]
    assert train.width == 342
    assert train.labels is not None
    assert test.labels is not None
    accuracy = float(test.logits.argmax(dim=1).eq(test.labels).double().mean())
    assert accuracy == pytest.approx(card["head accuracy"]["test"], abs=2e-3)
    folder = Path(str(files("oodles") / "demo_pack"))
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) <= 6_000_000
