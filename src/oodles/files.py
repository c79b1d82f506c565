"""Atomic writes, checksums, and JSON records that carry their own checksum."""

import errno
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as serialise_tensors
from torch import Tensor

from oodles.errors import FileError

Record = dict[str, Any]


def write_bytes(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` atomically, so that no reader sees half a file."""
    write_with(path, lambda temporary: temporary.write_bytes(content))


def write_with(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file, force it to disk, then rename it to ``path``."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            write(temporary)
            with temporary.open("r+b") as file:
                os.fsync(file.fileno())
            temporary.chmod(0o644)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """While ``path`` is written, what the operating system refuses becomes a :class:`FileError` with a remedy."""
    try:
        yield
    except FileError:
        raise
    except (OSError, SafetensorError) as error:
        code = _error_number(error)
        if code is None:  # not from the operating system
            raise
        reason = "the disk is full" if code == errno.ENOSPC else os.strerror(code)
        refused = FileError(f"{path} cannot be written: {reason}; {_remedy(code)}")
        refused.strerror = reason
        raise refused from None


def _error_number(error: Exception) -> int | None:
    """The operating system's number for an error; safetensors gives it only as part of its text."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"(?:os error |code: )(\d+)", str(error))
    return int(found[1]) if found else None


def _remedy(code: int) -> str:
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "free some space or choose a folder on another disk, then run the same again"
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "choose a folder that you may write to"
    return "choose another folder"


def sha256(path: Path) -> str:
    """The file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write ``record`` as JSON, with the SHA-256 of everything else in it as ``seal``."""
    sealed = {**record, "seal": _checksum(record)}
    write_bytes(path, (json.dumps(sealed, indent=1) + "\n").encode())


def read_record(path: Path, *, kind: str, schema: int) -> Record:
    """Read a record of this kind; one that is missing, altered, of another kind or schema is an error."""
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise FileError(f"{path} does not exist, so {path.parent} does not hold a saved {kind}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(f"{path} is not readable JSON ({error}); restore it or write it again") from None
    if not isinstance(record, dict) or record.get("kind") != kind:
        raise FileError(f"{path} does not describe a {kind}; it was written by another program")
    if record.get("schema") != schema:
        raise FileError(
            f"{path} has schema {record.get('schema')}, this version of oodles reads schema {schema}; write the file "
            "again with this version, or use the one that wrote it"
        )
    if record.pop("seal", None) != _checksum(record):
        raise FileError(f"{path} was altered after it was written (checksum mismatch); write it again")
    return record


def write_tensors(folder: Path, stem: str, tensors: Mapping[str, Tensor]) -> Record:
    """Write tensors to a file named after their checksum; returns the record that :func:`read_tensors` reads.

    Because the name changes with the content, a saved object can be replaced atomically: the record that points to the
    new file is written after it.
    """
    content = serialise(tensors)
    digest = hashlib.sha256(content).hexdigest()
    file = f"{stem}-{digest[:12]}.safetensors"
    write_bytes(folder / file, content)
    return {"file": file, "sha256": digest}


def serialise(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as safetensors bytes; those that share memory (tied weights, slices) are written separately."""
    written: dict[int, str] = {}
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    separate = {
        name: tensor if written.setdefault(tensor.untyped_storage().data_ptr(), name) == name else tensor.clone()
        for name, tensor in plain.items()
    }
    return serialise_tensors(separate)


def read_tensors(folder: Path, entry: Mapping[str, Any]) -> dict[str, Tensor]:
    """Read what :func:`write_tensors` wrote, after checking its checksum."""
    path = member(folder, entry["file"])
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path} cannot be read ({error.strerror}); write it again") from None
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise FileError(f"{path} was altered or truncated (its SHA-256 does not match); write it again")
    try:
        return parse_tensors(content)
    except SafetensorError as error:
        raise FileError(f"{path} is not a safetensors file ({error})") from None


def member(folder: Path, name: str) -> Path:
    """The file ``name`` directly inside ``folder``; a path to anywhere else is an error."""
    if name != Path(name).name or name in ("", ".", ".."):
        raise FileError(f"{folder} lists a file outside the folder ({name!r}), which is not allowed")
    path = folder / name
    if path.is_symlink():
        raise FileError(f"{path} is a symbolic link, which is not allowed")
    return path


def _checksum(record: Mapping[str, Any]) -> str:
    canonical = json.dumps(record, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
