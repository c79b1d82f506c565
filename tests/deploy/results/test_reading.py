import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.pages import check_page
from support.scored import COLUMNS, failed, scored, write_scored

from oodles.deploy.results.reading import read_rows
from oodles.errors import DataError, FileError
from oodles.report import results_part, write_report

ROWS = [
    scored("a.png", 1.25),
    scored('odd "name", with\\n <b>', -2.0, class_name=None, label=7),
    scored("naïve/日本.png", 0.0, p_value=None, probability=None),
    failed("broken.png", "not an image"),
]


def test_names_that_are_not_valid_text(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    path = write_scored(tmp_path / "results.jsonl", [scored(name, 1.0, class_name=name), failed(name, name)])
    assert [row.path for row in read_rows(path)] == [name, name]
    write_report(tmp_path / "report.html", results_part(path))
    assert "caf\\udce9.png" in check_page(tmp_path / "report.html").text


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_no_rows_are_no_error(tmp_path: Path, suffix: str) -> None:
    assert list(read_rows(write_scored(tmp_path / f"results{suffix}", []))) == []


HEADER = ",".join(COLUMNS)
LINE = json.dumps({name: scored("a", 1.0)[name] for name in COLUMNS})


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("x.jsonl", b"not json\n", "row 1"),
        ("x.jsonl", LINE.encode() + b"\n[1, 2]\n", "row 2"),
        (
            "x.jsonl",
            LINE.replace('"score": 1.0', '"score": "high"').encode() + b"\n",
            "row 1: Expected `float . null`, got `str`",
        ),
        ("x.jsonl", b"[" * 100_000 + b"\n", "row 1"),
        ("x.jsonl", b'{"path": "' + b"a" * (1 << 20) + b'"}\n', "longer than allowed"),
        ("x.csv", b"", "does not begin with the line path,label"),
        ("x.csv", b"path,score\na,1\n", "does not begin with the line path,label"),
        ("x.csv", f"{HEADER}\n\xff".encode("latin1"), "row 1"),
        ("x.parquet", b"PAR1 and then nothing", "does not hold results"),
        ("x.csv", f"{HEADER}\na,1,c,0.5,1,0.1".encode(), "row 1: the line is cut off"),
        ("x.parquet", b"", "does not hold results"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=reason) as refused:
        list(read_rows(path))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500 + len(str(path))


def test_parquet_with_other_columns_or_types_is_refused(tmp_path: Path) -> None:
    for table in (
        pa.table({"path": ["a"]}),
        pa.table({name: [[1]] for name in COLUMNS}),
        pa.table({name: ["a"] for name in COLUMNS}),
    ):
        pq.write_table(table, tmp_path / "x.parquet")
        with pytest.raises(DataError, match="does not hold results"):
            list(read_rows(tmp_path / "x.parquet"))


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")  # opening it would wait for a writer
    (tmp_path / "folder.csv").mkdir()
    for name in ("pipe.csv", "folder.csv", "missing.csv"):
        with pytest.raises(FileError):
            list(read_rows(tmp_path / name))
