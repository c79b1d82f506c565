"""Image sets as batches for a network, decoded by threads while the network runs."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import PIL
import torch
from torch import Tensor

from oodles.data.decoding import BATCH_SIZE, ImageDecoder
from oodles.data.decoding import WORKERS as WORKERS
from oodles.data.readers import ImageSet
from oodles.data.transforms import Transform
from oodles.errors import DataError

MAX_MEMORY = 16_000_000_000


def normalise(transform: Transform, pixels: Tensor) -> Tensor:
    """Pixels ``(n, 3, h, w)`` as the floats that the network expects."""
    mean, std = (
        torch.tensor(values, device=pixels.device).view(1, 3, 1, 1) for values in (transform.mean, transform.std)
    )
    return (pixels.float() / 255 - mean) / std


class ImageLoader(ImageDecoder):
    """Batches of ``(images, labels)`` or ``images``, decoded by threads ahead of the consumer.

    Unreadable images, ``skipped`` and ``names`` are as in :class:`oodles.data.decoding.ImageDecoder`.
    """

    def __init__(
        self,
        images: ImageSet,
        transform: Transform,
        *,
        labels: bool = True,
        skip_bad: bool = False,
        batch_size: int = BATCH_SIZE,
        workers: int = WORKERS,
    ) -> None:
        super().__init__(images, transform, skip_bad=skip_bad, batch_size=batch_size, workers=workers)
        self._labels = images.labels if labels else None

    @property
    def class_names(self) -> tuple[str, ...]:
        """The class folders that the labels number; () without labels or without class folders."""
        return () if self._labels is None else self.images.classes

    def __iter__(self) -> Iterator[Tensor | tuple[Tensor, Tensor]]:
        return self.only(range(len(self)))

    def only(self, numbers: Sequence[int]) -> Iterator[Tensor | tuple[Tensor, Tensor]]:
        """The batches of these numbers; no other image is read."""
        for pixels, labels in self.pixels(numbers):
            images = normalise(self.transform, pixels)
            yield images if labels is None else (images, labels)

    def pixels(self, numbers: Sequence[int] | None = None) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The same batches as uint8, with labels if wanted and known; all of them, or those of the given numbers."""
        for rows, pixels in self.decoded(numbers):
            yield torch.from_numpy(pixels), None if self._labels is None else torch.from_numpy(self._labels[rows])

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
    needed = len(images) * 3 * transform.size**2
    if needed > MAX_MEMORY:
        raise DataError(
            f"{images.name}: {len(images):,} images of {transform.size}x{transform.size} take {needed / 1e9:.0f} GB "
            f"decoded, more than the limit of {MAX_MEMORY / 1e9:.0f} GB; give fewer or smaller images"
        )
    loader = ImageLoader(images, transform, skip_bad=skip_bad)
    parts = [(pixels, labels) for pixels, labels in loader.pixels() if labels is not None]
    pixels, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    return Pixels(images.name, pixels, labels, transform, images.classes)
