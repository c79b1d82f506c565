"""Results that are continued are those of an uninterrupted run, wherever the writer was killed."""

import os
import shutil
import sys
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from pyarrow import parquet
from support.disks import files_up_to

from oodles.deploy.results import writing
from oodles.deploy.results.reading import read_rows
from oodles.deploy.results.rows import COLUMNS, Row
from oodles.deploy.results.writing import Job, check_results, job_path, open_results, read_job, rows_path
from oodles.errors import ArgumentError, FileError, MissingPackageError

JOB = Job("msp", 0.5, 0.95, "a" * 64, "b" * 64, {"size": 32}, 3)
KINDS = [".csv", ".jsonl", ".parquet"]
ODD = b"caf\xe9.png".decode("utf-8", "surrogateescape")
NAMES = ["a.png", "b\n.png", 'c,"\r.png', ODD, "d.png", "a.png", "e\u2028.png", "[red].png"]


class Named(NamedTuple):
    names: list[str]


BATCHES = [Named(NAMES[:3]), Named(NAMES[3:4]), Named(NAMES[4:7]), Named(NAMES[7:])]


def row(name):
    place = NAMES.index(name)
    return Row(name, error="empty file") if place == 1 else Row(name, place, "cat\n", 0.1, 1 / (place + 1), None, True)


def write(path, batches=BATCHES, job=JOB, stop=None, **options):
    """Write results as a command would, perhaps only some batches; returns rows that were there and those computed."""
    seen, computed = [], []
    with open_results(path, job, **options) as results:
        for number, batch in enumerate(results.remaining(batches, seen.extend)):
            if number == stop:
                return seen, computed
            computed += batch.names
            results.append([row(name) for name in batch.names])
        if stop is None:
            results.finish()
    return seen, computed


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def whole(tmp_path):
    """The files of an uninterrupted run in each format."""
    folder = tmp_path / "whole"
    for kind in KINDS:
        write(folder / f"r{kind}")
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_rows_come_back(whole, kind):
    found = list(read_rows(whole / f"r{kind}"))
    assert [each[1:] for each in found if kind == ".jsonl"] in ([], [row(name)[1:] for name in NAMES])
    assert [each.score for each in found] == [row(name).score for name in NAMES]
    assert [each.error for each in found] == [row(name).error for name in NAMES]
    assert found[3].path == (ODD if kind == ".jsonl" else r"caf\udce9.png")
    assert read_job(whole / f"r{kind}") == JOB


def test_parquet_has_the_columns_in_order_with_null_for_what_is_missing(whole):
    table = parquet.read_table(whole / "r.parquet")
    assert tuple(table.column_names) == COLUMNS
    assert list(map(str, table.schema.types)) == ["string", "int64", "string", *["double"] * 3, "bool", "string"]
    assert table.to_pylist()[1] == dict.fromkeys(COLUMNS) | {"path": "b\n.png", "is_id": False, "error": "empty file"}


def test_parquet_in_several_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "ROW_GROUP", 3)
    write(tmp_path / "r.parquet")
    assert parquet.ParquetFile(tmp_path / "r.parquet").num_row_groups == 3
    assert len(list(read_rows(tmp_path / "r.parquet"))) == len(NAMES)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", range(4))
def test_an_interrupted_job_is_continued(whole, tmp_path, kind, stop):
    path = tmp_path / "again" / f"r{kind}"
    assert write(path, stop=stop)[1] == [name for batch in BATCHES[:stop] for name in batch.names]
    assert path.exists() == (kind != ".parquet")
    seen, computed = write(path, resume=True)
    assert computed == [name for batch in BATCHES[stop:] for name in batch.names]
    assert [each.score for each in seen] == [row(name).score for batch in BATCHES[:stop] for name in batch.names]
    assert files(path.parent) == {name: data for name, data in files(whole).items() if name.startswith(path.name)}


@settings(max_examples=30, deadline=None)
@given(kind=st.sampled_from(KINDS), share=st.floats(0.3, 1), garbage=st.sampled_from([b"", b"\0\0\0", b"x\n", b'{"pa']))
def test_a_file_that_was_cut_anywhere_is_continued(tmp_path_factory, kind, share, garbage):
    """A kill may leave half a line, a power failure zeros; rows of half a batch are computed again.

    The first row is there: without it nothing shows that the file is ours.
    """
    folder = tmp_path_factory.mktemp("cut")
    path = folder / f"r{kind}"
    write(path, stop=4)
    rows = rows_path(path)
    content = rows.read_bytes()
    rows.write_bytes(content[: round(share * len(content))] + garbage)
    write(path, resume=True)
    straight = folder / "straight" / path.name
    write(straight)
    assert path.read_bytes() == straight.read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_finished_job_has_nothing_left_and_more_inputs_are_added(whole, tmp_path, kind):
    path = tmp_path / "r" / f"r{kind}"
    assert write(path, BATCHES[:3])[1] == NAMES[:7]
    before = files(path.parent)
    assert write(path, BATCHES[:3], resume=True)[1] == []
    assert files(path.parent) == before
    assert write(path, resume=True)[1] == NAMES[7:]
    assert path.read_bytes() == (whole / path.name).read_bytes()


def test_a_kill_between_the_parquet_file_and_the_removal_of_its_rows(whole, tmp_path):
    path = tmp_path / "r.parquet"
    write(path, stop=4)
    shutil.copy(whole / "r.parquet", path)
    assert write(path, resume=True)[1] == []
    assert {each.name: each.read_bytes() for each in tmp_path.glob("r.*")} == {
        name: data for name, data in files(whole).items() if "parquet" in name
    }


@pytest.mark.parametrize("kind", KINDS)
def test_an_existing_file_is_continued_or_replaced_only_if_that_is_said(whole, kind):
    path = whole / f"r{kind}"
    before = path.read_bytes()
    with pytest.raises(ArgumentError, match=r"exists already; --resume continues it, --force replaces it"):
        write(path)
    assert path.read_bytes() == before
    assert write(path, BATCHES[1:], force=True)[1] == NAMES[3:]
    assert len(list(read_rows(path))) == 5


def test_rows_of_an_interrupted_parquet_file_are_not_replaced_either(tmp_path):
    write(tmp_path / "r.parquet", stop=2)
    with pytest.raises(ArgumentError, match=r"r\.parquet\.rows exists already"):
        write(tmp_path / "r.parquet")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"guard": "b" * 64}, "guard aaaa"),
        ({"threshold": 0.75}, "threshold 0.5, not 0.75"),
        ({"detector": "energy"}, "detector msp, not energy"),
        ({"preprocessing": {"size": 64}}, "preprocessing"),
        ({"batch_size": 7}, "batch size 3, not 7"),
    ],
)
def test_another_job_is_not_continued(whole, other, said):
    before = files(whole)
    for kind in KINDS:
        with pytest.raises(ArgumentError, match=rf"r\{kind} was begun with {said}.*--force"):
            write(whole / f"r{kind}", job=replace(JOB, **other), resume=True)
    assert files(whole) == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["{}/a.png", "{}/a.png/inside.jpg", "{}/a.png[7]"])
def test_rows_of_an_input_that_has_changed_are_not_kept(tmp_path, kind, name):
    file = tmp_path / ("a.zip" if "inside" in name else "a.png")
    batches = [Named([name.format(tmp_path).replace("a.png/", "a.zip/")]), Named(NAMES[3:4])]
    file.write_bytes(b"old")
    path = tmp_path / f"r{kind}"
    with open_results(path, JOB) as results:
        for batch in results.remaining(batches, list):
            results.append([Row(each, 1) for each in batch.names])
        results.finish()
    assert write(path, batches, resume=True)[1] == []
    before = path.read_bytes()
    os.utime(file, ns=(0, 7))
    with pytest.raises(ArgumentError, match=r"rows of .*, one of which has changed; .*--force"):
        write(path, batches, resume=True)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("r.csv", b"path,species\na.png,cat\n"),
        ("r.jsonl", b'{"path": "a.png", "species": "cat"}\n'),
        ("r.parquet", b"PAR1 and more"),
        ("r.parquet.rows", b"mine"),
        ("r.csv.job", b'{"kind": "mine"}'),
    ],
)
def test_a_file_that_is_not_results_is_never_replaced(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    out = tmp_path / name.removesuffix(".job").removesuffix(".rows")
    for how in ({}, {"force": True}, {"resume": True}):
        with pytest.raises(FileError, match=r"exists and is not .* that oodles wrote"):
            write(out, **how)
    assert files(tmp_path) == {name: content}


@pytest.mark.parametrize("kind", KINDS)
def test_other_inputs_are_not_continued(whole, kind):
    path = whole / f"r{kind}"
    changed = [Named(["a.png", "b\n.png", "new.png"]), *BATCHES[1:]]
    with pytest.raises(ArgumentError, match=r"as row 3, where new\.png is now"):
        write(path, changed, resume=True)
    with pytest.raises(ArgumentError, match=r"has row 8, .* beyond the 7 inputs"):
        write(path, BATCHES[:3], resume=True)
    assert write(path, resume=True)[1] == []


def test_results_without_or_with_a_damaged_record_are_not_continued(whole):
    path = whole / "r.csv"
    job_path(path).write_text(job_path(path).read_text().replace("msp", "energy"))
    with pytest.raises(FileError, match="altered after it was written"):
        write(path, resume=True)
    job_path(path).unlink()
    with pytest.raises(FileError, match=r"r\.csv\.job, .* is missing"):
        write(path, resume=True)


def test_only_one_process_writes(tmp_path):
    with (
        open_results(tmp_path / "r.csv", JOB),
        pytest.raises(FileError, match="is being written by another process"),
        open_results(tmp_path / "r.csv", JOB, resume=True),
    ):
        pass
    assert {each.name for each in tmp_path.iterdir()} == {"r.csv", "r.csv.job"}


def test_what_cannot_be_written(tmp_path, monkeypatch):
    with pytest.raises(ArgumentError, match=r"r\.txt must end in \.jsonl, \.csv, \.parquet"):
        check_results(tmp_path / "r.txt")
    (tmp_path / "r.csv").mkdir()
    with pytest.raises(ArgumentError, match=r"r\.csv is a folder"):
        check_results(tmp_path / "r.csv", force=True)
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="cannot be written"):
        write(tmp_path / "file" / "r.csv")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackageError, match=r"r\.parquet needs pyarrow"):
        check_results(tmp_path / "r.parquet")


def test_a_full_disk_is_one_line_and_the_job_goes_on_when_there_is_room(tmp_path):
    path, straight, many = tmp_path / "r.csv", tmp_path / "straight.csv", BATCHES * 50
    write(straight, many)
    with pytest.raises(FileError, match=r"r\.csv cannot be written: .*; free some space"), files_up_to(5000):
        write(path, many)
    assert 0 < path.stat().st_size <= 5000
    write(path, many, resume=True)
    assert path.read_bytes() == straight.read_bytes()
