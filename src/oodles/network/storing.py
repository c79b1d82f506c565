"""Extraction into a store: what is there is compared with the loader's inputs, what is missing is computed.

A shard always ends where a batch of the loader ends, and the last layer is always located on the first batch. So the
rows are the same bits whether they are computed in one go, after an interruption, or by any number of processes.
"""

import hashlib
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from oodles.columns import Columns, check_columns, check_same_columns, check_some_good, fingerprint
from oodles.data.batches import NO_BATCH, check_gives_batches, only
from oodles.distributed.processes import Processes
from oodles.errors import ArgumentError, DataError, FileError
from oodles.features import SHARD_ELEMENTS
from oodles.records.files import Record
from oodles.store import Part, Writer, open_writer
from oodles.store.manifest import FAILED, check_same, plain

if TYPE_CHECKING:
    from oodles.network.extraction import Run

SHARD_SECONDS = 30.0  # a shard is written at least this often, so that an interrupted run loses little
ALL_INPUTS = (
    "give each process the same loader of all inputs, unshuffled and without a DistributedSampler: extract shares the "
    "batches out"
)


@dataclass(frozen=True)
class Sharing:
    """A store that is written by one process or several, seen from one of them.

    ``shards`` are those that were there at the beginning. ``recognised`` says that the store is complete and that the
    loader has the stamp it was written with.
    """

    writer: Part
    processes: Processes
    shards: list[Record]
    complete: bool
    recognised: bool

    @property
    def path(self) -> Path:
        """The folder of the store."""
        return self.writer.path

    def check_others(self) -> None:
        """Raise if another process has failed; it waits until all have noticed."""
        if self.processes.size > 1 and (self.path / FAILED).exists():
            self.processes.all_gather(None)


@contextmanager
def open_store(
    path: Path, about: Mapping[str, Any], note: str, stamp: str | None, processes: Processes
) -> Iterator[Sharing]:
    """Open a store for writing in every process; the first one holds its lock and writes its manifest."""
    with processes.raise_together():
        if processes.rank == 0:
            with (
                open_writer(path, about, note) as writer,
                processes.raise_together(),
                _marking_failure(path, processes),
            ):
                recognised = writer.complete and stamp is not None and writer.manifest["stamp"] == stamp
                processes.all_gather((writer.manifest, recognised))
                yield Sharing(writer, processes, list(writer.shards), writer.complete, recognised)
        else:
            with _marking_failure(path, processes):
                nothing: Record = {}
                manifest, recognised = processes.all_gather((nothing, False))[0]
                check_same(path, manifest["about"], plain(path, about))
                part = Part(path, processes.rank)
                yield Sharing(part, processes, manifest["shards"], manifest["complete"], recognised)


@contextmanager
def _marking_failure(path: Path, processes: Processes) -> Iterator[None]:
    """Leave a mark if this process fails, so that the others do not work on for hours."""
    try:
        yield
    except BaseException as error:
        # not for an error that was heard of: by now the first process may have removed the mark
        if processes.size > 1 and not processes.knows(error):
            with suppress(OSError):
                (path / FAILED).touch()
        raise


def into_store(run: "Run", loader: Iterable[Any], sharing: Sharing, stamp: str | None) -> None:
    """Go through the loader once: batches already stored are compared by content, the others computed and appended."""
    writer, plan = sharing.writer, _Plan.of(loader, sharing)
    stored = list(plan.stored)
    compared = hashlib.sha256()  # of the inputs of the first stored shard, as far as they were read
    shard: Shard | None = None
    noted = False
    seen = 0
    number = -1
    with closing(run.batches(plan.batches)) as batches:
        for (inputs, labels), number in zip(batches, plan.numbers, strict=False):
            sharing.check_others()
            digest = fingerprint(inputs.tensors() | ({} if labels is None else {"labels": labels}))
            if plan.computes and number == 0:
                run.locate(inputs)
                _check_alike(run, digest, sharing.processes)
            if number in plan.others:
                continue
            seen += len(inputs)
            entry = stored[0] if stored and number in range(*stored[0]["batches"]) else None
            if shard is not None and (entry is not None or number != shard.stop):
                shard.write(run, writer)
                shard = None
            if entry is not None:
                compared.update(digest.encode())
                if number == entry["batches"][1] - 1:
                    if compared.hexdigest() != entry["inputs"]:
                        raise _other_data(sharing.path, entry["file"])
                    del stored[0]
                    compared = hashlib.sha256()
                continue
            if sharing.complete:
                raise _other_data(sharing.path, "the end")
            place = seen - len(inputs) if sharing.processes.size == 1 else f"batch {number}"
            shard = shard or Shard(number)
            shard.add(len(inputs), *run.good_rows(inputs, labels, place))
            shard.digest.update(digest.encode())
            if isinstance(writer, Writer) and not noted:
                names = run.class_names(shard.columns[0]["logits"].shape[1], loader)
                writer.manifest.update(class_names=list(names), multilabel=run.forward.multilabel)
                noted = True
            if shard.is_full():
                shard.write(run, writer)
                shard = None
    if stored:
        raise _other_data(sharing.path, stored[0]["file"])
    if plan.last is not None and number != plan.last:
        raise DataError(f"the loader gave no batch {plan.last}, but its length is {plan.total}; give all batches")
    if shard is not None:
        shard.write(run, writer)
    _complete(loader, sharing, stamp)


def _complete(loader: Iterable[Any], sharing: Sharing, stamp: str | None) -> None:
    """Wait until all processes have written their shards, then mark the store complete."""
    writer = sharing.writer
    ends = sharing.processes.all_gather(([entry["file"] for entry in writer.shards], getattr(loader, "skipped", [])))
    skipped = list(dict.fromkeys(each for _, part in ends for each in part))  # all read the first batch
    if hasattr(loader, "skipped"):
        loader.skipped = skipped  # by any process
    if isinstance(writer, Writer):
        writer.take_parts()
        if not writer.shards:
            raise DataError(NO_BATCH)
        lost = sorted({file for files, _ in ends for file in files} - {entry["file"] for entry in writer.shards})
        if lost:
            raise FileError(
                f"{writer.path} has no {lost[0]}, which another process wrote; use a disk that all of them share"
            )
        bad = [row for entry in writer.shards for row in entry["bad_rows"]]
        check_some_good(sum(entry["rows"] for entry in writer.shards) + len(bad), bad)
        if not writer.complete:
            writer.finish()
        writer.stamp("" if skipped or stamp is None else stamp)
    sharing.processes.all_gather(None)


@dataclass(frozen=True)
class _Plan:
    """What one process reads: the batches to compare with ``stored`` shards, and the missing ones that it computes.

    If any process ``computes`` batches, all of them read the first one too, to locate the last layer; ``others`` is its
    number if it belongs to another process. A process on its own reads the loader as it comes, whatever its length.
    """

    batches: Iterable[Any]
    numbers: Iterable[int]
    stored: Sequence[Record]
    computes: bool
    others: frozenset[int] = frozenset()
    total: int | None = None
    last: int | None = None

    @classmethod
    def of(cls, loader: Iterable[Any], sharing: Sharing) -> "_Plan":
        processes, every = sharing.processes, sharing.shards
        if processes.size == 1:
            return cls(loader, itertools.count(), every, not sharing.complete)
        total = _agreed_length(loader, processes)
        missing = sorted(set(range(total)) - _numbers(every))
        if every and every[-1]["batches"][1] > total:
            raise _other_data(sharing.path, every[-1]["file"])
        stored = processes.share(every)
        mine = _numbers(stored) | set(processes.share(missing))
        numbers = sorted(mine | {0} if missing else mine)
        last = numbers[-1] if numbers else None
        others = frozenset(numbers) - mine
        return cls(only(loader, numbers, total), numbers, stored, bool(missing), others, total, last)


def _agreed_length(loader: Iterable[Any], processes: Processes) -> int:
    check_gives_batches(loader)
    try:
        length: int = len(loader)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentError(
            f"{type(loader).__name__} has no length, so its batches cannot be shared among {processes.size} "
            "processes; give a loader with a length, such as a DataLoader, or run one process"
        ) from None
    lengths = processes.all_gather(length)
    if len(set(lengths)) > 1:
        raise DataError(f"the loaders of the processes have {lengths} batches; {ALL_INPUTS}")
    return length


def _numbers(shards: Sequence[Record]) -> set[int]:
    """The numbers of the batches that some shards consist of."""
    return {number for entry in shards for number in range(*entry["batches"])}


def _check_alike(run: "Run", digest: str, processes: Processes) -> None:
    """Raise unless all processes have the same first batch, and have found the same last layer on it."""
    head = run.head()
    found = None if head is None else fingerprint(head.tensors())
    digests, heads = zip(*processes.all_gather((digest, found)), strict=True)
    if len(set(digests)) > 1:
        raise DataError(f"the loaders of the processes begin with different batches; {ALL_INPUTS}")
    if len(set(heads)) > 1:
        raise DataError("the processes find different last layers on the same batch; use the same hardware for all")


class Shard:
    """What is kept of consecutive batches, and the digest of their inputs."""

    def __init__(self, first: int) -> None:
        self.first = self.stop = first
        self.rows = 0
        self.columns: list[Columns] = []
        self.bad: list[int] = []
        self.digest = hashlib.sha256()
        self.begun = time.monotonic()

    def add(self, rows: int, columns: Columns, bad: Sequence[int]) -> None:
        """Keep the columns of a batch of this many inputs, of which the ``bad`` ones have no row."""
        self.bad += [self.rows + row for row in bad]
        self.columns.append(columns)
        check_same_columns(self.columns[0], columns)
        self.rows += rows
        self.stop += 1

    def is_full(self) -> bool:
        """Whether the shard is to be written now: it is large, or was begun a while ago."""
        per_row = sum(column.shape[1:].numel() for column in self.columns[0].values())
        return self.rows * per_row >= SHARD_ELEMENTS or time.monotonic() - self.begun >= SHARD_SECONDS

    def joined(self) -> Columns:
        """Return the columns of all batches, and let go of theirs."""
        return {name: torch.cat([part.pop(name) for part in self.columns]) for name in list(self.columns[0])}

    def write(self, run: "Run", writer: Part) -> None:
        """Append the shard to the store."""
        columns, head = self.joined(), run.head()
        if self.rows > len(self.bad):
            check_columns(columns, None if head is None else head.shape)
        if isinstance(writer, Writer) and head is not None:
            writer.write_head(head)
        writer.append(columns, self.digest.hexdigest(), (self.first, self.stop), self.bad)


def _other_data(path: Path, where: str) -> FileError:
    return FileError(
        f"{path} was extracted from other inputs, in another order or in other batch sizes; they differ at {where}. "
        "Use a loader that does not shuffle and the same batch size, or another store"
    )
