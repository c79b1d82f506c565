"""``train``: seeded training that writes a checkpoint each epoch and resumes bit for bit."""

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from oodles.data.loaders import Pixels
from oodles.distributed.processes import Processes, own_device, started_by_torchrun
from oodles.errors import ArgumentError, DataError, FileError
from oodles.models.deconf import Cosine
from oodles.network.outputs import logits_of
from oodles.network.taps import eval_mode, has_convolutions, unwrap, usable_device
from oodles.records.files import (
    Fields,
    Record,
    TensorFile,
    check_output,
    locked,
    marked,
    read_record,
    remove_others,
    write_bytes,
    write_record,
)
from oodles.records.tensors import read_tensors, serialise, write_tensors
from oodles.records.text import one_line
from oodles.training.recipes import RECIPES, Recipe

KIND, SCHEMA = "training", 1
RECORD, METRICS, WEIGHTS = "training.json", "metrics.jsonl", "weights.safetensors"
NOTES = {"oodles": "train"}  # in the file of weights
KINDS = {WEIGHTS: marked("weights", b'{"oodles":"train"}'), METRICS: marked("metrics", b'{"epoch": 1, "loss": ')}
PADDING = 4
TEST_BATCH_SIZE = 64


class _Fields(Fields):
    about: dict[str, Any]
    metrics: list[dict[str, Any]]
    tensors: TensorFile


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
    """Train ``model`` in place on ``data``; each epoch writes a checkpoint and a line of metrics to ``out``.

    Load ``out/weights.safetensors`` with :func:`oodles.models.load_checkpoint`. With ``resume`` an interrupted run
    continues after its last complete epoch, on a CPU bit for bit as if it had never stopped: order, crops and flips
    depend only on ``seed`` and the epoch. Under ``torchrun`` each process takes its share of every batch, and
    ``recipe.batch_size`` counts the images of all processes. Returns the metrics of each epoch.
    """
    network = unwrap(model)
    with _processes() as processes, torch.random.fork_rng():
        _check(network, data, recipe, processes)
        own = own_device("cuda") if processes.size > 1 and torch.cuda.is_available() else "cpu"
        target = usable_device(device or own or "cpu")
        run = _Run(network.to(target), data, test, recipe, seed, Path(out), processes, target)
        # the first process writes for all
        with locked(run.out) if processes.rank == 0 else nullcontext():
            run.begin(resume)
            with _Display(run, progress) as display:
                for epoch in range(len(run.metrics), recipe.epochs):
                    run.epoch(epoch, display)
    network.eval()
    return run.metrics


@contextmanager
def _processes() -> Iterator[Processes]:
    """Keep the processes that torchrun started in a process group while training lasts."""
    if started_by_torchrun() == 1:
        yield Processes()
        return
    initialise = not distributed.is_initialized()
    if initialise:
        distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        processes = Processes(distributed.get_rank(), distributed.get_world_size())
        yield processes
        distributed.barrier()
        processes.leave()  # no process closes its connections while another still uses them
    finally:
        if initialise:
            distributed.destroy_process_group()


@dataclass(eq=False)
class _Run:
    """One training run: the network, its optimiser and its folder."""

    network: nn.Module
    data: Pixels
    test: Pixels | None
    recipe: Recipe
    seed: int
    out: Path
    processes: Processes
    device: torch.device

    def __post_init__(self) -> None:
        self.layout = _layout(self.network, self.data, self.device)
        self.network.to(memory_format=self.layout)  # type: ignore[call-overload]
        several = self.processes.size > 1
        if several and self.device.type == "cuda":
            self.network = nn.SyncBatchNorm.convert_sync_batchnorm(self.network)  # type: ignore[no-untyped-call]
        self.wrapped = nn.parallel.DistributedDataParallel(self.network) if several else self.network
        cosines = [part.weight for part in self.network.modules() if isinstance(part, Cosine)]
        others = [weight for weight in self.network.parameters() if all(weight is not each for each in cosines)]
        groups: list[dict[str, Any]] = [{"params": others}]
        groups += [{"params": [weight], "weight_decay": 0.0} for weight in cosines]
        self.optimiser = torch.optim.SGD(
            groups,
            lr=self.recipe.learning_rate,
            momentum=self.recipe.momentum,
            nesterov=self.recipe.nesterov,
            weight_decay=self.recipe.weight_decay,
        )
        self.metrics: list[Record] = []
        batches = -(-len(self.data) // self.recipe.batch_size)
        # drop a last batch with fewer than two images per process: batch normalisation needs a variance
        self.batches = batches - (0 < len(self.data) % self.recipe.batch_size < 2 * self.processes.size)
        self.mixed = self.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)

    def identity(self) -> Record:
        """What must be the same for a run to be resumed."""
        shapes = {name: list(value.shape) for name, value in self.network.state_dict().items()}
        digest = hashlib.sha256(json.dumps(shapes).encode()).hexdigest()
        recipe = {**asdict(self.recipe), "drops": list(self.recipe.drops)}
        return {"network": digest, "data": self.data.fingerprint(), "recipe": recipe, "seed": self.seed}

    def begin(self, resume: bool) -> None:
        """Check the folder of a new run, or resume the run in it."""
        for name, kind in KINDS.items():
            check_output(self.out / name, kind)
        self.about = self.identity()
        exists = (self.out / RECORD).exists()
        if exists and not resume:
            raise FileError(f"{self.out} already holds a training run; resume it (--resume), or give another folder")
        if not exists:
            return
        record = read_record(self.out / RECORD, kind=KIND, schema=SCHEMA, fields=_Fields)
        changed = [name for name, value in self.about.items() if record["about"].get(name) != value]
        if changed:
            same = f"give the {changed[0]} it was started with, or another folder"
            raise FileError(f"{self.out} holds a run with a different {changed[0]}; {same}")
        tensors = read_tensors(self.out, record["tensors"])
        weights = {name: value for name, value in tensors.items() if name.startswith("model.")}
        self.network.load_state_dict({name.removeprefix("model."): value for name, value in weights.items()})
        for name, weight in self.network.named_parameters():
            if f"momentum.{name}" in tensors:
                buffer = tensors[f"momentum.{name}"].to(weight)
                self.optimiser.state[weight]["momentum_buffer"] = torch.empty_like(weight).copy_(buffer)
        self.metrics = record["metrics"]

    def save(self) -> None:
        """Write weights and momenta, then the record that points to them; then delete the files of earlier epochs."""
        if self.processes.rank:
            return
        weights = dict(self.network.state_dict())
        done = len(self.metrics) - 1
        bad = next((name for name, value in weights.items() if not value.isfinite().all()), None)
        if bad is not None:
            raise DataError(f"epoch {done + 1}: {bad} is no longer finite; {_kept(done)}. Give a smaller learning rate")
        momenta = {
            f"momentum.{name}": self.optimiser.state[weight]["momentum_buffer"]
            for name, weight in self.network.named_parameters()
            if self.optimiser.state[weight].get("momentum_buffer") is not None
        }
        try:
            state = {f"model.{name}": value for name, value in weights.items()}
            entry = write_tensors(self.out, "state", state | momenta)
            write_bytes(self.out / WEIGHTS, serialise(weights, NOTES), KINDS[WEIGHTS])
            lines = "".join(json.dumps(line) + "\n" for line in self.metrics)
            write_bytes(self.out / METRICS, lines.encode(), KINDS[METRICS])
            record = {"kind": KIND, "schema": SCHEMA, "about": self.about, "metrics": self.metrics, "tensors": entry}
            write_record(self.out / RECORD, record)
        except OSError as error:
            raise FileError(
                f"the checkpoint of epoch {done + 1} cannot be written to {self.out} ({error.strerror or error}); "
                f"{_kept(done)}; free some space and continue with --resume"
            ) from None
        remove_others(self.out, "state", entry["file"])  # files of earlier epochs

    def epoch(self, epoch: int, display: "_Display") -> None:
        """One pass over the data in a new order, then a checkpoint."""
        began = time.perf_counter()
        torch.manual_seed(_combined_seed(self.seed, epoch, self.processes.rank))  # for dropout and other random layers
        generator = torch.Generator().manual_seed(_combined_seed(self.seed, epoch))
        order = torch.randperm(len(self.data), generator=generator)
        self.wrapped.train()
        loss_sum, correct_sum, seen, rate = 0.0, 0, 0, 0.0
        for batch in range(self.batches):
            rate = self.recipe.learning_rate_at((epoch * self.batches + batch) / (self.recipe.epochs * self.batches))
            rows = order[batch * self.recipe.batch_size : (batch + 1) * self.recipe.batch_size]
            loss, correct = self.step(rows, rate, generator)
            if not loss < float("inf"):
                raise DataError(
                    f"epoch {epoch + 1}, batch {batch + 1} of {self.batches}: the loss is {loss}; {_kept(epoch)}. Give "
                    "a smaller learning rate, or check the images of that batch"
                )
            loss_sum, correct_sum, seen = loss_sum + loss * len(rows), correct_sum + correct, seen + len(rows)
            display.batch(epoch, loss_sum / seen, correct_sum / seen)
        seconds = time.perf_counter() - began
        line = {"epoch": epoch + 1, "loss": loss_sum / seen, "accuracy": correct_sum / seen, "learning_rate": rate}
        if self.test is not None and self.processes.rank == 0:
            line["test_accuracy"] = accuracy(self.network, self.test, self.device)
        self.metrics.append(line | {"seconds": round(seconds, 2), "images_per_second": round(seen / seconds, 1)})
        self.save()
        display.epoch(self.metrics[-1])

    def step(self, rows: Tensor, rate: float, generator: torch.Generator) -> tuple[float, int]:
        """One update on the images at ``rows``; their mean loss and how many were correctly classified."""
        mine = slice(self.processes.rank, None, self.processes.size)
        # drawn for the whole batch in every process, so that the number of processes changes nothing
        draws = torch.randint(0, 2 * PADDING + 1, (2, len(rows)), generator=generator)
        flips = torch.rand(len(rows), generator=generator) < 0.5
        pixels = augment(self.data.pixels[rows[mine]], draws[:, mine], flips[mine])
        images = self.data.normalise(pixels.to(self.device))
        labels = self.data.labels[rows[mine]].to(self.device)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.mixed):
            logits = logits_of(self.wrapped(images.contiguous(memory_format=self.layout)))
        # the mean over the batch of all processes: DDP averages the gradients over the processes
        loss = F.cross_entropy(logits.float(), labels, reduction="sum") * (self.processes.size / len(rows))
        correct = (logits.argmax(dim=1) == labels).sum()
        sums = torch.stack([loss.detach() / self.processes.size, correct.to(loss)])
        if self.processes.size > 1:
            distributed.all_reduce(sums)
        mean_loss, count = sums.tolist()
        if mean_loss < float("inf"):
            self.optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimiser.step()
        return mean_loss, round(count)


def augment(pixels: Tensor, shifts: Tensor, flips: Tensor) -> Tensor:
    """Pad each image by four black pixels, crop it at its own offset ``shifts``, and mirror it if ``flips``."""
    count, _, height, width = pixels.shape
    padded = F.pad(pixels, (PADDING,) * 4)
    down = shifts[0, :, None] + torch.arange(height)
    across = shifts[1, :, None] + torch.arange(width)
    across = torch.where(flips[:, None], across.flip(1), across)
    images = torch.arange(count)[:, None, None]
    return padded.permute(0, 2, 3, 1)[images, down[:, :, None], across[:, None, :]].permute(0, 3, 1, 2)


def accuracy(model: nn.Module, data: Pixels, device: torch.device | None = None) -> float:
    """The fraction of ``data`` that the model classifies correctly; the model's mode and device are restored."""
    correct = 0
    with eval_mode(model, device) as target:
        for rows in torch.split(torch.arange(len(data)), TEST_BATCH_SIZE):
            images = data.normalise(data.pixels[rows].to(target))
            correct += int((logits_of(model(images)).argmax(dim=1).cpu() == data.labels[rows]).sum())
    return correct / len(data)


def _check(network: nn.Module, data: Pixels, recipe: Recipe, processes: Processes) -> None:
    if recipe.batch_size < 2 * processes.size:
        raise ArgumentError(f"batch_size={recipe.batch_size} must be at least 2 for each of {processes.size} processes")
    present = torch.unique(data.labels)
    if len(present) < 2:
        raise DataError(f"{data.name} holds only one class ({len(data)} images); a classifier needs at least two")
    if len(data) < recipe.batch_size:
        raise DataError(
            f"{data.name} holds {len(data)} images, less than a batch of {recipe.batch_size}; give a smaller batch size"
        )
    with eval_mode(network) as target:
        try:
            classes = logits_of(network(data.normalise(data.pixels[:2].to(target)))).shape[1]
        except RuntimeError as error:
            described = f"images of shape {tuple(data.pixels.shape[1:])} ({one_line(error)})"
            raise DataError(f"{type(network).__name__} does not accept {described}") from None
    if int(present[0]) < 0 or int(present[-1]) >= classes:
        worst = int(present[0]) if int(present[0]) < 0 else int(present[-1])
        raise DataError(
            f"{data.name} holds the label {worst}, but {type(network).__name__} has {classes} classes, 0 to "
            f"{classes - 1}; build it with a matching num_classes, or correct the labels"
        )


def _combined_seed(*numbers: int) -> int:
    return int.from_bytes(hashlib.sha256(repr(numbers).encode()).digest()[:8], "big") >> 1


def _layout(network: nn.Module, data: Pixels, device: torch.device) -> torch.memory_format:
    """Channels last is faster for convolutions, but fails in a network that flattens with ``view``."""
    if not has_convolutions(network):
        return torch.contiguous_format
    images = data.normalise(data.pixels[:2].to(device)).contiguous(memory_format=torch.channels_last)
    with eval_mode(network):
        try:
            network(images)
        except RuntimeError:
            return torch.contiguous_format
    return torch.channels_last


def _kept(epochs: int) -> str:
    return f"the checkpoint of epoch {epochs} is kept" if epochs else "nothing was written"


class _Display(Progress):
    """A progress bar on a terminal and a line for each finished epoch, if ``wanted`` and in the first process."""

    def __init__(self, run: _Run, wanted: bool) -> None:
        console = Console(stderr=True)
        self._shown, self._epochs = wanted and run.processes.rank == 0, run.recipe.epochs
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        hidden = not (self._shown and console.is_terminal)
        super().__init__(*columns, console=console, transient=True, disable=hidden)
        done, total = len(run.metrics) * run.batches, self._epochs * run.batches
        self._task = self.add_task("train", total=total, completed=done)

    def batch(self, epoch: int, loss: float, accuracy: float) -> None:
        text = f"epoch {epoch + 1}  loss {loss:.3f}  accuracy {accuracy:.1%}"
        self.update(self._task, advance=1, description=text)

    def epoch(self, line: Record) -> None:
        if not self._shown:
            return
        left = line["seconds"] * (self._epochs - line["epoch"]) / 60
        tested = f"  test accuracy {line['test_accuracy']:.1%}" if "test_accuracy" in line else ""
        self.console.print(
            f"epoch {line['epoch']:>3} of {self._epochs}  loss {line['loss']:.3f}  accuracy {line['accuracy']:.1%}"
            f"{tested}  learning rate {line['learning_rate']:.2g}  {line['images_per_second']:,.0f} images/s  "
            f"{left:.0f} min left",
            highlight=False,
            soft_wrap=True,
        )
