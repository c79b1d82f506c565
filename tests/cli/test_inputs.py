"""What ``oodles score`` takes: arrays, a list on standard input, and anything together."""

import io
import shutil
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from support.command_line import NETWORK
from support.images import noise

from oodles.deploy.sources import MAX_LINE_BYTES, InputSequence
from oodles.errors import ArgumentError


@pytest.fixture
def listed(monkeypatch):
    """Put bytes on standard input."""

    def put(content):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return put


@pytest.fixture
def scored(fitted, json_of):
    """The rows that the command gives for some inputs."""
    return lambda *inputs: json_of("score", fitted / "guard", *inputs, *NETWORK)["verdicts"]


def paths(rows):
    return [row["path"] for row in rows]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(scored, workspace, tmp_path):
    for name in ("a[1].png", "a1.png"):
        shutil.copy(workspace / "test" / "red" / "000.png", tmp_path / name)
    assert paths(scored(tmp_path / "a[1].png")) == [str(tmp_path / "a[1].png")]


def test_arrays(scored, workspace, tmp_path):
    np.save(tmp_path / "many.npy", noise(40, 8, 8, 3))
    np.save(tmp_path / "one.npy", noise(8, 8, 3))
    np.save(tmp_path / "wrong.npy", np.zeros((2, 8, 8, 3)))
    rows = scored(tmp_path / "many.npy", tmp_path / "one.npy", tmp_path / "wrong.npy")
    many = [f"{tmp_path / 'many.npy'}[{place}]" for place in range(40)]
    assert paths(rows) == [*many, f"{tmp_path / 'one.npy'}[0]", str(tmp_path / "wrong.npy")]
    assert "give uint8" in rows[-1]["error"]
    assert {row["error"] for row in rows[:-1]} == {None}


def test_a_list_on_standard_input(scored, listed, workspace, tmp_path):
    np.save(tmp_path / "a.npy", noise(2, 8, 8, 3))
    lines = ["test/red/000.png", "", "nowhere.png", f"{tmp_path / 'a.npy'}\r", "grey", "empty", "damaged/broken.png"]
    listed("\n".join(lines).encode() + b"\ntest/red/caf\xe9.png\ntest/red/001.png")
    rows = scored("green/000.png", "-", "green/001.png")
    grey = [f"grey/{place:03}.png" for place in range(20)]
    array = [f"{tmp_path / 'a.npy'}[{place}]" for place in range(2)]
    before, after = ["green/000.png", "test/red/000.png", "nowhere.png", *array], ["test/red/001.png", "green/001.png"]
    assert paths(rows) == [*before, *grey, "empty", "damaged/broken.png", "test/red/caf\udce9.png", *after]
    errors = {row["path"]: row["error"] for row in rows if row["error"]}
    assert errors["nowhere.png"] == "does not exist"
    assert "holds no images" in errors["empty"]
    assert set(errors) == {"nowhere.png", "empty", "damaged/broken.png", "test/red/caf\udce9.png"}


def test_a_list_is_read_as_it_is_needed(fitted, monkeypatch, workspace):
    endless = Mock(return_value=b"green/000.png\n")
    stdin = SimpleNamespace(buffer=SimpleNamespace(readline=endless), isatty=lambda: False)
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.chdir(workspace)
    batches = InputSequence([Path("-")]).batches(5)
    assert next(batches).names == ["green/000.png"] * 5
    assert endless.call_count == 5


def test_a_line_without_an_end_takes_no_more_than_the_limit(scored, listed):
    listed(b"x" * (3 * MAX_LINE_BYTES))
    rows = scored("-")
    assert [len(row["path"]) for row in rows] == [MAX_LINE_BYTES] * 3
    assert all(row["error"] for row in rows)


def test_a_list_that_is_empty_or_not_there(fitted, listed, refused, monkeypatch):
    listed(b"\n\n")
    assert "standard input lists no paths" in refused("score", fitted / "guard", "-", *NETWORK)
    listed(b"a.png\n")
    assert "can be read only once" in refused("score", fitted / "guard", "-", "-", *NETWORK)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    with pytest.raises(ArgumentError, match="pipe one in"):
        InputSequence([Path("-")])


def test_of_an_image_only_its_name_stays_in_memory(tmp_path):
    folder = tmp_path / ("photos" * 20)
    folder.mkdir()
    for number in range(2000):
        (folder / f"{number:04}.jpg").touch()
    InputSequence([folder])
    tracemalloc.start()
    try:
        inputs = InputSequence([folder])
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert next(inputs.image_names) == str(folder / "0000.jpg")
    assert kept / inputs.total < 120
