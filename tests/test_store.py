"""The store: one writer at a time, resuming, and refusing files that are altered, incomplete or not its own."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch

from oodles.errors import FileError
from oodles.features import Features
from oodles.files import sha256, write_record
from oodles.store import Shard, Store, Writer, is_store, read_manifest, stored_rows

ABOUT = {"model": "a" * 64, "dtype": "torch.float32"}


def part(start, rows=4):
    values = torch.arange(start, start + rows * 3, dtype=torch.float32).reshape(rows, 3)
    return {"embedding": values, "logits": values + 0.5}


def write(path, shards=2, *, finish=True, about=ABOUT):
    with Writer(path, about, "a note") as writer:
        for number in range(len(writer.shards), shards):
            writer.append(part(100 * number), f"inputs {number}")
        if finish:
            writer.finish()


def rewrite(path, change):
    """Alter the manifest and update its checksum, as somebody who knows the format could."""
    manifest = json.loads((path / "manifest.json").read_text())
    manifest.pop("seal")
    change(manifest)
    write_record(path / "manifest.json", manifest)


def test_what_was_written_is_read(tmp_path):
    write(tmp_path / "s")
    store = Store(tmp_path / "s")
    assert store.columns == ["embedding", "logits"]
    assert store.head == {}
    assert [shard.rows for shard in store.shards] == [4, 4]
    for number, shard in enumerate(store.shards):
        for name, column in part(100 * number).items():
            assert torch.equal(shard.columns()[name], column)
    manifest = read_manifest(tmp_path / "s")
    assert manifest["note"] == "a note"
    assert manifest["about"] == ABOUT
    assert stored_rows(manifest) == 8
    assert is_store(tmp_path / "s")
    assert not is_store(tmp_path)


def test_a_writer_continues_where_the_last_one_stopped(tmp_path):
    write(tmp_path / "s", shards=1, finish=False)
    write(tmp_path / "s", shards=3)
    whole = torch.cat([shard.columns()["embedding"] for shard in Store(tmp_path / "s").shards])
    assert torch.equal(whole, torch.cat([part(0)["embedding"], part(100)["embedding"], part(200)["embedding"]]))


def test_a_shard_that_was_written_but_never_listed_is_written_again(tmp_path):
    # a process killed between writing the shard and the manifest leaves exactly this
    write(tmp_path / "s", shards=1, finish=False)
    (tmp_path / "s" / "shard-00001.safetensors").write_bytes(b"half a sha")
    (tmp_path / "s" / ".shard-00001.safetensors.x1.safetensors").write_bytes(b"temporary")
    write(tmp_path / "s", shards=2)
    assert torch.equal(Store(tmp_path / "s").shards[1].columns()["logits"], part(100)["logits"])


def test_an_unfinished_store_is_not_loaded(tmp_path):
    write(tmp_path / "s", shards=2, finish=False)
    with pytest.raises(FileError, match=r"unfinished \(8 rows so far\)"):
        Features.load(tmp_path / "s")


@pytest.mark.parametrize(
    ("key", "value"), [("model", "b" * 64), ("dtype", "torch.float16"), ("head", "fc"), ("model", None)]
)
def test_a_store_of_another_extraction_is_refused_and_the_difference_reported(tmp_path, key, value):
    write(tmp_path / "s", finish=False)
    asked = {name: entry for name, entry in {**ABOUT, key: value}.items() if entry is not None}
    before = (tmp_path / "s" / "manifest.json").read_bytes()
    with pytest.raises(FileError, match=rf"another {key} "), Writer(tmp_path / "s", asked):
        pass
    assert (tmp_path / "s" / "manifest.json").read_bytes() == before
    write(tmp_path / "s")  # the lock was released


def test_another_head_on_resume_is_refused(tmp_path):
    head = {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}
    with Writer(tmp_path / "s", ABOUT) as writer:
        writer.write_head(head)
        writer.append(part(0), "x")
    for other in ({"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}, {"weight": torch.ones(2, 3)}):
        with Writer(tmp_path / "s", ABOUT) as writer, pytest.raises(FileError, match="another last layer"):
            writer.write_head(other)
    with Writer(tmp_path / "s", ABOUT) as writer:
        writer.write_head(head)


def test_a_folder_with_other_files_is_refused_and_left_as_it_was(tmp_path):
    (tmp_path / "thesis.tex").write_text("text")
    with pytest.raises(FileError, match=r"other files \(thesis\.tex"), Writer(tmp_path, ABOUT):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "s").write_text("x")
    with pytest.raises(FileError, match="is a file"), Writer(tmp_path / "s", ABOUT):
        pass
    with pytest.raises(FileError, match="a feature store is a folder"):
        Features.load(tmp_path / "s")
    with pytest.raises(FileError, match="does not exist"):
        Features.load(tmp_path / "nowhere")


HOLD = """
    import sys
    from pathlib import Path
    from oodles.store import Writer
    with Writer(Path(sys.argv[1]), {}):
        print("locked", flush=True)
        sys.stdin.readline()
"""


def test_two_processes_cannot_write_the_same_store(tmp_path):
    script = tmp_path / "hold.py"
    script.write_text(textwrap.dedent(HOLD))
    holder = subprocess.Popen(
        [sys.executable, script, tmp_path / "s"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(FileError, match="being written by another process"), Writer(tmp_path / "s", {}):
            pass
    finally:
        # killed without cleaning up: the lock must not outlive its process
        holder.kill()
        holder.communicate()
    with Writer(tmp_path / "s", {}) as writer:
        assert writer.shards == []


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "..", "sub/shard"])
def test_a_manifest_that_points_outside_the_folder_is_refused(tmp_path, name):
    write(tmp_path / "s")
    (tmp_path / "secret").write_bytes((tmp_path / "s" / "shard-00000.safetensors").read_bytes())
    rewrite(tmp_path / "s", lambda manifest: manifest["shards"][0].update(file=name))
    with pytest.raises(FileError, match="outside the folder"):
        Store(tmp_path / "s")
    rewrite(tmp_path / "s", lambda manifest: manifest.update(head={"file": name, "sha256": "0"}))
    with pytest.raises(FileError, match="outside the folder"):
        Store(tmp_path / "s")


def test_a_linked_shard_is_refused(tmp_path):
    write(tmp_path / "s")
    shard = tmp_path / "s" / "shard-00001.safetensors"
    os.rename(shard, tmp_path / "elsewhere")  # noqa: PTH104
    shard.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileError, match=r"shard-00001.*symbolic link"):
        Store(tmp_path / "s")


def test_a_manifest_edited_by_hand_is_refused(tmp_path):
    write(tmp_path / "s")
    manifest = tmp_path / "s" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"rows": 4', '"rows": 3', 1))
    with pytest.raises(FileError, match="checksum mismatch"):
        Store(tmp_path / "s")


def test_a_newer_store_is_refused_with_a_remedy(tmp_path):
    write(tmp_path / "s")
    rewrite(tmp_path / "s", lambda manifest: manifest.update(schema=2))
    for attempt in (lambda: Store(tmp_path / "s"), lambda: write(tmp_path / "s", 5)):
        with pytest.raises(FileError, match=r"schema 2.*use the one that wrote it"):
            attempt()


def test_a_shard_that_is_not_a_safetensors_file_is_refused(tmp_path):
    write(tmp_path / "s")
    shard = tmp_path / "s" / "shard-00000.safetensors"
    shard.write_bytes(b"\xff" * 40)
    entry = {"rows": 4, "bytes": 40, "sha256": sha256(shard)}
    with pytest.raises(FileError, match=r"shard-00000.* is not a shard"):
        Shard(shard, entry).columns()
