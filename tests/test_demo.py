"""The demo a newcomer sees first: its pack, its rows, its files."""

import io
import json
from importlib.resources import files
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from oodles.demo import load_pack, run_demo

GOLDEN = Path(__file__).parent / "golden" / "demo_rows.json"
"""Written by `oodles demo` when the pack was built; the pack is float16, so any machine gives these to a tenth."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("demo")
    console = Console(width=80, record=True, file=io.StringIO())
    run_demo(folder, console)
    return folder, console.export_text()


def test_rows_are_those_of_the_golden_run(ran: tuple[Path, str]) -> None:
    rows = {(row["detector"], row["ood_set"]): row for row in json.loads((ran[0] / "rows.json").read_text())}
    golden = {(row["detector"], row["ood_set"]): row for row in json.loads(GOLDEN.read_text())}
    assert rows.keys() == golden.keys()
    for key, row in golden.items():
        for metric in ("fpr95", "auroc", "aupr_id", "aupr_ood", "detection_error", "fpr95_ood"):
            # one of 1,017 ID rows changing sides at the threshold moves FPR95 by a few tenths
            assert rows[key][metric] == pytest.approx(row[metric], abs=0.004), (key, metric)


def test_the_table_shows_everything_and_the_paper_beside_it(ran: tuple[Path, str]) -> None:
    text = ran[1]
    assert "…" not in text, "a number is cut off at 80 columns"
    for word in ("dice(0.9)", "svhn", "average", "(47.2/93.5)", "took", "What differs from the paper"):
        assert word in text, word


def test_the_picture_is_a_whole_png(ran: tuple[Path, str]) -> None:
    with Image.open(ran[0] / "scores.png") as picture:
        picture.load()
        assert picture.width > 800
        assert len(picture.convert("RGB").getcolors(maxcolors=1 << 20)) > 50


def test_the_pack_is_small_and_is_what_its_card_says() -> None:
    train, test, ood, card = load_pack()
    assert {"train": len(train), "test": len(test)} | {name: len(part) for name, part in ood.items()} == card["rows"]
    assert train.width == 342
    assert train.labels is not None
    assert test.labels is not None
    accuracy = float(test.logits.argmax(dim=1).eq(test.labels).double().mean())
    assert accuracy == pytest.approx(card["head accuracy"]["test"], abs=2e-3)
    folder = Path(str(files("oodles") / "demo_pack"))
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) <= 6_000_000
