"""Images from disk: CIFAR pickles, SVHN ``.mat`` files, and image folders, plain or inside a ``.zip``."""

import io
import os
import re
import struct
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError, features

from oodles.data.image_sets import ImageSet as ImageSet
from oodles.data.image_sets import count_by_suffix, label_by_folder, split_names
from oodles.data.image_sets import decode as decode
from oodles.data.image_sets import first_per_class as first_per_class
from oodles.data.limits import FILE_BYTES, MAX_BYTES, MAX_PIXELS, TooLargeError, regular_size, unpacked_limit
from oodles.data.matlab import read_mat
from oodles.data.pickles import read_pickle
from oodles.errors import DataError
from oodles.records.files import open_regular, read_regular


class NotAnImageError(DataError):
    """A file is not in a format that is read."""


class EmptyFileError(DataError):
    """A file has no content."""


def _decodes(feature: str) -> bool:
    """Whether this Pillow was built with an optional decoder; older versions do not know the names of newer ones."""
    return (feature in features.modules or feature in features.codecs) and bool(features.check(feature))


# the only formats that are ever parsed, and the suffixes of files that are taken for images
SUFFIXES_OF = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    "TIFF": (".tif", ".tiff"),
    **({"WEBP": (".webp",)} if _decodes("webp") else {}),
    **({"AVIF": (".avif",)} if _decodes("avif") else {}),
    **({"JPEG2000": (".jp2", ".j2k", ".j2c", ".jpc", ".jpf", ".jpx")} if _decodes("jpg_2000") else {}),
}
FORMATS = tuple(SUFFIXES_OF)
SUFFIXES = tuple(suffix for suffixes in SUFFIXES_OF.values() for suffix in suffixes)
# large blocks go back to the operating system at once; glibc would keep Pillow's usual ones for each thread
Image.core.set_block_size(64 << 20)  # type: ignore[attr-defined]  # documented, but not typed

METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others unpack more than is asked for
CIFAR_NAMES = r"data_batch_[0-9]+|test_batch|train|test"
MAX_CIFAR = 400_000_000


def open_images(path: str | Path) -> ImageSet:
    """Images at ``path``: a folder of images, one image, a CIFAR batch or folder, or an SVHN ``.mat`` file.

    A ``.zip`` of a folder is read in place; ``photos.zip/train`` is the folder ``train`` inside it.
    """
    path = Path(path)
    inside = _inside_zip(path)
    if inside is not None:
        return read_zip(*inside)
    if not path.exists():
        raise DataError(f"{path} does not exist")
    if path.is_dir():
        batches = sorted(path.glob("data_batch_[0-9]")) or ([path / "train"] if (path / "meta").is_file() else [])
        return read_cifar(*batches) if batches and batches[0].is_file() else read_folder(path)
    if path.suffix == ".mat":
        return read_svhn(path)
    if path.suffix.lower() in SUFFIXES:
        return ImageSet(path.name, [str(path)], lambda _: open_image(path), file=lambda _: path)
    if re.fullmatch(CIFAR_NAMES, path.name):
        return read_cifar(path)
    raise DataError(
        f"{path} is not an image set that oodles reads: a folder or .zip of images, an image ({', '.join(SUFFIXES)}), "
        "an SVHN .mat file, or a CIFAR batch (data_batch_1, ..., test_batch, train, test)"
    )


def open_files(path: str | Path) -> ImageSet:
    """All files below ``path``, or that file, to be read as bytes; class folders give labels as for images."""
    path = Path(path)
    if path.is_dir():
        name = path.name or path.resolve().name
        found = _names_below(path)
        return _image_set(name, str(path), found, lambda inner: open_regular(path / inner), path.joinpath, ("",))
    if not path.exists():
        raise DataError(f"{path} does not exist")
    return ImageSet(path.name, [str(path)], lambda _: open_regular(path), file=lambda _: path)


def path_exists(path: Path) -> bool:
    """Whether ``path`` exists, on disk or as a folder inside a ``.zip``."""
    inside = _inside_zip(path)
    if inside is None:
        return path.exists()
    return not inside[1] or bool(_members(*inside)[1])


def read_cifar(*paths: Path) -> ImageSet:
    """CIFAR-10 or CIFAR-100 batches in their original pickles, read by an interpreter that cannot run code."""
    batches = [_cifar_batch(path) for path in paths]
    images = np.concatenate([rows for rows, _ in batches]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    labels = np.concatenate([labels for _, labels in batches])
    places = [(path, row) for path, (rows, _) in zip(paths, batches, strict=True) for row in range(len(rows))]
    return _from_array(paths[0].parent.name, images, labels, places)


def _cifar_batch(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The rows of pixels and the labels of one batch."""
    try:
        content = read_pickle(read_regular(path, MAX_CIFAR, links=True))
    except ValueError as error:
        raise DataError(f"{path} is not a CIFAR batch ({error})") from None
    pairs = content.items() if isinstance(content, dict) else ()
    # Python 2 wrote the keys as bytes
    batch = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in pairs}
    rows, labels = batch.get("data"), batch.get("labels", batch.get("fine_labels"))
    if isinstance(labels, np.ndarray) and labels.ndim == 1:
        labels = labels.tolist()
    if (
        not isinstance(rows, np.ndarray)
        or rows.dtype != np.uint8
        or not isinstance(labels, list)
        or rows.shape != (len(labels), 3072)
        or not labels
        or not all(type(label) is int for label in labels)
    ):
        raise DataError(f"{path} is a pickle, but not a CIFAR batch")
    low, high = min(labels), max(labels)
    if low < 0 or high > 99:
        raise DataError(f"{path} has labels from {low} to {high}, and CIFAR's classes are 0 to 99")
    return rows, np.array(labels, dtype=np.int64)


def read_svhn(path: Path) -> ImageSet:
    """SVHN's cropped digits in their original ``.mat`` file, which stores the digit 0 as 10."""
    try:
        content = read_mat(path, ("X", "y"))
        digits, numbers = content["X"], content["y"].values.ravel()
    except KeyError as error:
        raise DataError(f"{path} is not an SVHN file with X and y (it has no {error})") from None
    except (ValueError, zlib.error, struct.error) as error:
        raise DataError(f"{path} is not an SVHN file with X and y ({error})") from None
    fits = digits.kind == np.uint8 and digits.values.dtype == np.uint8 and digits.values.shape[:-1] == (32, 32, 3)
    if not fits or not 0 < len(numbers) == digits.values.shape[-1] or not np.isin(numbers, np.arange(11)).all():
        raise DataError(f"{path} does not hold 32x32 colour images, each with a digit, as SVHN's files do")
    labels = numbers.astype(np.int64) % 10
    places = [(path, row) for row in range(len(labels))]
    return _from_array(path.stem, digits.values.transpose(3, 0, 1, 2), labels, places)


def _from_array(
    name: str, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], places: Sequence[tuple[Path, int]]
) -> ImageSet:
    names = [f"{path.name}[{row}]" for path, row in places]
    return ImageSet(name, names, lambda row: Image.fromarray(images[row]), labels, file=lambda row: places[row][0])


def read_folder(path: Path) -> ImageSet:
    """All images below ``path``; if they are in class folders, the sorted folder names are the classes."""
    name = path.name or path.resolve().name
    return _image_set(name, str(path), _names_below(path), lambda inner: open_image(path / inner), path.joinpath)


def _names_below(path: Path) -> list[str]:
    """The files and folders (their names end in "/") below ``path``; links to folders are followed, once each."""
    found: list[str] = []
    visited: dict[tuple[int, int], str] = {}
    for here, _, files in os.walk(path, onerror=_refuse_folder, followlinks=True):
        known = Path(here).stat()
        first = visited.setdefault((known.st_dev, known.st_ino), here)
        if first is not here:
            raise DataError(f"{here} and {first} are the same folder, so the same images come again; remove the link")
        inner = f"{Path(here).relative_to(path).as_posix()}/".removeprefix("./")
        found += [inner, *(inner + name for name in files)]
    return found


def _refuse_folder(error: OSError) -> None:
    raise DataError(f"{error.filename} cannot be listed ({error.strerror})") from None


def read_zip(path: Path, folder: str = "") -> ImageSet:
    """All images in a ``.zip``, or in one ``folder`` of it, as :func:`read_folder` would read them unpacked.

    Nothing is unpacked to disk. Threads share the open archive under a lock and decode in parallel.
    """
    archive, members = _members(path, folder)
    lock = threading.Lock()

    @contextmanager
    def opened(name: str) -> Iterator[Image.Image]:
        member = members[name]
        if member.file_size > MAX_BYTES:
            raise TooLargeError(f"{member.file_size:,} bytes unpacked, more than {MAX_BYTES:,}")
        if member.compress_type not in METHODS:
            raise DataError("packed with an unusual method; pack it again with the usual one, deflate")
        with FILE_BYTES.take(member.file_size):
            try:
                with lock, archive.open(member) as stream:
                    content = stream.read(member.file_size)  # archive.read would unpack all there is
            except Exception as error:
                raise DataError(f"damaged or encrypted in {path.name} ({error})") from None
            with _identify(io.BytesIO(content), len(content)) as image:
                yield image

    below = f"/{folder}" if folder else ""
    images = _image_set(f"{path.name}{below}", f"{path}{below}", members, opened, lambda _: path)
    packed, unpacked = path.stat().st_size, sum(members[name].file_size for name in images.names)
    if unpacked > unpacked_limit(packed):
        raise DataError(f"{path} has {packed:,} bytes and would unpack to {unpacked:,}; no archive of images does")
    return images


@contextmanager
def open_image(path: Path) -> Iterator[Image.Image]:
    """An image that :func:`decode` decodes; other files, unsupported formats and oversized images are refused."""
    size = regular_size(path, MAX_BYTES)
    with FILE_BYTES.take(size), path.open("rb") as file, _identify(file, size) as image:
        yield image


@contextmanager
def open_bytes(content: bytes) -> Iterator[Image.Image]:
    """The same for the content of a file."""
    if len(content) > MAX_BYTES:
        raise TooLargeError(f"{len(content):,} bytes, more than {MAX_BYTES:,}")
    with _identify(io.BytesIO(content), len(content)) as image:
        yield image


def _identify(file: IO[bytes], size: int) -> Image.Image:
    """The image in a file, with its size and mode checked but no pixel decoded."""
    if size == 0:
        raise EmptyFileError("empty file")
    try:
        image = Image.open(file, formats=FORMATS)
    except UnidentifiedImageError:
        raise NotAnImageError(f"not an image in a supported format ({', '.join(FORMATS)})") from None
    except Image.DecompressionBombError:
        raise TooLargeError(f"more than {MAX_PIXELS:,} pixels") from None
    check_image(image)
    return image


def check_image(image: Image.Image) -> None:
    """Raise if an image is too large, or would lose bits when it becomes RGB."""
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise TooLargeError(f"{width} x {height} pixels, more than {MAX_PIXELS:,}")
    if image.mode.startswith(("I", "F")):
        raise DataError(f"more than 8 bits per channel (mode {image.mode}); convert it to 8 bits first")


def _image_set(
    name: str,
    place: str,
    found: Iterable[str],
    opened: Callable[[str], AbstractContextManager[Any]],
    file: Callable[[str], Path],
    suffixes: tuple[str, ...] = SUFFIXES,
) -> ImageSet:
    """Return the images among the names ``found`` in a folder or archive, labelled by their folders."""
    names, ignored, folders = split_names(found, suffixes)
    if not names:
        others = f"; found {count_by_suffix(ignored)}, which must be converted to one of these" if ignored else ""
        raise DataError(f"{place} holds no images ({', '.join(SUFFIXES)}){others}")
    labels, classes, note = label_by_folder(name, names, folders)
    return ImageSet(
        name, names, lambda row: opened(names[row]), labels, classes, ignored, note, lambda row: file(names[row])
    )


def _inside_zip(path: Path) -> tuple[Path, str] | None:
    """The ``.zip`` that ``path`` names or leads into, and the folder inside it ("" for the whole archive)."""
    for part in (path, *path.parents):
        if part.suffix.lower() == ".zip" and part.is_file():
            return part, "/".join(path.parts[len(part.parts) :])
    return None


def _members(path: Path, folder: str) -> tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]:
    """The open archive and its files below ``folder``, by their names relative to it."""
    try:
        archive = zipfile.ZipFile(path)
    except Exception as error:
        raise DataError(f"{path} is not a complete zip archive ({error}); download or create it again") from None
    start = f"{folder}/" if folder else ""
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = _plain_name(member)
        if not name.startswith(start) or name == start:
            continue
        name = name.removeprefix(start)
        twin = members.setdefault(name, member)
        if twin.CRC != member.CRC and name.lower().endswith(SUFFIXES):
            raise DataError(f"{path} holds two different images called {name}; create it again with one of them")
    return archive, members


def _plain_name(member: zipfile.ZipInfo) -> str:
    """The name with "/" between folders and without "./", however a program wrote it; a folder's ends in "/"."""
    name = member.filename
    if not member.flag_bits & 0x800:  # not marked as UTF-8, but macOS and others write UTF-8 without the mark
        with suppress(UnicodeError):
            name = name.encode("cp437").decode()
    if member.create_system == 0:  # written on Windows, where some programs do not follow the standard
        name = name.replace("\\", "/")
    plain = "/".join(part for part in name.split("/") if part not in ("", "."))
    return f"{plain}/" if name.endswith("/") and plain else plain
