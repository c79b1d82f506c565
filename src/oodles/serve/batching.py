"""Micro-batches: inputs of several requests are answered together, by one thread per guard."""

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, Protocol, Self, TypeVar

from oodles.deploy.artefact import Arrays, rows_of


class Divisible(Protocol):
    """What a batch is answered with, one entry per row."""

    def part(self, start: int, stop: int) -> Self:
        """The answer to some of the rows."""


Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer", bound=Divisible)


@dataclass(eq=False)
class _Item(Generic[Key, Answer]):
    key: Key
    inputs: Arrays
    future: "Future[Answer]" = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)

    @property
    def rows(self) -> int:
        return rows_of(self.inputs)


class Batcher(Generic[Key, Answer]):
    """Collects inputs with equal keys for up to ``max_wait`` seconds or ``max_batch`` rows, then runs them together.

    ``run(key, inputs)`` is called by one thread and answers all rows. If it fails for several inputs together, each is
    run alone, so that only the one that is to blame fails. While a batch runs, the next one collects, so under load
    batches fill without waiting.
    """

    def __init__(
        self, run: Callable[[Key, Sequence[Arrays]], Answer], *, max_batch: int, max_wait: float, name: str = ""
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
        while batch := self._next_batch():
            started = [item for item in batch if item.future.set_running_or_notify_cancel()]
            if started:
                self._answer(started)

    def _next_batch(self) -> list[_Item[Key, Answer]]:
        """The oldest input and those that can be run with it; nothing once the batcher is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if not self._waiting:
                return []
            until = self._waiting[0].arrived + self._max_wait
            while not self._closed and self._rows_ready() < self._max_batch and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            return self._take()

    def _rows_ready(self) -> int:
        key = self._waiting[0].key
        return sum(item.rows for item in self._waiting if item.key == key)

    def _take(self) -> list[_Item[Key, Answer]]:
        first = self._waiting.popleft()
        taken, rows, others = [first], first.rows, deque[_Item[Key, Answer]]()
        for item in self._waiting:
            if item.key == first.key and rows + item.rows <= self._max_batch:
                taken.append(item)
                rows += item.rows
            else:
                others.append(item)
        self._waiting = others
        return taken

    def _answer(self, batch: list[_Item[Key, Answer]]) -> None:
        try:
            answer = self._run(batch[0].key, [item.inputs for item in batch])
        except Exception as error:  # of whatever runs the network; the thread must go on
            if len(batch) == 1:
                batch[0].future.set_exception(error)
                return
            for item in batch:
                self._answer([item])
            return
        start = 0
        for item in batch:
            item.future.set_result(answer.part(start, start + item.rows))
            start += item.rows
