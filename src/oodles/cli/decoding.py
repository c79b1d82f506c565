"""Images decoded by threads ahead of whoever scores them, in order; one that cannot be read stops nothing."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from oodles.cli.inputs import Batch, FeatureBatch

if TYPE_CHECKING:
    from oodles.data.decoding import Prepared
    from oodles.data.transforms import Transform

AHEAD = 2  # batches that are decoded while one is scored


class DecodedBatch(NamedTuple):
    """A batch of images, each decoded."""

    names: list[str]
    images: "list[Prepared]"


def decode_ahead(
    batches: Iterable[Batch], transform: "Transform | None", workers: int | None = None
) -> Iterator[DecodedBatch | FeatureBatch]:
    """The batches with their images decoded; ``transform`` may be None if there are only features."""
    from oodles.data.decoding import WORKERS, prepare

    ahead: deque[tuple[Batch, list[Future[Prepared]]]] = deque()
    with ThreadPoolExecutor(workers or WORKERS) as pool:
        try:
            for batch in batches:
                futures: list[Future[Prepared]] = []
                if transform is not None and not isinstance(batch, FeatureBatch):
                    futures = [pool.submit(prepare, opener, transform) for opener in batch.openers]
                ahead.append((batch, futures))
                if len(ahead) > AHEAD:
                    yield _collect(*ahead.popleft())
            while ahead:
                yield _collect(*ahead.popleft())
        finally:
            for _, futures in ahead:
                for future in futures:
                    future.cancel()


def _collect(batch: Batch, futures: list[Future["Prepared"]]) -> DecodedBatch | FeatureBatch:
    if isinstance(batch, FeatureBatch):
        return batch
    return DecodedBatch(batch.names, [future.result() for future in futures])
