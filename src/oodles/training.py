"""``train``: the paper's training recipes, seeded, checkpointed each epoch and resumable bit for bit."""

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from oodles.bench.datasets import Pixels
from oodles.errors import ArgumentError, DataError, FileError
from oodles.files import Record, read_record, read_tensors, serialise, write_bytes, write_record, write_tensors
from oodles.models.deconf import Cosine
from oodles.recipes import RECIPES, Recipe
from oodles.tap import at_rest, logits_of, unwrap, usable_device

KIND, SCHEMA = "training", 1
RECORD, METRICS, WEIGHTS = "training.json", "metrics.jsonl", "weights.safetensors"
PADDING = 4
TEST_ROWS = 64


def train(
    model: nn.Module,
    data: Pixels,
    *,
    out: str | Path,
    test: Pixels | None = None,
    recipe: Recipe = RECIPES["paper"],
    seed: int = 0,
    resume: bool = False,
    device: torch.device | str | None = None,
    progress: bool = True,
) -> list[Record]:
    """Train ``model`` in place on ``data``; the folder ``out`` gets a checkpoint and a line of metrics each epoch.

    ``out/weights.safetensors`` is what :func:`oodles.models.load_checkpoint` reads. With ``resume`` a run
    that was killed goes on from its last whole epoch, on a CPU bit for bit as if it had never stopped: order,
    crops and flips of an epoch depend on ``seed`` and the epoch alone. Under ``torchrun`` every process takes
    its share of each batch, so ``recipe.batch`` is the batch of all together. Returns the metrics by epoch.
    """
    network = unwrap(model)
    with _team() as team, torch.random.fork_rng():
        _check(network, data, recipe, team)
        target = team.device if device is None and team.device else usable_device(device or "cpu")
        run = _Run(network.to(target), data, test, recipe, seed, Path(out), team, target)
        run.begin(resume)
        with _Display(run, progress) as display:
            for epoch in range(len(run.metrics), recipe.epochs):
                run.epoch(epoch, display)
    network.eval()
    return run.metrics


@dataclass(frozen=True)
class _Team:
    """The processes that train together; alone, a team of one."""

    rank: int = 0
    size: int = 1
    device: torch.device | None = None

    def total(self, value: Tensor) -> Tensor:
        """The sum of everyone's ``value``."""
        if self.size > 1:
            distributed.all_reduce(value)
        return value


@contextmanager
def _team() -> Iterator[_Team]:
    """The team torchrun set up, joined for as long as the training lasts."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield _Team()
        return
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    joined = not distributed.is_initialized()
    if joined:
        distributed.init_process_group("nccl" if on_gpu else "gloo")
    try:
        yield _Team(distributed.get_rank(), distributed.get_world_size(), device)
    finally:
        if joined:
            distributed.destroy_process_group()


class _Run:
    """One training run: the network, its optimiser, and the folder it lives in."""

    def __init__(
        self,
        network: nn.Module,
        data: Pixels,
        test: Pixels | None,
        recipe: Recipe,
        seed: int,
        out: Path,
        team: _Team,
        device: torch.device,
    ) -> None:
        self.network, self.data, self.test, self.recipe = network, data, test, recipe
        self.seed, self.out, self.team, self.device = seed, out, team, device
        self.layout = _layout(network, data, device)
        network.to(memory_format=self.layout)  # type: ignore[call-overload]
        if team.size > 1 and device.type == "cuda":
            self.network = nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
        self.wrapped = nn.parallel.DistributedDataParallel(self.network) if team.size > 1 else self.network
        cosines = [part.weight for part in self.network.modules() if isinstance(part, Cosine)]
        others = [weight for weight in self.network.parameters() if all(weight is not each for each in cosines)]
        groups: list[dict[str, Any]] = [{"params": others}]
        groups += [{"params": [weight], "weight_decay": 0.0} for weight in cosines]
        self.optimiser = torch.optim.SGD(
            groups,
            lr=recipe.rate,
            momentum=recipe.momentum,
            nesterov=recipe.nesterov,
            weight_decay=recipe.weight_decay,
        )
        self.metrics: list[Record] = []
        batches = -(-len(data) // recipe.batch)
        # a batch needs two rows a process: batch normalisation has no spread to divide by otherwise
        short = len(data) % recipe.batch
        self.batches = batches - (0 < short < 2 * team.size)
        self.mixed = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)

    # On disk ----------------------------------------------------------------------------------

    def identity(self) -> Record:
        """What has to be the same for a run to go on."""
        shapes = {name: list(value.shape) for name, value in self.network.state_dict().items()}
        anatomy = hashlib.sha256(json.dumps(shapes).encode()).hexdigest()
        recipe = {**asdict(self.recipe), "drops": list(self.recipe.drops)}
        return {"network": anatomy, "data": self.data.fingerprint(), "recipe": recipe, "seed": self.seed}

    def begin(self, resume: bool) -> None:
        """Start in an empty folder, or take up the run that lies there."""
        self.about = self.identity()
        there = (self.out / RECORD).exists()
        if there and not resume:
            raise FileError(
                f"{self.out} holds a training run already; go on with it (--resume), or give another folder"
            )
        if not there:
            _require_room(self.out)
            return
        record = read_record(self.out / RECORD, kind=KIND, schema=SCHEMA)
        other = [name for name, value in self.about.items() if record["about"][name] != value]
        if other:
            raise FileError(
                f"{self.out} holds a run with another {other[0]}; give what it was started with, or another folder"
            )
        tensors = read_tensors(self.out, record["tensors"])
        weights = {name: value for name, value in tensors.items() if name.startswith("model.")}
        self.network.load_state_dict({name.removeprefix("model."): value for name, value in weights.items()})
        for name, weight in self.network.named_parameters():
            if f"momentum.{name}" in tensors:
                buffer = tensors[f"momentum.{name}"].to(weight)
                self.optimiser.state[weight]["momentum_buffer"] = torch.empty_like(weight).copy_(buffer)
        self.metrics = record["metrics"]

    def save(self) -> None:
        """Write weights and momenta, then the record that points at them, then drop what it pointed at before."""
        if self.team.rank:
            return
        weights = dict(self.network.state_dict())
        done = len(self.metrics) - 1
        stands = f"the checkpoint of epoch {done} stands" if done else "nothing was written"
        ruined = next((name for name, value in weights.items() if not value.isfinite().all()), None)
        if ruined is not None:
            raise DataError(f"epoch {done + 1}: {ruined} is not finite any more; {stands}. Give a smaller rate")
        momenta = {
            f"momentum.{name}": self.optimiser.state[weight]["momentum_buffer"]
            for name, weight in self.network.named_parameters()
            if self.optimiser.state[weight].get("momentum_buffer") is not None
        }
        try:
            state = {f"model.{name}": value for name, value in weights.items()}
            entry = write_tensors(self.out, "state", state | momenta)
            write_bytes(self.out / WEIGHTS, serialise(weights))
            lines = "".join(json.dumps(line) + "\n" for line in self.metrics)
            write_bytes(self.out / METRICS, lines.encode())
            record = {"kind": KIND, "schema": SCHEMA, "about": self.about, "metrics": self.metrics, "tensors": entry}
            write_record(self.out / RECORD, record)
        except OSError as error:
            raise FileError(
                f"the checkpoint of epoch {done + 1} cannot be written to {self.out} ({error.strerror or error}); "
                f"{stands}; make room and go on with --resume"
            ) from None
        # what earlier epochs left, and what a kill in the middle of writing did
        for other in (*self.out.glob("state-*.safetensors"), *self.out.glob(".state-*.safetensors")):
            if other.name != entry["file"]:
                other.unlink(missing_ok=True)

    # Learning ---------------------------------------------------------------------------------

    def epoch(self, epoch: int, display: "_Display") -> None:
        """One pass over the data in this epoch's own order, then a checkpoint."""
        began = time.perf_counter()
        torch.manual_seed(_mix(self.seed, epoch, self.team.rank))  # for dropout and the like
        chance = torch.Generator().manual_seed(_mix(self.seed, epoch))
        order = torch.randperm(len(self.data), generator=chance)
        self.wrapped.train()
        loss_sum, right, seen, rate = 0.0, 0, 0, 0.0
        for batch in range(self.batches):
            rate = self.recipe.rate_at((epoch * self.batches + batch) / (self.recipe.epochs * self.batches))
            rows = order[batch * self.recipe.batch : (batch + 1) * self.recipe.batch]
            loss, correct = self.step(rows, rate, chance)
            if not loss < float("inf"):
                stands = f"the checkpoint of epoch {epoch} stands" if epoch else "nothing was written"
                raise DataError(
                    f"epoch {epoch + 1}, batch {batch + 1} of {self.batches}: the loss is {loss}; {stands}. Give a "
                    "smaller rate, or look at the images of that batch"
                )
            loss_sum, right, seen = loss_sum + loss * len(rows), right + correct, seen + len(rows)
            display.batch(epoch, batch + 1, loss_sum / seen, right / seen, rate)
        seconds = time.perf_counter() - began
        line = {"epoch": epoch + 1, "loss": loss_sum / seen, "accuracy": right / seen, "rate": rate}
        if self.test is not None and self.team.rank == 0:
            line["test_accuracy"] = accuracy(self.network, self.test, self.device)
        self.metrics.append(line | {"seconds": round(seconds, 2), "images_per_second": round(seen / seconds, 1)})
        self.save()
        display.epoch(self.metrics[-1])

    def step(self, rows: Tensor, rate: float, chance: torch.Generator) -> tuple[float, int]:
        """One update on the images at ``rows``; their mean loss and how many were right, over the whole team."""
        mine = slice(self.team.rank, None, self.team.size)
        # drawn for all and then shared out, so that the number of processes changes nothing
        draws = torch.randint(0, 2 * PADDING + 1, (2, len(rows)), generator=chance)
        flips = torch.rand(len(rows), generator=chance) < 0.5
        pixels = augment(self.data.pixels[rows[mine]], draws[:, mine], flips[mine])
        images = self.data.normalise(pixels.to(self.device))
        labels = self.data.labels[rows[mine]].to(self.device)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.mixed):
            logits = logits_of(self.wrapped(images.contiguous(memory_format=self.layout)))
        # a mean over the whole batch, whatever this process's share: DDP divides by the team's size again
        loss = F.cross_entropy(logits.float(), labels, reduction="sum") * (self.team.size / len(rows))
        correct = (logits.argmax(dim=1) == labels).sum()
        told = self.team.total(torch.stack([loss.detach() / self.team.size, correct.to(loss)]))
        value, right = told.tolist()
        if value < float("inf"):
            self.optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimiser.step()
        return value, round(right)


def augment(pixels: Tensor, shifts: Tensor, flips: Tensor) -> Tensor:
    """Each image padded by four black pixels, cut out again at its own place, and mirrored where ``flips`` says."""
    count, _, height, width = pixels.shape
    padded = F.pad(pixels, (PADDING,) * 4)
    down = shifts[0, :, None] + torch.arange(height)
    across = shifts[1, :, None] + torch.arange(width)
    across = torch.where(flips[:, None], across.flip(1), across)
    images = torch.arange(count)[:, None, None]
    return padded.permute(0, 2, 3, 1)[images, down[:, :, None], across[:, None, :]].permute(0, 3, 1, 2)


def accuracy(model: nn.Module, data: Pixels, device: torch.device | None = None) -> float:
    """The share of ``data`` the model labels right; the model comes back as it was."""
    right = 0
    with at_rest(model, device) as home:
        for rows in torch.split(torch.arange(len(data)), TEST_ROWS):
            images = data.normalise(data.pixels[rows].to(home))
            right += int((logits_of(model(images)).argmax(dim=1).cpu() == data.labels[rows]).sum())
    return right / len(data)


def _check(network: nn.Module, data: Pixels, recipe: Recipe, team: _Team) -> None:
    if recipe.batch < 2 * team.size:
        raise ArgumentError(f"batch={recipe.batch} gives {team.size} processes less than two images each; give more")
    present = torch.unique(data.labels)
    if len(present) < 2:
        raise DataError(f"{data.name} holds one class alone ({len(data)} images); a classifier needs at least two")
    if len(data) < recipe.batch:
        raise DataError(
            f"{data.name} holds {len(data)} images, less than a batch of {recipe.batch}; give a smaller batch"
        )
    with at_rest(network) as home:
        try:
            classes = logits_of(network(data.normalise(data.pixels[:2].to(home)))).shape[1]
        except RuntimeError as error:
            shape, reason = tuple(data.pixels.shape[1:]), str(error).strip().splitlines()[0]
            raise DataError(f"{type(network).__name__} does not take images of shape {shape} ({reason})") from None
    if int(present[0]) < 0 or int(present[-1]) >= classes:
        worst = int(present[0]) if int(present[0]) < 0 else int(present[-1])
        raise DataError(
            f"{data.name} holds the label {worst}, but {type(network).__name__} has {classes} classes, 0 to "
            f"{classes - 1}; build it with num_classes to match, or mend the labels"
        )


def _mix(*numbers: int) -> int:
    """One seed from several numbers."""
    return int.from_bytes(hashlib.sha256(repr(numbers).encode()).digest()[:8], "big") >> 1


def _layout(network: nn.Module, data: Pixels, device: torch.device) -> torch.memory_format:
    """Channels last is faster for convolutions; a network that flattens with ``view`` does not take it."""
    if any(isinstance(module, nn.Conv2d) for module in network.modules()):
        images = data.normalise(data.pixels[:2].to(device)).contiguous(memory_format=torch.channels_last)
        with at_rest(network):
            try:
                network(images)
            except RuntimeError:
                return torch.contiguous_format
        return torch.channels_last
    return torch.contiguous_format


def _require_room(folder: Path) -> None:
    """Raise unless files can be written there, before an epoch is spent on finding out."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise FileError(f"{folder} cannot be written to ({error.strerror}); give another folder") from None


class _Display:
    """A bar for the epoch under way on a terminal, and a line for each that is done; silence where not wanted."""

    def __init__(self, run: _Run, wanted: bool) -> None:
        console = Console(stderr=True)
        self._run, self._first, self._began = run, len(run.metrics), time.perf_counter()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(),
        )
        self._spoken = wanted and run.team.rank == 0
        self._bar = Progress(
            *columns, console=console, transient=True, disable=not (self._spoken and console.is_terminal)
        )
        total = run.batches * run.recipe.epochs
        self._task = self._bar.add_task("train", total=total, completed=self._first * run.batches, state="")

    def __enter__(self) -> "_Display":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def batch(self, epoch: int, done: int, loss: float, accuracy: float, rate: float) -> None:
        """Move the bar."""
        state = f"loss {loss:.3f}  accuracy {accuracy:.1%}  rate {rate:.2g}  {self._speed(epoch, done):,.0f} images/s"
        completed = epoch * self._run.batches + done
        self._bar.update(self._task, completed=completed, state=state, description=f"epoch {epoch + 1}")

    def epoch(self, line: Record) -> None:
        """Say what came of an epoch, and when the last will be done."""
        if not self._spoken:
            return
        epoch, epochs = line["epoch"], self._run.recipe.epochs
        left = (time.perf_counter() - self._began) * (epochs - epoch) / (epoch - self._first)
        tested = f"  test accuracy {line['test_accuracy']:.1%}" if "test_accuracy" in line else ""
        self._bar.console.print(
            f"epoch {epoch:>3} of {epochs}  loss {line['loss']:.3f}  accuracy {line['accuracy']:.1%}{tested}  "
            f"rate {line['rate']:.2g}  {line['images_per_second']:,.0f} images/s  {left / 60:.0f} min left",
            highlight=False,
            soft_wrap=True,
        )

    def _speed(self, epoch: int, done: int) -> float:
        images = ((epoch - self._first) * self._run.batches + done) * self._run.recipe.batch
        return images / (time.perf_counter() - self._began)
