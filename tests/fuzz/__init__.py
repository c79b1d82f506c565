"""Attacks, one kind per module: hostile files, texts and numbers, kills at bad moments. All of them are seeded.

A module has ``ROUNDS`` (how many rounds ``make fuzz`` runs), ``SHORT`` (how many the tests run) and ``CASES``, which
share the rounds; a case with a name has a row of its own in the table. ``SHARES`` gives a case more or fewer rounds
than the others, and ``SECONDS`` is how long a case may take.

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
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

from studies.pages import markdown_table

KINDS = ("artefacts", "exported_guards", "onnx_models", "specs", "images", "kills", "numbers", "command_lines")

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


def run(module: str, rounds: int, seed: int, folder: Path) -> Counter[str]:
    """Divide the rounds among the cases of a module, and count the outcomes of each as ``"part: outcome"``."""
    kind = import_module(module)
    shares = {part: getattr(kind, "SHARES", {}).get(part, 1.0) for part in kind.CASES}
    counts: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd images, few rows and odd numbers
        for part, case in kind.CASES.items():
            count = int(rounds * shares[part] / sum(shares.values()))
            counts += tally(case, count, seed, folder, part, getattr(kind, "SECONDS", CASE_SECONDS))
    return counts


def tally(case: Case, rounds: int, seed: int, folder: Path, part: str, seconds: float) -> Counter[str]:
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


def attack(module: str, rounds: int | None = None, seed: int = 0, processes: int = 1) -> Counter[str]:
    """Run a module's attack in child processes, in chunks of rounds; chunk ``k`` has the seed ``seed + k``."""
    kind = import_module(module)
    size = getattr(kind, "CHUNK", CHUNK)
    total = rounds or kind.ROUNDS

    def work(start: int) -> Counter[str]:
        return _in_child(module, min(size, total - start), seed + start // size)

    with ThreadPoolExecutor(processes) as threads:
        return sum(threads.map(work, range(0, total, size)), Counter())


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
    result.send(run(module, rounds, seed, Path(folder)))


def table(results: dict[str, Counter[str]]) -> str:
    rows = []
    for name, counts in results.items():
        title = name.replace("_", " ")
        for part in sorted({key.rpartition(": ")[0] for key in counts}):
            found = [counts[f"{part}: {outcome}" if part else outcome] for outcome in OUTCOMES]
            rows.append([f"{title}: {part}" if part else title, *(f"{number:,}" for number in (sum(found), *found))])
    return markdown_table(["kind", "cases", *OUTCOMES], rows)


def bad(results: dict[str, Counter[str]]) -> int:
    return sum(n for counts in results.values() for key, n in counts.items() if _plain(key) not in (REFUSED, ACCEPTED))
