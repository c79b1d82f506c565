"""The manifest of a store: what it lists, and how it is read and compared."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from oodles.errors import ArgumentError, FileError
from oodles.records.files import Digest, Fields, Record, TensorFile, read_record
from oodles.records.text import first_difference

KIND, PART = "features", "part of features"
SCHEMA = 1
MANIFEST = "manifest.json"
FAILED = ".failed"  # while it is there, one of several processes has failed

Count = Annotated[int, Meta(ge=0, le=1 << 40)]


class Entry(Struct, forbid_unknown_fields=True):
    """A shard in the manifest.

    ``batches`` are the number of its first batch of the loader and of the first one after it. ``bad_rows`` are counted
    from the shard's first input.
    """

    file: str
    rows: Count
    bytes: Annotated[int, Meta(ge=0, le=1 << 50)]
    sha256: Digest
    inputs: str
    bad_rows: list[Count]
    batches: tuple[Count, Count]


class Manifest(Fields):
    """The manifest; ``stamp`` is what the loader is recognised by without reading its inputs."""

    complete: bool
    note: str
    about: dict[str, Any]
    columns: list[str]
    head: TensorFile | None
    shards: list[Entry]
    class_names: list[str]
    multilabel: bool
    stamp: str


class PartFields(Fields):
    """What another process than the first has written."""

    columns: list[str]
    shards: list[Entry]


def plain(path: Path, about: Mapping[str, Any]) -> Record:
    """``about`` as it will be read back: tuples become lists."""
    try:
        record: Record = json.loads(json.dumps(dict(about)))
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{path} can only record plain values (numbers, text, lists, dicts): {error}") from None
    return record


def check_same(path: Path, stored: Record, asked: Record) -> None:
    """Raise unless a store was begun for the same model and settings."""
    difference = first_difference(stored, asked)
    if difference:
        name, before, now = difference
        raise FileError(
            f"{path} was written with another {name} ({before}, not {now}); choose another store or delete this one"
        )


def read_manifest(path: Path) -> Record:
    """The manifest of a store, verified by its checksum."""
    if not path.is_dir():
        raise FileError(f"{path} does not exist; a feature store is a folder written by `oodles extract`")
    return read_record(path / MANIFEST, kind=KIND, schema=SCHEMA, fields=Manifest)


def stored_rows(manifest: Record) -> int:
    """Return how many rows are in the shards of a manifest."""
    return sum(entry["rows"] for entry in manifest["shards"])


def bad_rows(manifest: Record) -> list[int]:
    """Return the numbers of the inputs that have no row, counted from the first of all."""
    bad: list[int] = []
    first = 0
    for entry in manifest["shards"]:
        bad += [first + row for row in entry["bad_rows"]]
        first += entry["rows"] + len(entry["bad_rows"])
    return bad


def is_store(path: Path) -> bool:
    """Whether a folder looks like a feature store."""
    return (path / MANIFEST).is_file()
