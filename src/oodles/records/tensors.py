"""Files of PyTorch tensors that a record names with their SHA-256: the part of saved objects that needs PyTorch."""

import errno
import hashlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as serialise_tensors
from torch import Tensor

from oodles.errors import FileError
from oodles.records.files import OWNED, Record, member, read_regular, write_bytes
from oodles.records.text import one_line

ATTEMPTS, PAUSE = 20, 0.01  # how often and after how many seconds a file that was just replaced is looked for again


def write_tensors(folder: Path, stem: str, tensors: Mapping[str, Tensor]) -> Record:
    """Write tensors to a file named after their checksum; returns the record that :func:`read_tensors` reads.

    Because the name changes with the content, a saved object can be replaced atomically: the record that points to the
    new file is written after it.
    """
    content = serialise(tensors)
    digest = hashlib.sha256(content).hexdigest()
    file = f"{stem}-{digest[:12]}.safetensors"
    write_bytes(folder / file, content, OWNED)
    return {"file": file, "sha256": digest}


def serialise(tensors: Mapping[str, Tensor], notes: dict[str, str] | None = None) -> bytes:
    """Tensors as safetensors bytes with ``notes``; those that share memory (tied weights, slices) are separate."""
    written: dict[int, str] = {}
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    separate = {
        name: tensor if written.setdefault(tensor.untyped_storage().data_ptr(), name) == name else tensor.clone()
        for name, tensor in plain.items()
    }
    return serialise_tensors(separate, notes)


def read_tensors(folder: Path, entry: Mapping[str, Any]) -> dict[str, Tensor]:
    """Read what :func:`write_tensors` wrote, after checking its checksum."""
    path = member(folder, entry["file"])
    content = read_regular(path)
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise FileError(f"{path} was altered or truncated (its SHA-256 does not match); write it again")
    try:
        return parse_tensors(content)
    except (SafetensorError, ValueError, KeyError, RuntimeError, OverflowError) as error:
        raise FileError(f"{path} is not a safetensors file ({one_line(error)})") from None


def read_saved(folder: Path, read: Callable[[], Record]) -> tuple[Record, dict[str, Tensor]]:
    """A record and the tensors it names, both of one save even while another process is saving.

    If the tensors are gone, a writer has replaced the record in the meantime: it is read again.
    """
    for _ in range(ATTEMPTS):
        record = read()
        try:
            return record, read_tensors(folder, record["tensors"])
        except FileError as error:
            if error.errno != errno.ENOENT:
                raise
        time.sleep(PAUSE)
    record = read()
    return record, read_tensors(folder, record["tensors"])
