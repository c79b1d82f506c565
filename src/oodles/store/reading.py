"""Reading a store: shards are memory-mapped, and verified when their rows are first used."""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from oodles.columns import Columns, check_columns
from oodles.errors import DataError, FileError, ShapeError
from oodles.head import Head
from oodles.records.files import Record, member, sha256
from oodles.records.tensors import read_tensors
from oodles.records.text import one_line
from oodles.store.manifest import read_manifest, stored_rows

Layout = dict[str, tuple[torch.dtype, torch.Size]]
"""Type and width of each column."""


class Shard:
    """Some rows of a store: their number is known from the manifest, they are read and verified when first used.

    ``layout`` is shared by all shards of a store, which must agree in it; the first one that is read fills it.
    """

    def __init__(self, path: Path, entry: Record, names: list[str], head: Head | None, layout: Layout) -> None:
        self.path = path
        self.rows: int = entry["rows"]
        self._entry, self._names, self._head, self._layout = entry, names, head, layout
        self._columns: Columns | None = None
        try:
            size = path.stat().st_size
        except OSError:
            raise self._refused("is listed in the manifest but missing") from None
        if size != entry["bytes"]:
            raise self._refused(f"has {size} bytes instead of {entry['bytes']}")

    def columns(self) -> Columns:
        """The shard's tensors, memory-mapped; an altered file is an error."""
        if self._columns is None:
            try:
                digest = sha256(self.path)
            except OSError as error:
                raise self._refused(f"cannot be read ({error.strerror or 'it is not a regular file'})") from None
            if digest != self._entry["sha256"]:
                raise self._refused("was altered after it was written (SHA-256 mismatch)")
            try:
                with safe_open(self.path, framework="pt") as file:
                    columns = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                self._check(columns)
            except (SafetensorError, DataError, ShapeError) as error:
                raise self._refused(f"is not a shard of this store ({one_line(error)})") from None
            self._columns = columns
        return self._columns

    def _check(self, columns: Columns) -> None:
        """Raise unless rows, columns, types and widths are those of the manifest, the head and the other shards."""
        if sorted(columns) != self._names:
            raise ShapeError(f"its columns are {', '.join(sorted(columns))}, not {', '.join(self._names)}")
        if self.rows:  # else every input of the shard was left out
            check_columns(columns, self._head.shape if self._head else None)
        for name, column in columns.items():
            if len(column) != self.rows:
                raise ShapeError(f"{name} has {len(column)} rows, not {self.rows}")
            layout = column.dtype, column.shape[1:]
            if self._layout.setdefault(name, layout) != layout:
                raise ShapeError(f"{name} is not of the same type and width as in the other shards")

    def _refused(self, problem: str) -> FileError:
        """The error about a bad shard; the remedy is to start over, since continuing would not write it again."""
        return FileError(f"{self.path} {problem}; delete the folder {self.path.parent} and extract again")


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
        self.head = read_head(path, self.manifest)
        layout: Layout = {}
        self.shards = [
            Shard(member(path, entry["file"]), entry, self.columns, self.head, layout)
            for entry in self.manifest["shards"]
        ]
        names, classes = self.manifest["class_names"], self.head.classes if self.head else 0
        if not self.shards or (names and classes and len(names) != classes):
            problem = f"{len(names)} names for {classes} classes" if self.shards else "no rows"
            raise FileError(f"{path} is complete but has {problem}; delete the folder and extract again")


def read_head(path: Path, manifest: Record) -> Head | None:
    """The last layer in a store, if there is one."""
    if not manifest["head"]:
        return None
    parts = read_tensors(path, manifest["head"])
    try:
        return Head(**parts)
    except (TypeError, DataError, ShapeError) as error:
        file = path / manifest["head"]["file"]
        raise FileError(
            f"{file} is not the weight and bias of a last layer ({one_line(error)}); extract again"
        ) from None
