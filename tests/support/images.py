"""Image files for tests: random images, CIFAR batches, 16-bit PNGs and zip archives of folders."""

import pickle
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from oodles.data import readers
from oodles.data.readers import ImageSet
from oodles.data.transforms import Transform

PLAIN = Transform(8, 8, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def noise(*shape: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write_image(path: Path, *, size: tuple[int, int] = (8, 8), mode: str = "RGB", seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = {"RGB": 3, "RGBA": 4, "CMYK": 4, "LA": 2}.get(mode)
    shape = (size[1], size[0]) if channels is None else (size[1], size[0], channels)
    image = Image.fromarray(noise(*shape, seed=seed), mode="L" if mode in ("1", "P") else None)
    if image.mode != mode:
        image = image.convert(mode)
    image.save(path)
    return path


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def write_16_bit_png(path: Path, colour: int) -> Path:
    """A 16-bit PNG of 4x4 pixels; colour type 0 is grey, 2 is RGB. Every sample is 0x1234."""
    row = b"\x00" + b"\x12\x34" * 4 * (3 if colour == 2 else 1)
    header = struct.pack(">IIBBBBB", 4, 4, 16, colour, 0, 0, 0)
    body = png_chunk(b"IHDR", header) + png_chunk(b"IDAT", zlib.compress(row * 4)) + png_chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    return path


def write_cifar_batch(path: Path, rows: int = 6, *, seed: int = 0, labels: str = "labels") -> npt.NDArray[np.uint8]:
    """A CIFAR batch as Python 3 writes it: protocol 2, str keys. Returns its pixels."""
    data = noise(rows, 3072, seed=seed)
    content = {"data": data, labels: [row % 10 for row in range(rows)], "filenames": ["x.png"] * rows}
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))
    return data


def write_zip(folder: Path, path: Path, compression: int = zipfile.ZIP_DEFLATED) -> Path:
    """The files of ``folder`` in a zip archive, in reverse order."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for file in sorted(folder.rglob("*"), reverse=True):
            archive.write(file, file.relative_to(folder).as_posix())
    return path


def open_image(path: Path) -> Image.Image:
    """One image, decoded, whatever its name is."""
    return ImageSet(path.name, [path.name], lambda _: readers.open_image(path)).read(0)


def read_array(images: ImageSet, row: int) -> npt.NDArray[Any]:
    return np.asarray(images.read(row))
