"""Micro-batches: inputs of several requests are answered together, by one thread per guard."""

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from oodles.deploy.artefact import Arrays, rows_of

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")


@dataclass(eq=False)
class _Item(Generic[Key, Answer]):
    key: Key
    inputs: Arrays
    future: "Future[Answer]" = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)


class Batcher(Generic[Key, Answer]):
    """Collects inputs with equal keys for up to ``max_wait`` seconds or ``max_batch`` rows, then runs them together.

    ``run(key, inputs)`` is called by one thread and returns one answer per element of ``inputs``. If it fails for
    several together, each is run alone, so that only the one that is to blame fails. While a batch runs, the next one
    collects, so under load batches fill without waiting.
    """

    def __init__(
        self,
        run: Callable[[Key, Sequence[Arrays]], Sequence[Answer]],
        *,
        max_batch: int,
        max_wait: float,
        name: str = "",
    ) -> None:
        self._run = run
        self._max_batch = max_batch
        self._max_wait = max_wait
        self._waiting: deque[_Item[Key, Answer]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name=f"batches of {name}", daemon=True)
        self._thread.start()

    def submit(self, key: Key, inputs: Arrays) -> "Future[Answer]":
        """Have named arrays answered, which have the same number of rows; a future that is cancelled is left out."""
        item: _Item[Key, Answer] = _Item(key, inputs)
        with self._changed:
            if self._closed:
                raise RuntimeError("the guard is closed")
            self._waiting.append(item)
            self._changed.notify()
        return item.future

    def close(self) -> None:
        """Answer what waits, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _loop(self) -> None:
        while (batch := self._next_batch()) is not None:
            started = [item for item in batch if item.future.set_running_or_notify_cancel()]
            if started:
                self._answer(started)

    def _next_batch(self) -> list[_Item[Key, Answer]] | None:
        """Wait for the oldest input and those that can be run with it; None once the batcher is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if not self._waiting:
                return None
            first = self._waiting[0]

            def full() -> bool:
                same = (item for item in self._waiting if item.key == first.key and not item.future.cancelled())
                return self._closed or sum(rows_of(item.inputs) for item in same) >= self._max_batch

            self._changed.wait_for(full, first.arrived + self._max_wait - time.monotonic())
            return self._take()

    def _take(self) -> list[_Item[Key, Answer]]:
        taken: list[_Item[Key, Answer]] = []
        rows, others = 0, deque[_Item[Key, Answer]]()
        for item in self._waiting:
            if item.future.cancelled():
                continue
            more = rows + rows_of(item.inputs)
            if not taken or (item.key == taken[0].key and more <= self._max_batch):
                taken.append(item)
                rows = more
            else:
                others.append(item)
        self._waiting = others
        return taken

    def _answer(self, batch: list[_Item[Key, Answer]]) -> None:
        try:
            answers = self._run(batch[0].key, [item.inputs for item in batch])
        except Exception as error:  # of whatever runs the network; the thread must go on
            if len(batch) == 1:
                batch[0].future.set_exception(error)
                return
            for item in batch:
                self._answer([item])
            return
        for item, answer in zip(batch, answers, strict=True):
            item.future.set_result(answer)
