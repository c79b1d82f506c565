import csv
import json
import math
import os
import sys

import numpy as np
import pytest
from pyarrow import parquet

from oodles.cli import verdicts
from oodles.cli.verdicts import Outcome, check_file, print_csv, print_json, print_text, write_file
from oodles.errors import ArgumentError

CAT = Outcome("a/cat.png", 0, "cat", 1.5, True)
ODD = Outcome('a/"b", c.png', 1, None, 0.25, False)
UNKNOWN = Outcome("a/nan.png", 0, "cat", math.nan, False)
INFINITE = Outcome("a/inf.png", 0, "cat", math.inf, True)
BROKEN = Outcome("a/broken.png", problem="empty file")
BATCHES = [[CAT, BROKEN], [ODD, UNKNOWN, INFINITE]]


def as_json(batches):
    print_json(batches, {"detector": "msp", "threshold": 0.5}, "verdicts")


@pytest.mark.parametrize("write", [print_text, print_csv, as_json])
def test_a_batch_is_printed_before_the_next_one_is_computed(write, capsys):
    printed = []

    def batches():
        for batch in ([CAT], [ODD]):
            yield batch
            printed.append(capsys.readouterr().out)

    write(batches())
    assert "cat.png" in printed[0]
    assert "c.png" in printed[1]
    assert "cat.png" not in printed[1]


def test_text(capsys):
    print_text(BATCHES)
    assert capsys.readouterr().out.splitlines() == [
        "ID            1.5  cat         a/cat.png",
        "skipped  a/broken.png: empty file",
        'OOD          0.25  class 1     a/"b", c.png',
        "OOD           nan  -           a/nan.png: the network gives NaN or infinite values for it",
        "OOD           nan  -           a/inf.png: the network gives NaN or infinite values for it",
    ]


def test_csv(capsys):
    print_csv(BATCHES)
    printed = capsys.readouterr()
    assert list(csv.reader(printed.out.splitlines())) == [
        ["input", "label", "class", "score", "is_id"],
        ["a/cat.png", "0", "cat", "1.5", "true"],
        ["a/broken.png", "", "", "", ""],
        ['a/"b", c.png', "1", "", "0.25", "false"],
        ["a/nan.png", "0", "cat", "", "false"],
        ["a/inf.png", "0", "cat", "", "false"],
    ]
    assert printed.err.splitlines() == [
        "skipped a/broken.png: empty file",
        "not scored: a/nan.png: the network gives NaN or infinite values for it",
        "not scored: a/inf.png: the network gives NaN or infinite values for it",
    ]


def test_json_is_one_valid_document(capsys):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    as_json(BATCHES)
    document = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert (document["detector"], document["threshold"]) == ("msp", 0.5)
    names = ("input", "label", "class", "score", "is_id")
    assert [tuple(each[name] for name in names) for each in document["verdicts"]] == [
        ("a/cat.png", 0, "cat", 1.5, True),
        ('a/"b", c.png', 1, None, 0.25, False),
        ("a/nan.png", 0, "cat", None, False),
        ("a/inf.png", 0, "cat", None, False),
    ]
    errors = [each.get("error") for each in document["verdicts"]]
    assert errors == [None, None, *["the network gives NaN or infinite values for it"] * 2]
    assert document["skipped"] == [{"input": "a/broken.png", "problem": "empty file"}]


def test_a_parquet_file_has_null_for_what_an_input_does_not_have(tmp_path):
    write_file(tmp_path / "v.parquet", BATCHES)
    unknown = "the network gives NaN or infinite values for it"
    names = ("input", "label", "class", "score", "is_id", "error")
    assert [tuple(row[name] for name in names) for row in parquet.read_table(tmp_path / "v.parquet").to_pylist()] == [
        ("a/cat.png", 0, "cat", 1.5, True, None),
        ("a/broken.png", None, None, None, False, "empty file"),
        ('a/"b", c.png', 1, None, 0.25, False, None),
        ("a/nan.png", 0, "cat", None, False, unknown),
        ("a/inf.png", 0, "cat", None, False, unknown),
    ]


def test_a_parquet_file_of_several_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(verdicts, "ROW_GROUP", 4)
    write_file(tmp_path / "v.parquet", [[Outcome(f"{row}.png", row, None, float(row))] for row in range(10)])
    assert parquet.ParquetFile(tmp_path / "v.parquet").num_row_groups == 3
    assert parquet.read_table(tmp_path / "v.parquet")["score"].to_pylist() == list(map(float, range(10)))


def test_a_name_that_is_not_valid_text_is_escaped_in_parquet(tmp_path):
    write_file(tmp_path / "v.parquet", [[Outcome(b"caf\xe9.png".decode("utf-8", "surrogateescape"), 0, None, 1.0)]])
    assert parquet.read_table(tmp_path / "v.parquet")["input"].to_pylist() == ["caf\\udce9.png"]


@pytest.mark.parametrize("rows", [1, 9, 10, 12_345])
def test_a_numpy_file_has_the_scores_in_order(tmp_path, rows):
    batches = [[Outcome("x.png", 0, None, float(row))] for row in range(rows)]
    write_file(tmp_path / "scores.npy", [*batches, [UNKNOWN, BROKEN, INFINITE]])
    scores = np.load(tmp_path / "scores.npy")
    assert scores.dtype == np.float64
    np.testing.assert_array_equal(scores, [*range(rows), math.nan, math.nan, math.nan])


def test_a_csv_file_is_what_would_be_printed(tmp_path, capsys):
    print_csv(BATCHES)
    printed = capsys.readouterr()
    write_file(tmp_path / "v.csv", BATCHES)
    assert (tmp_path / "v.csv").read_text() == printed.out
    assert capsys.readouterr() == ("", printed.err)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".npy"])
def test_a_file_appears_when_it_is_complete_and_a_failure_leaves_the_old_one(tmp_path, suffix):
    path = tmp_path / f"v{suffix}"
    write_file(path, [[CAT]])
    before = path.read_bytes()

    def batches():
        for _ in range(3):
            (temporary,) = tmp_path.glob(".v*")
            os.utime(temporary, (0, 0))
            yield [ODD]
            assert temporary.stat().st_mtime > 0, "others should see that the file is in use"
            assert path.read_bytes() == before
        raise RuntimeError("the network fails")

    with pytest.raises(RuntimeError, match="the network fails"):
        write_file(path, batches())
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_a_file_that_cannot_be_written(tmp_path, monkeypatch):
    with pytest.raises(ArgumentError, match=r"results\.txt must end in \.parquet, \.csv or \.npy"):
        check_file(tmp_path / "results.txt")
    (tmp_path / "v.csv").mkdir()
    with pytest.raises(ArgumentError, match="is a folder; give the name of a file"):
        check_file(tmp_path / "v.csv")
    check_file(tmp_path / "v.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ArgumentError, match=r"needs pyarrow, which is not installed; pip install 'oodles\[parquet\]'"):
        check_file(tmp_path / "v.parquet")
