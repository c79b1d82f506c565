"""Images from disk: CIFAR pickles, SVHN ``.mat`` files and image folders, decoded beside the network."""

import io
import itertools
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor

from oodles.errors import ArgumentError, DataError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff")
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM", "TIFF")
MAX_PIXELS = 50_000_000
BATCH = 256


@dataclass(frozen=True)
class Transform:
    """Shorter side to ``resize``, centre crop to ``size``, scale to [0, 1], normalise per channel."""

    size: int
    resize: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __post_init__(self) -> None:
        if not 1 <= self.size <= self.resize:
            raise ArgumentError(f"size={self.size} must lie between 1 and resize={self.resize}")
        if min(self.std) <= 0:
            raise ArgumentError(f"std={self.std} must be positive in every channel")

    def __call__(self, image: Image.Image) -> npt.NDArray[np.uint8]:
        """The cropped picture as ``(3, size, size)`` bytes; normalising is left to whole batches."""
        image = image.convert("RGB")
        width, height = image.size
        if min(width, height) != self.resize:
            scale = self.resize / min(width, height)
            target = max(self.resize, round(width * scale)), max(self.resize, round(height * scale))
            image = image.resize(target, Image.Resampling.BILINEAR)
            width, height = image.size
        left, top = (width - self.size) // 2, (height - self.size) // 2
        pixels = np.asarray(image.crop((left, top, left + self.size, top + self.size)))
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))

    def normalise(self, pixels: npt.NDArray[np.uint8]) -> Tensor:
        """Bytes ``(n, 3, h, w)`` to the network's floats."""
        mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (self.mean, self.std))
        return (torch.from_numpy(pixels).float() / 255 - mean) / std


CIFAR = Transform(32, 32, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
IMAGENET = Transform(224, 256, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class ImageSet:
    """Images that can be read one by one: their names, how to read each, and labels where known."""

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
        return replace(
            self, names=[self.names[row] for row in rows], read=lambda index: read(rows[index]), labels=labels
        )

    def sample(self, count: int | None, seed: int = 0) -> "ImageSet":
        """At most ``count`` images, a random choice in the original order; all of them for None."""
        if count is None or count >= len(self):
            return self
        if count < 1:
            raise ArgumentError(f"a limit of {count} images leaves none of {self.name}")
        chosen = np.random.default_rng(seed).choice(len(self), size=count, replace=False)
        return self.pick(sorted(chosen.tolist()))


def open_images(path: str | Path) -> ImageSet:
    """Images at ``path``: a folder of images, one image, a CIFAR batch or folder, or an SVHN ``.mat`` file."""
    path = Path(path)
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


def read_cifar(*paths: Path) -> ImageSet:
    """CIFAR-10 or CIFAR-100 batches in their original pickles, read by an unpickler that runs nothing."""
    pixels, labels = [], []
    for path in paths:
        batch = _unpickle(path)
        found = next((batch[key] for key in ("labels", "fine_labels") if key in batch), None)
        rows = np.asarray(batch.get("data"))
        if (
            found is None
            or rows.dtype != np.uint8
            or rows.ndim != 2
            or rows.shape[1] != 3072
            or len(rows) != len(found)
        ):
            raise DataError(f"{path} is a pickle, but not a CIFAR batch")
        pixels.append(rows)
        labels.append(np.asarray(found, dtype=np.int64))
    images = np.concatenate(pixels).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    names = [f"{path.name}[{row}]" for path, part in zip(paths, pixels, strict=True) for row in range(len(part))]
    return ImageSet(paths[0].parent.name, names, partial(_from_array, images), np.concatenate(labels))


def read_svhn(path: Path) -> ImageSet:
    """SVHN's cropped digits in their original ``.mat`` file; the digit 0 is stored there as 10."""
    from scipy.io import loadmat

    try:
        content = loadmat(path)
        images, labels = np.asarray(content["X"]).transpose(3, 0, 1, 2), np.asarray(content["y"]).ravel()
    except Exception as error:
        raise DataError(f"{path} is not an SVHN file with X and y ({error})") from None
    if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3) or len(labels) != len(images):
        raise DataError(f"{path} does not hold 32x32 colour digits with a label each, as SVHN's files do")
    names = [f"{path.name}[{row}]" for row in range(len(images))]
    return ImageSet(path.stem, names, partial(_from_array, images), labels.astype(np.int64) % 10)


def read_folder(path: Path) -> ImageSet:
    """All images below ``path``; where they lie in class folders, the sorted folder names are the classes."""
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    if not files:
        raise DataError(f"{path} holds no images ({', '.join(SUFFIXES)})")
    names = [str(file.relative_to(path)) for file in files]
    classes: tuple[str, ...] = ()
    labels = None
    if all(len(Path(name).parts) > 1 for name in names):
        classes = tuple(sorted({Path(name).parts[0] for name in names}))
        index = {name: position for position, name in enumerate(classes)}
        labels = np.array([index[Path(name).parts[0]] for name in names], dtype=np.int64)
    return ImageSet(path.name, names, lambda row: open_image(files[row]), labels, classes)


def open_image(path: Path) -> Image.Image:
    """One picture, whole in memory; huge and exotic ones are refused before they are decoded."""
    if path.stat().st_size == 0:
        raise DataError("empty file")
    with Image.open(path, formats=FORMATS) as image:
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise DataError(f"{width} x {height} pixels, more than {MAX_PIXELS:,}")
        if image.mode.startswith(("I", "F")):
            raise DataError(f"more than 8 bits a channel (mode {image.mode}); convert it first")
        image.load()
        return ImageOps.exif_transpose(image)


class ImageLoader:
    """Batches of ``(images, labels)`` or ``images``, decoded in threads ahead of whoever consumes them.

    An image that cannot be read ends the iteration with an error that names and counts all such
    images, or, with ``skip_bad``, is left out and remembered in ``bad``. ``names`` are those given.
    """

    def __init__(
        self,
        images: ImageSet,
        transform: Transform,
        *,
        labels: bool = True,
        skip_bad: bool = False,
        batch: int = BATCH,
        workers: int = 2,
    ) -> None:
        self.images = images
        self.transform = transform
        self.labelled = labels and images.labels is not None
        self.skip_bad = skip_bad
        self.batch = batch
        self.workers = workers
        self.bad: list[str] = []
        self.names: list[str] = []

    def __len__(self) -> int:
        return -(-len(self.images) // self.batch)

    def __iter__(self) -> Iterator[Tensor | tuple[Tensor, Tensor]]:
        self.bad, self.names = [], []
        with ThreadPoolExecutor(self.workers) as pool:
            ahead: deque[list[Future[_Decoded]]] = deque()
            spans = iter(
                [
                    range(start, min(start + self.batch, len(self.images)))
                    for start in range(0, len(self.images), self.batch)
                ]
            )
            try:
                for span in itertools.islice(spans, 2):
                    ahead.append([pool.submit(self._decode, row) for row in span])
                while ahead:
                    decoded = [future.result() for future in ahead.popleft()]
                    for span in itertools.islice(spans, 1):
                        ahead.append([pool.submit(self._decode, row) for row in span])
                    self.bad += [item.complaint for item in decoded if item.complaint]
                    if self.bad and not self.skip_bad:
                        rest = [future.result() for part in ahead for future in part]
                        rest += pool.map(self._decode, itertools.chain.from_iterable(spans))
                        self.bad += [item.complaint for item in rest if item.complaint]
                        raise DataError(self.complaint())
                    good = [item for item in decoded if item.pixels is not None]
                    if good:
                        yield self._stack(good)
            finally:
                for part in ahead:
                    for future in part:
                        future.cancel()
        if not self.names:
            raise DataError(f"{self.images.name}: none of {len(self.images)} images can be read")

    def complaint(self) -> str:
        """One line that counts and names what could not be read."""
        shown = "; ".join(self.bad[:3]) + ("; ..." if len(self.bad) > 3 else "")
        return f"{self.images.name}: {len(self.bad)} of {len(self.images)} images cannot be read ({shown})"

    def _decode(self, row: int) -> "_Decoded":
        try:
            return _Decoded(row, self.transform(self.images.read(row)), "")
        except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
            return _Decoded(row, None, f"{self.images.names[row]}: {error}")

    def _stack(self, good: Sequence["_Decoded"]) -> Tensor | tuple[Tensor, Tensor]:
        self.names += [self.images.names[item.row] for item in good]
        images = self.transform.normalise(np.stack([item.pixels for item in good if item.pixels is not None]))
        if not self.labelled or self.images.labels is None:
            return images
        return images, torch.from_numpy(self.images.labels[[item.row for item in good]])


@dataclass(frozen=True)
class _Decoded:
    row: int
    pixels: npt.NDArray[np.uint8] | None
    complaint: str


def _from_array(images: npt.NDArray[np.uint8], row: int) -> Image.Image:
    return Image.fromarray(images[row])


class _ArraysOnly(pickle.Unpickler):
    """Rebuilds NumPy arrays and containers; any other name in the pickle is refused, so nothing runs."""

    ALLOWED = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _unpickle(path: Path) -> dict[str, Any]:
    try:
        content = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="latin1").load()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})") from None
    except Exception as error:
        raise DataError(f"{path} is no image set that oodles reads, nor a CIFAR batch ({error})") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} is a pickle, but not a CIFAR batch")
    return content
