"""Writing a store: shard by shard, by one process or several, so that a killed one can be continued."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from oodles.errors import DataError, FileError, OodlesError
from oodles.head import Head
from oodles.records.files import LOCK, OWNED, Record, locked, read_record, remove, write_bytes, write_record, writing
from oodles.records.tensors import serialise, write_tensors
from oodles.store.manifest import (
    FAILED,
    KIND,
    MANIFEST,
    PART,
    SCHEMA,
    PartFields,
    check_same,
    plain,
    read_manifest,
    stored_rows,
)
from oodles.store.reading import read_head


class Part:
    """The shards that one of several processes writes beside the first, whose :class:`Writer` takes them over."""

    def __init__(self, path: Path, rank: int) -> None:
        self.path = path
        self.manifest: Record = {"kind": PART, "schema": SCHEMA, "columns": [], "shards": []}
        self._file = path / f"part-{rank:05d}.json"  # of the record

    @property
    def shards(self) -> list[Record]:
        """The shards that are completely on disk, in order."""
        entries: list[Record] = self.manifest["shards"]
        return entries

    def append(
        self,
        columns: Mapping[str, Tensor],
        inputs: str,
        batches: tuple[int, int],
        bad_rows: Sequence[int] = (),
    ) -> None:
        """Write one shard, then the record that lists it; ``inputs`` is the digest of the images it came from.

        ``batches`` are the loader's batches that they are in, and ``bad_rows`` those among them that have no row.
        If that fails, for example because the disk is full, the shards before it stay as they were.
        """
        file = f"shard-{batches[0]:05d}.safetensors"
        path = self.path / file
        content = serialise(columns)
        entry = {
            "file": file,
            "rows": len(next(iter(columns.values()))),
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "inputs": inputs,
            "bad_rows": list(bad_rows),
            "batches": batches,
        }
        try:
            write_bytes(path, content, OWNED)
            self._record({"shards": sorted([*self.shards, entry], key=_first_batch), "columns": sorted(columns)})
        except FileError as error:
            remove(path)
            kept = f" (the {stored_rows(self.manifest):,} rows before it are kept)" if self.shards else ""
            raise FileError(f"{error}{kept}") from None

    def _record(self, changes: Record) -> None:
        """Change the record, first on disk, so that it never lists what is not there."""
        manifest = {**self.manifest, **changes}
        write_record(self._file, manifest)
        self.manifest = manifest


class Writer(Part):
    """Appends shards to a store, whose lock :func:`open_writer` holds."""

    def __init__(self, path: Path, manifest: Record) -> None:
        self.path, self.manifest, self._file = path, manifest, path / MANIFEST

    def take_parts(self) -> None:
        """List the shards that other processes have written, in the order of their batches."""
        records = [read_record(path, kind=PART, schema=SCHEMA, fields=PartFields) for path in _parts(self.path)]
        listed = {entry["file"] for entry in self.shards}
        new = [entry for record in records for entry in record["shards"] if entry["file"] not in listed]
        columns = {tuple(names) for each in (self.manifest, *records) if (names := each["columns"])}
        if len(columns) > 1:
            differing = ", ".join(sorted(set.union(*map(set, columns)) - set.intersection(*map(set, columns))))
            raise DataError(
                f"some batches have {differing} and some do not; all batches must have the same parts; "
                f"delete {self.path} and extract again"
            )
        if new:
            shards = sorted([*self.shards, *new], key=_first_batch)
            self._record({"shards": shards, "columns": list(*columns)})
        for path in _parts(self.path):
            path.unlink(missing_ok=True)

    @property
    def complete(self) -> bool:
        """Whether the store is finished."""
        return bool(self.manifest["complete"])

    def write_head(self, head: Head) -> None:
        """Store the last layer with the rows; on resume it must be the one the store was begun with."""
        stored = read_head(self.path, self.manifest)
        if stored is None:
            self.manifest["head"] = write_tensors(self.path, "head", head.tensors())
        elif not stored.same_as(head):
            raise FileError(f"{self.path} was begun with another last layer; choose another store")

    def finish(self) -> None:
        """Mark the store complete."""
        self._record({"complete": True})

    def stamp(self, stamp: str) -> None:
        """Record by what the loader of a complete store is recognised without reading its inputs."""
        if stamp != self.manifest["stamp"]:
            self._record({"stamp": stamp})


@contextmanager
def open_writer(path: Path, about: Mapping[str, Any], note: str = "", *, restart: bool = False) -> Iterator[Writer]:
    """Open a store to append shards to it, under a lock; an unfinished store is continued.

    ``about`` says what the rows are (the model's fingerprint, the head, the dtype, ...), in plain values. A store that
    was begun with another ``about`` is refused, so that rows of different models are never mixed. With ``restart`` an
    unfinished store is begun again. A store that fails before its first shard is written is removed.
    """
    described = plain(path, about)
    with writing(path):
        _check_folder(path)
    with locked(path):
        try:
            writer = Writer(path, _begin(path, described, note, restart))
            writer.take_parts()
        except BaseException:
            if not (path / MANIFEST).exists():
                _clean_up(path)
            raise
        _remove_unlisted(writer)
        (path / FAILED).unlink(missing_ok=True)
        try:
            yield writer
        except BaseException:
            with suppress(OSError, OodlesError):
                writer.take_parts()
            if not writer.shards:
                _clean_up(path)
            raise
        finally:
            with suppress(OSError):
                (path / FAILED).unlink(missing_ok=True)


def _check_folder(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise FileError(f"{path} is a file, but a feature store is a folder")
    if path.is_dir() and not (path / MANIFEST).exists():
        others = [entry.name for entry in path.iterdir() if not entry.name.startswith(".")]
        if others:
            raise FileError(f"{path} contains other files ({others[0]}, ...); choose an empty folder")


def _begin(path: Path, about: Record, note: str, restart: bool) -> Record:
    """Return the manifest of a store that is continued, or write that of a new one."""
    if (path / MANIFEST).exists():
        manifest = read_manifest(path)
        check_same(path, manifest["about"], about)
        if manifest["complete"] or not restart:
            return manifest
    manifest = {
        "kind": KIND,
        "schema": SCHEMA,
        "complete": False,
        "note": note,
        "about": about,
        "columns": [],
        "head": None,
        "shards": [],
        "class_names": [],
        "multilabel": False,
        "stamp": "",
    }
    write_record(path / MANIFEST, manifest)
    return manifest


def _clean_up(path: Path) -> None:
    """Remove a store that failed before its first shard was written."""
    with suppress(OSError):
        # a shard that is not yet listed too: a worker's death interrupts at any moment
        files = (MANIFEST, LOCK, FAILED)
        for file in (*path.glob("*.safetensors"), *_parts(path), *(path / name for name in files)):
            file.unlink(missing_ok=True)
        path.rmdir()


def _remove_unlisted(writer: Writer) -> None:
    """Remove shards and heads that a killed writer left and the manifest does not list."""
    head = writer.manifest["head"]
    listed = {entry["file"] for entry in writer.shards} | ({head["file"]} if head else set())
    for path in (*writer.path.glob("shard-*.safetensors"), *writer.path.glob("head-*.safetensors")):
        if path.name not in listed:
            remove(path)


def _parts(path: Path) -> list[Path]:
    return sorted(path.glob("part-*.json"))


def _first_batch(entry: Record) -> int:
    return int(entry["batches"][0])
