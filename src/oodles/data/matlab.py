"""Numeric arrays from MATLAB's ``.mat`` files (version 5, compressed or not), read with limits and checksums.

SciPy's reader is not used because a single altered byte can make it end the process.
"""

import math
import struct
import zlib
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from oodles.records.files import read_regular

MAX_FILE = 2_000_000_000
MAX_GROWTH = 20
"""How much larger than the file an array may be; photographs hardly shrink when they are compressed."""
MAX_VARIABLES = 100
MAX_SIZES = 128  # bytes of a shape
CHUNK = 1 << 20

MATRIX, COMPRESSED = 14, 15
STORED = {1: "<i1", 2: "<u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
COMPLEX = 0x800


class Matrix(NamedTuple):
    """An array, as it is stored, and the type that MATLAB has it in: whole doubles are stored as small integers."""

    values: npt.NDArray[Any]
    kind: np.dtype[Any]


def read_mat(path: Path, names: Collection[str]) -> dict[str, Matrix]:
    """The numeric arrays called ``names``; those that are not in the file are left out, others are skipped.

    A damaged file is a ValueError, a zlib.error or a struct.error.
    """
    whole = memoryview(read_regular(path, MAX_FILE, links=True))
    limit = MAX_GROWTH * len(whole) + CHUNK
    if bytes(whole[124:128]) != b"\x00\x01IM":
        raise ValueError("not a MATLAB file of version 5")
    found: dict[str, Matrix] = {}
    for count, (kind, content) in enumerate(_elements(whole[128:])):
        if count == MAX_VARIABLES:
            raise ValueError(f"more than {MAX_VARIABLES} variables")
        if kind == COMPRESSED:
            inside = _elements(_inflated(content, limit))
            kind, content = next(inside, (0, content))
            if next(inside, None):
                raise ValueError("a packed variable is longer than it says")
        if kind == MATRIX:
            parts = [*islice(_elements(content), 4)]
            name = bytes(parts[2][1]).decode("latin1") if len(parts) == 4 else ""
            if name in found:
                raise ValueError(f"{name} twice")
            if name in names:
                found[name] = _matrix(name, parts)
    return found


def _elements(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the type and the content of each element."""
    while content:
        kind, size = struct.unpack_from("<II", content)
        start, end = 8, 8 + size + (0 if kind == COMPRESSED else -size % 8)
        if kind >> 16:  # so small that it is stored in its tag
            kind, size, start, end = kind & 0xFFFF, min(kind >> 16, 4), 4, 8
        if start + size > len(content):
            raise ValueError("cut short")
        yield kind, content[start : start + size]
        content = content[end:]


def _inflated(packed: memoryview, limit: int) -> memoryview:
    """Unpack a variable of fewer than ``limit`` bytes, and verify its checksum."""
    inflate, content = zlib.decompressobj(), bytearray()
    for start in range(0, len(packed), CHUNK):
        content += inflate.decompress(packed[start : start + CHUNK], limit - len(content))
        if len(content) == limit:
            raise ValueError(f"a variable has more than {limit:,} bytes unpacked")
    if not inflate.eof:
        raise ValueError("cut short")
    return memoryview(content)


def _matrix(name: str, parts: Sequence[tuple[int, memoryview]]) -> Matrix:
    """Return the array of a variable that consists of its class, its shape, its name and its numbers."""
    (_, flags), (_, sizes), _, (stored, values) = parts
    bits, shape = int.from_bytes(flags[:4], "little"), np.frombuffer(sizes[:MAX_SIZES], "<i4").tolist()
    kind = CLASSES.get(bits & 0xFF)
    if kind is None or bits & COMPLEX or stored not in STORED:
        raise ValueError(f"{name} is not an array of numbers")
    dtype = np.dtype(STORED[stored])
    if min(shape, default=-1) < 0 or math.prod(shape) * dtype.itemsize != len(values):
        raise ValueError(f"{name} of shape {tuple(shape[:8])} has {len(values):,} bytes")
    return Matrix(np.frombuffer(values, dtype).reshape(shape, order="F"), np.dtype(kind))
