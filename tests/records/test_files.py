"""Atomic writes, locks, records with checksums and signatures, and names that point outside a folder."""

import hashlib
import json
import os
import re
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import pytest
import torch
from msgspec import Meta
from support.disks import files_up_to, ordinary_user
from torch import nn

from oodles.data.readers import open_images
from oodles.errors import ArgumentError, DataError, FileError
from oodles.features import Features
from oodles.guard import Guard
from oodles.records import files
from oodles.records.files import (
    OWNED,
    Fields,
    check_output,
    locked,
    member,
    read_key,
    replacing,
    write_bytes,
    write_record,
    write_with,
)
from oodles.testing import example_features


def test_a_path_with_nul_is_refused_in_one_line(tmp_path):
    path = tmp_path / "a\0b.zip"
    features, guard = example_features(), Guard.fit(nn.Linear(4, 3), [torch.randn(200, 4)], detector="msp")
    for call in (
        features.save,
        Features.load,
        guard.save,
        guard.export,
        Guard.open,
        read_key,
        write_bytes_to,
        open_images,
    ):
        with pytest.raises((FileError, DataError), match=r"NUL|does not exist") as refused:
            call(path)
        assert len(str(refused.value).splitlines()) == 1


def write_bytes_to(path):
    write_bytes(path, b"", OWNED)


def raising(error):
    """Write half of a file and fail."""

    def write(temporary):
        temporary.write_bytes(b"ne")
        raise error

    return write


@pytest.mark.parametrize(
    ("write", "error", "fact"),
    [
        (raising(OSError("cannot write mode RGBA as JPEG")), OSError, "cannot write mode RGBA as JPEG"),
        (lambda _: Path("/dev/full").write_bytes(b"x"), FileError, "the disk is full; free some space"),
        (lambda temporary: temporary.write_bytes(bytes(50_000)), FileError, "File too large; free some space"),
    ],
)
def test_a_failed_write_leaves_the_old_file_and_no_temporary_one(tmp_path, write, error, fact):
    path = tmp_path / "file.safetensors"
    write_bytes(path, b"old", OWNED)
    with files_up_to(10_000), pytest.raises(error) as caught:
        write_with(path, write, OWNED)
    assert caught.type is error
    assert str(caught.value).startswith(f"{path} cannot be written: {fact}" if error is FileError else fact)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.safetensors"]


def test_a_folder_that_may_not_be_written_is_one_line_with_a_remedy(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o555)
    with ordinary_user(), pytest.raises(FileError) as caught:
        write_bytes(tmp_path / "locked" / "file", b"content", OWNED)
    assert str(caught.value) == (
        f"{tmp_path}/locked/file cannot be written: Permission denied; choose a folder that you may write to"
    )
    (tmp_path / "file").write_bytes(b"content")
    with pytest.raises(FileError, match=r"file/inside cannot be written: .+; choose another folder$"):
        write_bytes(tmp_path / "file" / "inside", b"content", OWNED)


def test_a_write_creates_its_folder_and_a_file_others_can_read(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    write_bytes(path, b"content", OWNED)
    assert path.read_bytes() == b"content"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_the_umask_holds_for_files_and_folders(tmp_path):
    before = os.umask(0o077)
    try:
        write_bytes(tmp_path / "file", b"content", OWNED)
        with replacing(tmp_path / "folder") as temporary:
            temporary.mkdir()
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("file", "folder")] == [0o600, 0o700]


def test_a_folder_is_forced_to_disk_after_a_rename(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append((os.fstat(file).st_ino, (tmp_path / "f").exists())))
    write_bytes(tmp_path / "f", b"content", OWNED)
    assert synced == [((tmp_path / "f").stat().st_ino, False), (tmp_path.stat().st_ino, True)]


PAGE = files.marked("a page", b"<page>")


@pytest.mark.parametrize("content", [b"mine", b"<pa", b"x" * 200_000 + b"<page>" + b"x" * 200_000])
def test_only_an_earlier_output_of_the_same_kind_is_replaced(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(FileError, match="file exists and is not a page that oodles wrote"):
        write_bytes(path, b"<page>", PAGE)
    assert path.read_bytes() == content
    for earlier in (b"", b"<page> 1", b"x" * 200_000 + b"<page>"):
        path.write_bytes(earlier)
        write_bytes(path, b"<page> 2", PAGE)
        assert path.read_bytes() == b"<page> 2"


def test_an_input_a_folder_a_link_and_a_pipe_are_not_replaced(tmp_path):
    path, link, pipe = tmp_path / "file", tmp_path / "link", tmp_path / "pipe"
    path.write_bytes(b"<page>")
    link.symlink_to(path)
    with pytest.raises(ArgumentError, match="file is an input"):
        check_output(path, PAGE, ["missing", "\0", link])
    link.unlink()
    link.symlink_to("nowhere")
    os.mkfifo(pipe)
    for each in (link, pipe):
        with pytest.raises(FileError, match="is not a page"):
            write_bytes(each, b"<page>", PAGE)
    with pytest.raises(ArgumentError, match="is a folder"):
        write_bytes(tmp_path, b"<page>", PAGE)


def read_thing(path, **options):
    return files.read_record(path, kind="thing", schema=1, **options)


def sealed(record):
    """What ``write_record`` writes."""
    body = json.dumps(record, sort_keys=True, separators=(",", ":"))
    return json.dumps({**record, "seal": hashlib.sha256(body.encode()).hexdigest()})


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (sealed({"kind": "thing", "schema": 1, "value": 0.25}).replace("0.25", "0.26"), "altered.*checksum mismatch"),
        ('{"kind": "thing", "schema": 1}', "checksum mismatch"),
        (sealed({"kind": "thing", "schema": 2}), "schema 2, this version of oodles reads schema 1"),
        (sealed({"kind": "guard", "schema": 1}), "not a record of kind 'thing'"),
        ('{"kind": "thing", "kind": "thing"}', "a key is there twice"),
        ('{"kind": "thing", "a": [{"b": 1, "b": 1}]}', "a key is there twice"),
        ('{"kind":' + "[" * 200_000, ""),
        *((content, "") for content in ("", "{", "\udcff\udcfe\0", "[]", "17", "null")),
    ],
)
def test_a_file_that_is_not_the_record_is_refused(tmp_path, content, fact):
    (tmp_path / "r.json").write_text(content, errors="surrogateescape")
    with pytest.raises(FileError, match=rf"r\.json.*{fact}"):
        read_thing(tmp_path / "r.json")


def nested(depth):
    return [] if depth == 1 else [nested(depth - 1)]


def test_records_have_limits_that_hold_for_writing_too(tmp_path):
    path, record = tmp_path / "r.json", {"kind": "thing", "schema": 1}
    write_record(path, {**record, "value": nested(files.MAX_DEPTH - 2)})
    read_thing(path)
    before = path.read_bytes()
    for value in (nested(files.MAX_DEPTH), "x" * files.MAX_BYTES):
        with pytest.raises(FileError, match="larger or more deeply nested than can be read again"):
            write_record(path, {**record, "value": value})
    assert path.read_bytes() == before
    path.write_text(json.dumps({**record, "value": nested(files.MAX_DEPTH)}))
    with pytest.raises(FileError, match="nested more than 64 deep"):
        read_thing(path)
    with path.open("wb") as file:
        file.truncate(10**12)  # no disk has to hold it, and no memory either
    with pytest.raises(FileError, match="1,000,000,000,000 bytes, more than the 16,777,216"):
        read_thing(path)


def test_only_regular_files_are_read(tmp_path):
    write_record(tmp_path / "real.json", {"kind": "thing", "schema": 1})
    (tmp_path / "link.json").symlink_to("real.json")
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    for name, fact in (
        ("nothing", "does not hold a saved thing"),
        ("folder", r"folder\.json"),
        ("link", r"link\.json is a symbolic link"),
        ("pipe", r"pipe\.json is not a regular file"),  # and does not wait for a writer
    ):
        with pytest.raises(FileError, match=fact):
            read_thing(tmp_path / f"{name}.json")
    assert member(tmp_path, "real.json") == tmp_path / "real.json"
    with pytest.raises(FileError, match="symbolic link"):
        member(tmp_path, "link.json")


class Sized(Fields):
    size: Annotated[int, Meta(ge=1)]
    name: str = "unnamed"


def test_fields_are_checked_and_missing_ones_filled_in(tmp_path):
    path = tmp_path / "r.json"
    write_record(path, {"kind": "thing", "schema": 1, "size": 3})
    assert read_thing(path, fields=Sized)["name"] == "unnamed"
    for record, problem in (
        ({"size": 0}, "Expected `int` >= 1 - at `$.size`"),
        ({"size": 1.5}, "Expected `int`, got `float` - at `$.size`"),
        ({"size": True}, "Expected `int`, got `bool` - at `$.size`"),
        ({"name": "x"}, "missing required field `size`"),
        ({"size": 1, "sise": 1}, "unknown field `sise`"),
    ):
        write_record(path, {"kind": "thing", "schema": 1, **record})
        with pytest.raises(FileError, match=re.escape(problem)):
            read_thing(path, fields=Sized)


# Locks and what killed writers leave ----------------------------------------------------------------


def test_a_folder_has_one_writer_at_a_time(tmp_path):
    waited = []

    def second():
        with locked(tmp_path / "new", seconds=20):
            waited.append(time.monotonic())

    with locked(tmp_path / "new"):
        with pytest.raises(FileError, match="new is being written by another process"):
            ThreadPoolExecutor(1).submit(lambda: locked(tmp_path / "new").__enter__()).result()
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.1)
        released = time.monotonic()
    thread.join()
    assert waited[0] >= released


def test_temporary_files_of_killed_writers_are_removed(tmp_path):
    def abandoned(age, folder=False):
        path = tmp_path / f".a.json{files.TEMPORARY}{age}{folder}.json"
        path.mkdir() if folder else path.write_bytes(b"half")
        os.utime(path, (time.time() - age, time.time() - age))
        return path

    day = 24 * 3600
    old, new, folder, kept = abandoned(day + 9), abandoned(day - 999), abandoned(day + 9, True), abandoned(9, True)
    write_bytes(tmp_path / "b.json", b"whole", OWNED)
    assert not old.exists()
    assert not folder.exists()
    assert new.exists(), "its writer may be alive"
    with locked(tmp_path):
        assert not new.exists(), "its writer would hold the lock"
        assert kept.exists(), "a folder is written without that lock"


# Signatures -----------------------------------------------------------------------------------------

KEY = bytes(range(32))


def test_a_signature_covers_the_whole_record(tmp_path):
    path, record = tmp_path / "r.json", {"kind": "thing", "schema": 1, "value": 0.25}
    write_record(path, record, KEY)
    assert read_thing(path, key=KEY).items() >= record.items()
    signed = {name: value for name, value in json.loads(path.read_text()).items() if name != "seal"}
    for forged in ({**signed, "value": 0.26}, {**signed, "signature": "é"}, {**signed, "signature": None}, record):
        path.write_text(sealed(forged))
        read_thing(path)  # anybody can compute a checksum
        with pytest.raises(FileError, match=r"is not signed|another key or altered"):
            read_thing(path, key=KEY)


def test_keys_are_long_and_may_be_in_a_file(tmp_path):
    (tmp_path / "key").write_bytes(KEY)
    assert read_key(tmp_path / "key") == read_key(str(tmp_path / "key")) == read_key(KEY) == KEY
    assert read_key(None) is None
    with pytest.raises(ArgumentError, match="a key of 15 bytes can be guessed; give at least 16"):
        read_key(KEY[:15])
    with pytest.raises(FileError, match=r"nowhere does not exist; give a file with a key"):
        read_key(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/b", "..", ".", "", "./x", "x/"])
def test_names_that_point_outside_the_folder_are_refused(tmp_path, name):
    with pytest.raises(FileError, match="outside the folder"):
        member(tmp_path, name)
