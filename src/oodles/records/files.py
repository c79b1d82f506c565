"""Atomic writes, locks, checksums, and JSON records that carry their own checksum and perhaps a signature.

Every file is written by :func:`write_with`, which never replaces a file that is not an earlier output of the same kind.
A saved object is a folder with one record, which names every other file and its SHA-256. A writer holds the folder's
lock, writes those files, then replaces the record, which is the moment the new object takes the place of the old one,
and then removes files that the record no longer names. It can be killed at any time: what is loaded is the old object
or the new one.
"""

import errno
import hashlib
import hmac
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Annotated, Any, NamedTuple

import msgspec
from filelock import FileLock, Timeout
from msgspec import Meta, Struct

from oodles.errors import ArgumentError, FileError

Record = dict[str, Any]
Key = bytes | str | Path
"""A secret of at least 16 bytes, or the file that holds it."""

LOCK, TEMPORARY = ".lock", ".oodles-"
ABANDONED = 86_400  # seconds after which a temporary file that has not grown is one that a killed process left
LOOKED_AT = 1 << 16  # bytes at the beginning and at the end of a file by which its kind is recognised
MAX_BYTES, MAX_DEPTH = 1 << 24, 64  # of a record
MIN_KEY_BYTES, MAX_KEY_BYTES = 16, 4096

Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Fields(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a record consists of: subclasses declare the other fields with their types and ranges."""

    kind: str
    schema: int


class TensorFile(Struct, forbid_unknown_fields=True):
    """A file of tensors as a record names it."""

    file: str
    sha256: Digest


class Kind(NamedTuple):
    """A kind of output: what messages call it, and whether the first and last bytes of a file are those of one."""

    name: str
    recognise: Callable[[bytes], bool]


def marked(name: str, *marks: bytes) -> Kind:
    """Return a kind whose files have every one of ``marks`` near the beginning or the end."""
    return Kind(name, lambda content: all(mark in content for mark in marks))


def record_kind(kind: str) -> Kind:
    """Return the kind of the records that :func:`write_record` writes."""
    return marked(f"a record of kind {kind!r}", f'{{\n "kind": {json.dumps(kind)}'.encode(), b'\n "seal": "')


OWNED = marked("a part of a saved object")  # in a folder whose record was checked, or named after its checksum


def check_output(path: Path, kind: Kind, inputs: Iterable[str | Path] = ()) -> None:
    """Raise unless ``path`` is free, empty, or an earlier output of the same kind that is not among the ``inputs``."""
    if not os.path.lexists(path):
        return
    if path.is_dir():
        raise ArgumentError(f"{path} is a folder; give the name of a file")
    if path.exists() and any(Path(each).exists() and path.samefile(each) for each in inputs):
        raise ArgumentError(f"{path} is an input, which an output never replaces; give another name")
    try:
        with open_regular(path) as file:
            content = file.read(LOOKED_AT)
            file.seek(max(LOOKED_AT, os.fstat(file.fileno()).st_size - LOOKED_AT))
            content += file.read()
    except OSError:
        content = b"not a file that can be read"
    if content.strip() not in (b"", b"[]") and not kind.recognise(content):
        raise FileError(f"{path} exists and is not {kind.name} that oodles wrote; give another name, or move it away")


def stamp_of(path: Path) -> tuple[int, ...] | None:
    """Return numbers that change whenever a file, its mode or its times do; None if there is no file."""
    with suppress(OSError):
        found = path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    return None


def write_bytes(path: Path, content: bytes, kind: Kind, *, instead_of: tuple[int, ...] | None = None) -> None:
    """Write ``content`` to ``path`` atomically, so that no reader sees half a file; see :func:`write_with`."""
    write_with(path, lambda temporary: temporary.write_bytes(content), kind, instead_of=instead_of)


def write_with(
    path: Path, write: Callable[[Path], object], kind: Kind, *, instead_of: tuple[int, ...] | None = None
) -> None:
    """Let ``write`` fill a temporary file, force it to disk, then rename it to ``path``; see :func:`check_output`.

    With ``instead_of``, a stamp of ``path``, raise if somebody else has replaced the file meanwhile.
    """
    check_output(path, kind)
    with replacing(path) as temporary:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # less the umask
        write(temporary)
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        if instead_of is not None and stamp_of(path) != instead_of:
            raise FileError(f"{path} was replaced by somebody else meanwhile; it is left as it is now, try again")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give the name of a temporary file or folder, which takes the place of ``path`` at the end, or else is removed."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_temporaries(path.parent, ABANDONED)
        temporary = path.with_name(f".{path.name}{TEMPORARY}{secrets.token_hex(8)}{path.suffix}")
        try:
            yield temporary
            temporary.replace(path)
            sync_folder(path.parent)
        finally:
            remove(temporary)


def sync_folder(path: Path) -> None:
    """Force the names in a folder to disk; some file systems cannot."""
    with suppress(OSError):
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def remove(path: Path) -> None:
    """Delete a file or a folder, if it is there and that is possible."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def remove_temporaries(folder: Path, seconds: float = 0) -> None:
    """Delete the temporary files of killed processes, which have not been written to for some seconds, and folders."""
    for path in folder.glob(f".*{TEMPORARY}*"):
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime >= (ABANDONED if path.is_dir() else seconds):
                remove(path)


def remove_others(folder: Path, stem: str, keep: str) -> None:
    """Delete the files of tensors that were written under ``stem``, except ``keep``."""
    for path in folder.glob(f"{stem}-{'[0-9a-f]' * 12}.safetensors"):
        if path.name != keep:
            remove(path)


@contextmanager
def locked(folder: Path, seconds: float = 0) -> Iterator[None]:
    """Be the only writer of a folder, which is created; waits up to ``seconds`` for another one to finish.

    Temporary files of killed writers are removed.
    """
    lock = FileLock(folder / LOCK, timeout=seconds)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout:
            raise FileError(f"{folder} is being written by another process; wait until it has finished") from None
    try:
        remove_temporaries(folder)
        yield
    finally:
        lock.release()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """While ``path`` is written, what the operating system refuses becomes a :class:`FileError` with a remedy."""
    check_path(path)
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        if error.errno is None:  # not from the operating system
            raise
        reason = "the disk is full" if error.errno == errno.ENOSPC else os.strerror(error.errno)
        refused = FileError(f"{path} cannot be written: {reason}; {_remedy(error.errno)}")
        refused.strerror = reason
        raise refused from None


def check_path(path: Path) -> None:
    """Raise if the operating system has no file of such a name."""
    if "\0" in str(path):
        raise FileError(f"{str(path)!r} has a NUL character, which no path can have; give another path")


def _remedy(code: int) -> str:
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "free some space or choose a folder on another disk, then run the same again"
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "choose a folder that you may write to"
    return "choose another folder"


def sha256(path: Path) -> str:
    """The SHA-256 of a regular file in hexadecimal."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def write_record(path: Path, record: Mapping[str, Any], key: bytes | None = None) -> None:
    """Write ``record`` as JSON, with the SHA-256 of everything else in it as ``seal``; with a key also signed."""
    write_bytes(path, record_bytes(record, path, key), record_kind(record["kind"]))


def record_bytes(record: Mapping[str, Any], source: object, key: bytes | None = None) -> bytes:
    """What :func:`write_record` writes to ``source``."""
    # the kind comes first, so that it is recognised at a glance
    body = {"kind": record["kind"], **{name: value for name, value in record.items() if name != "signature"}}
    if key is not None:
        body["signature"] = _signature(body, key)
    content = (json.dumps({**body, "seal": checksum(body)}, indent=1) + "\n").encode()
    if len(content) > MAX_BYTES or not _is_shallow(body, MAX_DEPTH):
        raise FileError(f"{source} would be larger or more deeply nested than can be read again; store less in it")
    return content


def read_record(
    path: Path, *, kind: str, schema: int, fields: type[Fields] | None = None, key: bytes | None = None
) -> Record:
    """Read a record of this kind; one that is missing, altered, of another kind or schema is an error.

    So is one whose values are not as ``fields`` declares them. With a ``key`` it must be signed with that key.
    """
    try:
        content = read_regular(path, MAX_BYTES, remedy="restore it or write it again")
    except FileError as error:
        if error.errno != errno.ENOENT:
            raise
        raise FileError(
            f"{path} does not exist, so {path.parent} does not hold a saved {kind}; give its folder"
        ) from None
    return parse_record(content, path, kind=kind, schema=schema, fields=fields, key=key)


def parse_record(
    content: bytes,
    path: object,
    *,
    kind: str,
    schema: int,
    fields: type[Fields] | None = None,
    key: bytes | None = None,
) -> Record:
    """Return the record in the content of the file ``path``, checked as :func:`read_record` does."""
    record = _parse_json(content, path)
    if not isinstance(record, dict) or record.get("kind") != kind:
        raise FileError(f"{path} is not a record of kind {kind!r}; it was written by another program")
    if record.get("schema") != schema:
        raise FileError(
            f"{path} has schema {str(record.get('schema'))[:40]}, this version of oodles reads schema {schema}; write "
            "the file again with this version, or use the one that wrote it"
        )
    if record.pop("seal", None) != checksum(record):
        raise FileError(f"{path} was altered after it was written (checksum mismatch); write it again")
    if key is not None:
        body = {name: value for name, value in record.items() if name != "signature"}
        signature = record.get("signature")
        if not isinstance(signature, str) or not signature.isascii():
            raise FileError(f"{path} is not signed; save it again with the key, or load it without one")
        if not hmac.compare_digest(signature, _signature(body, key)):
            raise FileError(f"{path} was signed with another key or altered afterwards; do not use it")
    return record if fields is None else checked(record, fields, path)


def checked(record: Record, fields: type[Fields], source: object) -> Record:
    """The record with its values checked against their declared types and ranges, and missing ones as declared."""
    try:
        whole: Record = msgspec.to_builtins(msgspec.convert(record, fields))
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise FileError(f"{source} is not as this version writes it: {error}; write it again") from None
    return whole


def _parse_json(content: bytes, path: object) -> Any:
    try:
        value = json.loads(content, object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path} is not readable JSON ({error}); restore it or write it again") from None
    if not _is_shallow(value, MAX_DEPTH):
        raise FileError(f"{path} is nested more than {MAX_DEPTH} deep; it was written by another program")
    return value


def _without_repetition(pairs: list[tuple[str, Any]]) -> Record:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a key is there twice")
    return record


def _is_shallow(value: Any, depth: int) -> bool:
    """Whether lists and dicts are nested at most this deep."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return depth > 0 and all(_is_shallow(each, depth - 1) for each in inside)


def read_regular(path: Path, most: int | None = None, *, links: bool = False, remedy: str = "write it again") -> bytes:
    """The content of a file; a device, a pipe, and a file of more than ``most`` bytes are errors.

    So is a link, unless ``links`` are followed. What the operating system refuses becomes a :class:`FileError` with its
    ``errno`` and the ``remedy``.
    """
    if path.is_symlink() and not links:
        raise FileError(f"{path} is a symbolic link, which is not allowed")
    try:
        with open_regular(path, most) as file:
            return file.read()
    except FileError:
        raise
    except OSError as error:
        fact = "does not exist" if error.errno == errno.ENOENT else f"cannot be read ({error.strerror})"
        refused = FileError(f"{path} {fact}; {remedy}")
        refused.errno = error.errno
        raise refused from None


def open_regular(path: Path, most: int | None = None) -> IO[bytes]:
    """A file of at most ``most`` bytes to read from; no device or pipe: one that nobody writes to would block."""
    check_path(path)
    file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb")
    found = os.fstat(file.fileno())
    problem = "is not a regular file" if not stat.S_ISREG(found.st_mode) else ""
    if most is not None and found.st_size > most:
        problem = problem or f"has {found.st_size:,} bytes, more than the {most:,} that are read"
    if problem:
        file.close()
        raise FileError(f"{path} {problem}")
    return file


def read_key(key: Key | None) -> bytes | None:
    """The bytes of a key, given as such or as the file that holds them."""
    if key is None:
        return None
    secret = key if isinstance(key, bytes) else read_regular(Path(key), MAX_KEY_BYTES, remedy="give a file with a key")
    if len(secret) < MIN_KEY_BYTES:
        raise ArgumentError(
            f"a key of {len(secret)} bytes can be guessed; give at least {MIN_KEY_BYTES} random bytes, such as "
            "secrets.token_bytes(32)"
        )
    return secret


def member(folder: Path, name: str) -> Path:
    """The file ``name`` directly inside ``folder``; a path to anywhere else is an error."""
    # what is not printable may be nothing that a file can be called
    if name != Path(name).name or name in ("", ".", "..") or not name.isprintable():
        raise FileError(f"{folder} lists a file outside the folder ({name!r:.300}), which is not allowed")
    path = folder / name
    if path.is_symlink():
        raise FileError(f"{path} is a symbolic link, which is not allowed")
    return path


def checksum(record: Mapping[str, Any]) -> str:
    """The SHA-256 of a record, whatever the order of its fields."""
    return hashlib.sha256(_canonical(record)).hexdigest()


def _signature(record: Mapping[str, Any], key: bytes) -> str:
    return hmac.new(key, _canonical(record), hashlib.sha256).hexdigest()


def _canonical(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
