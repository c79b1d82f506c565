"""Columns of tensors on disk: shards, a manifest with checksums, exact resume, memory-mapped reads.

A store is a folder::

    manifest.json                what is here: rows, columns, a SHA-256 of every file, where it came from
    head-<sha>.safetensors       the last layer that the embeddings belong to, if there is one
    shard-00000.safetensors ...  the rows, in order

A shard is listed in the manifest only after it is completely on disk, so another writer can continue what a killed
one left. Opening reads only the manifest, the head and file sizes; each shard is checked against its SHA-256 and
against the manifest when its rows are first used.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

import torch
from msgspec import Meta, Struct
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from oodles.columns import PRECISIONS, Columns, check_columns, is_finite
from oodles.errors import ArgumentError, DataError, FileError, ShapeError
from oodles.files import (
    LOCK,
    Digest,
    Fields,
    Record,
    TensorFile,
    locked,
    member,
    read_record,
    read_tensors,
    sha256,
    write_record,
    write_tensors,
    write_with,
    writing,
)

KIND = "features"
SCHEMA = 1
MANIFEST = "manifest.json"
SHORT = 60

Layout = dict[str, tuple[torch.dtype, torch.Size]]
"""Type and width of each column."""


class _Entry(Struct, forbid_unknown_fields=True):
    """A shard in the manifest."""

    file: str
    rows: Annotated[int, Meta(ge=0, le=1 << 40)]
    bytes: Annotated[int, Meta(ge=0, le=1 << 50)]
    sha256: Digest
    inputs: str
    bad_rows: list[Annotated[int, Meta(ge=0, le=1 << 40)]] = []


class _Manifest(Fields):
    complete: bool
    note: str
    about: dict[str, Any]
    columns: list[str]
    head: TensorFile | None
    shards: list[_Entry]
    class_names: list[str] = []  # noqa: RUF012 - msgspec copies it
    multilabel: bool = False


class Shard:
    """Some rows of a store: their number is known from the manifest, they are read and verified when first used.

    ``layout`` is shared by all shards of a store, which must agree in it; the first one that is read fills it.
    """

    def __init__(self, path: Path, entry: Record, names: list[str], head: Columns, layout: Layout) -> None:
        self.path = path
        self.rows: int = entry["rows"]
        self._entry, self._names, self._head, self._layout = entry, names, head, layout
        self._columns: Columns | None = None
        try:
            size = path.stat().st_size
        except OSError:
            raise FileError(f"{path} is listed in the manifest but missing; {_start_over(path)}") from None
        if size != entry["bytes"]:
            raise FileError(f"{path} has {size} bytes instead of {entry['bytes']}; {_start_over(path)}")

    def columns(self) -> Columns:
        """The shard's tensors, memory-mapped; an altered file is an error."""
        if self._columns is None:
            try:
                digest = sha256(self.path)
            except OSError as error:
                raise FileError(f"{self.path} cannot be read ({error.strerror}); {_start_over(self.path)}") from None
            if digest != self._entry["sha256"]:
                remedy = _start_over(self.path)
                raise FileError(f"{self.path} was altered after it was written (SHA-256 mismatch); {remedy}")
            try:
                with safe_open(self.path, framework="pt") as file:
                    columns = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                self._check(columns)
            except (SafetensorError, DataError, ShapeError) as error:
                reason, remedy = " ".join(str(error).split()), _start_over(self.path)
                raise FileError(f"{self.path} is not a shard of this store ({reason}); {remedy}") from None
            self._columns = columns
        return self._columns

    def _check(self, columns: Columns) -> None:
        """Raise unless rows, columns, types and widths are those of the manifest, the head and the other shards."""
        if sorted(columns) != self._names:
            raise ShapeError(f"its columns are {', '.join(sorted(columns))}, not {', '.join(self._names)}")
        shape = self._head["weight"].shape if self._head else None
        if self.rows:  # else every input of the shard was left out
            check_columns(columns, None if shape is None else (shape[0], shape[1]))
        for name, column in columns.items():
            if len(column) != self.rows:
                raise ShapeError(f"{name} has {len(column)} rows, not {self.rows}")
            layout = column.dtype, column.shape[1:]
            if self._layout.setdefault(name, layout) != layout:
                raise ShapeError(f"{name} is not of the same type and width as in the other shards")


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
        names, classes = self.manifest["class_names"], len(self.head.get("weight", ()))
        if not self.shards or (names and classes and len(names) != classes):
            problem = f"{len(names)} names for {classes} classes" if self.shards else "no rows"
            raise FileError(f"{path} is complete but has {problem}; delete the folder and extract again")


class Writer:
    """Appends shards to a store under a lock; an unfinished store is continued.

    ``about`` says what the rows are (the model's fingerprint, the head, the dtype, ...), in plain values. A store that
    was begun with another ``about`` is refused, so that rows of different models are never mixed; a key that only one
    of the two has is no difference if its value is None, False or empty, since older stores lack newer keys. With
    ``restart`` an unfinished store is begun again.
    """

    def __init__(self, path: Path, about: Mapping[str, Any], note: str = "", *, restart: bool = False) -> None:
        self.path = path
        try:
            self._about: Record = json.loads(json.dumps(dict(about)))  # as it will be read back: tuples become lists
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"{path} can only record plain values (numbers, text, lists, dicts): {error}") from None
        self._note, self._restart = note, restart
        self._held = ExitStack()

    def __enter__(self) -> Self:
        with writing(self.path):
            self._check_folder()
        with ExitStack() as held:
            held.enter_context(locked(self.path))
            try:
                self.manifest = self._begin()
            except BaseException:
                if not (self.path / MANIFEST).exists():
                    self._clean_up()
                raise
            self._remove_unlisted()
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
        if error is not None and not self.shards:
            self._clean_up()
        self._held.close()

    def _clean_up(self) -> None:
        """Remove a store that failed before its first shard was written."""
        with suppress(OSError):
            # a shard that is not yet listed too: a worker's death interrupts at any moment
            for file in (*self.path.glob("*.safetensors"), self.path / MANIFEST, self.path / LOCK):
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

    def append(self, columns: Mapping[str, Tensor], inputs: str, bad_rows: Sequence[int] = ()) -> None:
        """Write one shard, then the manifest that lists it; ``inputs`` is the digest of the images it came from.

        ``bad_rows`` are the numbers of those among them that have no row.
        If that fails, for example because the disk is full, the shards before it stay as they were.
        """
        file = f"shard-{len(self.shards):05d}.safetensors"
        path = self.path / file
        # cloned because safetensors refuses tensors that share memory
        whole = {name: column.contiguous().clone() for name, column in columns.items()}
        try:
            write_with(path, lambda temporary: save_file(whole, temporary))
            rows = len(next(iter(whole.values())))
            entry = {"file": file, "rows": rows, "bytes": path.stat().st_size, "sha256": sha256(path), "inputs": inputs}
            entry["bad_rows"] = list(bad_rows)
            self._record({"shards": [*self.shards, entry], "columns": sorted(whole)})
        except FileError as error:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            kept = f" (the {stored_rows(self.manifest):,} rows before it are kept)" if self.shards else ""
            raise FileError(f"{error}{kept}") from None

    def finish(self) -> None:
        """Mark the store complete."""
        self._record({"complete": True})

    def _record(self, changes: Record) -> None:
        """Change the manifest, first on disk, so that it never lists what is not there."""
        manifest = {**self.manifest, **changes}
        write_record(self.path / MANIFEST, manifest)
        self.manifest = manifest

    def _begin(self) -> Record:
        if (self.path / MANIFEST).exists():
            manifest = read_manifest(self.path)
            difference = _first_difference(manifest["about"], self._about)
            if difference:
                name, stored, asked = difference
                raise FileError(
                    f"{self.path} was written with another {name} ({stored}, not {asked}); "
                    "choose another store or delete this one"
                )
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
        }
        write_record(self.path / MANIFEST, manifest)
        return manifest


def read_manifest(path: Path) -> Record:
    """The manifest of a store, verified by its checksum."""
    if not path.is_dir():
        raise FileError(f"{path} does not exist; a feature store is a folder written by `oodles extract`")
    return read_record(path / MANIFEST, kind=KIND, schema=SCHEMA, fields=_Manifest)


def read_head(path: Path, manifest: Record) -> Columns:
    """The last layer in a store: ``weight`` and perhaps ``bias``; empty if there is none."""
    if not manifest["head"]:
        return {}
    head = read_tensors(path, manifest["head"])
    if not _is_head(head):
        raise FileError(f"{path / manifest['head']['file']} is not the weight and bias of a last layer; extract again")
    return head


def _is_head(parts: Columns) -> bool:
    if not {"weight"} <= parts.keys() <= {"weight", "bias"} or parts["weight"].ndim != 2:
        return False
    weight = parts["weight"]
    bias = parts.get("bias", weight.new_zeros(len(weight)))
    fits = weight.dtype == bias.dtype and weight.dtype in PRECISIONS and bias.shape == weight.shape[:1]
    return fits and all(is_finite(part) for part in parts.values())


def stored_rows(manifest: Record) -> int:
    """How many rows are in the shards of a manifest."""
    return sum(entry["rows"] for entry in manifest["shards"])


def is_store(path: Path) -> bool:
    """Whether a folder looks like a feature store."""
    return (path / MANIFEST).is_file()


def _start_over(shard: Path) -> str:
    """What to do about a bad shard; an extraction that continues the store would not write it again."""
    return f"delete the folder {shard.parent} and extract again"


def _first_difference(stored: Any, asked: Any, name: str = "") -> tuple[str, str, str] | None:
    """The name of the first part that differs, such as ``preprocessing.mean``, and both values in short; else None."""
    if stored == asked:
        return None
    if isinstance(stored, dict) and isinstance(asked, dict):
        keys = [
            key
            for key in sorted(stored.keys() | asked.keys())
            if (key in stored and key in asked) or not _says_nothing(stored.get(key, asked.get(key)))
        ]
        pairs = [(stored.get(key), asked.get(key), f"{name}.{key}" if name else key) for key in keys]
    elif isinstance(stored, list) and isinstance(asked, list) and len(f"{stored}{asked}") > 2 * SHORT:
        if len(stored) != len(asked):
            return name, f"{len(stored)} entries", str(len(asked))
        pairs = [(*pair, f"{name}[{index}]") for index, pair in enumerate(zip(stored, asked, strict=True))]
    else:
        return name, *_shorten(str(stored), str(asked))
    return next(filter(None, (_first_difference(*pair) for pair in pairs)), None)


def _says_nothing(value: object) -> bool:
    return value is None or value is False or value in ("", [], {})


def _shorten(first: str, second: str) -> tuple[str, str]:
    """Two different texts; of a long one, only a piece that shows the difference."""
    shared = min(len(first), len(second))
    differs = next((place for place in range(shared) if first[place] != second[place]), shared)
    start = 0 if differs < SHORT // 4 else differs - 5
    before = "..." if start else ""

    def piece(text: str) -> str:
        return text if len(text) <= SHORT else f"{before}{text[start : start + SHORT // 4]}..."

    return piece(first), piece(second)
