"""Images from disk: CIFAR pickles, SVHN ``.mat`` files, and image folders, plain or inside a ``.zip``."""

import io
import os
import pickle
import threading
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError, features

from oodles.data.folders import Files, count_by_suffix
from oodles.errors import ArgumentError, DataError


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
MAX_PIXELS = 50_000_000
MAX_BYTES = 4 * MAX_PIXELS


@dataclass(frozen=True)
class ImageSet:
    """Images that are read one at a time: their names, a function that reads one, and labels if known.

    ``ignored`` names the other files of the folder or archive. ``label_note`` is one line on how class folders were
    understood: why there are no labels, or which folders are no classes; "" if there is nothing to say.
    """

    name: str
    names: Sequence[str]
    read: Callable[[int], Image.Image]
    labels: npt.NDArray[np.int64] | None = None
    classes: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    label_note: str = ""

    def __len__(self) -> int:
        return len(self.names)

    def ignored_summary(self) -> str:
        """One line that counts the files that are not read and names some of every kind; "" if there are none."""
        if not self.ignored:
            return ""
        one = len(self.ignored) == 1
        count = "1 file is not an image" if one else f"{len(self.ignored):,} files are not images"
        return f"{self.name}: {count} that oodles reads: {count_by_suffix(self.ignored)}"

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
        batches = sorted(path.glob("data_batch_[0-9]")) or ([path / "train"] if (path / "meta").is_file() else [])
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
    fits = images.dtype == np.uint8 and images.shape[1:] == (32, 32, 3) and len(labels) == len(images)
    if not fits or not np.isin(labels, np.arange(11)).all():
        raise DataError(f"{path} does not hold 32x32 colour images, each with a digit, as SVHN's files do")
    names = [f"{path.name}[{row}]" for row in range(len(images))]
    return ImageSet(path.stem, names, partial(_from_array, images), labels.astype(np.int64) % 10)


def read_folder(path: Path) -> ImageSet:
    """All images below ``path``; if they are in class folders, the sorted folder names are the classes."""
    found: list[str] = []
    walked: dict[Path, Path] = {}
    for folder, _, files in os.walk(path, onerror=_refuse_folder, followlinks=True):
        here = Path(folder)
        walked[here] = here.resolve()
        for above in here.parents:
            if walked.get(above) == walked[here]:
                raise DataError(f"{here} is a link back to {above}, so the same images come again; remove the link")
        inner = "" if here == path else here.relative_to(path).as_posix() + "/"
        found += [inner, *(inner + file for file in files)]
    listed = Files.of(found, SUFFIXES)
    if not listed.images:
        raise _no_images(f"{path} holds no images", listed.ignored)
    return _image_set(path.name or path.resolve().name, listed, lambda name: open_image(path / name))


def read_zip(path: Path, folder: str = "") -> ImageSet:
    """All images in a ``.zip``, or in one ``folder`` of it, as :func:`read_folder` would read them unpacked.

    Nothing is unpacked to disk. Threads share the open archive under a lock and decode in parallel.
    """
    archive, members = _members(path, folder)
    listed = Files.of(members, SUFFIXES)
    if not listed.images:
        below = f" below {folder}/" if folder else ""
        raise _no_images(f"{path} holds no images{below}", listed.ignored)
    lock = threading.Lock()

    def read(name: str) -> Image.Image:
        member = members[name]
        if member.file_size > MAX_BYTES:
            raise DataError(f"{member.file_size:,} bytes unpacked, more than {MAX_BYTES:,}")
        try:
            with lock:
                content = archive.read(member)
        except Exception as error:
            raise DataError(f"damaged or encrypted in {path.name} ({error})") from None
        return _decode(io.BytesIO(content), len(content))

    return _image_set(f"{path.name}/{folder}" if folder else path.name, listed, read)


def open_image(path: Path) -> Image.Image:
    """Load one image, upright; unsupported formats and oversized images are refused before decoding.

    Of an animation or a file of several pages, it is the first frame.
    """
    with path.open("rb") as file:
        return _decode(file, path.stat().st_size)


def _decode(file: IO[bytes], size: int) -> Image.Image:
    if size == 0:
        raise DataError("empty file")
    try:
        image = Image.open(file, formats=FORMATS)
    except UnidentifiedImageError:
        raise DataError(f"not an image in a supported format ({', '.join(FORMATS)})") from None
    except Image.DecompressionBombError:
        raise DataError(f"more than {MAX_PIXELS:,} pixels") from None
    with image:
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise DataError(f"{width} x {height} pixels, more than {MAX_PIXELS:,}")
        if image.mode.startswith(("I", "F")):
            raise DataError(f"more than 8 bits per channel (mode {image.mode}); convert it to 8 bits first")
        image.load()
        # Pillow warns if a palette with an opacity for each colour becomes RGB, but not on the way over RGBA
        layered = image.mode == "P" and isinstance(image.info.get("transparency"), bytes)
        return ImageOps.exif_transpose(image.convert("RGBA") if layered else image)


def _refuse_folder(error: OSError) -> None:
    raise DataError(f"{error.filename} cannot be listed ({error.strerror})")


def _image_set(name: str, listed: Files, read: Callable[[str], Image.Image]) -> ImageSet:
    labels, classes, note = listed.classes(name)
    names = listed.images
    return ImageSet(name, names, lambda row: read(names[row]), labels, classes, listed.ignored, note)


def _no_images(place: str, ignored: Sequence[str]) -> DataError:
    others = f"; found {count_by_suffix(ignored)}, which must be converted to one of these" if ignored else ""
    return DataError(f"{place} ({', '.join(SUFFIXES)}){others}")


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
