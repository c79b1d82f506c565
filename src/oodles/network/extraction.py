"""``extract``: a model and a loader in, ``Features`` out; the network runs once per input."""

import hashlib
import time
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from operator import length_hint
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn

from oodles.columns import (
    LAYER,
    Columns,
    check_columns,
    check_precision,
    fingerprint,
    rows_not_finite,
    to_storage,
)
from oodles.data.batches import NO_BATCH, BatchReader, LabelsAt, is_dead_worker, loader_failure
from oodles.data.inputs import Inputs
from oodles.data.transforms import Transform, preprocessing_record
from oodles.errors import ArgumentError, DataError, FileError
from oodles.features import SHARD_ELEMENTS, Features, Head
from oodles.network.classes import class_names, folder_names, label_map
from oodles.network.fingerprints import is_fingerprint_of, model_fingerprint
from oodles.network.forward import ForwardPass, HeadName
from oodles.network.perturbation import run_with_steps
from oodles.network.taps import eval_mode, unwrap
from oodles.steps import Step
from oodles.store import Writer, is_store, read_manifest

OnBad = Literal["raise", "mark"]
"""What to do about an input for which the network gives NaN or infinite values."""

SHARD_SECONDS = 30.0  # a shard is written at least this often, so that an interrupted run loses little


def extract(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    head: HeadName = None,
    layers: Sequence[str] = (),
    steps: Sequence[Step] = (),
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
    labels: LabelsAt = True,
    classes: Sequence[str] | None = None,
    multilabel: bool | None = None,
    on_bad: OnBad = "raise",
    batch_size: int | None = None,
    store: str | Path | None = None,
    note: str = "",
    preprocessing: Transform | Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Features:
    """Run ``model`` once over ``loader`` and keep the inputs of its last linear layer, and its logits.

    A batch is what the model takes: a tensor, a tuple of tensors, or a mapping of keyword arguments such as
    ``input_ids`` and ``attention_mask``; labels come last, or under the key ``labels``. ``labels`` is their key or
    position if they are elsewhere, and False leaves them out, for data of other classes. ``classes`` are the names of
    the model's classes, in order, by default those in ``model.config.id2label`` or of the loader's class folders; the
    labels of class folders are matched to the model's classes by name. ``multilabel=True`` says that an input may
    have several classes; a model that ends in a sigmoid, or whose configuration says so, is recognised.

    The last linear layer is found and verified automatically; ``head`` is its name if that fails, and ``head=False``
    keeps only the logits. The pooled activations of the inner modules ``layers`` and the results of the input ``steps``
    are kept as well; a detector that needs them lists them in ``.layers`` and ``.steps()``. ``batch_size`` is how many
    inputs the network sees at a time. The model is left as it was.

    An input for which the network gives NaN or infinite values is an error that names it. With ``on_bad="mark"`` such
    inputs are left out of the features and listed in ``features.bad_rows``, and a warning counts them.

    With ``store`` the features are written to that folder shard by shard. If the folder already has them, for the same
    model and the same inputs in batches of the same size, they are read instead of computed, and an extraction that was
    interrupted continues after its last complete shard. ``note`` and ``preprocessing`` (how images were resized and
    normalised) are kept with them.
    """
    check_precision(dtype)
    if on_bad not in (choices := get_args(OnBad)):
        raise ArgumentError(f"on_bad={on_bad!r} is none of {', '.join(map(repr, choices))}")
    network = unwrap(model)
    relabel = None if labels is False else label_map(network, loader, classes)
    with eval_mode(model, device) as target, _naming_dead_workers():
        run = _Run(
            ForwardPass(network, head, layers),
            BatchReader(network, labels),
            tuple(steps),
            target,
            batch_size,
            relabel,
            multilabel,
            dtype,
            on_bad,
            class_names(network, None if labels is False else loader, classes),
        )
        with _bar(loader, progress) as advance:
            if store is None:
                return _warning_of_bad(_in_memory(run, loader, advance))
            about = {
                "model": _fingerprint(network, Path(store)),
                "head": head,
                "layers": list(layers),
                "dtype": str(dtype),
                "labels": labels,
                "classes": None if classes is None else list(map(str, classes)),
                "multilabel": multilabel,
                "preprocessing": preprocessing_record(preprocessing, loader),
                **({"steps": [[step.name, step.identity] for step in steps]} if steps else {}),
            }
            with Writer(Path(store), about, note) as writer:
                _into_store(run, loader, writer, advance)
    return _warning_of_bad(Features.load(store))


def _fingerprint(network: nn.Module, store: Path) -> str:
    """The fingerprint of the network; a store that has an older kind of it keeps that."""
    stored = read_manifest(store)["about"].get("model") if is_store(store) else None
    return stored if stored and is_fingerprint_of(stored, network) else model_fingerprint(network)


@dataclass(frozen=True)
class _Run:
    """One extraction: batches in, columns out."""

    forward: ForwardPass
    reader: BatchReader
    steps: tuple[Step, ...]
    device: torch.device
    batch_size: int | None
    relabel: Tensor | None
    declared_multilabel: bool | None
    dtype: torch.dtype
    on_bad: OnBad
    declared_names: tuple[str, ...]

    def batches(self, loader: Iterable[Any], advance: "_Advance") -> Generator[tuple[Inputs, Tensor | None]]:
        """The loader's batches, with labels as numbers of the model's classes."""
        for inputs, labels in self.reader.read(loader):
            yield inputs, labels if labels is None or self.relabel is None else self.relabel[labels]
            advance(len(inputs))

    def good_rows(self, inputs: Inputs, labels: Tensor | None, first: int) -> tuple[Columns, list[int]]:
        """What is kept of one batch, in which ``first`` is the number of the first input, and the inputs left out."""
        columns = self.columns(inputs, labels)
        values = {name: column.to(self.dtype) for name, column in columns.items() if name != "labels"}
        bad = rows_not_finite(values)
        if bad and self.on_bad == "raise":
            kind = " as float16, whose largest number is 65504" if self.dtype == torch.float16 else ""
            raise DataError(
                f"{len(bad)} of {len(inputs)} inputs of a batch give NaN or infinite values{kind}, the first is input "
                f"{first + bad[0]}; check that input and the model's output for it, or leave such inputs out with "
                'on_bad="mark"'
            )
        good = torch.ones(len(inputs), dtype=torch.bool)
        good[bad] = False
        kept = {name: column[good] for name, column in columns.items()} if bad else columns
        return to_storage(kept, self.dtype), [first + row for row in bad]

    def columns(self, inputs: Inputs, labels: Tensor | None) -> Columns:
        """The columns of one batch of the loader."""
        pieces = [
            run_with_steps(self.forward, part, self.steps).columns
            for part in self.forward.pieces(inputs.to(self.device), self.batch_size)
        ]
        columns = {name: torch.cat([piece[name].float().cpu() for piece in pieces]) for name in pieces[0]}
        if labels is not None and labels.ndim == 2:
            if labels.shape[1] != columns["logits"].shape[1]:
                raise DataError(
                    f"the loader gave zeros and ones {tuple(labels.shape)} as labels, but the model has "
                    f"{columns['logits'].shape[1]} classes; pass labels= with the key or position of the labels in a "
                    "batch, or labels=False"
                )
            if not self.multilabel:
                raise DataError(
                    f"the loader gave labels {tuple(labels.shape)} of zeros and ones; pass multilabel=True if an input "
                    "may have several classes, else give class indices (labels.argmax(dim=1))"
                )
        elif labels is not None:
            columns["labels"] = labels.cpu()
        return columns

    @property
    def multilabel(self) -> bool:
        """Whether an input may have several classes; known after the first batch."""
        return self.forward.multilabel if self.declared_multilabel is None else self.declared_multilabel

    def head(self) -> Head | None:
        """The last layer, once it has been found."""
        head = self.forward.feature_head()
        return None if head is None else head.to("cpu")

    def names(self, classes: int, loader: object) -> tuple[str, ...]:
        """The names of the classes; folders that do not match the classes are reported and give no names."""
        names, folders = self.declared_names, folder_names(loader)
        if len(names) in (0, classes):
            return names
        if names != folders:
            raise ArgumentError(f"classes= has {len(names)} names, but the model has {classes} classes")
        warnings.warn(
            f"{len(names)} class folders were numbered 0 to {len(names) - 1}, but the model has {classes} classes, so "
            "labels may be wrong; give the model's class names (classes=, --classes) or no labels (labels=False, "
            "--no-labels)",
            stacklevel=4,
        )
        return ()


def _in_memory(run: _Run, loader: Iterable[Any], advance: "_Advance") -> Features:
    kept: list[Columns] = []
    bad: list[int] = []
    names: tuple[str, ...] = ()
    seen = 0
    with closing(run.batches(loader, advance)) as batches:
        for inputs, labels in batches:
            columns, left_out = run.good_rows(inputs, labels, seen)
            kept.append(columns)
            bad += left_out
            seen += len(inputs)
            _same_columns(kept[0], kept[-1])
            if len(kept) == 1:
                names = run.names(kept[0]["logits"].shape[1], loader)
    if not kept:
        raise DataError(NO_BATCH)
    _check_some_good(seen, bad)
    columns = {name: torch.cat([part.pop(name) for part in kept]) for name in list(kept[0])}
    layers = {name.removeprefix(LAYER): columns.pop(name) for name in list(columns) if name.startswith(LAYER)}
    about: dict[str, Any] = {"class_names": names, "multilabel": run.multilabel, "bad_rows": bad, **columns}
    return Features(layers=layers, head=run.head(), **about)


def _into_store(run: _Run, loader: Iterable[Any], writer: Writer, advance: "_Advance") -> None:
    """Go through the loader once: batches already stored are compared by content, the others computed and appended.

    A shard always ends where a batch of the loader ends, so a resumed run has the same batches as an uninterrupted
    one and gives the same bits.
    """
    stored = list(writer.shards)
    if run.on_bad == "raise" and any(entry["bad_rows"] for entry in stored):
        raise DataError(f'{writer.path} leaves out inputs that give NaN or infinite values; pass on_bad="mark"')
    pending: list[Columns] = []
    bad: list[int] = []
    digest = hashlib.sha256()
    seen = rows = 0  # inputs of the loader, and those since the last shard
    begun = time.monotonic()

    def close() -> None:
        nonlocal pending, bad, digest, rows, begun
        columns = {name: torch.cat([part[name] for part in pending]) for name in pending[0]}
        head = run.head()
        if rows > len(bad):
            check_columns(columns, None if head is None else head.shape)
        writer.write_head(head.tensors() if head is not None else {})
        writer.append(columns, digest.hexdigest(), bad)
        pending, bad, digest, rows, begun = [], [], hashlib.sha256(), 0, time.monotonic()

    with closing(run.batches(loader, advance)) as batches:
        for inputs, labels in batches:
            digest.update(fingerprint(inputs.tensors() | ({} if labels is None else {"labels": labels})).encode())
            seen, rows = seen + len(inputs), rows + len(inputs)
            if stored:
                entry = stored[0]
                inside = entry["rows"] + len(entry["bad_rows"])
                if rows >= inside:
                    if rows > inside or digest.hexdigest() != entry["inputs"]:
                        raise _other_data(writer, entry["file"])
                    stored.pop(0)
                    digest, rows = hashlib.sha256(), 0
                begun = time.monotonic()
                continue
            if writer.complete:
                raise _other_data(writer, "the end")
            columns, left_out = run.good_rows(inputs, labels, seen - len(inputs))
            pending.append(columns)
            bad += left_out
            if not writer.shards and len(pending) == 1:
                names = run.names(pending[0]["logits"].shape[1], loader)
                writer.manifest.update(class_names=list(names), multilabel=run.multilabel)
            _same_columns(pending[0], pending[-1])
            per_row = sum(column.shape[1:].numel() for column in pending[0].values())
            if rows * per_row >= SHARD_ELEMENTS or time.monotonic() - begun >= SHARD_SECONDS:
                close()
    if stored:
        raise _other_data(writer, stored[0]["file"])
    if pending:
        close()
    if not writer.shards:
        raise DataError(NO_BATCH)
    _check_some_good(seen, [row for entry in writer.shards for row in entry["bad_rows"]])
    if not writer.complete:
        writer.finish()


def _check_some_good(inputs: int, bad: Sequence[int]) -> None:
    if len(bad) == inputs:
        raise DataError(f"all {inputs} inputs give NaN or infinite values; check the model and the preprocessing")


def _warning_of_bad(features: Features) -> Features:
    if features.bad_rows:
        warnings.warn(
            f"{len(features.bad_rows)} of {len(features) + len(features.bad_rows)} inputs give NaN or infinite values "
            f"and are left out, the first is input {features.bad_rows[0]}; features.bad_rows lists them",
            stacklevel=3,
        )
    return features


@contextmanager
def _naming_dead_workers() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if is_dead_worker(error):
            raise loader_failure(error) from error
        raise


def _other_data(writer: Writer, where: str) -> FileError:
    return FileError(
        f"{writer.path} was extracted from other inputs, in another order or in other batch sizes; they differ at "
        f"{where}. Use a loader that does not shuffle and the same batch size, or another store"
    )


def _same_columns(first: Columns, other: Columns) -> None:
    if first.keys() != other.keys():
        differing = ", ".join(sorted(first.keys() ^ other.keys()))
        raise DataError(f"some batches have {differing} and some do not; all batches must have the same parts")
    for name, column in first.items():
        if column.shape[1:] != other[name].shape[1:]:
            widths = f"{tuple(column.shape[1:])} and {tuple(other[name].shape[1:])}"
            raise DataError(f"{name} has different widths in different batches, {widths}; is it per input?")


class _Advance:
    """Advances the progress bar by one batch of the given number of inputs."""

    def __init__(self, bar: Progress | None, total: int | None) -> None:
        self._bar = bar
        self._task = bar.add_task("extract", total=total, inputs=0) if bar else None
        self._inputs = 0

    def __call__(self, inputs: int) -> None:
        if self._bar is not None and self._task is not None:
            self._inputs += inputs
            self._bar.update(self._task, advance=1, inputs=self._inputs)


class _Rate(ProgressColumn):
    def render(self, task: Any) -> str:
        elapsed = task.elapsed or 0.0
        return f"{task.fields['inputs'] / elapsed:,.0f} inputs/s" if elapsed else ""


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
        TextColumn("{task.fields[inputs]:,} inputs"),
        _Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        yield _Advance(bar, total)
