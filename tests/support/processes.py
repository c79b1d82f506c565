"""Real processes that work together through gloo, as torchrun would start them, and what they do in the tests.

They are forked by a server that has imported torch once, which spares each of them some seconds.
"""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch
from support.images import PLAIN
from support.networks import Net, batched, seeded
from torch import distributed
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from oodles import cli
from oodles.data.loaders import ImageLoader
from oodles.data.readers import open_images
from oodles.detectors import parse
from oodles.distributed import fit, join
from oodles.features import Features
from oodles.network import storing
from oodles.network.extraction import extract
from oodles.store.manifest import FAILED

PATIENCE = 300  # seconds; more than a busy machine takes for anything here
# of the installed packages: the server does not know the folder of the tests
PRELOADED = ["hypothesis", "oodles.cli", "oodles.bench.run", "oodles.distributed", "torch.distributed"]


class Outcome(NamedTuple):
    """How a process ended: with a value, an error, or killed."""

    value: Any = None
    error: str = ""


def start(command: Sequence[object], **options: Any) -> "subprocess.Popen[str]":
    """Start a command that can be interrupted: a shell's background jobs, and what they start, ignore SIGINT."""
    return subprocess.Popen(
        [str(part) for part in command],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


def wait_for(reached: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    """Wait until a process that was started has got somewhere."""
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert process.poll() is None, "the process ended too early"
        assert time.monotonic() < deadline, f"nothing happened in {PATIENCE} seconds"
        time.sleep(0.01)


def torchrun(size: int) -> list[str]:
    """The command that starts that many processes; they meet on the loopback address, without asking for names."""
    meeting = ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(size)]
    return [sys.executable, "-m", "torch.distributed.run", *meeting]


def launch(size: int, work: Callable[..., Any], *arguments: Any, alone: bool = False) -> list[Outcome]:
    """Run ``work`` in that many processes; ``alone`` gives each an environment in which torchrun started only one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    # a store at a free port, at which processes meet as under torchrun
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes = [context.Pipe(duplex=False) for _ in range(size)]
    running = []
    for rank, (_, end) in enumerate(pipes):
        environment = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "MASTER_PORT": store.port}
        environment |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": True}
        running.append(context.Process(target=_run, args=(end, {} if alone else environment, work, arguments)))
        running[-1].start()
        end.close()
    outcomes = {rank: Outcome(error="killed") for rank in range(size)}
    open_pipes = {pipe: rank for rank, (pipe, _) in enumerate(pipes)}
    deadline = time.monotonic() + PATIENCE
    while open_pipes and time.monotonic() < deadline:
        for pipe in wait(list(open_pipes), timeout=1):
            assert isinstance(pipe, Connection)
            rank = open_pipes.pop(pipe)
            try:
                outcomes[rank] = pickle.loads(pipe.recv_bytes())
            except EOFError:
                continue
    for process in running:
        process.join(0.1 if open_pipes else 10)
        if process.is_alive():
            process.kill()
    assert not open_pipes, f"processes {sorted(open_pipes.values())} still wait after {PATIENCE} seconds"
    return [outcomes[rank] for rank in range(size)]


def _run(end: Connection, environment: dict[str, Any], work: Callable[..., Any], arguments: Sequence[Any]) -> None:
    os.environ.update({name: str(value) for name, value in environment.items()})
    torch.set_num_threads(1)
    storing.SHARD_ELEMENTS = 1  # a shard per batch, so that there is something to lose
    try:
        outcome = Outcome(work(*arguments))
    except BaseException as error:
        if os.environ.get("OODLES_DEBUG"):
            traceback.print_exc()
        outcome = Outcome(error=f"{type(error).__name__}: {error}")
    # pickled here: multiprocessing would leave tensors in memory of a process that is about to end
    end.send_bytes(pickle.dumps(outcome))


# What the processes do ----------------------------------------------------------------------------


class Counted(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Images that remember which of them were read."""

    def __init__(self, rows: int) -> None:
        batch = batched(rows, rows)[0]
        self.rows, self.read = list(zip(*batch, strict=True)), []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.read.append(row)
        return self.rows[row]


class Stream:
    """A loader that is neither a list nor a DataLoader, of a length that may be wrong."""

    def __init__(self, batches: Sequence[Any], length: int | None = None) -> None:
        self.batches, self.length = batches, len(batches) if length is None else length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


class Stampless(Stream):
    def stamp(self) -> str:
        raise OSError("the disk is gone")


def spoiled(rows: int, batch: int, bad: Sequence[int]) -> list[Any]:
    batches = batched(rows, batch)
    for row in bad:
        batches[row // batch][0][row % batch] = float("nan")
    return batches


def extract_all(folder: Path, images: Path) -> dict[str, Any]:
    """Extractions of every kind of loader, one after another; returns which rows of a dataset were read."""
    with join() as processes:
        shared = {"processes": processes, "progress": False}
        for rows in (20, 23, 7, 3):
            extract(seeded(Net), batched(rows, 5), store=folder / f"list-{rows}", **shared)
        dataset = Counted(23)
        extract(seeded(Net), DataLoader(dataset, batch_size=5), store=folder / "dataset", layers=["body"], **shared)
        extract(seeded(Net), Stream(batched(23, 5)), store=folder / "stream", dtype=torch.float16, **shared)
        extract(seeded(Net), spoiled(23, 5, (1, 8, 22)), store=folder / "marked", on_bad="mark", **shared)
        loader = ImageLoader(open_images(images), PLAIN, batch_size=4, skip_bad=True)
        extract(seeded(Net), loader, store=folder / "images", **shared)
        return {"dataset": sorted(set(dataset.read)), "images": list(loader.names)}


def refuse_all(folder: Path) -> list[str]:
    """Everything that must be refused, one after another: all processes raise, and go on together."""
    messages = []
    with join() as processes:
        first = processes.rank == 0

        def attempt(model: Any, loader: Any, name: str = "refused") -> None:
            messages.append("")
            try:
                extract(model, loader, store=folder / name, processes=processes, progress=False)
            except Exception as error:
                messages[-1] = str(error)

        dataset = TensorDataset(*(torch.cat(parts) for parts in zip(*batched(20, 5), strict=True)))
        sampler = DistributedSampler(dataset, processes.size, processes.rank, shuffle=False)
        attempt(seeded(Net), DataLoader(dataset, batch_size=5, sampler=sampler))
        attempt(seeded(Net, seed=0 if first else 1), batched(20, 5))
        attempt(seeded(Net), iter(batched(20, 5)))
        attempt(seeded(Net), batched(20 if first else 15, 5))
        attempt(seeded(Net), spoiled(20, 5, (13,)))
        attempt(seeded(Net), Stream(batched(20, 5), 5), "other")
        attempt(seeded(Net), Stream(batched(20, 5), 3), "another")
        attempt(seeded(Net), [], "empty")
        attempt(seeded(Net), batched(20, 5))
        attempt(seeded(Net), batched(20, 4))
        attempt(seeded(Net), Stampless(batched(20, 5)) if not first else Stream(batched(20, 5)))
    return messages


def extract_slowly(folder: Path, killed: int | None) -> int:
    """One extraction; the process ``killed`` is, once it has written a shard, while the others wait for it."""
    with join() as processes:

        class Loader(Stream):
            def __iter__(self) -> Iterator[Any]:
                for batch in batched(40, 4):
                    yield batch
                    if processes.rank == killed and list(folder.glob(f"part-{killed:05d}.json")):
                        os.kill(os.getpid(), signal.SIGKILL)

        return len(extract(seeded(Net), Loader([], 10), store=folder, processes=processes, progress=False))


def fail_early(folder: Path) -> None:
    """The last process fails; the first is in the middle of its share then, and must not go on with it."""
    with join() as processes:
        last = processes.rank == processes.size - 1

        class Loader(Stream):
            def __iter__(self) -> Iterator[Any]:
                for number, batch in enumerate(batched(60, 1)):
                    if number and last:
                        raise OSError("disk gone")
                    yield batch
                    deadline = time.monotonic() + PATIENCE
                    while number and not (folder / FAILED).exists() and time.monotonic() < deadline:
                        time.sleep(0.01)
                    assert number < 3, "the process went on"

        extract(seeded(Net), Loader([], 60), store=folder, processes=processes, progress=False)


def fit_all(store: Path, specs: Sequence[str]) -> dict[str, torch.Tensor]:
    """Scores of detectors that all processes have fitted together."""
    features = Features.load(store)
    with join() as processes:
        fitted = {spec: fit(parse(spec), features, processes) for spec in specs}
        return {spec: detector.score(features) for spec, detector in fitted.items()}


def fit_and_warn(store: Path) -> list[str]:
    with warnings.catch_warnings(record=True) as caught, join() as processes:
        warnings.simplefilter("always")
        fit(parse("dice(0.5)"), Features.load(store), processes)
        return [str(each.message) for each in caught]


def exchange(fails: bool) -> tuple[list[int], list[int], str, Sequence[int]]:
    """Every kind of exchange; then the second process fails while the others meet."""
    with join() as processes:
        met, collected = processes.all_gather(10 * processes.rank), processes.gather(processes.rank)
        handed = processes.broadcast(f"from {processes.rank}")
        with join() as again:
            assert processes is again
        if fails and processes.rank == 1:
            raise ValueError("a bug\nin two lines")
        processes.all_gather(None)
        return met, collected, handed, processes.share(range(7))


def own_group(folder: Path) -> list[Any]:
    """A script with a process group of its own, which it uses before, between and after."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        del os.environ[name]
    distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=size)
    found: list[Any] = []
    for name in ("first", "second"):
        with join() as processes:
            features = extract(seeded(Net), batched(23, 5), store=folder / name, processes=processes, progress=False)
        total = torch.tensor(len(features))
        distributed.all_reduce(total)
        found.append((processes.rank, int(total)))
    distributed.destroy_process_group()
    return found


def command(folder: Path, *line: str) -> tuple[int, str]:
    """Run an ``oodles`` command line in ``folder``; returns the exit code and what was printed."""
    os.chdir(folder)
    with tempfile.TemporaryFile("w+") as printed:
        for stream in (1, 2):
            os.dup2(printed.fileno(), stream)
        sys.argv = ["oodles", *line]
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        sys.stdout.flush()
        printed.seek(0)
        return code, printed.read()
