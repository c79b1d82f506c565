"""Images decoded by threads ahead of whoever scores them, in order; one that cannot be read stops nothing."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

from oodles.cli.inputs import Batch, FeatureBatch

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL import Image

    from oodles.data.transforms import Transform

AHEAD = 2  # batches that are decoded while one is scored

Opener = Callable[[], AbstractContextManager["Image.Image"]]


class Decoded(NamedTuple):
    """The pixels ``(3, size, size)`` of an image, or why it cannot be read."""

    pixels: "npt.NDArray[np.uint8] | None"
    problem: str | None


class DecodedBatch(NamedTuple):
    """A batch of images, each decoded."""

    names: list[str]
    images: list[Decoded]


def decode_ahead(
    batches: Iterable[Batch], transform: "Transform | None", workers: int | None = None
) -> Iterator[DecodedBatch | FeatureBatch]:
    """The batches with their images decoded; ``transform`` may be None if there are only features."""
    from oodles.data.decoding import WORKERS

    ahead: deque[tuple[Batch, list[Future[Decoded]]]] = deque()
    with ThreadPoolExecutor(workers or WORKERS) as pool:
        try:
            for batch in batches:
                openers = [] if isinstance(batch, FeatureBatch) else batch.openers
                ahead.append((batch, [pool.submit(_decode, opener, transform) for opener in openers]))
                if len(ahead) > AHEAD:
                    yield _collect(*ahead.popleft())
            while ahead:
                yield _collect(*ahead.popleft())
        finally:
            for _, futures in ahead:
                for future in futures:
                    future.cancel()


def _collect(batch: Batch, futures: list[Future[Decoded]]) -> DecodedBatch | FeatureBatch:
    if isinstance(batch, FeatureBatch):
        return batch
    return DecodedBatch(batch.names, [future.result() for future in futures])


def _decode(opener: Opener, transform: Any) -> Decoded:
    from oodles.data.image_sets import decode
    from oodles.data.limits import PIXELS

    try:
        with opener() as image, PIXELS.take(transform.pixels(*image.size)):
            pixels = transform(decode(image))
            image.close()  # gives its memory back before others may take it
            return Decoded(pixels, None)
    except Exception as error:  # one corrupt image must not stop the others
        return Decoded(None, " ".join(str(error).split()) or type(error).__name__)
