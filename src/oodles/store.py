"""Columns of tensors on disk: shards, a manifest with checksums, exact resume, memory-mapped reads.

A store is a folder::

    manifest.json                what is here: rows, columns, a SHA-256 of every file, where it came from
    head-<sha>.safetensors       the last layer that the embeddings belong to, if there is one
    shard-00000.safetensors ...  the rows, in order

A shard is listed in the manifest only after it is completely on disk, so another writer can continue what a killed
one left. Opening reads only the manifest and file sizes; each shard is checked against its SHA-256 when its rows are
first used.
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

from oodles.columns import Columns
from oodles.errors import FileError
from oodles.files import Record, member, read_record, read_tensors, sha256, write_record, write_tensors, write_with

KIND = "features"
SCHEMA = 1
MANIFEST = "manifest.json"


class Shard:
    """Some rows of a store: their number is known from the manifest, they are read and verified when first used."""

    def __init__(self, path: Path, entry: Record) -> None:
        self.path = path
        self.rows: int = entry["rows"]
        self._entry = entry
        self._columns: Columns | None = None
        try:
            size = path.stat().st_size
        except OSError:
            raise FileError(f"{path} is listed in the manifest but missing; extract again") from None
        if size != entry["bytes"]:
            raise FileError(f"{path} has {size} bytes instead of {entry['bytes']}; extract again")

    def columns(self) -> Columns:
        """The shard's tensors, memory-mapped; an altered file is an error."""
        if self._columns is None:
            if sha256(self.path) != self._entry["sha256"]:
                raise FileError(f"{self.path} was altered after it was written (SHA-256 mismatch); extract again")
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
                f"{path} is unfinished ({stored_rows(self.manifest)} rows so far); "
                "run the same extraction again to continue it"
            )
        self.columns: list[str] = self.manifest["columns"]
        self.shards = [Shard(member(path, entry["file"]), entry) for entry in self.manifest["shards"]]
        self.head = read_head(path, self.manifest)


class Writer:
    """Appends shards to a store under a lock; an unfinished store is continued.

    ``about`` says what the rows are (the model's fingerprint, the head, the dtype, ...). A store that was begun with
    another ``about`` is refused, so that rows of different models are never mixed.
    """

    def __init__(self, path: Path, about: Mapping[str, Any], note: str = "") -> None:
        self.path = path
        self._about = dict(about)
        self._note = note
        self._lock = FileLock(path / ".lock", timeout=0)

    def __enter__(self) -> Self:
        if self.path.exists() and not self.path.is_dir():
            raise FileError(f"{self.path} is a file, but a feature store is a folder")
        if self.path.is_dir() and any(self.path.iterdir()) and not (self.path / MANIFEST).exists():
            others = [entry.name for entry in self.path.iterdir() if not entry.name.startswith(".")]
            if others:
                raise FileError(f"{self.path} contains other files ({others[0]}, ...); choose an empty folder")
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire()
        except Timeout:
            raise FileError(f"{self.path} is being written by another process; wait until it has finished") from None
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
            self._clean_up()
        self._lock.release()

    def _clean_up(self) -> None:
        """Remove a store that failed before its first shard was written."""
        for file in (self.path / MANIFEST, *self.path.glob("head-*.safetensors"), self.path / ".lock"):
            file.unlink(missing_ok=True)
        with suppress(OSError):
            self.path.rmdir()

    @property
    def complete(self) -> bool:
        """Whether the store is finished."""
        return bool(self.manifest["complete"])

    @property
    def shards(self) -> list[Record]:
        """The shards that are completely on disk, in order."""
        entries: list[Record] = self.manifest["shards"]
        return entries

    def write_head(self, head: Mapping[str, Tensor]) -> None:
        """Store the last layer with the rows; on resume it must be the one the store was begun with."""
        if not head:
            return
        stored = read_head(self.path, self.manifest)
        if not stored:
            self.manifest["head"] = write_tensors(self.path, "head", head)
        elif stored.keys() != head.keys() or any(not stored[name].equal(head[name].cpu()) for name in head):
            raise FileError(f"{self.path} was begun with another last layer; choose another store")

    def append(self, columns: Mapping[str, Tensor], inputs: str) -> None:
        """Write one shard, then the manifest that lists it; ``inputs`` is the digest of the images it came from."""
        file = f"shard-{len(self.shards):05d}.safetensors"
        path = self.path / file
        # cloned because safetensors refuses tensors that share memory
        whole = {name: column.contiguous().clone() for name, column in columns.items()}
        write_with(path, lambda temporary: save_file(whole, temporary))
        rows = len(next(iter(whole.values())))
        entry = {"file": file, "rows": rows, "bytes": path.stat().st_size, "sha256": sha256(path), "inputs": inputs}
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
                        f"{self.path} was written with another {key} ({_short(stored)}, not {_short(asked)}); "
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
    """The manifest of a store, verified by its checksum."""
    if not path.is_dir():
        raise FileError(f"{path} does not exist; a feature store is a folder written by `oodles extract`")
    return read_record(path / MANIFEST, kind=KIND, schema=SCHEMA)


def read_head(path: Path, manifest: Record) -> Columns:
    """The last layer in a store: ``weight`` and perhaps ``bias``; empty if there is none."""
    return read_tensors(path, manifest["head"]) if manifest["head"] else {}


def stored_rows(manifest: Record) -> int:
    """How many rows are in the shards of a manifest."""
    return sum(entry["rows"] for entry in manifest["shards"])


def is_store(path: Path) -> bool:
    """Whether a folder looks like a feature store."""
    return (path / MANIFEST).is_file()


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 24 else text[:12] + "..."
