"""Image sets as batches of pixels, decoded by threads ahead of the consumer. Nothing here needs PyTorch."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from oodles.data.image_sets import ImageSet, decode
from oodles.data.limits import PIXELS
from oodles.data.transforms import Transform
from oodles.errors import ArgumentError, DataError
from oodles.records.text import one_line

BATCH_SIZE = 256
WORKERS = min(16, max(2, os.cpu_count() or 2))
AHEAD = 2  # batches that are worked on while one is used

Batch = TypeVar("Batch")
Item = TypeVar("Item")
Result = TypeVar("Result")


def prefetch(
    batches: Iterable[tuple[Batch, Iterable[Item]]], work: Callable[[Item], Result], workers: int
) -> Iterator[tuple[Batch, list[Result]]]:
    """Yield each batch, in order, with the results of ``work`` for its items.

    While the consumer uses one batch, threads work on the items of the next two. If the consumer stops early, what has
    not begun is cancelled.

    >>> list(prefetch([("ab", [1, 2]), ("c", [3])], str, workers=2))
    [('ab', ['1', '2']), ('c', ['3'])]
    """
    with ThreadPoolExecutor(workers) as pool:
        submitted = ((batch, [pool.submit(work, item) for item in items]) for batch, items in batches)
        ahead: deque[tuple[Batch, list[Future[Result]]]] = deque(islice(submitted, AHEAD))
        try:
            while ahead:
                batch, futures = ahead.popleft()
                results = [future.result() for future in futures]
                ahead.extend(islice(submitted, 1))
                yield batch, results
        finally:
            for _, futures in ahead:
                for future in futures:
                    future.cancel()


class Prepared(NamedTuple):
    """The pixels ``(3, size, size)`` of an image, or why it cannot be read."""

    pixels: npt.NDArray[np.uint8] | None
    problem: str | None


def prepare(opener: Callable[[], AbstractContextManager[Image.Image]], transform: Transform) -> Prepared:
    """Decode, resize and crop one image, within the limit on pixels that are decoded at the same time."""
    try:
        with opener() as image, PIXELS.take(transform.pixels(*image.size)):
            pixels = transform(decode(image))
            image.close()  # gives its memory back before others may take it
            return Prepared(pixels, None)
    except Exception as error:  # one corrupt image must not stop the others
        return Prepared(None, one_line(error))


class DecodedBatch(NamedTuple):
    """The places of some images in their set, and their pixels as uint8 ``(n, 3, size, size)``."""

    rows: list[int]
    pixels: npt.NDArray[np.uint8]


class ImageDecoder:
    """Decodes, resizes and crops the images of a set, batch by batch, in threads ahead of the consumer.

    If images cannot be read, the iteration ends with an error that counts them all; with ``skip_bad`` they are skipped.
    Either way ``skipped`` lists their names, each with the problem. ``names`` lists the images yielded so far.
    """

    def __init__(
        self,
        images: ImageSet,
        transform: Transform,
        *,
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
        self.skipped: list[tuple[str, str]] = []
        self.names: list[str] = []

    @property
    def bad(self) -> list[str]:
        """The unreadable images, each as ``name: problem``."""
        return [f"{name}: {problem}" for name, problem in self.skipped]

    def __len__(self) -> int:
        return -(-len(self.images) // self.batch_size)

    def decoded(self, numbers: Sequence[int] | None = None) -> Iterator[DecodedBatch]:
        """All batches, or those of the given numbers; no other image is read."""
        self.skipped, self.names = [], []
        total, size = len(self.images), self.batch_size
        starts = [number * size for number in (range(len(self)) if numbers is None else numbers)]
        spans = (range(start, min(start + size, total)) for start in starts)
        for span, images in prefetch(((span, span) for span in spans), self._prepare, self.workers):
            self.skipped += [
                (self.images.names[row], each.problem) for row, each in zip(span, images, strict=True) if each.problem
            ]
            if self.skipped and not self.skip_bad:
                continue  # count the others as well
            good = [(row, each.pixels) for row, each in zip(span, images, strict=True) if each.pixels is not None]
            if good:
                self.names += [self.images.names[row] for row, _ in good]
                yield DecodedBatch([row for row, _ in good], np.stack([pixels for _, pixels in good]))
        if self.skipped and not self.skip_bad:
            raise DataError(self.problem_summary())
        if not self.names and starts:
            raise DataError(f"{self.images.name}: none of {len(self.images)} images can be read ({self._problems()})")

    def problem_summary(self) -> str:
        """One line that counts the unreadable images and names the first three."""
        count = f"{len(self.skipped)} of {len(self.images)} images cannot be read"
        return f"{self.images.name}: {count} ({self._problems()})"

    def _problems(self) -> str:
        return "; ".join(self.bad[:3]) + ("; ..." if len(self.skipped) > 3 else "")

    def _prepare(self, row: int) -> Prepared:
        return prepare(lambda: self.images.open(row), self.transform)
