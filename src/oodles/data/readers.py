"""Images from disk: CIFAR pickles, SVHN ``.mat`` files, and image folders, plain or inside a ``.zip``."""

import io
import os
import pickle
import threading
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from oodles.errors import ArgumentError, DataError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff")
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM", "TIFF")
MAX_PIXELS = 50_000_000
MAX_BYTES = 4 * MAX_PIXELS


@dataclass(frozen=True)
class ImageSet:
    """Images that are read one at a time: their names, a function that reads one, and labels if known."""

    name: str
    names: Sequence[str]
    read: Callable[[int], Image.Image]
    labels: npt.NDArray[np.int64] | None = None
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    def pick(self, rows: Sequence[int]) -> "ImageSet":
        """The images at ``rows``, in that order."""
        read = self.read
        labels = None if self.labels is None else self.labels[list(rows)]
        names = [self.names[row] for row in rows]
        return replace(self, names=names, read=lambda index: read(rows[index]), labels=labels)

    def sample(self, count: int | None, seed: int = 0) -> "ImageSet":
        """A random sample of at most ``count`` images in the original order; all of them if None."""
        if count is None or count >= len(self):
            return self
        if count < 1:
            raise ArgumentError(f"a limit of {count} images leaves none of {self.name}")
        chosen = np.random.default_rng(seed).choice(len(self), size=count, replace=False)
        return self.pick(sorted(chosen.tolist()))


def first_per_class(images: ImageSet, count: int) -> ImageSet:
    """The first ``count`` images of every class, in the original order, as the DICE authors reduced SVHN."""
    if count < 1:
        raise ArgumentError(f"a limit of {count} images per class leaves none of {images.name}")
    if images.labels is None:
        raise DataError(f"{images.name} has no labels, so the first {count} images per class cannot be taken")
    firsts = [np.flatnonzero(images.labels == label)[:count] for label in np.unique(images.labels)]
    return images.pick(np.sort(np.concatenate(firsts)).tolist())


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
        batches = sorted(path.glob("data_batch_*")) or ([path / "train"] if (path / "meta").is_file() else [])
        return read_cifar(*batches) if batches and batches[0].is_file() else read_folder(path)
    if path.suffix == ".mat":
        return read_svhn(path)
    if path.suffix.lower() in SUFFIXES:
        return ImageSet(path.name, [str(path)], lambda _: open_image(path))
    return read_cifar(path)


def path_exists(path: Path) -> bool:
    """Whether ``path`` exists, on disk or as a folder inside a ``.zip``."""
    inside = _inside_zip(path)
    if inside is None:
        return path.exists()
    return not inside[1] or bool(_members(*inside)[1])


def read_cifar(*paths: Path) -> ImageSet:
    """CIFAR-10 or CIFAR-100 batches in their original pickles, read by an unpickler that cannot run code."""
    pixels, labels = [], []
    for path in paths:
        batch = _unpickle(path)
        try:
            rows = np.asarray(batch["data"])
            found = np.asarray(batch["labels"] if "labels" in batch else batch["fine_labels"])
            fits = rows.dtype == np.uint8 and rows.shape == (len(found), 3072) and found.shape == (len(rows),)
            labels.append(found.astype(np.int64, casting="safe"))
        except (KeyError, TypeError, ValueError):
            fits = False
        if not fits:
            raise DataError(f"{path} is a pickle, but not a CIFAR batch")
        pixels.append(rows)
    images = np.concatenate(pixels).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    names = [f"{path.name}[{row}]" for path, part in zip(paths, pixels, strict=True) for row in range(len(part))]
    return ImageSet(paths[0].parent.name, names, partial(_from_array, images), np.concatenate(labels))


def read_svhn(path: Path) -> ImageSet:
    """SVHN's cropped digits in their original ``.mat`` file, which stores the digit 0 as 10."""
    from scipy.io import loadmat

    try:
        content = loadmat(path)
        images, labels = np.asarray(content["X"]).transpose(3, 0, 1, 2), np.asarray(content["y"]).ravel()
    except Exception as error:
        raise DataError(f"{path} is not an SVHN file with X and y ({error})") from None
    if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3) or len(labels) != len(images):
        raise DataError(f"{path} does not hold 32x32 colour images with one label each, as SVHN's files do")
    names = [f"{path.name}[{row}]" for row in range(len(images))]
    return ImageSet(path.stem, names, partial(_from_array, images), labels.astype(np.int64) % 10)


def read_folder(path: Path) -> ImageSet:
    """All images below ``path``; if they are in class folders, the sorted folder names are the classes."""
    found: list[str] = []
    for folder, _, files in os.walk(path, onerror=_refuse_folder, followlinks=True):
        inner = Path(folder).relative_to(path).as_posix()
        found += files if inner == "." else [f"{inner}/{file}" for file in files]
    names = _image_names(found)
    if not names:
        raise DataError(f"{path} holds no images ({', '.join(SUFFIXES)})")
    return ImageSet(path.name, names, lambda row: open_image(path / names[row]), *_class_folders(names))


def read_zip(path: Path, folder: str = "") -> ImageSet:
    """All images in a ``.zip``, or in one ``folder`` of it, as :func:`read_folder` would read them unpacked.

    Nothing is unpacked to disk. Threads share the open archive under a lock and decode in parallel.
    """
    archive, members = _members(path, folder)
    names = _image_names(members)
    if not names:
        below = f" below {folder}/" if folder else ""
        raise DataError(f"{path} holds no images{below} ({', '.join(SUFFIXES)})")
    lock = threading.Lock()

    def read(row: int) -> Image.Image:
        member = members[names[row]]
        if member.file_size > MAX_BYTES:
            raise DataError(f"{member.file_size:,} bytes unpacked, more than {MAX_BYTES:,}")
        try:
            with lock:
                content = archive.read(member)
        except Exception as error:
            raise DataError(f"damaged or encrypted in {path.name} ({error})") from None
        return _decode(io.BytesIO(content), len(content))

    return ImageSet(f"{path.name}/{folder}" if folder else path.name, names, read, *_class_folders(names))


def open_image(path: Path) -> Image.Image:
    """Load one image; unsupported formats and oversized images are refused before decoding."""
    with path.open("rb") as file:
        return _decode(file, path.stat().st_size)


def _decode(file: IO[bytes], size: int) -> Image.Image:
    if size == 0:
        raise DataError("empty file")
    try:
        image = Image.open(file, formats=FORMATS)
    except UnidentifiedImageError:
        raise DataError(f"not an image in a supported format ({', '.join(FORMATS)})") from None
    with image:
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise DataError(f"{width} x {height} pixels, more than {MAX_PIXELS:,}")
        if image.mode.startswith(("I", "F")):
            raise DataError(f"more than 8 bits per channel (mode {image.mode}); convert it first")
        image.load()
        return ImageOps.exif_transpose(image)


def _refuse_folder(error: OSError) -> None:
    raise DataError(f"{error.filename} cannot be listed ({error.strerror})")


def _image_names(names: Iterable[str]) -> list[str]:
    """The names of images, sorted folder by folder, without hidden files and the metadata macOS adds to archives."""
    parts = (name.split("/") for name in names if name.lower().endswith(SUFFIXES))
    return [
        "/".join(part)
        for part in sorted(parts)
        if part[0] != "__MACOSX" and not any(each.startswith(".") for each in part)
    ]


def _class_folders(names: Sequence[str]) -> tuple[npt.NDArray[np.int64] | None, tuple[str, ...]]:
    """Labels and classes from the top folder of each name; none if there is only one, or files outside folders."""
    folders = [name.partition("/")[0] for name in names]
    classes = tuple(sorted(set(folders)))
    if len(classes) < 2 or not all("/" in name for name in names):
        return None, ()
    index = {folder: label for label, folder in enumerate(classes)}
    return np.array([index[folder] for folder in folders], dtype=np.int64), classes


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
    inside = [member for member in archive.infolist() if member.filename.startswith(start) and not member.is_dir()]
    return archive, {member.filename.removeprefix(start): member for member in inside}


def _from_array(images: npt.NDArray[np.uint8], row: int) -> Image.Image:
    return Image.fromarray(images[row])


class _ArraysOnly(pickle.Unpickler):
    """Unpickles NumPy arrays and containers only; any other name is refused, so no code runs."""

    ALLOWED = frozenset(
        {
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy._core.numeric", "_frombuffer"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        current = module.replace("numpy.core", "numpy._core")
        if (current, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        return _from_buffer if name == "_frombuffer" else super().find_class(current, name)


def _from_buffer(buffer: bytes, dtype: npt.DTypeLike, shape: tuple[int, ...], order: str) -> npt.NDArray[Any]:
    """Rebuild an array that pickle protocol 5 stored as plain bytes."""
    return np.frombuffer(buffer, dtype).reshape(shape, order="F" if order == "F" else "C")


def _unpickle(path: Path) -> dict[str, Any]:
    """The batch with str keys; Python 2 wrote them as bytes."""
    try:
        content = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="latin1").load()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})") from None
    except Exception as error:
        raise DataError(f"{path} is neither an image set that oodles reads nor a CIFAR batch ({error})") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} is a pickle, but not a CIFAR batch")
    return {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in content.items()}
