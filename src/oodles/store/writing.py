"""Writing a store: shard by shard, by one process or several, so that a killed one can be continued."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from safetensors.torch import save_file
from torch import Tensor

from oodles.errors import DataError, FileError, OodlesError
from oodles.records.files import LOCK, Record, locked, read_record, sha256, write_record, write_with, writing
from oodles.records.tensors import write_tensors
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


class _Appending:
    """What has a record of shards, and appends to it."""

    path: Path
    manifest: Record
    _file: Path  # of the record

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
        # cloned because safetensors refuses tensors that share memory
        whole = {name: column.contiguous().clone() for name, column in columns.items()}
        try:
            write_with(path, lambda temporary: save_file(whole, temporary))
            rows = len(next(iter(whole.values())))
            entry = {"file": file, "rows": rows, "bytes": path.stat().st_size, "sha256": sha256(path), "inputs": inputs}
            entry |= {"bad_rows": list(bad_rows), "batches": batches}
            self._record({"shards": sorted([*self.shards, entry], key=_first_batch), "columns": sorted(whole)})
        except FileError as error:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            kept = f" (the {stored_rows(self.manifest):,} rows before it are kept)" if self.shards else ""
            raise FileError(f"{error}{kept}") from None

    def _record(self, changes: Record) -> None:
        """Change the record, first on disk, so that it never lists what is not there."""
        manifest = {**self.manifest, **changes}
        write_record(self._file, manifest)
        self.manifest = manifest


class Part(_Appending):
    """The shards that one of several processes writes beside the first, whose :class:`Writer` takes them over."""

    def __init__(self, path: Path, rank: int) -> None:
        self.path = path
        self.manifest = {"kind": PART, "schema": SCHEMA, "columns": [], "shards": []}
        self._file = path / f"part-{rank:05d}.json"


class Writer(_Appending):
    """Appends shards to a store under a lock; an unfinished store is continued.

    ``about`` says what the rows are (the model's fingerprint, the head, the dtype, ...), in plain values. A store that
    was begun with another ``about`` is refused, so that rows of different models are never mixed. With ``restart`` an
    unfinished store is begun again.
    """

    def __init__(self, path: Path, about: Mapping[str, Any], note: str = "", *, restart: bool = False) -> None:
        self.path, self._file = path, path / MANIFEST
        self._about = plain(path, about)
        self._note, self._restart = note, restart
        self._held = ExitStack()

    def __enter__(self) -> Self:
        with writing(self.path):
            self._check_folder()
        with ExitStack() as held:
            held.enter_context(locked(self.path))
            try:
                self.manifest = self._begin()
                self.take_parts()
            except BaseException:
                if not (self.path / MANIFEST).exists():
                    self._clean_up()
                raise
            self._remove_unlisted()
            (self.path / FAILED).unlink(missing_ok=True)
            self._held = held.pop_all()
        return self

    def _check_folder(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise FileError(f"{self.path} is a file, but a feature store is a folder")
        if self.path.is_dir() and any(self.path.iterdir()) and not (self.path / MANIFEST).exists():
            others = [entry.name for entry in self.path.iterdir() if not entry.name.startswith(".")]
            if others:
                raise FileError(f"{self.path} contains other files ({others[0]}, ...); choose an empty folder")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError, OodlesError):
            (self.path / FAILED).unlink(missing_ok=True)
            if error is not None:
                self.take_parts()
        if error is not None and not self.shards:
            self._clean_up()
        self._held.close()

    def _clean_up(self) -> None:
        """Remove a store that failed before its first shard was written."""
        with suppress(OSError):
            # a shard that is not yet listed too: a worker's death interrupts at any moment
            files = (MANIFEST, LOCK, FAILED)
            for file in (*self.path.glob("*.safetensors"), *self._parts(), *(self.path / name for name in files)):
                file.unlink(missing_ok=True)
            self.path.rmdir()

    def _remove_unlisted(self) -> None:
        """Remove shards and heads that a killed writer left and the manifest does not list."""
        head = self.manifest["head"]
        listed = {entry["file"] for entry in self.shards} | ({head["file"]} if head else set())
        for path in (*self.path.glob("shard-*.safetensors"), *self.path.glob("head-*.safetensors")):
            if path.name not in listed:
                with suppress(OSError):
                    path.unlink()

    def _parts(self) -> list[Path]:
        return sorted(self.path.glob("part-*.json"))

    def take_parts(self) -> None:
        """List the shards that other processes have written, in the order of their batches."""
        records = [read_record(path, kind=PART, schema=SCHEMA, fields=PartFields) for path in self._parts()]
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
        for path in self._parts():
            path.unlink(missing_ok=True)

    @property
    def complete(self) -> bool:
        """Whether the store is finished."""
        return bool(self.manifest["complete"])

    def write_head(self, head: Mapping[str, Tensor]) -> None:
        """Store the last layer with the rows; on resume it must be the one the store was begun with."""
        if not head:
            return
        stored = read_head(self.path, self.manifest)
        if not stored:
            self.manifest["head"] = write_tensors(self.path, "head", head)
        elif stored.keys() != head.keys() or any(not stored[name].equal(head[name].cpu()) for name in head):
            raise FileError(f"{self.path} was begun with another last layer; choose another store")

    def finish(self) -> None:
        """Mark the store complete."""
        self._record({"complete": True})

    def stamp(self, stamp: str) -> None:
        """Record by what the loader of a complete store is recognised without reading its inputs."""
        if stamp != self.manifest["stamp"]:
            self._record({"stamp": stamp})

    def _begin(self) -> Record:
        if (self.path / MANIFEST).exists():
            manifest = read_manifest(self.path)
            check_same(self.path, manifest["about"], self._about)
            if manifest["complete"] or not self._restart:
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
            "class_names": [],
            "multilabel": False,
            "stamp": "",
        }
        write_record(self.path / MANIFEST, manifest)
        return manifest


def _first_batch(entry: Record) -> int:
    return int(entry["batches"][0])
