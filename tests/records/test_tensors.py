"""Files of tensors: read as they were written, whole, and of one save."""

import os

import pytest
import torch

from oodles.errors import FileError
from oodles.records.files import sha256
from oodles.records.tensors import read_saved, read_tensors, write_tensors


def test_tensors_are_read_bit_for_bit(tmp_path):
    tensors = {"a": torch.randn(3, 4).T, "b": torch.tensor(torch.nan), "c": torch.arange(5)}
    tensors["d"] = torch.ones(2).bfloat16()
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


def test_altered_missing_and_invalid_tensor_files_and_pipes_are_refused(tmp_path):
    entry = write_tensors(tmp_path, "stem", {"a": torch.zeros(64)})
    path = tmp_path / entry["file"]
    whole = path.read_bytes()
    for content in (whole[:-1], whole[:-1] + b"\x01", b""):
        path.write_bytes(content)
        with pytest.raises(FileError, match="SHA-256 does not match"):
            read_tensors(tmp_path, entry)
    path.unlink()
    with pytest.raises(FileError, match="does not exist; write it again"):
        read_tensors(tmp_path, entry)
    path.write_bytes(b"not tensors")
    with pytest.raises(FileError, match="not a safetensors file"):
        read_tensors(tmp_path, {"file": entry["file"], "sha256": sha256(path)})
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(FileError, match="is not a regular file"):
        read_tensors(tmp_path, {"file": "pipe.safetensors", "sha256": "0" * 64})


def test_tensors_that_a_writer_has_just_replaced_are_looked_for_again(tmp_path):
    old, new = ({"tensors": write_tensors(tmp_path, "t", {"a": torch.tensor(value)})} for value in (1.0, 2.0))
    (tmp_path / old["tensors"]["file"]).unlink()
    records = iter([old, old, new])
    record, tensors = read_saved(tmp_path, lambda: next(records))
    assert record is new
    assert tensors["a"] == 2
    with pytest.raises(FileError, match=r"t-\w+\.safetensors does not exist; write it again"):
        read_saved(tmp_path, lambda: old)
