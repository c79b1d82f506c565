"""Image sets as batches for a network, decoded by threads while the network runs."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
import torch
from torch import Tensor

from oodles.data.decoding import WORKERS as WORKERS
from oodles.data.decoding import Prepared, prefetch, prepare
from oodles.data.inputs import Inputs
from oodles.data.readers import ImageSet
from oodles.data.transforms import FileBytes, Preprocessing, Transform
from oodles.errors import ArgumentError, DataError

BATCH_SIZE = 256
MAX_MEMORY = 16_000_000_000


def normalise(transform: Preprocessing, pixels: Tensor) -> Tensor:
    """Pixels ``(n, c, h, w)`` as the floats that the network expects; the bytes of files as they are."""
    if isinstance(transform, FileBytes):
        return pixels
    mean, std = (
        torch.tensor(values, device=pixels.device).view(1, -1, 1, 1) for values in (transform.mean, transform.std)
    )
    return (pixels.float() / 255 - mean) / std


def images_of(inputs: Inputs, transform: Transform) -> Tensor:
    """The model's images, which must have the shape that the preprocessing gives."""
    tensors = list(inputs.tensors().values())
    if len(tensors) != 1 or tensors[0].shape[1:] != transform.shape:
        shapes = ", ".join(str(tuple(each.shape)) for each in tensors)
        raise DataError(
            f"the preprocessing gives images (n, {', '.join(map(str, transform.shape))}), but the model was given "
            f"{shapes}; give the preprocessing that these were prepared with"
        )
    return tensors[0]


class ImageLoader:
    """Batches of ``(images, labels)`` or ``images``, decoded by threads ahead of the consumer.

    If images cannot be read, the iteration ends with an error that counts them all; with ``skip_bad`` they are skipped.
    Either way ``skipped`` lists them, each as ``name: problem``. ``names`` lists the images yielded so far.
    """

    def __init__(
        self,
        images: ImageSet,
        transform: Preprocessing,
        *,
        labels: bool = True,
        skip_bad: bool = False,
        batch_size: int = BATCH_SIZE,
        workers: int = WORKERS,
    ) -> None:
        if batch_size < 1 or workers < 1:
            raise ArgumentError(f"batch_size={batch_size} and workers={workers} must both be at least 1")
        self.images = images
        self.transform = transform
        self.skip_bad = skip_bad
        self.batch_size = batch_size
        self.workers = workers
        self.skipped: list[str] = []
        self.names: list[str] = []
        self._labels = images.labels if labels else None

    @property
    def class_names(self) -> tuple[str, ...]:
        """The class folders that the labels number; () without labels or without class folders."""
        return () if self._labels is None else self.images.classes

    def __len__(self) -> int:
        return -(-len(self.images) // self.batch_size)

    def __iter__(self) -> Iterator[Tensor | tuple[Tensor, Tensor]]:
        return self.only(range(len(self)))

    def only(self, numbers: Sequence[int]) -> Iterator[Tensor | tuple[Tensor, Tensor]]:
        """The batches of these numbers; no other image is read."""
        for pixels, labels in self.pixels(numbers):
            images = normalise(self.transform, pixels)
            yield images if labels is None else (images, labels)

    def pixels(self, numbers: Sequence[int] | None = None) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The same batches as uint8, with labels if wanted and known; all of them, or those of the given numbers."""
        self.skipped, self.names = [], []
        total, size = len(self.images), self.batch_size
        starts = [number * size for number in (range(len(self)) if numbers is None else numbers)]
        spans = (range(start, min(start + size, total)) for start in starts)
        for span, images in prefetch(((span, span) for span in spans), self._prepare, self.workers):
            good: dict[int, npt.NDArray[Any]] = {}
            for row, image in zip(span, images, strict=True):
                if isinstance(image, str):
                    self.skipped.append(f"{self.images.names[row]}: {image}")
                else:
                    good[row] = image
            if good and (self.skip_bad or not self.skipped):  # else count the unreadable ones among the others
                self.names += [self.images.names[row] for row in good]
                labels = None if self._labels is None else torch.from_numpy(self._labels[[*good]])
                yield torch.from_numpy(np.stack([*good.values()])), labels
        if self.skipped and not self.skip_bad:
            raise DataError(self.problem_summary())
        if not self.names and starts:
            raise DataError(f"{self.images.name}: none of {len(self.images)} images can be read ({self._problems()})")

    def _prepare(self, row: int) -> Prepared:
        return prepare(lambda: self.images.open(row), self.transform)

    def problem_summary(self) -> str:
        """One line that counts the unreadable images and names the first three."""
        count = f"{len(self.skipped)} of {len(self.images)} images cannot be read"
        return f"{self.images.name}: {count} ({self._problems()})"

    def _problems(self) -> str:
        return "; ".join(self.skipped[:3]) + ("; ..." if len(self.skipped) > 3 else "")

    def stamp(self) -> str | None:
        """What shows that the batches may have changed without decoding an image; None if nothing does.

        It depends on the names, sizes and times of the files, and on all that is done with them.
        """
        stamps = self.images.stamps()
        if stamps is None:
            return None
        labels = None if self._labels is None else self._labels.tolist()
        settings = self.transform, self.batch_size, self.skip_bad, PIL.__version__, labels
        return hashlib.sha256("\n".join([*map(repr, settings), *stamps]).encode(errors="surrogateescape")).hexdigest()


@dataclass(frozen=True, eq=False)
class Pixels:
    """A labelled image set decoded into memory as uint8, for training over many epochs."""

    name: str
    pixels: Tensor
    labels: Tensor
    transform: Transform
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def normalise(self, pixels: Tensor) -> Tensor:
        """Pixels as the floats that the network expects."""
        return normalise(self.transform, pixels)

    def fingerprint(self) -> str:
        """SHA-256 of the pixels, the labels and the transform."""
        digest = hashlib.sha256(repr(self.transform).encode())
        for part in (self.pixels, self.labels):
            digest.update(part.contiguous().numpy().data)
        return digest.hexdigest()


def read_pixels(images: ImageSet, transform: Transform, *, skip_bad: bool = False) -> Pixels:
    """Decode every image of a labelled set."""
    images.known_labels()
    needed = len(images) * math.prod(transform.shape)
    if needed > MAX_MEMORY:
        raise DataError(
            f"{images.name}: {len(images):,} images of {transform.size}x{transform.size} take {needed / 1e9:.0f} GB "
            f"decoded, more than the limit of {MAX_MEMORY / 1e9:.0f} GB; give fewer or smaller images"
        )
    loader = ImageLoader(images, transform, skip_bad=skip_bad)
    parts = [(pixels, labels) for pixels, labels in loader.pixels() if labels is not None]
    pixels, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    return Pixels(images.name, pixels, labels, transform, images.classes)
