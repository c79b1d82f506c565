"""An exported guard on disk: a .zip with a record, an ONNX graph and the detector's tensors.

The record names the SHA-256 of the other two and carries one of its own. Everything is checked before it is used. A
checksum finds accidents; anyone who can alter a file can also compute its checksum, so open only what you trust.
"""

import errno
import hashlib
import io
import os
import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from filelock import FileLock
from msgspec import Meta, Struct
from safetensors import SafetensorError
from safetensors.numpy import load as parse_arrays

from oodles.calibration import Threshold
from oodles.errors import ArgumentError, FileError
from oodles.network.graph_check import check_graph
from oodles.records.fields import Finite, PreprocessingFields, ThresholdFields
from oodles.records.files import (
    Digest,
    Fields,
    Record,
    check_output,
    checked,
    checksum,
    marked,
    open_regular,
    parse_record,
    record_bytes,
    stamp_of,
    write_bytes,
    writing,
)
from oodles.records.text import one_line, printable

KIND, SCHEMA, SAVED_KIND = "exported guard", 1, "guard"
RECORD, GRAPH, TENSORS = "guard.json", "guard.onnx", "detector.safetensors"
MEMBERS = (GRAPH, TENSORS)
EXPORTED = marked("an exported guard", *(name.encode() for name in (RECORD, *MEMBERS)))
ID_SCORES, TEST = "id_scores", "self_test."  # arrays of a guard that are not its detector's; the second is a beginning
LOCK_SECONDS = 60  # that another process may take to save a threshold
MAX_RECORD_BYTES = 1 << 24
MAX_BYTES = 1 << 31  # of a member
MAX_DIRECTORY_BYTES = 1 << 12  # of the list of members in a .zip
Arrays = dict[str, npt.NDArray[Any]]


def rows_of(arrays: Arrays) -> int:
    """How many rows named arrays have, which all have the same number."""
    return len(next(iter(arrays.values())))


def digest_of(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Return the SHA-256 of what a detector has learned, from the arrays of a saved or exported guard."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        if name != ID_SCORES and not name.startswith(TEST):
            digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def identity_of(record: Record, learned: str, threshold: Threshold) -> str:
    """Return the SHA-256 of what decides, which a saved guard and its export share: the detector and its threshold."""
    decides = {"detector": record["detector"], "learned": learned, "id_scores": threshold.digest()}
    return checksum({**decides, "threshold": threshold.as_record()})


class _Member(Struct, forbid_unknown_fields=True):
    sha256: Digest
    bytes: Annotated[int, Meta(ge=1, lt=MAX_BYTES)]


class _Input(Struct, forbid_unknown_fields=True):
    """An input of the graph; a dimension that may have any size is None."""

    name: str
    dtype: Literal["uint8", "int8", "int16", "int32", "int64", "bool", "float16", "float32", "float64"]
    shape: Annotated[list[Annotated[int, Meta(ge=1)] | None], Meta(min_length=1, max_length=8)]


class _Explanation(Struct, forbid_unknown_fields=True):
    """What explanations are of: the members of an ensemble or none, and the places of detectors with a sparsifier.

    ``limits`` are those of the members that are checks, see :class:`oodles.explanation.findings.Ranks`.
    """

    reduction: Literal["mean", "min", "fisher"] | None
    members: Annotated[list[str], Meta(max_length=1000)]
    limits: Annotated[list[Finite | None], Meta(max_length=1000)]
    sparsified: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=1000)]


class _Agreement(Struct, forbid_unknown_fields=True):
    """How far the graph was from torch when it was exported, as relative differences, and on what."""

    rows: Annotated[int, Meta(ge=1)]
    inputs: str
    tolerance: Finite
    logits: Finite
    score: Finite


class _Fields(Fields):
    oodles: str
    class_names: list[str]
    multilabel: bool
    preprocessing: PreprocessingFields | None
    inputs: Annotated[list[_Input], Meta(min_length=1, max_length=64)]
    spec: str
    detector: dict[str, Any]
    threshold: ThresholdFields
    id_scores: Digest | None
    model: str
    agreement: _Agreement
    members: dict[Literal["guard.onnx", "detector.safetensors"], _Member]
    explanation: _Explanation


@dataclass(frozen=True)
class Artefact:
    """The checked content of an exported guard; ``version`` is the SHA-256 of its record, and so of everything."""

    path: Path
    record: Record
    contents: Mapping[str, bytes]
    arrays: Arrays
    version: str


def is_exported(path: Path) -> bool:
    """Whether a .zip looks like an exported guard; nothing is checked."""
    if path.suffix.lower() != ".zip":
        return False
    try:
        with open_regular(path) as file, _archive(path, file) as archive:
            return {RECORD, GRAPH} <= {*archive.namelist()}
    except (FileError, OSError):
        return False


def is_guard(path: Path) -> bool:
    """Whether a path looks like a guard, the folder of a saved one or the .zip of an exported one."""
    return (path / RECORD).is_file() or is_exported(path)


def read_artefact(path: Path) -> Artefact:
    """Read an exported guard; whatever is missing, altered or unexpected is an error."""
    if path.is_symlink():
        raise FileError(f"{path} is a symbolic link, which is not allowed")
    try:
        with open_regular(path) as file:
            return parse_artefact(path, file)
    except FileError:
        raise
    except OSError as error:
        fact = "does not exist" if error.errno == errno.ENOENT else f"cannot be read ({error.strerror})"
        raise FileError(f"{path} {fact}; give the .zip that `oodles export` wrote") from None


def parse_artefact(path: Path, file: IO[bytes]) -> Artefact:
    """Return the exported guard in an open file, checked as :func:`read_artefact` does."""
    try:
        with _archive(path, file) as archive:
            _check_members(path, archive)
            record = _record(path, _read_member(path, archive, RECORD, MAX_RECORD_BYTES))
            contents = {name: _checked(path, name, archive, record["members"][name]) for name in MEMBERS}
        _check_graph(path, contents[GRAPH])
        return Artefact(path, record, contents, _arrays(path, contents[TENSORS]), checksum(record))
    except MemoryError:
        raise FileError(f"{path} needs more memory than there is; open it on a larger machine") from None


def pack_artefact(path: Path, record: Record, contents: Mapping[str, bytes]) -> bytes:
    """Return what an exported guard with this record and these members has on disk."""
    members = {
        name: {"sha256": hashlib.sha256(part).hexdigest(), "bytes": len(part)} for name, part in contents.items()
    }
    described = {"kind": KIND, "schema": SCHEMA, **record, "members": members}
    return _zipped({**contents, RECORD: record_bytes(described, path)})


def check_free(path: Path, overwrite: bool) -> None:
    """Raise unless an exported guard may be written to ``path``."""
    if path.suffix.lower() != ".zip":
        raise ArgumentError(f"{path} must end in .zip, since an exported guard is one file")
    check_output(path, EXPORTED)
    if is_exported(path) and not overwrite:
        raise FileError(
            f"{path} holds an exported guard; choose another place, or replace it (overwrite=True, --force)"
        )


def replace_threshold(path: Path, threshold: Record, version: str | None = None) -> None:
    """Give an exported guard another threshold, in one atomic step; only its record changes.

    Raises if the file does not hold this version of the guard, or is replaced by somebody else meanwhile.
    """
    lock = path.with_name(f".{path.name}.lock")
    with writing(path), FileLock(lock, timeout=LOCK_SECONDS):
        try:
            stamp, artefact = stamp_of(path), read_artefact(path)
            if version not in (None, artefact.version):
                raise FileError(f"{path} holds a guard other than the one that was opened; open it again")
            record = checked({**artefact.record, "threshold": threshold}, _Fields, path)
            write_bytes(
                path, _zipped({**artefact.contents, RECORD: record_bytes(record, path)}), EXPORTED, instead_of=stamp
            )
        finally:
            lock.unlink(missing_ok=True)


def _zipped(parts: Mapping[str, bytes]) -> bytes:
    """The same bytes for the same parts: no times, and no compression, so that a reader cannot be made to unpack."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in (RECORD, *MEMBERS):
            archive.writestr(zipfile.ZipInfo(name), parts[name])
    return buffer.getvalue()


@contextmanager
def _archive(path: Path, file: IO[bytes]) -> Iterator[zipfile.ZipFile]:
    """A .zip with a short list of members, of which nothing has been read."""
    try:
        _check_directory(path, file)
        with zipfile.ZipFile(file) as archive:
            yield archive
    except FileError:
        raise
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError, OSError) as error:
        raise FileError(f"{path} is not a .zip that `oodles export` wrote ({error})") from None


def _check_directory(path: Path, file: IO[bytes]) -> None:
    """Raise unless the .zip ends with a short list of members: a long one would be held in memory as a whole."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 98))
    end = file.read().rjust(98, b"\0")
    listed, comment = struct.unpack("<I4xH", end[-10:])
    known = end[-22:-18] == b"PK\5\6" and comment == 0
    if end[-42:-38] == b"PK\6\7":  # the sizes of a large archive are in a record of their own
        known = known and end[:4] == b"PK\6\6" and struct.unpack("<Q", end[-34:-26])[0] == size - 98
        listed = struct.unpack("<Q", end[40:48])[0]
    if not known or listed > MAX_DIRECTORY_BYTES:
        raise FileError(f"{path} is not a .zip that `oodles export` wrote (its list of members is not at its end)")


def _check_members(path: Path, archive: zipfile.ZipFile) -> None:
    names = [info.filename for info in archive.infolist()]
    if sorted(names) != sorted((RECORD, *MEMBERS)):
        other = next((name for name in names if name not in (RECORD, *MEMBERS)), None)
        found = f"has the member {other!r:.100}" if other is not None else "does not have each of its members once"
        raise FileError(f"{path} {found}; an exported guard has {RECORD}, {GRAPH} and {TENSORS}")


def _read_member(path: Path, archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        raise FileError(f"{path}: {name} is compressed or encrypted; export the guard again, or pack it with `zip -0`")
    if info.file_size > most:
        raise FileError(f"{path}: {name} has {info.file_size:,} bytes, more than {most:,}; export the guard again")
    with archive.open(info) as file:  # the size in the directory may be a lie
        content = file.read(info.file_size + 1)
    if not len(content) == info.file_size == info.compress_size:
        raise FileError(f"{path}: {name} is not as long as the archive says; export the guard again")
    return content


def _record(path: Path, content: bytes) -> Record:
    source = path / RECORD
    try:
        record = parse_record(content, source, kind=KIND, schema=SCHEMA, fields=_Fields)
    except FileError as error:  # which may quote a name from the file
        raise FileError(printable(str(error))) from None
    names, about = [each["name"] for each in record["inputs"]], record["explanation"]
    given = record["preprocessing"] or {}
    consistent = {
        "members": record["members"].keys() == {*MEMBERS},
        "explanation": (about["reduction"] is None) == (not about["members"])
        and len(about["limits"]) == len(about["members"]),
        "preprocessing": "size" not in given or (names == ["pixels"] and given["size"] <= given["resize"]),
    }
    wrong = next((name for name, right in consistent.items() if not right), None)
    if wrong is not None:
        raise FileError(f"{source} contradicts itself in {wrong!r}; export the guard again")
    return record


def _checked(path: Path, name: str, archive: zipfile.ZipFile, entry: Record) -> bytes:
    """The content of a member, which must have the size and the SHA-256 of its entry in the record."""
    content = _read_member(path, archive, name, entry["bytes"])
    if len(content) != entry["bytes"] or hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise FileError(
            f"{path}: {name} was altered or truncated (its size or SHA-256 does not match); export the guard again"
        )
    return content


def _check_graph(path: Path, content: bytes) -> None:
    try:
        check_graph(content, loops=True)
    except FileError as error:
        raise FileError(f"{path}: {error}; export the guard again") from None


def _arrays(path: Path, content: bytes) -> Arrays:
    try:
        return parse_arrays(content)
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise FileError(f"{path}: {TENSORS} is not a safetensors file ({one_line(error)})") from None
