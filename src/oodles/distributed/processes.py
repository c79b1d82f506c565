"""The processes that share a piece of work: those that torchrun started, or those of a script's own process group.

They exchange a few small objects and, at the end of a fit, statistics; rows of features go through a store on disk. So
everything is sent from CPU to CPU by gloo, also beside a process group of the script that uses NCCL.

Every exchange also says whether a process has failed: then all of them raise, and none waits for one that is gone.
"""

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from torch import distributed

from oodles.errors import OodlesError
from oodles.records.text import one_line

T = TypeVar("T")

TIMEOUT = timedelta(hours=2)
"""How long a process waits for one that hangs or has far more to do; one that is killed is noticed at once."""

LEAVING = timedelta(seconds=60)
"""How long a process waits at the end for those that have not yet heard that it is the end."""


@dataclass
class Processes:
    """The processes that work together, seen from one of them; the default is a process on its own.

    What is exchanged must be exchanged by all: each process makes the same calls in the same order.

    >>> [list(Processes(rank, 3).share(range(10))) for rank in range(3)]
    [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    >>> Processes().all_gather("alone")
    ['alone']
    """

    rank: int = 0
    size: int = 1
    _group: Any = None
    _told: list[BaseException] = field(default_factory=list)
    _complete: bool = True

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This process's share of items that all have: consecutive ones, more for the first if they do not divide."""
        least, rest = divmod(len(items), self.size)
        start = self.rank * least + min(self.rank, rest)
        return items[start : start + least + (self.rank < rest)]

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all processes in the order of their ranks; raise in all of them if one has failed."""
        return [value] if self.size == 1 else self._exchange(None, value)

    def gather(self, value: T) -> list[T]:
        """Gather values, which may be large, on rank 0; return an empty list on the others."""
        if self.size == 1:
            return [value]
        self.all_gather(None)
        values: list[Any] = [None] * self.size if self.rank == 0 else []
        with self._answering():
            distributed.gather_object(value, values if self.rank == 0 else None, dst=0, group=self._group)
        return values

    def broadcast(self, value: T) -> T:
        """Return the value of rank 0 on every rank."""
        if self.size == 1:
            return value
        self.all_gather(None)
        values = [value if self.rank == 0 else None]
        with self._answering():
            distributed.broadcast_object_list(values, src=0, group=self._group)
        return values[0]  # type: ignore[return-value]

    @contextmanager
    def raise_together(self) -> Iterator[None]:
        """Raise an error of one process in all the others too."""
        try:
            yield
        except BaseException as error:
            if self.size > 1 and not self.knows(error):
                self._told.append(error)
                with suppress(OodlesError):
                    self._exchange(one_line(error, kind=not isinstance(error, OodlesError)), None)
            raise

    def knows(self, error: BaseException) -> bool:
        """Whether all processes have heard of an error, so that it need not be reported by more than one."""
        return any(error is each for each in self._told)

    def _exchange(self, failure: str | None, value: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        with self._answering():
            distributed.all_gather_object(found, (failure, value), group=self._group)
        for rank, (reason, _) in enumerate(found):
            if reason is not None:
                error = OodlesError(f"process {rank} of {self.size} failed: {reason}")
                self._told.append(error)
                raise error
        return [each for _, each in found]

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            lost = OodlesError(
                f"process {self.rank} of {self.size} lost another one, which was killed or does not answer "
                f"({one_line(error):.120}); run the same again"
            )
            self._told.append(lost)  # there is nobody left to tell
            self._complete = False
            raise lost from None

    def leave(self) -> None:
        """Wait until all processes have heard the last exchange: what gloo has sent is lost if its process ends."""
        with suppress(RuntimeError, KeyError):
            address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            store = distributed.TCPStore(  # type: ignore[attr-defined]  # documented, but not exported
                address, port, is_master=False, timeout=LEAVING
            )
            key = f"oodles/left/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/{next(_groups)}"
            store.add(key, 1)
            deadline = time.monotonic() + LEAVING.total_seconds()
            while self._complete and store.add(key, 0) < self.size and time.monotonic() < deadline:
                time.sleep(0.01)


_joined: list[Processes] = []  # at most one
_groups = itertools.count()  # numbers the groups that this process was part of


def current() -> Processes:
    """The processes that this one has joined; a process on its own otherwise."""
    return _joined[0] if _joined else Processes()


def started_by_torchrun() -> int:
    """How many processes torchrun started; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def join() -> Iterator[Processes]:
    """Work together with the other processes of torchrun, or of the process group that the script has initialised.

    All of them must enter and leave the block. An error in one of them ends the block in all. Without other processes
    the block runs as it is.

    >>> with join() as processes:  # in a script that torchrun did not start
    ...     processes.size
    1
    """
    initialised = distributed.is_available() and distributed.is_initialized()
    if _joined or (not initialised and started_by_torchrun() == 1):
        yield current()
        return
    if not initialised:
        distributed.init_process_group("gloo", timeout=TIMEOUT)
    group = distributed.new_group(backend="gloo", timeout=TIMEOUT)
    processes = Processes(distributed.get_rank(), distributed.get_world_size(), group)
    _joined.append(processes)
    try:
        with processes.raise_together():
            yield processes
            processes.all_gather(None)
    finally:
        _joined.clear()
        processes.leave()
        with suppress(RuntimeError, ValueError):
            distributed.destroy_process_group(group)
            if not initialised:
                distributed.destroy_process_group()


def own_device(device: str | None) -> str | None:
    """``cuda`` as this process's own GPU, if torchrun started several processes on this machine."""
    return f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" and "LOCAL_RANK" in os.environ else device
