"""The store: one writer at a time, resuming, and refusing files that are altered, incomplete or not its own."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap

import pytest
import torch
from safetensors.torch import save_file
from support.disks import files_up_to, ordinary_user

from oodles.errors import ArgumentError, DataError, FileError
from oodles.features import Features, Head
from oodles.records.files import sha256, write_record
from oodles.records.tensors import write_tensors
from oodles.store import Store, Writer, is_store, open_writer, read_manifest, stored_rows

ABOUT = {"model": "a" * 64, "dtype": "torch.float32"}


def part(start, rows=4):
    values = torch.arange(start, start + rows * 3, dtype=torch.float32).reshape(rows, 3)
    return {"embedding": values, "logits": values + 0.5}


def write(path, shards=2, *, finish=True, about=ABOUT):
    with open_writer(path, about, "a note") as writer:
        for number in range(len(writer.shards), shards):
            writer.append(part(100 * number), f"inputs {number}", (number, number + 1))
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
    assert store.head is None
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


PREPROCESSING = {"size": 224, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
NAMES = [f"class number {number}" for number in range(100)]
LAYERS = ["a_long_name_for_a_part_of_the_network.block", "a_long_name_for_another_part_of_the_network.block"]


@pytest.mark.parametrize(
    ("stored", "asked", "difference"),
    [
        (
            {"preprocessing": PREPROCESSING},
            {"preprocessing": {**PREPROCESSING, "mean": [0.5, 0.5, 0.5]}},
            "preprocessing.mean ([0.485, 0.456, 0.406], not [0.5, 0.5, 0.5])",
        ),
        ({"preprocessing": PREPROCESSING}, {"preprocessing": None}, "preprocessing ({'size': 224, '..., not None)"),
        ({"model": "a" * 64}, {"model": "b" * 64}, f"model ({'a' * 15}..., not {'b' * 15}...)"),
        ({"model": "a" * 64}, {}, f"model ({'a' * 15}..., not None)"),
        ({"layers": LAYERS}, {"layers": LAYERS[::-1]}, f"layers[0] ({LAYERS[0]}, not {LAYERS[1]})"),
        ({"names": NAMES}, {"names": NAMES[:99]}, "names (100 entries, not 99)"),
        ({"names": NAMES}, {"names": [*NAMES[:99], "x"]}, "names[99] (class number 99, not x)"),
        ({"head": None}, {"head": False}, "head (None, not False)"),
        ({}, {"names": ["cat"]}, "names (None, not ['cat'])"),
        ({"count": 0}, {}, "count (0, not None)"),
    ],
)
def test_the_part_that_differs_is_shown(tmp_path, stored, asked, difference):
    write(tmp_path / "s", about=stored, finish=False)
    before = contents(tmp_path / "s")
    with pytest.raises(FileError, match=re.escape(f"s was written with another {difference}; ")):
        write(tmp_path / "s", about=asked)
    assert contents(tmp_path / "s") == before
    write(tmp_path / "s", about=stored)  # the lock was released


def test_tuples_are_no_difference_and_what_is_not_plain_is_refused(tmp_path):
    about = {"preprocessing": {"mean": (0.5, 0.5, 0.5)}}
    write(tmp_path / "s", shards=1, finish=False, about=about)
    write(tmp_path / "s", shards=2, about=about)
    other = {"preprocessing": {"mean": torch.zeros(3)}}
    with (
        pytest.raises(ArgumentError, match=r"t can only record plain values .*Tensor"),
        open_writer(tmp_path / "t", other),
    ):
        pass


# Disks that refuse ------------------------------------------------------------------------------


def contents(folder):
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


def test_a_shard_that_does_not_fit_leaves_those_before_it(tmp_path):
    write(tmp_path / "s", shards=2, finish=False)
    before = contents(tmp_path / "s")
    with open_writer(tmp_path / "s", ABOUT) as writer, files_up_to(10_000), pytest.raises(FileError) as caught:
        writer.append(part(200, rows=1000), "inputs 2", (2, 3))
    line = str(caught.value)
    assert line.startswith(f"{tmp_path / 's' / 'shard-00002.safetensors'} cannot be written: File too large; free some")
    assert line.endswith("run the same again (the 8 rows before it are kept)")
    assert contents(tmp_path / "s") == before
    write(tmp_path / "s", shards=3)
    assert [shard.rows for shard in Store(tmp_path / "s").shards] == [4, 4, 4]


def test_a_manifest_that_does_not_fit_leaves_the_shards_before_it(tmp_path):
    write(tmp_path / "s", shards=2, finish=False)
    before = contents(tmp_path / "s")
    with open_writer(tmp_path / "s", ABOUT) as writer:
        # one more shard fits, but not the manifest that lists it
        with files_up_to(len(before["manifest.json"])), pytest.raises(FileError, match=r"manifest\.json cannot be"):
            writer.append(part(200), "inputs 2", (2, 3))
        assert len(writer.shards) == 2
        assert contents(tmp_path / "s") == before
        with files_up_to(100), pytest.raises(FileError, match=r"manifest\.json cannot be written"):
            writer.finish()
        assert not writer.complete
        writer.append(part(200), "inputs 2", (2, 3))
    assert stored_rows(read_manifest(tmp_path / "s")) == 12


@pytest.mark.parametrize("limit", [0, 2000], ids=["no manifest", "no shard"])
def test_a_store_for_which_nothing_fits_is_removed(tmp_path, limit):
    with (
        files_up_to(limit),
        pytest.raises(FileError, match=r"s/.+ cannot be written: File too large; free some space"),
        open_writer(tmp_path / "s", ABOUT) as writer,
    ):
        writer.append(part(0, rows=1000), "inputs 0", (0, 1))
    assert list(tmp_path.iterdir()) == []


def test_a_shard_that_may_not_be_read_is_refused(tmp_path):
    write(tmp_path / "s")
    (shard, *_) = Store(tmp_path / "s").shards
    shard.path.chmod(0)
    with ordinary_user(), pytest.raises(FileError, match=r"shard-00000.* cannot be read \(Permission denied\)"):
        shard.columns()


# Heads and files --------------------------------------------------------------------------------


def test_another_head_on_resume_is_refused(tmp_path):
    head = Head(torch.ones(2, 3), torch.zeros(2))
    with open_writer(tmp_path / "s", ABOUT) as writer:
        writer.write_head(head)
        writer.append(part(0), "x", (0, 1))
    for other in (Head(torch.zeros(2, 3), torch.zeros(2)), Head(torch.ones(2, 3))):
        with open_writer(tmp_path / "s", ABOUT) as writer, pytest.raises(FileError, match="another last layer"):
            writer.write_head(other)
    with open_writer(tmp_path / "s", ABOUT) as writer:
        writer.write_head(head)


def test_a_folder_with_other_files_is_refused_and_left_as_it_was(tmp_path):
    (tmp_path / "thesis.tex").write_text("text")
    with pytest.raises(FileError, match=r"other files \(thesis\.tex"), open_writer(tmp_path, ABOUT):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "s").write_text("x")
    with pytest.raises(FileError, match="is a file"), open_writer(tmp_path / "s", ABOUT):
        pass
    with pytest.raises(FileError, match="a feature store is a folder"):
        Features.load(tmp_path / "s")
    with pytest.raises(FileError, match="does not exist"):
        Features.load(tmp_path / "nowhere")


HOLD = """
    import sys
    from pathlib import Path
    from oodles.store import open_writer
    with open_writer(Path(sys.argv[1]), {}):
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
        with pytest.raises(FileError, match="being written by another process"), open_writer(tmp_path / "s", {}):
            pass
    finally:
        # killed without cleaning up: the lock must not outlive its process
        holder.kill()
        holder.communicate()
    with open_writer(tmp_path / "s", {}) as writer:
        assert writer.shards == []


def test_a_pipe_in_place_of_a_shard_is_refused_and_not_waited_for(tmp_path):
    write(tmp_path / "s")
    shard = tmp_path / "s" / "shard-00000.safetensors"
    rewrite(tmp_path / "s", lambda manifest: manifest["shards"][0].update(bytes=0))
    shard.unlink()
    os.mkfifo(shard)
    with pytest.raises(FileError, match="not a regular file"):
        Store(tmp_path / "s").shards[0].columns()


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "..", "sub/shard"])
def test_a_manifest_that_points_outside_the_folder_is_refused(tmp_path, name):
    write(tmp_path / "s")
    (tmp_path / "secret").write_bytes((tmp_path / "s" / "shard-00000.safetensors").read_bytes())
    rewrite(tmp_path / "s", lambda manifest: manifest["shards"][0].update(file=name))
    with pytest.raises(FileError, match="outside the folder"):
        Store(tmp_path / "s")
    rewrite(tmp_path / "s", lambda manifest: manifest.update(head={"file": name, "sha256": "0" * 64}))
    with pytest.raises(FileError, match="outside the folder"):
        Store(tmp_path / "s")


def test_a_missing_or_shortened_shard_is_refused_with_a_remedy_that_works(tmp_path):
    for damage in (lambda shard: shard.unlink(), lambda shard: shard.write_bytes(b"half")):
        write(tmp_path / "s")
        damage(tmp_path / "s" / "shard-00001.safetensors")
        with pytest.raises(FileError, match=rf"shard-00001.*; delete the folder {tmp_path / 's'}"):
            Store(tmp_path / "s")
        shutil.rmtree(tmp_path / "s")
    write(tmp_path / "s")
    assert len(Store(tmp_path / "s").shards) == 2


def test_a_shard_that_is_not_a_safetensors_file_is_refused(tmp_path):
    write(tmp_path / "s")
    shard = tmp_path / "s" / "shard-00000.safetensors"
    shard.write_bytes(b"\xff" * 40)
    rewrite(tmp_path / "s", lambda manifest: manifest["shards"][0].update(bytes=40, sha256=sha256(shard)))
    with pytest.raises(FileError, match=r"shard-00000.* is not a shard"):
        Store(tmp_path / "s").shards[0].columns()


# Manifests that do not match their files ----------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (lambda columns: {name: column[:3] for name, column in columns.items()}, "has 3 rows, not 4"),
        (lambda columns: {**columns, "labels": torch.zeros(4).long()}, "its columns are embedding, labels, logits"),
        (lambda columns: {"embedding": columns["embedding"]}, "its columns are embedding, not embedding, logits"),
        (lambda columns: {**columns, "logits": torch.zeros(4, 5)}, "not of the same type and width as in the other"),
        (lambda columns: {**columns, "logits": columns["logits"].half()}, "not of the same type and width"),
        (lambda columns: {**columns, "logits": columns["logits"][:3]}, "columns differ in rows"),
        (lambda columns: {**columns, "logits": columns["logits"].long()}, "must be a floating-point tensor"),
        (lambda columns: {**columns, "logits": columns["logits"].log()}, "NaN or infinite values"),
    ],
)
def test_a_shard_must_be_as_the_manifest_says(tmp_path, change, fact):
    write(tmp_path / "s")
    shard = tmp_path / "s" / "shard-00001.safetensors"
    save_file(change({name: column - 100.5 for name, column in part(100).items()}), shard)
    entry = {"bytes": shard.stat().st_size, "sha256": sha256(shard)}
    rewrite(tmp_path / "s", lambda manifest: manifest["shards"][1].update(entry))
    first, second = Store(tmp_path / "s").shards
    first.columns()
    with pytest.raises(FileError, match=rf"shard-00001.* is not a shard of this store \(.*{fact}.*; delete") as caught:
        second.columns()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "head",
    [
        {"weight": torch.ones(3, 3), "bias": torch.ones(4)},
        {"weight": torch.ones(3)},
        {"bias": torch.ones(3)},
        {"weight": torch.ones(3, 3), "scale": torch.ones(3)},
        {"weight": torch.full((3, 3), torch.inf)},
        {"weight": torch.ones(3, 3).long()},
        {"weight": torch.ones(3, 3), "bias": torch.ones(3).double()},
        {"weight": torch.ones(3, 3).to(torch.float8_e4m3fn)},
    ],
)
def test_a_head_must_be_a_last_layer(tmp_path, head):
    write(tmp_path / "s")
    entry = write_tensors(tmp_path / "s", "head", head)
    rewrite(tmp_path / "s", lambda manifest: manifest.update(head=entry))
    with pytest.raises(FileError, match=r"head-\w+\.safetensors is not the weight and bias"):
        Features.load(tmp_path / "s")


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"complete": "yes"}, "complete"),
        ({"columns": "embedding"}, "columns"),
        ({"shards": {}}, "shards"),
        ({"head": "fc"}, "head"),
        ({"class_names": [1, 2]}, r"class_names\[0\]"),
        ({"multilabel": None}, "multilabel"),
        ({"about": []}, "about"),
        ({"shards": [{"file": "shard-00000.safetensors", "rows": -1}]}, r"shards\[0\].rows"),
    ],
)
def test_every_field_of_a_manifest_has_its_type_and_range(tmp_path, change, place):
    write(tmp_path / "s")
    rewrite(tmp_path / "s", lambda manifest: manifest.update(change))
    for attempt in (lambda: Features.load(tmp_path / "s"), lambda: write(tmp_path / "s", 3)):
        with pytest.raises(FileError, match=rf"manifest\.json is not as .* at `\$\.{place}`"):
            attempt()


def test_a_complete_store_has_rows_and_a_name_for_each_class(tmp_path):
    features = Features(torch.rand(4, 3), head=Head(torch.rand(2, 3)), class_names=("cat", "dog"))
    for number, change in enumerate(({"shards": []}, {"class_names": ["cat"]})):
        features.save(tmp_path / f"{number}")
        rewrite(tmp_path / f"{number}", lambda manifest, change=change: manifest.update(change))
        with pytest.raises(FileError, match=r"is complete but has (no rows|1 names for 2 classes)"):
            Features.load(tmp_path / f"{number}")


# Interrupted writers --------------------------------------------------------------------------------


def test_an_interrupted_save_can_be_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr("oodles.features.SHARD_ELEMENTS", 30)
    features, append = Features(torch.rand(40, 3), head=Head(torch.rand(2, 3))), Writer.append

    def stop(self, *given):
        if len(self.shards) == 2:
            raise KeyboardInterrupt
        append(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "append", stop)
        with pytest.raises(KeyboardInterrupt):
            features.save(tmp_path / "s")
    with pytest.raises(FileError, match="unfinished"):
        Features.load(tmp_path / "s")
    other = Features(torch.rand(35, 3), head=features.head)
    other.save(tmp_path / "s")
    assert torch.equal(Features.load(tmp_path / "s").embedding, other.embedding)
    assert len([*(tmp_path / "s").glob("shard-*")]) == len(Store(tmp_path / "s").shards) == 4
    with pytest.raises(DataError, match="already holds features"):
        features.save(tmp_path / "s")


def test_a_save_does_not_begin_an_extraction_again(tmp_path):
    write(tmp_path / "s", shards=1, finish=False)
    with pytest.raises(FileError, match="was written with another"):
        Features(torch.rand(4, 3), logits=torch.rand(4, 3)).save(tmp_path / "s")
    write(tmp_path / "s", shards=2)
    assert len(Store(tmp_path / "s").shards) == 2


def test_a_writer_continues_where_a_killed_one_stopped_and_removes_what_it_left(tmp_path):
    write(tmp_path / "s", shards=1, finish=False)
    kept = contents(tmp_path / "s")
    for name in (".shard-00001.safetensors.oodles-x1.safetensors", "shard-00001.safetensors", "head-00.safetensors"):
        (tmp_path / "s" / name).write_bytes(b"half")
    write(tmp_path / "s", shards=1, finish=False)
    assert contents(tmp_path / "s") == kept
    (tmp_path / "s" / "shard-00001.safetensors").write_bytes(b"half")
    write(tmp_path / "s", shards=3)
    for number, shard in enumerate(Store(tmp_path / "s").shards):
        assert torch.equal(shard.columns()["embedding"], part(100 * number)["embedding"])
