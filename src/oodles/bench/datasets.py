"""Image sets made ready for a network: the transform, and batches decoded in threads beside it.

The readers of :mod:`oodles.bench.readers` can be imported from here too.
"""

import hashlib
import itertools
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from oodles.bench.readers import (
    MAX_PIXELS,
    ImageSet,
    first_per_class,
    open_image,
    open_images,
    read_cifar,
    read_folder,
    read_svhn,
    read_zip,
)
from oodles.errors import ArgumentError, DataError

__all__ = [
    "CIFAR",
    "IMAGENET",
    "ImageLoader",
    "ImageSet",
    "Pixels",
    "Transform",
    "first_per_class",
    "open_image",
    "open_images",
    "read_cifar",
    "read_folder",
    "read_pixels",
    "read_svhn",
    "read_zip",
]

BATCH = 256
MAX_MEMORY = 16_000_000_000
WORKERS = min(16, max(2, os.cpu_count() or 2))


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
            target = self.resize * width // min(width, height), self.resize * height // min(width, height)
            if target[0] * target[1] > MAX_PIXELS:
                raise DataError(f"{width} x {height} pixels would become {target[0]} x {target[1]}; too thin to resize")
            image = image.resize(target, Image.Resampling.BILINEAR)
            width, height = image.size
        left, top = round((width - self.size) / 2), round((height - self.size) / 2)
        pixels = np.asarray(image.crop((left, top, left + self.size, top + self.size)))
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))

    def normalise(self, pixels: Tensor) -> Tensor:
        """Bytes ``(n, 3, h, w)`` to the network's floats."""
        mean, std = (torch.tensor(values, device=pixels.device).view(1, 3, 1, 1) for values in (self.mean, self.std))
        return (pixels.float() / 255 - mean) / std


CIFAR = Transform(32, 32, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
IMAGENET = Transform(224, 256, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


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
        workers: int = WORKERS,
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
        for pixels, labels in self.pixels():
            images = self.transform.normalise(pixels)
            yield images if labels is None else (images, labels)

    def pixels(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The same batches as bytes, with their labels if they are wanted and known."""
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
                        # only the complaints: the rest of a large set would not fit in memory
                        self.bad += [text for part in ahead for future in part if (text := future.result().complaint)]
                        rest = pool.map(lambda row: self._decode(row).complaint, itertools.chain.from_iterable(spans))
                        self.bad += [text for text in rest if text]
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
        except Exception as error:  # one picture, however broken, must not stop the others
            return _Decoded(row, None, f"{self.images.names[row]}: {error}")

    def _stack(self, good: Sequence["_Decoded"]) -> tuple[Tensor, Tensor | None]:
        self.names += [self.images.names[item.row] for item in good]
        pixels = torch.from_numpy(np.stack([item.pixels for item in good if item.pixels is not None]))
        if not self.labelled or self.images.labels is None:
            return pixels, None
        return pixels, torch.from_numpy(self.images.labels[[item.row for item in good]])


@dataclass(frozen=True)
class _Decoded:
    row: int
    pixels: npt.NDArray[np.uint8] | None
    complaint: str


@dataclass(frozen=True, eq=False)
class Pixels:
    """A labelled image set decoded into memory, as bytes: what training goes over again and again."""

    name: str
    pixels: Tensor
    labels: Tensor
    transform: Transform
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def normalise(self, pixels: Tensor) -> Tensor:
        """Bytes to the network's floats."""
        return self.transform.normalise(pixels)

    def fingerprint(self) -> str:
        """SHA-256 of the pixels, the labels and how they are normalised."""
        digest = hashlib.sha256(repr(self.transform).encode())
        for part in (self.pixels, self.labels):
            digest.update(part.contiguous().numpy().data)
        return digest.hexdigest()


def read_pixels(images: ImageSet, transform: Transform, *, skip_bad: bool = False) -> Pixels:
    """Decode every image of a labelled set."""
    if images.labels is None:
        raise DataError(f"{images.name} has no labels; put the images of each class in a folder of its own")
    needed = len(images) * 3 * transform.size**2
    if needed > MAX_MEMORY:
        raise DataError(
            f"{images.name}: {len(images):,} images of {transform.size}x{transform.size} take {needed / 1e9:.0f} GB "
            f"decoded, more than the {MAX_MEMORY / 1e9:.0f} GB that are kept in memory; give fewer or smaller ones"
        )
    loader = ImageLoader(images, transform, skip_bad=skip_bad)
    parts = [(pixels, labels) for pixels, labels in loader.pixels() if labels is not None]
    pixels, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    return Pixels(images.name, pixels, labels, transform, images.classes)
