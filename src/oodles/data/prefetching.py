"""``prefetch``: threads that work ahead of the consumer. Nothing here needs PyTorch."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

AHEAD = 2  # batches

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
