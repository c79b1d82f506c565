"""Numeric arrays from MATLAB's ``.mat`` files (version 5, compressed or not), read with limits and checksums."""

import math
import struct
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from oodles.data.limits import regular_size

MAX_FILE = 2_000_000_000
MAX_GROWTH = 20
"""How much larger than the file an array may be; photographs hardly shrink when they are compressed."""
MAX_VARIABLES = 100
CHUNK = 1 << 20

MATRIX, COMPRESSED = 14, 15
STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
COMPLEX = 0x800

Read = Callable[[int], bytes | bytearray]
"""Reads exactly so many bytes; ValueError if there are fewer."""


class Matrix(NamedTuple):
    """An array, as it is stored, and the type that MATLAB has it in: whole doubles are stored as small integers."""

    values: npt.NDArray[Any]
    kind: np.dtype[Any]


def read_mat(path: Path, names: Collection[str]) -> dict[str, Matrix]:
    """The numeric arrays called ``names``; those that are not in the file are left out, others are skipped.

    A damaged file is a ValueError, a zlib.error or a struct.error.
    """
    limit = MAX_GROWTH * regular_size(path, MAX_FILE) + CHUNK
    found: dict[str, Matrix] = {}
    with path.open("rb") as file:
        header = file.read(128)
        order = {b"\x00\x01IM": "<", b"\x01\x00MI": ">"}.get(header[124:128])
        if order is None:
            raise ValueError("not a MATLAB file of version 5")
        for _ in range(MAX_VARIABLES):
            tag = file.read(8)
            if not tag:
                return found
            kind, size = struct.unpack(f"{order}II", tag)
            end = file.tell() + size
            name, matrix = _variable(file, kind, size, order, names, limit)
            if matrix is not None and found.setdefault(name, matrix) is not matrix:
                raise ValueError(f"{name} twice")
            file.seek(end)
    raise ValueError(f"more than {MAX_VARIABLES} variables")


def _variable(
    file: IO[bytes], kind: int, size: int, order: str, names: Collection[str], limit: int
) -> tuple[str, Matrix | None]:
    """The name of the variable that starts here, and its array if it is one of ``names``."""
    if kind == MATRIX:
        return _matrix(_reader(file, size), order, names, limit)
    if kind != COMPRESSED:
        return "", None
    inflate = zlib.decompressobj()
    read = _inflater(file, size, inflate)
    inner, _ = struct.unpack(f"{order}II", read(8))
    if inner != MATRIX:
        return "", None
    name, matrix = _matrix(read, order, names, limit)
    if matrix is not None:
        inflate.decompress(inflate.unconsumed_tail + file.read(CHUNK), 16)  # padding and the checksum
        if not inflate.eof:
            raise ValueError(f"{name} is longer than it says")
    return name, matrix


def _matrix(read: Read, order: str, names: Collection[str], limit: int) -> tuple[str, Matrix | None]:
    flags = struct.unpack(f"{order}II", _small(read, order, 8))[0]
    shape = [int(n) for n in np.frombuffer(_small(read, order, 128), f"{order}i4")]
    name = bytes(_small(read, order, 64)).decode("latin1")
    if name not in names:
        return name, None
    kind = CLASSES.get(flags & 0xFF)
    stored, size, first = _tag(read, order)
    if kind is None or flags & COMPLEX or stored not in STORED:
        raise ValueError(f"{name} is not an array of numbers")
    dtype = np.dtype(f"{order}{STORED[stored]}")
    if min(shape, default=-1) < 0 or math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"{name} of shape {tuple(shape[:8])} has {size:,} bytes")
    if size > limit:
        raise ValueError(f"{name} has {size:,} bytes unpacked, more than {limit:,}")
    values = np.frombuffer(first[:size] if first else read(size), dtype).reshape(shape, order="F")
    return name, Matrix(values, np.dtype(kind))


def _small(read: Read, order: str, limit: int) -> bytes | bytearray:
    """The content of an element of at most ``limit`` bytes, and past the padding behind it."""
    _, size, first = _tag(read, order)
    if size > limit:
        raise ValueError(f"{size:,} bytes where at most {limit} are expected")
    if first:
        return first[:size]
    return read(size + -size % 8)[:size]


def _tag(read: Read, order: str) -> tuple[int, int, bytes | bytearray]:
    """An element's type and size; of one so small that it is stored in the tag, its four bytes too."""
    tag = read(8)
    kind, size = struct.unpack(f"{order}II", tag)
    if kind >> 16 == 0:
        return kind, size, b""
    if kind >> 16 > 4:
        raise ValueError("a damaged element")
    return kind & 0xFFFF, kind >> 16, tag[4:]


def _reader(file: IO[bytes], size: int) -> Read:
    """Reads the next ``size`` bytes of a file, piece by piece."""
    left = size

    def read(count: int) -> bytes:
        nonlocal left
        left -= count
        content = file.read(count) if left >= 0 else b""
        if len(content) < count:
            raise ValueError("cut short")
        return content

    return read


def _inflater(file: IO[bytes], size: int, inflate: "zlib._Decompress") -> Read:
    """Reads what the next ``size`` bytes of a file unpack to, never more than is asked for."""
    left = size

    def read(count: int) -> bytearray:
        nonlocal left
        content = bytearray()
        while len(content) < count:
            packed = inflate.unconsumed_tail
            if not packed:
                packed = file.read(min(CHUNK, left))
                left -= len(packed)
            more = inflate.decompress(packed, count - len(content))
            if not more and not packed:
                raise ValueError("cut short")
            content += more
        return content

    return read
