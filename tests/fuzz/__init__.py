"""Attacks, one kind per module: hostile files, texts and numbers, kills at bad moments. All of them are seeded.

A module has ``ROUNDS`` (how many rounds ``make fuzz`` runs), ``SHORT`` (how many the tests run) and
``run(rounds, seed, folder) -> Counter[str]``, which counts the outcomes below. A key ``"part: outcome"`` gives that
part a row of its own in the table. Most modules define one case and leave the rest to ``tally``::

    def run(rounds: int, seed: int, folder: Path) -> Counter[str]:
        return tally(damaged_guard, rounds, seed, folder)

``attack`` runs a module in child processes, so that a crash, a hang and a process that takes all memory are counted
too. A child may allocate 4 GB.
"""

import faulthandler
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

KINDS = ("artefacts", "exported_guards", "specs", "images", "kills", "numbers", "command_lines")

REFUSED, ACCEPTED = "refused", "accepted"
CRASH, HANG, TRACEBACK, NON_FINITE = "crash", "hang", "traceback", "accepted non-finite"
OUTCOMES = (REFUSED, ACCEPTED, CRASH, HANG, TRACEBACK, NON_FINITE)
BAD = frozenset({CRASH, HANG, TRACEBACK, NON_FINITE})

CHUNK = 100
"""Rounds per child process, unless the module has a ``CHUNK`` of its own."""
CASE_SECONDS, CHUNK_SECONDS = 60.0, 900.0
MEMORY = 4 << 30
"""What a child may allocate, in bytes."""

Case = Callable[[random.Random, Path], str]
"""One attack: it is given a random generator and an empty folder, and names the outcome or raises."""


class TooSlow(BaseException):
    """A case ran for longer than ``CASE_SECONDS``. No handler of the code under attack catches it."""


def tally(
    case: Case, rounds: int, seed: int, folder: Path, *, part: str = "", seconds: float = CASE_SECONDS
) -> Counter[str]:
    """Run a case many times and count the outcomes; with a ``part``, as those of that part.

    An error that oodles raises on purpose and an ``OSError`` are refusals; any other exception is a traceback. Cases
    whose outcome is bad are described on standard error, and their folders are kept until ``folder`` is removed.
    """
    from oodles.errors import OodlesError

    counts: Counter[str] = Counter()
    for number in range(rounds):
        place = Path(tempfile.mkdtemp(dir=folder))
        try:
            with _time_limit(seconds):
                outcome = case(random.Random(f"{seed} {number}"), place)
        except (OodlesError, OSError):
            outcome = REFUSED
        except TooSlow:
            outcome = HANG
            traceback.print_exc()
        except Exception:  # what is looked for
            outcome = TRACEBACK
            traceback.print_exc()
        counts[f"{part}: {outcome}" if part else outcome] += 1
        if outcome in BAD:
            print(f"{outcome}: {case.__module__}.{case.__name__}, seed {seed}, round {number}", file=sys.stderr)
        else:
            shutil.rmtree(os.fsencode(place), ignore_errors=True)  # names in it need not be text
    return counts


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _plain(outcome: str) -> str:
    return outcome.rpartition(": ")[2]


def attack(
    module: str, rounds: int | None = None, seed: int = 0, minutes: float | None = None, processes: int = 1
) -> Counter[str]:
    """Run a module's attack in child processes: ``rounds`` of it, or its own number, or as many as fit in ``minutes``.

    Rounds are divided into chunks, and chunk ``k`` has the seed ``seed + k``.
    """
    kind = import_module(module)
    size = getattr(kind, "CHUNK", CHUNK)
    end = time.monotonic() + (float("inf") if minutes is None else 60 * minutes)
    total = sys.maxsize if rounds is None and minutes is not None else rounds or kind.ROUNDS
    starts = iter(range(0, total, size))  # shared by the threads

    def work(_: int) -> Counter[str]:
        counts: Counter[str] = Counter()
        for start in starts:
            if start and time.monotonic() > end:
                break
            counts += _in_child(module, min(size, total - start), seed + start // size)
        return counts

    with ThreadPoolExecutor(processes) as threads:
        return sum(threads.map(work, range(processes)), Counter())


def _in_child(module: str, rounds: int, seed: int) -> Counter[str]:
    """The outcomes of one chunk, which may end the process that it runs in."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])  # imported once
    receive, send = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="fuzz-", ignore_cleanup_errors=True) as folder:
        child = context.Process(target=_child, args=(module, rounds, seed, folder, send))
        child.start()
        send.close()
        try:
            counts = receive.recv() if receive.poll(CHUNK_SECONDS) else Counter({HANG: 1})
        except EOFError:
            counts = Counter({CRASH: 1})
        with suppress(ProcessLookupError):
            os.killpg(child.pid or 0, signal.SIGKILL)  # the child and what it started
        child.join()
    if any(_plain(outcome) in BAD for outcome in counts):
        name = module.rpartition(".")[2]
        print(f"again: python -m tests.fuzz {name} --rounds {rounds} --seed {seed}", file=sys.stderr)
    return counts


def _child(module: str, rounds: int, seed: int, folder: str, result: Connection) -> None:
    os.setsid()
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import torch

    torch.set_num_threads(1)
    result.send(import_module(module).run(rounds, seed, Path(folder)))


def table(results: dict[str, Counter[str]]) -> str:
    """The counts in Markdown, one row per kind, or one per part of a kind."""
    header = ("kind", "cases", *OUTCOMES)
    rows = [(name, counts.total(), *(counts[key] for key in OUTCOMES)) for name, counts in _parts(results)]
    lines = [header, ("---", *["---:"] * (len(header) - 1)), *((row[0], *(f"{n:,}" for n in row[1:])) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _parts(results: dict[str, Counter[str]]) -> Iterable[tuple[str, Counter[str]]]:
    for name, counts in results.items():
        parts: dict[str, Counter[str]] = {}
        for key, count in counts.items():
            part, _, outcome = key.rpartition(": ")
            parts.setdefault(part, Counter())[outcome] += count
        for part, found in sorted(parts.items()):
            title = name.replace("_", " ")
            yield f"{title}: {part}" if part else title, found


def bad(results: dict[str, Counter[str]]) -> int:
    """How many outcomes must not occur."""
    return sum(n for counts in results.values() for key, n in counts.items() if _plain(key) not in (REFUSED, ACCEPTED))
