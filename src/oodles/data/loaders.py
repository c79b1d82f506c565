"""Image sets as batches for a network, decoded by threads while the network runs."""

import hashlib
import itertools
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import PIL
import torch
from torch import Tensor

from oodles.data.limits import PIXELS
from oodles.data.readers import ImageSet, decode
from oodles.data.transforms import Transform
from oodles.errors import ArgumentError, DataError

BATCH_SIZE = 256
MAX_MEMORY = 16_000_000_000
WORKERS = min(16, max(2, os.cpu_count() or 2))


class ImageLoader:
    """Batches of ``(images, labels)`` or ``images``, decoded by threads ahead of the consumer.

    If images cannot be read, the iteration ends with an error that counts them all; with ``skip_bad`` they are skipped.
    Either way ``skipped`` lists their names, each with the problem. ``names`` lists the images yielded so far.
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
        if batch_size < 1 or workers < 1:
            raise ArgumentError(f"batch_size={batch_size} and workers={workers} must both be at least 1")
        self.images = images
        self.transform = transform
        self.labelled = labels and images.labels is not None
        self.skip_bad = skip_bad
        self.batch_size = batch_size
        self.workers = workers
        self.skipped: list[tuple[str, str]] = []
        self.names: list[str] = []

    @property
    def class_names(self) -> tuple[str, ...]:
        """The class folders that the labels number; () without labels or without class folders."""
        return self.images.classes if self.labelled else ()

    @property
    def bad(self) -> list[str]:
        """The unreadable images, each as ``name: problem``."""
        return [f"{name}: {problem}" for name, problem in self.skipped]

    def __len__(self) -> int:
        return -(-len(self.images) // self.batch_size)

    def __iter__(self) -> Iterator[Tensor | tuple[Tensor, Tensor]]:
        return self.only(range(len(self)))

    def only(self, numbers: Sequence[int]) -> Iterator[Tensor | tuple[Tensor, Tensor]]:
        """The batches of these numbers; no other image is read."""
        for pixels, labels in self.pixels(numbers):
            images = self.transform.normalise(pixels)
            yield images if labels is None else (images, labels)

    def stamp(self) -> str | None:
        """What shows that the batches may have changed without decoding an image; None if nothing does.

        It depends on the names, sizes and times of the files, and on all that is done with them.
        """
        stamps = self.images.stamps()
        if stamps is None:
            return None
        labels = self.images.labels.tolist() if self.labelled and self.images.labels is not None else None
        settings = self.transform, self.batch_size, self.skip_bad, PIL.__version__, labels
        return hashlib.sha256("\n".join([*map(repr, settings), *stamps]).encode(errors="surrogateescape")).hexdigest()

    def pixels(self, numbers: Sequence[int] | None = None) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The same batches as uint8, with labels if wanted and known; all of them, or those of the given numbers."""
        self.skipped, self.names = [], []
        with ThreadPoolExecutor(self.workers) as pool:
            ahead: deque[list[Future[_Decoded]]] = deque()
            total, size = len(self.images), self.batch_size
            starts = [number * size for number in (range(len(self)) if numbers is None else numbers)]
            spans = iter([range(start, min(start + size, total)) for start in starts])
            try:
                for span in itertools.islice(spans, 2):
                    ahead.append([pool.submit(self._decode, row) for row in span])
                while ahead:
                    decoded = [future.result() for future in ahead.popleft()]
                    for span in itertools.islice(spans, 1):
                        ahead.append([pool.submit(self._decode, row) for row in span])
                    self.skipped += [item.problem for item in decoded if item.problem]
                    if self.skipped and not self.skip_bad:
                        # keep only the problems: the pixels of a large set would not fit in memory
                        self.skipped += [pair for part in ahead for future in part if (pair := future.result().problem)]
                        rest = pool.map(lambda row: self._decode(row).problem, itertools.chain.from_iterable(spans))
                        self.skipped += [pair for pair in rest if pair]
                        raise DataError(self.problem_summary())
                    good = [item for item in decoded if item.pixels is not None]
                    if good:
                        yield self._stack(good)
            finally:
                for part in ahead:
                    for future in part:
                        future.cancel()
        if not self.names and starts:
            raise DataError(f"{self.images.name}: none of {len(self.images)} images can be read ({self._problems()})")

    def problem_summary(self) -> str:
        """One line that counts the unreadable images and names the first three."""
        count = f"{len(self.skipped)} of {len(self.images)} images cannot be read"
        return f"{self.images.name}: {count} ({self._problems()})"

    def _problems(self) -> str:
        return "; ".join(self.bad[:3]) + ("; ..." if len(self.skipped) > 3 else "")

    def _decode(self, row: int) -> "_Decoded":
        try:
            with self.images.open(row) as image, PIXELS.take(self.transform.pixels(*image.size)):
                pixels = self.transform(decode(image))
                image.close()  # gives its memory back before others may take it
                return _Decoded(row, pixels, None)
        except Exception as error:  # one corrupt image must not stop the others
            problem = " ".join(str(error).split()) or type(error).__name__
            return _Decoded(row, None, (self.images.names[row], problem))

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
    problem: tuple[str, str] | None


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
        return self.transform.normalise(pixels)

    def fingerprint(self) -> str:
        """SHA-256 of the pixels, the labels and the transform."""
        digest = hashlib.sha256(repr(self.transform).encode())
        for part in (self.pixels, self.labels):
            digest.update(part.contiguous().numpy().data)
        return digest.hexdigest()


def read_pixels(images: ImageSet, transform: Transform, *, skip_bad: bool = False) -> Pixels:
    """Decode every image of a labelled set."""
    if images.labels is None:
        reason = f" ({images.label_note})" if images.label_note else ""
        raise DataError(f"{images.name} has no labels; put the images of each class in a folder of its own{reason}")
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
