"""``extract``: a model and a loader in, ``Features`` out; the network runs once per image."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import length_hint
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn

from oodles.columns import LAYER, Columns, check_columns, fingerprint, to_storage
from oodles.data.batches import NO_BATCH, read_batches
from oodles.data.transforms import Transform, preprocessing_record
from oodles.errors import DataError, FileError
from oodles.features import SHARD_ELEMENTS, Features, Head, Step
from oodles.network.forward import ForwardPass, HeadName
from oodles.network.perturbation import run_with_steps
from oodles.network.taps import eval_mode, unwrap
from oodles.store import Writer, stored_rows


def extract(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    head: HeadName = None,
    layers: Sequence[str] = (),
    steps: Sequence[Step] = (),
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
    labels: bool = True,
    batch_size: int | None = None,
    store: str | Path | None = None,
    note: str = "",
    preprocessing: Transform | Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Features:
    """Run ``model`` once over ``loader`` and keep the inputs of its last linear layer, and its logits.

    The loader gives ``(images, labels)``, ``images``, or dicts with ``pixel_values`` or ``image``. The last linear
    layer is found and verified automatically; ``head`` is its name if that fails, and ``head=False`` keeps only the
    logits. The pooled activations of the inner modules ``layers`` and the results of the input ``steps`` are kept as
    well; a detector that needs them lists them in ``.layers`` and ``.steps()``. ``labels=False`` leaves labels out, for
    data of other classes. ``batch_size`` is how many images the network sees at a time. The model is left as it was.

    With ``store`` the features are written to that folder shard by shard. If the folder already has them, for the same
    model and the same images in batches of the same size, they are read instead of computed, and an extraction that was
    interrupted continues after its last complete shard. ``note`` and ``preprocessing`` (how images were resized and
    normalised) are kept with them.
    """
    network = unwrap(model)
    with eval_mode(model, device) as target:
        run = _Run(ForwardPass(network, head, layers), tuple(steps), target, labels, batch_size)
        with _bar(loader, progress) as advance:
            if store is None:
                return _in_memory(run, loader, dtype, advance)
            about = {
                "model": model_fingerprint(network),
                "head": head,
                "layers": list(layers),
                "dtype": str(dtype),
                "labels": labels,
                "preprocessing": preprocessing_record(preprocessing, loader),
                **({"steps": [[step.name, step.identity] for step in steps]} if steps else {}),
            }
            with Writer(Path(store), about, note) as writer:
                _into_store(run, loader, dtype, writer, advance)
    return Features.load(store)


def model_fingerprint(model: nn.Module) -> str:
    """SHA-256 of a network: the types and names of its modules, its weights and its buffers."""
    network = unwrap(model)
    structure = "\n".join(f"{name} {type(module).__qualname__}" for name, module in network.named_modules())
    tensors = {name: value for name, value in network.state_dict().items() if isinstance(value, Tensor)}
    return hashlib.sha256((structure + fingerprint(tensors)).encode()).hexdigest()


@dataclass(frozen=True)
class _Run:
    """One extraction: batches in, columns out."""

    forward: ForwardPass
    steps: tuple[Step, ...]
    device: torch.device
    labels: bool
    batch_size: int | None

    def columns(self, images: Tensor, labels: Tensor | None) -> Columns:
        """What is kept of one batch of the loader."""
        pieces = [
            run_with_steps(self.forward, part, self.steps).columns
            for part in self.forward.pieces(images.to(self.device, non_blocking=True), self.batch_size)
        ]
        columns = {name: torch.cat([piece[name].float().cpu() for piece in pieces]) for name in pieces[0]}
        if labels is not None:
            columns["labels"] = labels.cpu()
        return columns

    def head(self) -> Head | None:
        """The last layer, once it has been found."""
        head = self.forward.feature_head()
        return None if head is None else head.to("cpu")


def _in_memory(run: _Run, loader: Iterable[Any], dtype: torch.dtype, advance: "_Advance") -> Features:
    kept: list[Columns] = []
    for images, labels in _advancing(loader, run.labels, advance):
        kept.append(to_storage(run.columns(images, labels), dtype))
        _same_columns(kept[0], kept[-1])
    if not kept:
        raise DataError(NO_BATCH)
    columns = {name: torch.cat([part.pop(name) for part in kept]) for name in list(kept[0])}
    layers = {name.removeprefix(LAYER): columns.pop(name) for name in list(columns) if name.startswith(LAYER)}
    return Features(**columns, layers=layers, head=run.head())


def _into_store(run: _Run, loader: Iterable[Any], dtype: torch.dtype, writer: Writer, advance: "_Advance") -> None:
    """Go through the loader once: batches already stored are compared by content, the others computed and appended.

    A shard always ends where a batch of the loader ends, so a resumed run has the same batches as an uninterrupted
    one and gives the same bits.
    """
    stored = list(writer.shards)
    pending: list[Columns] = []
    inputs = hashlib.sha256()
    rows = 0

    def close() -> None:
        nonlocal pending, inputs, rows
        columns = {name: torch.cat([part[name] for part in pending]) for name in pending[0]}
        head = run.head()
        check_columns(columns, None if head is None else head.shape)
        writer.write_head(head.tensors() if head is not None else {})
        writer.append(columns, inputs.hexdigest())
        pending, inputs, rows = [], hashlib.sha256(), 0

    for images, labels in _advancing(loader, run.labels, advance):
        inputs.update(fingerprint({"images": images} | ({} if labels is None else {"labels": labels})).encode())
        rows += len(images)
        if stored:
            if rows >= stored[0]["rows"]:
                if rows > stored[0]["rows"] or inputs.hexdigest() != stored[0]["inputs"]:
                    raise _other_data(writer, stored[0]["file"])
                stored.pop(0)
                inputs, rows = hashlib.sha256(), 0
            continue
        if writer.complete:
            raise _other_data(writer, "the end")
        pending.append(to_storage(run.columns(images, labels), dtype))
        _same_columns(pending[0], pending[-1])
        per_row = sum(column.shape[1:].numel() for column in pending[0].values())
        if rows * per_row >= SHARD_ELEMENTS:
            close()
    if stored:
        raise _other_data(writer, stored[0]["file"])
    if pending:
        close()
    if not stored_rows(writer.manifest):
        raise DataError(NO_BATCH)
    if not writer.complete:
        writer.finish()


def _other_data(writer: Writer, where: str) -> FileError:
    return FileError(
        f"{writer.path} was extracted from other images, in another order or in other batch sizes; they differ at "
        f"{where}. Use a loader that does not shuffle and the same batch size, or another store"
    )


def _same_columns(first: Columns, other: Columns) -> None:
    if first.keys() != other.keys():
        differing = ", ".join(sorted(first.keys() ^ other.keys()))
        raise DataError(f"some batches have {differing} and some do not; all batches must have the same parts")


class _Advance:
    """Advances the progress bar by one batch of the given number of images."""

    def __init__(self, bar: Progress | None, total: int | None) -> None:
        self._bar = bar
        self._task = bar.add_task("extract", total=total, images=0) if bar else None
        self._images = 0

    def __call__(self, images: int) -> None:
        if self._bar is not None and self._task is not None:
            self._images += images
            self._bar.update(self._task, advance=1, images=self._images)


def _advancing(loader: Iterable[Any], labelled: bool, advance: _Advance) -> Iterator[tuple[Tensor, Tensor | None]]:
    for images, labels in read_batches(loader, labelled):
        yield images, labels
        advance(len(images))


class _Rate(ProgressColumn):
    def render(self, task: Any) -> str:
        elapsed = task.elapsed or 0.0
        return f"{task.fields['images'] / elapsed:,.0f} images/s" if elapsed else ""


@contextmanager
def _bar(loader: Iterable[Any], wanted: bool) -> Iterator[_Advance]:
    """A progress bar if the output is a terminal, else nothing."""
    console = Console(stderr=True)
    total = length_hint(loader) or None
    if not wanted or not console.is_terminal:
        yield _Advance(None, total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[images]:,} images"),
        _Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        yield _Advance(bar, total)
