"""``extract``: a model and a loader in, ``Features`` out; the network runs once per image."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import length_hint
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from torch import Tensor, nn

from oodles.errors import DataError, FileError
from oodles.features import LAYER, SHARD_ELEMENTS, Features, Head, check_columns, fingerprint, store_columns
from oodles.perturbation import Step, look_with
from oodles.store import Columns, Writer, stored_rows
from oodles.tap import at_rest, unwrap
from oodles.view import View

IMAGE_KEYS = ("pixel_values", "image", "images")
LABEL_KEYS = ("labels", "label")


def extract(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    layer: str | Literal[False] | None = None,
    layers: Sequence[str] = (),
    steps: Sequence[Step] = (),
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
    labels: bool = True,
    rows: int | None = None,
    store: str | Path | None = None,
    note: str = "",
    prepared: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Features:
    """Run ``model`` once over ``loader`` and keep what enters its last linear layer, and its logits.

    The loader gives ``(images, labels)``, ``images``, or dicts with ``pixel_values`` or ``image``.
    The last layer is found and proved by itself; ``layer`` names it where that fails, and
    ``layer=False`` leaves it alone and keeps logits. ``layers`` names inner modules whose pooled
    activations are kept too, ``steps`` the input steps after which something is kept: a detector that
    needs either says so in its ``layers`` and ``steps()``. ``labels=False`` leaves labels out, for data
    of other classes. The model comes back exactly as it was.

    With ``store`` the features go to that folder shard by shard. If the folder already holds them,
    for this very model and these very images in batches of the same size, they are read instead of
    computed, and an extraction that was killed goes on from its last whole shard. ``note`` and
    ``prepared`` (how images were resized and normalised) are kept there for whoever reads them.
    """
    network = unwrap(model)
    with at_rest(model, device) as home:
        run = _Run(View(network, layer, layers), tuple(steps), home, labels, rows)
        with _bar(loader, progress) as advance:
            if store is None:
                return _in_memory(run, loader, dtype, advance)
            about = {
                "model": model_fingerprint(network),
                "layer": layer,
                "layers": list(layers),
                "dtype": str(dtype),
                "labels": labels,
                "prepared": None if prepared is None else dict(prepared),
                **({"steps": [[step.name, step.identity] for step in steps]} if steps else {}),
            }
            with Writer(Path(store), about, note) as writer:
                _into_store(run, loader, dtype, writer, advance)
    return Features.load(store)


def model_fingerprint(model: nn.Module) -> str:
    """SHA-256 of a network: the types and names of its modules, its weights and its buffers."""
    network = unwrap(model)
    anatomy = "\n".join(f"{name} {type(module).__qualname__}" for name, module in network.named_modules())
    return hashlib.sha256(
        (
            anatomy
            + fingerprint({name: value for name, value in network.state_dict().items() if isinstance(value, Tensor)})
        ).encode()
    ).hexdigest()


def split_batch(batch: Any) -> tuple[Tensor, Any]:
    """Images and labels (or None) from whatever the loader gave."""
    images: Any = batch
    labels: Any = None
    if isinstance(batch, Mapping):
        images = next((batch[key] for key in IMAGE_KEYS if key in batch), None)
        labels = next((batch[key] for key in LABEL_KEYS if key in batch), None)
    elif isinstance(batch, tuple | list) and batch:
        images = batch[0]
        labels = batch[1] if len(batch) > 1 else None
    if not isinstance(images, Tensor) or images.ndim < 2 or len(images) == 0:
        got = f"keys {sorted(map(str, batch))}" if isinstance(batch, Mapping) else type(images).__name__
        if isinstance(images, Tensor):
            got = f"a tensor of shape {tuple(images.shape)}"
        raise DataError(
            f"the loader gave {got} where a batch of images was expected; give tensors, (images, labels), or dicts "
            f"with {' or '.join(IMAGE_KEYS)}"
        )
    return images, labels


def as_labels(labels: Any, images: Tensor) -> Tensor | None:
    """The labels of a batch as integers, one an image; None where there are none."""
    if labels is None:
        return None
    try:
        classes = torch.as_tensor(labels)
    except (ValueError, TypeError, RuntimeError):
        raise DataError(
            f"the loader gave labels that are no numbers ({type(labels).__name__}); give class indices, or pass "
            "labels=False"
        ) from None
    if classes.is_floating_point() or classes.ndim != 1:
        kind = f"{classes.dtype} of shape {tuple(classes.shape)}"
        raise DataError(f"labels must be integers, one an image, the loader gave {kind}; or pass labels=False")
    if len(classes) != len(images):
        raise DataError(f"the loader gave {len(images)} images with {len(classes)} labels")
    return classes


def first_images(loader: Iterable[Any], count: int, labelled: bool = True) -> tuple[Tensor, Tensor | None]:
    """The first ``count`` images of a loader, and their labels where they are wanted and it gives them."""
    images: list[Tensor] = []
    labels: list[Tensor] = []
    for some, classes in _batches(loader, labelled, lambda _: None):
        images.append(some)
        labels += [] if classes is None else [classes]
        if sum(map(len, images)) >= count:
            break
    if not images:
        raise DataError("the loader gave no batch at all; is the folder empty or the iterator used up?")
    return torch.cat(images)[:count], torch.cat(labels)[:count] if len(labels) == len(images) else None


@dataclass(frozen=True)
class _Run:
    """One look at a network at rest: batches in, columns out."""

    view: View
    steps: tuple[Step, ...]
    device: torch.device
    labels: bool
    rows: int | None

    def columns(self, images: Tensor, labels: Tensor | None) -> Columns:
        """What is kept of one batch of the loader."""
        pieces = [
            look_with(self.view, part, self.steps)
            for part in self.view.pieces(images.to(self.device, non_blocking=True), self.rows)
        ]
        columns = {name: torch.cat([piece[name].float().cpu() for piece in pieces]) for name in pieces[0]}
        if labels is not None:
            columns["labels"] = labels.cpu()
        return columns

    def head(self) -> Head | None:
        """The last layer, once it has been found."""
        return self.view.located.head.to("cpu") if self.view.located else None


def _in_memory(run: _Run, loader: Iterable[Any], dtype: torch.dtype, advance: "_Advance") -> Features:
    kept: list[Columns] = []
    for images, labels in _batches(loader, run.labels, advance):
        kept.append(store_columns(run.columns(images, labels), dtype))
        _same_columns(kept[0], kept[-1])
    if not kept:
        raise DataError("the loader gave no batch at all; is the folder empty or the iterator used up?")
    columns = {name: torch.cat([part.pop(name) for part in kept]) for name in list(kept[0])}
    layers = {name.removeprefix(LAYER): columns.pop(name) for name in list(columns) if name.startswith(LAYER)}
    return Features(**columns, layers=layers, head=run.head())


def _into_store(run: _Run, loader: Iterable[Any], dtype: torch.dtype, writer: Writer, advance: "_Advance") -> None:
    """Walk the loader once: what is stored is compared by content, what is not is computed and appended.

    A shard always ends where a batch of the loader ends, so a resumed run cuts its micro-batches at
    the same rows as one that was never stopped, and gives the same bits.
    """
    stored = list(writer.shards)
    pending: list[Columns] = []
    inputs = hashlib.sha256()
    rows = 0

    def close() -> None:
        nonlocal pending, inputs, rows
        columns = {name: torch.cat([part[name] for part in pending]) for name in pending[0]}
        head = run.head()
        check_columns(columns, head)
        writer.write_head(head.tensors() if head is not None else {})
        writer.append(columns, inputs.hexdigest())
        pending, inputs, rows = [], hashlib.sha256(), 0

    for images, labels in _batches(loader, run.labels, advance):
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
        pending.append(store_columns(run.columns(images, labels), dtype))
        _same_columns(pending[0], pending[-1])
        per_row = sum(column.shape[1:].numel() for column in pending[0].values())
        if rows * per_row >= SHARD_ELEMENTS:
            close()
    if stored:
        raise _other_data(writer, stored[0]["file"])
    if pending:
        close()
    if not stored_rows(writer.manifest):
        raise DataError("the loader gave no batch at all; is the folder empty or the iterator used up?")
    if not writer.complete:
        writer.finish()


def _other_data(writer: Writer, where: str) -> FileError:
    return FileError(
        f"{writer.path} was made from other images, in another order or in batches of another size: they differ at "
        f"{where}. Use a loader that does not shuffle and the same batch size, or another store"
    )


def _same_columns(first: Columns, other: Columns) -> None:
    if first.keys() != other.keys():
        differing = ", ".join(sorted(first.keys() ^ other.keys()))
        raise DataError(f"some batches have {differing} and some have not; give it with all or with none")


class _Advance:
    """Moves the progress bar by one batch of so many images."""

    def __init__(self, bar: Progress | None, total: int | None) -> None:
        self._bar = bar
        self._task = bar.add_task("extract", total=total, images=0) if bar else None
        self._images = 0

    def __call__(self, images: int) -> None:
        if self._bar is not None and self._task is not None:
            self._images += images
            self._bar.update(self._task, advance=1, images=self._images)


def _batches(
    loader: Iterable[Any], labelled: bool, advance: Callable[[int], None]
) -> Iterator[tuple[Tensor, Tensor | None]]:
    for batch in loader:
        images, labels = split_batch(batch)
        yield images, as_labels(labels, images) if labelled else None
        advance(len(images))


class _Rate(ProgressColumn):
    def render(self, task: Any) -> str:
        elapsed = task.elapsed or 0.0
        return f"{task.fields['images'] / elapsed:,.0f} images/s" if elapsed else ""


@contextmanager
def _bar(loader: Iterable[Any], wanted: bool) -> Iterator[_Advance]:
    """A progress bar on a terminal, silence elsewhere."""
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
