"""Atomic writes, records with checksums, and names that point outside a folder."""

import json
import stat
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from support.disks import files_up_to, ordinary_user

from oodles.detectors import KNN
from oodles.errors import FileError
from oodles.features import Features
from oodles.files import member, read_record, read_tensors, sha256, write_bytes, write_record, write_tensors, write_with
from oodles.persistence import load_detector, save_detector


def test_a_failed_write_leaves_the_old_file_and_no_temporary_one(tmp_path):
    path = tmp_path / "file.json"
    write_bytes(path, b"old")

    def half_way(temporary):
        temporary.write_bytes(b"ne")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        write_with(path, half_way)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.json"]


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda temporary: temporary.write_bytes(bytes(50_000)), id="bytes"),
        pytest.param(lambda temporary: save_file({"a": torch.zeros(50_000)}, temporary), id="tensors"),
    ],
)
def test_a_file_that_does_not_fit_is_one_line_with_a_remedy(tmp_path, write):
    path = tmp_path / "file.safetensors"
    write_bytes(path, b"old")
    with files_up_to(10_000), pytest.raises(FileError) as caught:
        write_with(path, write)
    assert str(caught.value) == (
        f"{path} cannot be written: File too large; free some space or choose a folder on another disk, then run the "
        "same again"
    )
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.safetensors"]


def test_a_saved_detector_survives_a_replacement_that_does_not_fit(tmp_path):
    generator = torch.Generator().manual_seed(0)
    small, large = (
        KNN(k=1).fit(Features(embedding=torch.randn(rows, 8, generator=generator), logits=torch.zeros(rows, 2)))
        for rows in (10, 1000)
    )
    save_detector(small, tmp_path)
    before = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()}
    with files_up_to(10_000), pytest.raises(FileError, match=r"detector-\w+\.safetensors cannot be written: File too"):
        save_detector(large, tmp_path)
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == before
    assert torch.equal(load_detector(tmp_path).bank_, small.bank_)


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs a device that is always full")
def test_a_full_disk_is_called_full(tmp_path):
    with pytest.raises(FileError, match=r"a\.png cannot be written: the disk is full; free some space"):
        write_with(tmp_path / "a.png", lambda _: Path("/dev/full").write_bytes(b"x"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "Error while serializing: I/O error: No space left on device (os error 28)",
        'Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "No space left on device" })',
    ],
)
def test_every_version_of_safetensors_is_understood(tmp_path, text):
    def fail(_):
        raise SafetensorError(text)

    with pytest.raises(FileError, match="the disk is full"):
        write_with(tmp_path / "a", fail)


def test_errors_that_are_not_of_the_operating_system_are_left_alone(tmp_path):
    for error in (OSError("cannot write mode RGBA as JPEG"), SafetensorError("tensors share memory")):

        def fail(_, error=error):
            raise error

        with pytest.raises(type(error)) as caught:
            write_with(tmp_path / "a", fail)
        assert caught.value is error


def test_a_folder_that_may_not_be_written_is_one_line_with_a_remedy(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o555)
    with ordinary_user(), pytest.raises(FileError) as caught:
        write_bytes(tmp_path / "locked" / "file", b"content")
    assert str(caught.value) == (
        f"{tmp_path}/locked/file cannot be written: Permission denied; choose a folder that you may write to"
    )
    (tmp_path / "file").write_bytes(b"content")
    with pytest.raises(FileError, match=r"file/inside cannot be written: .+; choose another folder$"):
        write_bytes(tmp_path / "file" / "inside", b"content")


def test_a_write_creates_its_folder_and_a_file_others_can_read(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    write_bytes(path, b"content")
    assert path.read_bytes() == b"content"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_sha256_of_a_known_file(tmp_path):
    (tmp_path / "abc").write_bytes(b"abc")
    assert sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_record_is_read_as_it_was_written(tmp_path):
    record = {"kind": "thing", "schema": 3, "list": [1, 2.5, None], "text": "größer"}
    write_record(tmp_path / "r.json", record)
    assert read_record(tmp_path / "r.json", kind="thing", schema=3) == record


def test_a_record_altered_by_one_character_is_refused(tmp_path):
    path = tmp_path / "r.json"
    write_record(path, {"kind": "thing", "schema": 1, "value": 0.25})
    path.write_text(path.read_text().replace("0.25", "0.26"))
    with pytest.raises(FileError, match=r"r\.json was altered.*checksum mismatch"):
        read_record(path, kind="thing", schema=1)


def test_a_record_without_a_checksum_is_refused(tmp_path):
    (tmp_path / "r.json").write_text(json.dumps({"kind": "thing", "schema": 1}))
    with pytest.raises(FileError, match="checksum mismatch"):
        read_record(tmp_path / "r.json", kind="thing", schema=1)


def test_records_of_another_schema_or_kind_are_refused(tmp_path):
    path = tmp_path / "r.json"
    write_record(path, {"kind": "thing", "schema": 2})
    with pytest.raises(FileError, match="schema 2, this version of oodles reads schema 1"):
        read_record(path, kind="thing", schema=1)
    with pytest.raises(FileError, match="does not describe a guard"):
        read_record(path, kind="guard", schema=2)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"[]", b"17", b"null"])
def test_a_file_that_is_not_a_record_is_refused(tmp_path, content):
    (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(FileError, match=r"r\.json"):
        read_record(tmp_path / "r.json", kind="thing", schema=1)


def test_json_nested_too_deeply_is_refused(tmp_path):
    (tmp_path / "r.json").write_text('{"kind":' + "[" * 200_000)
    with pytest.raises(FileError, match=r"r\.json"):
        read_record(tmp_path / "r.json", kind="thing", schema=1)


def test_a_missing_record_and_a_folder_in_its_place_are_refused(tmp_path):
    with pytest.raises(FileError, match="does not hold a saved thing"):
        read_record(tmp_path / "r.json", kind="thing", schema=1)
    (tmp_path / "r.json").mkdir()
    with pytest.raises(FileError, match=r"r\.json"):
        read_record(tmp_path / "r.json", kind="thing", schema=1)


def test_tensors_are_read_bit_for_bit(tmp_path):
    tensors = {
        "a": torch.randn(3, 4).T,
        "b": torch.tensor(float("nan")),
        "c": torch.arange(5),
        "d": torch.ones(2).bfloat16(),
    }
    entry = write_tensors(tmp_path, "stem", tensors)
    assert entry["file"] == f"stem-{entry['sha256'][:12]}.safetensors"
    assert sha256(tmp_path / entry["file"]) == entry["sha256"]
    back = read_tensors(tmp_path, entry)
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(torch.nan_to_num(back[name]), torch.nan_to_num(tensor))
        assert torch.equal(back[name].isnan(), tensor.isnan())


def test_tensors_that_overlap_are_written_separately(tmp_path):
    whole = torch.arange(6.0)
    tensors = {"whole": whole, "tied": whole, "start": whole[:4], "end": whole[1:], "none": torch.zeros(0)}
    back = read_tensors(tmp_path, write_tensors(tmp_path, "stem", tensors))
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


def test_different_tensors_have_different_file_names(tmp_path):
    first = write_tensors(tmp_path, "stem", {"a": torch.zeros(2)})
    second = write_tensors(tmp_path, "stem", {"a": torch.ones(2)})
    assert first["file"] != second["file"]
    assert torch.equal(read_tensors(tmp_path, first)["a"], torch.zeros(2))


def test_altered_missing_and_invalid_tensor_files_are_refused(tmp_path):
    entry = write_tensors(tmp_path, "stem", {"a": torch.zeros(64)})
    path = tmp_path / entry["file"]
    whole = path.read_bytes()
    for content in (whole[:-1], whole[:-1] + b"\x01", b""):
        path.write_bytes(content)
        with pytest.raises(FileError, match="SHA-256 does not match"):
            read_tensors(tmp_path, entry)
    path.unlink()
    with pytest.raises(FileError, match="cannot be read"):
        read_tensors(tmp_path, entry)
    path.write_bytes(b"not tensors")
    with pytest.raises(FileError, match="not a safetensors file"):
        read_tensors(tmp_path, {"file": entry["file"], "sha256": sha256(path)})


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/b", "..", ".", "", "./x", "x/"])
def test_names_that_point_outside_the_folder_are_refused(tmp_path, name):
    with pytest.raises(FileError, match="outside the folder"):
        member(tmp_path, name)


def test_symbolic_links_are_refused(tmp_path):
    (tmp_path / "real").write_bytes(b"content")
    (tmp_path / "link").symlink_to("real")
    assert member(tmp_path, "real") == tmp_path / "real"
    with pytest.raises(FileError, match="symbolic link"):
        member(tmp_path, "link")
