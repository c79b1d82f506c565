"""Columns of tensors on disk: whole shards, a sealed manifest, exact resume, memory-mapped reads.

A store is a folder::

    manifest.json                what is here: rows, columns, a SHA-256 of every file, where it came from
    head-<sha>.safetensors       the last layer the embeddings belong to, where there is one
    shard-00000.safetensors ...  the rows, in order

A shard appears in the manifest only after it is whole on disk, so a killed writer leaves a store
that a later one continues. Opening reads the manifest and file sizes only; each shard is checked
against its SHA-256 the first time its rows are touched.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from oodles.errors import FileError
from oodles.files import (
    Record,
    member,
    read_record,
    read_tensors,
    sha256,
    write_record,
    write_tensors,
    write_with,
)

KIND = "features"
SCHEMA = 1
MANIFEST = "manifest.json"

Columns = dict[str, Tensor]


class Shard:
    """Some rows of a store: known from the manifest at once, read and verified when first touched."""

    def __init__(self, path: Path, entry: Record) -> None:
        self.path = path
        self.rows: int = entry["rows"]
        self._entry = entry
        self._columns: Columns | None = None
        try:
            size = path.stat().st_size
        except OSError:
            raise FileError(f"{path} is missing though the manifest lists it; extract again") from None
        if size != entry["bytes"]:
            raise FileError(f"{path} has {size} bytes, not the {entry['bytes']} written; extract again")

    def columns(self) -> Columns:
        """The shard's tensors, mapped from disk; an altered shard is refused by name."""
        if self._columns is None:
            if sha256(self.path) != self._entry["sha256"]:
                raise FileError(f"{self.path} was altered after it was written; extract again")
            try:
                with safe_open(self.path, framework="pt") as file:
                    self._columns = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            except SafetensorError as error:
                raise FileError(f"{self.path} is not a shard of this store ({error})") from None
        return self._columns


class Store:
    """A complete store, opened for reading."""

    def __init__(self, path: Path) -> None:
        self.manifest = read_manifest(path)
        if not self.manifest["complete"]:
            raise FileError(
                f"{path} is unfinished ({stored_rows(self.manifest)} rows so far); run the same extraction again "
                "and it will go on from there"
            )
        self.columns: list[str] = self.manifest["columns"]
        self.shards = [Shard(member(path, entry["file"]), entry) for entry in self.manifest["shards"]]
        self.head = read_head(path, self.manifest)


class Writer:
    """Appends shards to a store under a lock; entering an unfinished store continues it.

    ``about`` says what the rows are (the model's fingerprint, the layer, the dtype, ...). A store
    that was begun with another ``about`` is refused, so one model's rows never join another's.
    """

    def __init__(self, path: Path, about: Mapping[str, Any], note: str = "") -> None:
        self.path = path
        self._about = dict(about)
        self._note = note
        self._lock = FileLock(path / ".lock", timeout=0)

    def __enter__(self) -> Self:
        if self.path.exists() and not self.path.is_dir():
            raise FileError(f"{self.path} is a file; a feature store is a folder")
        if self.path.is_dir() and any(self.path.iterdir()) and not (self.path / MANIFEST).exists():
            strangers = [entry.name for entry in self.path.iterdir() if not entry.name.startswith(".")]
            if strangers:
                raise FileError(f"{self.path} holds other files ({strangers[0]}, ...); choose an empty folder")
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire()
        except Timeout:
            raise FileError(f"{self.path} is being written by another process; wait for it to end") from None
        try:
            self.manifest = self._begin()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not self.shards:
            self._sweep()
        self._lock.release()

    def _sweep(self) -> None:
        """Leave nothing behind of a store that failed before its first shard was whole."""
        (self.path / MANIFEST).unlink(missing_ok=True)
        for stray in (*self.path.glob("head-*.safetensors"), self.path / ".lock"):
            stray.unlink(missing_ok=True)
        with suppress(OSError):
            self.path.rmdir()

    @property
    def complete(self) -> bool:
        """Whether the store was finished before."""
        return bool(self.manifest["complete"])

    @property
    def shards(self) -> list[Record]:
        """The shards already whole on disk, in order."""
        entries: list[Record] = self.manifest["shards"]
        return entries

    def write_head(self, head: Mapping[str, Tensor]) -> None:
        """Keep the last layer beside the rows; on resume it must be the one the store was begun with."""
        if not head:
            return
        stored = read_head(self.path, self.manifest)
        if not stored:
            self.manifest["head"] = write_tensors(self.path, "head", head)
        elif stored.keys() != head.keys() or any(not stored[name].equal(head[name].cpu()) for name in head):
            raise FileError(f"{self.path} was begun with another last layer; choose another store")

    def append(self, columns: Mapping[str, Tensor], inputs: str) -> None:
        """Write one shard, then the manifest that lists it; ``inputs`` is the digest of what it came from."""
        file = f"shard-{len(self.shards):05d}.safetensors"
        path = self.path / file
        # clones: two columns that share memory are not written as two
        whole = {name: column.contiguous().clone() for name, column in columns.items()}
        write_with(path, lambda temporary: save_file(whole, temporary))
        rows = len(next(iter(whole.values())))
        entry = {
            "file": file,
            "rows": rows,
            "bytes": path.stat().st_size,
            "sha256": sha256(path),
            "inputs": inputs,
        }
        self.manifest["shards"] = [*self.shards, entry]
        self.manifest["columns"] = sorted(whole)
        write_record(self.path / MANIFEST, self.manifest)

    def finish(self) -> None:
        """Mark the store complete."""
        self.manifest["complete"] = True
        write_record(self.path / MANIFEST, self.manifest)

    def _begin(self) -> Record:
        if (self.path / MANIFEST).exists():
            manifest = read_manifest(self.path)
            for key in sorted(self._about.keys() | manifest["about"].keys()):
                asked, stored = self._about.get(key), manifest["about"].get(key)
                if asked != stored:
                    raise FileError(
                        f"{self.path} holds features of another {key} ({_short(stored)}, not {_short(asked)}); "
                        "choose another store or delete this one"
                    )
            return manifest
        manifest = {
            "kind": KIND,
            "schema": SCHEMA,
            "complete": False,
            "note": self._note,
            "about": self._about,
            "columns": [],
            "head": None,
            "shards": [],
        }
        write_record(self.path / MANIFEST, manifest)
        return manifest


def read_manifest(path: Path) -> Record:
    """The manifest of a store, its seal checked."""
    if not path.is_dir():
        raise FileError(f"{path} is not there; a feature store is a folder made by `oodles extract`")
    return read_record(path / MANIFEST, kind=KIND, schema=SCHEMA)


def read_head(path: Path, manifest: Record) -> Columns:
    """The last layer kept in a store: ``weight`` and, where there is one, ``bias``; empty where none was."""
    return read_tensors(path, manifest["head"]) if manifest["head"] else {}


def stored_rows(manifest: Record) -> int:
    """How many rows are whole on disk."""
    return sum(entry["rows"] for entry in manifest["shards"])


def is_store(path: Path) -> bool:
    """Whether a folder looks like a feature store."""
    return (path / MANIFEST).is_file()


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 24 else text[:12] + "..."
