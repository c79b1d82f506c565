import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.pages import check_page
from support.scored import scored, write_scored

from oodles.bench.tables import Cell, Column, Table
from oodles.errors import ArgumentError, FileError
from oodles.report import document as module
from oodles.report import read_rows, results_part, rows_parts, write_report
from oodles.report.document import Card, Gallery, Part, Section, shortened

GOLDEN = Path(__file__).parents[1] / "golden" / "demo_rows.json"
PART = Part("A title", "Do this.", ("It was found.",), {"rows": "3"}, (Section("Numbers", ("Text.",)),))

AGAIN = """
import sys
from oodles.report import read_rows, results_part, rows_parts, write_report
write_report(sys.argv[3], *rows_parts(read_rows(sys.argv[1])), results_part(sys.argv[2]))
assert "torch" not in sys.modules
"""


def test_the_same_input_gives_the_same_bytes_in_another_process_without_torch(tmp_path: Path) -> None:
    results = write_scored(tmp_path / "results.csv", [scored(f"{place}.x", place - 5.0) for place in range(30)])
    write_report(tmp_path / "a.html", *rows_parts(read_rows(GOLDEN)), results_part(results))
    command = [sys.executable, "-c", AGAIN, str(GOLDEN), str(results), str(tmp_path / "b.html")]
    subprocess.run(command, check=True, timeout=120, env={**os.environ, "PYTHONHASHSEED": "7"})
    for suffix in (".html", ".json"):
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
    check_page(tmp_path / "a.html")


def test_it_follows_the_theme_and_the_printer() -> None:
    page = module.render((PART,), "title")
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page
    defined = ("--id", *(f"--ood-{place}" for place in range(7)))
    assert all(page.count(f"{name}:") == 3 for name in defined), "in the light theme, the dark one and in print"


def test_tables_and_cards(tmp_path: Path) -> None:
    table = Table("A table", (Column("name"), Column("x", ".2f")), ((Cell("a"), Cell(-1.25, (-2, 0.5), best=True)),))
    near = Card("row 3", ("similarity 0.9",))
    gallery = Gallery("Inputs", "Some.", (Card("row 1", ("rejected",), nearest=(near,)),))
    part = Part("T", "R.", (), sections=(Section("S", tables=(table,), galleries=(gallery,)),))
    beside = write_report(tmp_path / "r.html", part)
    assert "a -1.25 [-2.00, 0.50]" in check_page(tmp_path / "r.html").text
    section = json.loads(beside.read_text())["parts"][0]["sections"][0]
    assert section["tables"][0]["rows"] == [{"name": "a", "x": {"value": -1.25, "interval": [-2, 0.5]}}]
    (nearest,) = section["galleries"][0]["inputs"][0]["nearest"]
    assert nearest == {"name": "row 3", "facts": ["similarity 0.9"], "nearest": []}


def test_reports_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "file").write_text("")
    for name, parts, kind, message in (
        ("report.pdf", [PART], ArgumentError, "must end in"),
        ("folder.html", [PART], ArgumentError, "is a folder"),
        ("report.html", [], ArgumentError, "at least one part"),
        ("file/report.html", [PART], FileError, "file"),
    ):
        with pytest.raises(kind, match=message):
            write_report(tmp_path / name, *parts)
    assert {path.name for path in tmp_path.iterdir()} == {"folder.html", "file"}


def test_long_names_are_shortened_in_the_middle() -> None:
    name = shortened("a" * 50 + "b" * 50, 21)
    assert name == "a" * 10 + "…" + "b" * 10
    assert shortened("short\n") == "short\\n"
