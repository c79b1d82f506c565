"""Images decoded by threads ahead of the consumer. Nothing here needs PyTorch."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from oodles.data.image_sets import decode
from oodles.data.limits import PIXELS
from oodles.data.transforms import FileBytes, Preprocessing
from oodles.records.text import one_line

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


Prepared = npt.NDArray[np.uint8] | npt.NDArray[np.int32] | str
"""The pixels ``(channels, size, size)`` of an image or the bytes of a file, or why it cannot be read."""


def prepare(opener: Callable[[], AbstractContextManager[Any]], transform: Preprocessing) -> Prepared:
    """Decode, resize and crop one image, within the limit on pixels decoded at once; or read a file's bytes."""
    try:
        if isinstance(transform, FileBytes):
            with opener() as file:
                return transform(file)
        with opener() as image, PIXELS.take(transform.pixels(*image.size)):
            pixels = transform(decode(image))
            image.close()  # gives its memory back before others may take it
            return pixels
    except Exception as error:  # one corrupt image must not stop the others
        return one_line(error)
