"""Images in a NumPy file, read through a memory map and never all at once."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import overload

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy
from PIL import Image

from oodles.data.image_sets import ImageSet
from oodles.data.limits import MAX_PIXELS, regular_size
from oodles.errors import DataError
from oodles.records.text import one_line

MAX_FILE = 1 << 46  # bytes; memory is only taken for the images that are being decoded
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_array(path: Path) -> ImageSet:
    """The images in a ``.npy`` file: uint8 ``(n, height, width, 3)``, or one ``(height, width, 3)``."""
    pixels = _map(path)
    return ImageSet(path.name, Numbered(str(path), len(pixels)), lambda row: Image.fromarray(np.array(pixels[row])))


class Numbered(Sequence[str]):
    """The names ``path[0]``, ``path[1]``, ..., which are not kept."""

    def __init__(self, path: str, count: int) -> None:
        self._path, self._rows = path, range(count)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        found = self._rows[row]
        return f"{self._path}[{found}]" if isinstance(found, int) else [f"{self._path}[{each}]" for each in found]


def _map(path: Path) -> npt.NDArray[np.uint8]:
    """The array without reading it; its header is checked before anything is made of its size."""
    size = regular_size(path, MAX_FILE)
    with path.open("rb") as file:
        try:
            shape, by_columns, kind = HEADERS[npy.read_magic(file)](file)
        except Exception as error:  # NumPy parses the header as Python, which may fail in many ways
            raise DataError(f"{path} is not a NumPy file of images ({one_line(error)})") from None
        start = file.tell()
    described = f"{path} holds {kind} {shape}"
    if kind != np.uint8 or len(shape) not in (3, 4) or shape[-1] != 3 or by_columns:
        raise DataError(f"{described}; give uint8 (n, height, width, 3) or (height, width, 3)")
    if min(shape) < 1 or shape[-3] * shape[-2] > MAX_PIXELS:
        raise DataError(f"{described}; images must have at least one and at most {MAX_PIXELS:,} pixels")
    if start + math.prod(shape) > size:
        raise DataError(f"{described}, but ends after {size:,} bytes; write it again")
    whole = shape if len(shape) == 4 else (1, *shape)
    return np.memmap(path, np.uint8, "r", start, whole)
