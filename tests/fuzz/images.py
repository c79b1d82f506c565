"""Hostile files of images: damaged and forged images, zips, CIFAR pickles, ``.mat`` files and folders.

What is read must be whole: every image becomes finite pixels, every label is a class. All else is refused.
"""

import io
import os
import pickle
import pickletools
import random
import re
import socket
import struct
import zipfile
import zlib
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from scipy.io import savemat
from support.images import noise, png_chunk

from oodles.data.limits import MAX_PIXELS
from oodles.data.loaders import ImageLoader
from oodles.data.readers import SUFFIXES, SUFFIXES_OF, open_images
from oodles.data.transforms import CIFAR
from oodles.errors import DataError

from . import ACCEPTED, TRACEBACK
from .alterations import SIZES, damaged

ROUNDS, SHORT, CHUNK = 2000, 60, 500


def read(path: Path, workers: int = 1) -> str:
    """Read everything at a path; raises what oodles raises."""
    images = open_images(path)
    labels = images.labels
    for batch in ImageLoader(images, CIFAR, labels=False, workers=workers):
        if batch.shape[1:] != (3, 32, 32) or not bool(torch.isfinite(batch).all()):
            return TRACEBACK
    whole = labels is None or (len(labels) == len(images) and labels.min() >= 0 and labels.max() < len(images) + 100)
    return ACCEPTED if whole else TRACEBACK


# Images -----------------------------------------------------------------------------------------


@cache
def intact_image(kind: str, mode: str) -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(noise(24, 36, 3)).convert(mode)
    try:
        image.save(file, kind)
    except (OSError, KeyError, ValueError):  # the format does not have this mode
        image.convert("RGB").save(file, kind)
    return file.getvalue()


def forged_image(rng: random.Random) -> tuple[str, bytes]:
    """A header that states a size which the data do not have."""
    width, height = rng.choice(SIZES), rng.choice(SIZES)
    match rng.randrange(4):
        case 0:
            header = struct.pack(">IIBBBBB", width, height, rng.choice((1, 8, 16)), rng.choice((0, 2, 3, 6)), 0, 0, 0)
            chunks = png_chunk(b"IHDR", header) + png_chunk(b"IDAT", zlib.compress(bytes(rng.choice((0, 99, 10**6)))))
            return ".png", b"\x89PNG\r\n\x1a\n" + chunks + png_chunk(b"IEND", b"")
        case 1:
            return ".ppm", b"P%d %d %d %d\n" % (rng.randrange(1, 8), width, height, rng.choice(SIZES)) + bytes(999)
        case 2:
            head = b"GIF89a" + struct.pack("<HHBBB", width & 0xFFFF, height & 0xFFFF, 0, 0, 0)
            return ".gif", head + b"," + struct.pack("<HHHHB", 0, 0, 9, 9, 0) + b"\x08\x00;"
        case _:
            head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, rng.choice((1, 8, 24, 32)), 0, 0, 0, 0, 0, 0)
            return ".bmp", b"BM" + struct.pack("<IHHI", 99, 0, 0, 54) + head + bytes(999)


def any_image(rng: random.Random) -> tuple[str, bytes]:
    if rng.random() < 0.3:
        return forged_image(rng)
    kind = rng.choice(list(SUFFIXES_OF))
    content = damaged(rng, intact_image(kind, rng.choice(("RGB", "L", "P", "RGBA", "CMYK", "1", "I;16"))))
    return rng.choice(SUFFIXES_OF[kind] if rng.random() < 0.9 else SUFFIXES), content


def hostile_image(rng: random.Random, folder: Path) -> str:
    suffix, content = any_image(rng)
    path = folder / f"image{suffix}"
    path.write_bytes(content)
    return read(path)


def many_large_images(rng: random.Random, folder: Path) -> str:
    """As many pixels as are allowed, in more images than fit in memory together: all of them must be read."""
    side = int(MAX_PIXELS**0.5)
    for number, kind in enumerate(("JPEG", "PNG", "BMP") * 4):
        suffix = SUFFIXES_OF[kind][0]
        path, first = folder / f"{number}{suffix}", folder / f"{number % 3}{suffix}"
        if number < 3:
            Image.new("RGB", (side, side), (rng.randrange(256), 0, 0)).save(path, kind)
        else:
            os.link(first, path)
    try:
        return read(folder, workers=16)
    except DataError as error:
        raise AssertionError("large images were refused") from error


# Zips -------------------------------------------------------------------------------------------

METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
NAMES = (
    *("{}.png", "a/{}.png", "b/{}.jpg", "../{}.png", "/etc/{}.png", "a\n{}.png", "a/../{}.png", "{}.png/", "{}.txt"),
    "C:\\{}.png",
)


def hostile_zip(rng: random.Random, folder: Path) -> str:
    """Damaged members, names that lead elsewhere, zeros packed a thousandfold, and false sizes in the directory."""
    path = folder / "t.zip"
    with zipfile.ZipFile(path, "w", rng.choice(METHODS)) as archive:
        for number in range(rng.choice((1, 2, 5, 40))):
            zeros, intact = rng.random() < 0.03, rng.random() < 0.9
            content = bytes(4_000_000) if zeros else intact_image("PNG", "RGB") if intact else any_image(rng)[1]
            archive.writestr(rng.choice(NAMES).format(number % rng.choice((1, 50))), content)
    content = bytearray(path.read_bytes())
    entries = [found.start() for found in re.finditer(rb"PK\x01\x02", content)]
    if rng.random() < 0.3 and entries:
        for start in rng.sample(entries, min(len(entries), 3)):
            field = rng.choice((8, 10, 16, 20, 24, 42))  # flags, method, checksum, both sizes, place
            content[start + field : start + field + 4] = struct.pack("<I", rng.choice((*SIZES, 190_000_000)))
    path.write_bytes(damaged(rng, bytes(content)) if rng.random() < 0.4 else content)
    return read(path if rng.random() < 0.8 else path / "a")


# CIFAR ------------------------------------------------------------------------------------------

FRAGMENTS = (
    *(b"\x80\x02", b"\x80\x05", b"(", b"]", b"}", b")", b"N", b"\x88", b"K\x01", b"J\xff\xff\xff\xff", b"I99\n"),
    *(b"q\x00", b"q\x01", b"h\x00", b"h\x01", b"r\xff\xff\xff\x7f", b"\x94", b"a", b"e", b"s", b"u", b"t", b"l", b"d"),
    *(b"\x85", b"\x86", b"\x87", b"R", b"b", b"\x81", b"\x93", b"i", b"o", b"0", b"2", b"1", b"Q", b"\x82\x01"),
    *(b"cnumpy\nndarray\n", b"cnumpy\ndtype\n", b"c_codecs\nencode\n", b"cposix\nsystem\n", b"cbuiltins\neval\n"),
    *(b"cnumpy.core.multiarray\n_reconstruct\n", b"cnumpy.core.numeric\n_frombuffer\n", b"\x8c\x01O", b"\x8c\x02u1"),
    *(b"\x8c\x04data", b"\x8c\x06labels", b"C\x08" + bytes(8), b"\x8e" + bytes(7) + b"\x7f", b"B\xff\xff\xff\x7f"),
    *(b"L9L\n", b"."),
)


@cache
def intact_batch(protocol: int) -> tuple[bytes, list[int]]:
    content = pickle.dumps({"data": noise(3, 3072), "labels": [1, 2, 3], "filenames": ["a", "b", "c"]}, protocol)
    return content, [place for _, _, place in pickletools.genops(content) if place is not None]


def hostile_pickle(rng: random.Random, folder: Path) -> str:
    path = folder / rng.choice(("data_batch_1", "test_batch", "train", "test"))
    content, places = intact_batch(rng.randrange(6))
    match rng.randrange(4):
        case 0:
            content = b"".join(rng.choices(FRAGMENTS, k=rng.randrange(1, 60))) + b"."
        case 1:
            for _ in range(rng.randrange(1, 4)):
                where = rng.choice(places)
                content = content[:where] + b"".join(rng.choices(FRAGMENTS, k=rng.randrange(1, 5))) + content[where:]
        case 2:  # lists of lists of lists, or tuples as keys
            twice = rng.choice((b"](h%c" + b"h%c" * 8 + b"e", b"(h%c" + b"h%c" * 8 + b"t"))
            grown = b"".join(b"q%c" % n + twice % (n, *[n] * 8) for n in range(rng.randrange(2, 60)))
            content = b"\x80\x02}\x8c\x06labelsK\x01" + grown + rng.choice((b"", b"K\x01"))
            content += rng.choice((b"s", b"R", b"\x93")) + b"."
        case _:
            content = damaged(rng, content, places)
    path.write_bytes(content)
    return read(path)


# SVHN -------------------------------------------------------------------------------------------


@cache
def intact_mat(packed: bool) -> bytes:
    file = io.BytesIO()
    labels = np.array([[1], [10], [3]], dtype=np.uint8)
    savemat(file, {"X": noise(32, 32, 3, 3), "note": "text", "y": labels}, do_compression=packed)
    return file.getvalue()


def hostile_mat(rng: random.Random, folder: Path) -> str:
    """Damage to the file, or to what is inside it, with correct checksums around it."""
    path = folder / "digits.mat"
    packed = rng.random() < 0.5
    content = intact_mat(packed)
    if packed and rng.random() < 0.5:
        parts, place = [content[:128]], 128
        while place < len(content):
            _, size = struct.unpack_from("<II", content, place)
            inside = zlib.decompress(content[place + 8 : place + 8 + size])
            if rng.random() < 0.6:
                inside = damaged(rng, inside, range(0, 60, 4))
            again = zlib.compress(inside + bytes(rng.choice((0, 0, 0, 30_000_000))))
            parts.append(struct.pack("<II", 15, len(again)) + again)
            place += 8 + size
        content = b"".join(parts)
    else:
        content = damaged(rng, content, rng.choice(((), range(120, 200, 4))))
    path.write_bytes(content)
    return read(path)


# Folders ----------------------------------------------------------------------------------------


def hostile_folder(rng: random.Random, folder: Path) -> str:
    """Pipes, sockets, devices and links, to themselves too, among images and folders named like images."""
    root = folder / "set"
    places = [root]
    root.mkdir()
    for number in range(rng.randrange(1, 12)):
        here = rng.choice(places)
        name = rng.choice(
            (f"{number}.png", "x.png", "train", "meta", "data_batch_1", "a\n.png", f"{number}.zip", "\udcff.png")
        )
        with suppress(OSError):
            match rng.randrange(9):
                case 0:
                    os.mkfifo(here / name)
                case 1:
                    (here / name).symlink_to(rng.choice(("/dev/zero", "/dev/urandom", "/proc/self/mem", "/dev/tty")))
                case 2:
                    (here / name).symlink_to(rng.choice((".", "..", name, "nowhere", *map(str, places))))
                case 3 | 4:
                    (here / name).mkdir()
                    places.append(here / name)
                case 5:
                    with socket.socket(socket.AF_UNIX) as one:
                        one.bind(str(here / name))
                case 6:
                    write_new(here / name, any_image(rng)[1])
                case _:
                    write_new(here / name, intact_image("PNG", "RGB"))
    inside = [path for path in root.rglob("*") if not path.is_dir()]
    return read(rng.choice([root, root, *inside]))


def write_new(path: Path, content: bytes) -> None:
    """Never through a link or into a pipe that is already there."""
    with path.open("xb") as file:
        file.write(content)


CASES = {
    "images": hostile_image,
    "zips": hostile_zip,
    "pickles": hostile_pickle,
    "mat files": hostile_mat,
    "folders": hostile_folder,
    "large images": many_large_images,
}
SHARES = {"large images": 0.011}  # one in a chunk
