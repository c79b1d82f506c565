"""``extract``: a model and a loader in, ``Features`` out; the network runs once per input."""

import hashlib
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from operator import length_hint
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from oodles.columns import (
    LAYER,
    Columns,
    as_stored,
    check_precision,
    check_some_good,
    rows_not_finite,
)
from oodles.data.batches import NO_BATCH, BatchReader, LabelsAt, is_dead_worker, loader_failure, not_labels
from oodles.data.conversion import preprocessing_record
from oodles.data.inputs import Inputs
from oodles.data.loaders import images_of
from oodles.data.transforms import Transform, image_transform
from oodles.distributed.processes import Processes
from oodles.errors import ArgumentError, DataError
from oodles.features import Features, Head
from oodles.network.fingerprints import model_fingerprint
from oodles.network.forward import ForwardPass, HeadName
from oodles.network.onnx_model import as_model
from oodles.network.outputs import LABELS_REMEDY, agreement, class_names, folder_names, label_map, warn_of_labels
from oodles.network.perturbation import run_with_steps
from oodles.network.progress import tracked
from oodles.network.storing import Shard, into_store, open_store
from oodles.network.taps import eval_mode, unwrap
from oodles.records.files import Record
from oodles.steps import Step, distinct_steps
from oodles.store import is_store, read_manifest

OnBad = Literal["raise", "mark"]
"""What to do about an input for which the network gives NaN or infinite values."""
Request = tuple[Sequence[str], Sequence[Step]]
"""The inner layers and the input steps whose results are kept."""

MORE = "passes"  # the folder beside a store for columns that were requested later
AMP = (torch.bfloat16, torch.float16)


def extract(
    model: nn.Module | str | Path,
    loader: Iterable[Any],
    *,
    head: HeadName = None,
    optional_head: bool = False,
    layers: Sequence[str] = (),
    steps: Sequence[Step] = (),
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
    labels: LabelsAt = True,
    classes: Sequence[str] | None = None,
    multilabel: bool | None = None,
    on_bad: OnBad = "raise",
    store: str | Path | None = None,
    note: str = "",
    preprocessing: Any = None,
    amp: torch.dtype | None = None,
    verify: bool = False,
    processes: Processes | None = None,
    progress: bool = True,
    on_batch: Callable[[int, Inputs], None] | None = None,
) -> Features:
    """Run ``model`` once over ``loader`` and keep the inputs of its last linear layer, and its logits.

    ``model`` is a module, or the path of an ONNX file from any framework (:class:`oodles.OnnxModel` has its options).
    A batch is what the model takes: a tensor, a tuple of tensors, or a mapping of keyword arguments such as
    ``input_ids`` and ``attention_mask``; labels come last, or under the key ``labels``. ``labels`` is their key or
    position if they are elsewhere, and False leaves them out, for data of other classes. ``classes`` are the names of
    the model's classes, in order, by default those in ``model.config.id2label`` or of the loader's class folders; the
    labels of class folders are matched to the model's classes by name. ``multilabel=True`` says that an input may
    have several classes; a model that ends in a sigmoid, or whose configuration says so, is recognised.

    The last linear layer is found and verified automatically; ``head`` is its name if that fails, and ``head=False``
    keeps only the logits. With ``optional_head=True``, a model without a linear layer at its end gives a warning and
    features without embeddings (``features.head is None``) instead of an error. The pooled activations of the inner
    modules ``layers`` and the results of the input ``steps`` are kept as well; a detector that needs them lists them in
    ``.layers`` and ``.steps()``. The model is left as it was. The loader is read once; ``on_batch`` is called with the
    number and the inputs of each batch before the network runs on it.

    An input for which the network gives NaN or infinite values is an error that names it. With ``on_bad="mark"`` such
    inputs are left out of the features and listed in ``features.bad_rows``, and a warning counts them.

    With ``store`` the features are written to that folder shard by shard. If the folder already has them, for the same
    model and the same inputs in batches of the same size, they are read instead of computed, even from a folder that
    has more layers and steps; and an extraction that was interrupted continues after its last complete shard. ``note``
    and ``preprocessing`` (how images were resized and normalised, see :class:`oodles.Guard`) are kept with them.

    The inputs of a complete store are recognised by ``loader.stamp()`` if the loader has one, as ours has: the names,
    sizes and times of its files. ``verify=True`` reads them and compares their content, as for any other loader.

    ``amp``, ``torch.bfloat16`` or ``torch.float16``, runs the network under autocast; the features keep ``dtype``. With
    ``processes`` (see :func:`oodles.distributed.join`) each of them runs its share of the loader's batches. All must
    make this call, with a loader of all inputs and a store on a disk that they share, and all get all features.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> loader = [(torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])) for _ in range(2)]
    >>> features = extract(model, loader, progress=False)
    >>> features
    Features(rows=10, width=8, classes=3, labels=yes)
    >>> torch.equal(features.head.weight, model[2].weight)
    True
    """
    check_precision(dtype)
    if amp not in (None, *AMP):
        raise ArgumentError(f"amp={amp} is no type for autocast; choose one of {', '.join(map(str, AMP))}, or None")
    processes = processes or Processes()
    if store is None and processes.size > 1:
        raise ArgumentError(f"{processes.size} processes share their features through a store on disk; give store=")
    if on_bad not in (choices := get_args(OnBad)):
        raise ArgumentError(f"on_bad={on_bad!r} must be one of {', '.join(map(repr, choices))}")
    model = as_model(model)
    network, prepared = unwrap(model), preprocessing_record(preprocessing, loader)
    with eval_mode(model, device) as target, _naming_dead_workers():
        run = Run(
            forward=ForwardPass(network, head, layers, optional_head=optional_head, multilabel=multilabel),
            reader=BatchReader(network, labels, None if labels is False else label_map(network, loader, classes)),
            device=target,
            steps=tuple(steps),
            amp=amp,
            dtype=dtype,
            on_bad=on_bad,
            names=class_names(network, None if labels is False else loader, classes),
            on_batch=on_batch,
            transform=image_transform(prepared),
            progress=progress and processes.rank == 0,
        )
        if store is None:
            features = _in_memory(run, loader)
            warn_of_labels(run.agreements)
            return _warn_of_bad_rows(features)
        path, request = Path(store), (layers, steps)
        with processes.raise_together():
            processes.all_gather(None)  # an extraction that failed may still be leaving the store
            about = {
                "model": model_fingerprint(network),
                "head": head,
                "optional_head": optional_head,
                **(_stored(path) if _holds(path, request) else _record(request)),
                "dtype": str(dtype),
                "labels": labels,
                "classes": None if classes is None else list(map(str, classes)),
                "multilabel": multilabel,
                "preprocessing": prepared,
                "amp": None if amp is None else str(amp),
            }
            stamp = loader.stamp() if hasattr(loader, "stamp") else None
            processes.all_gather(None)  # all have read what is there, so it may be changed
            with open_store(path, about, note, stamp, processes) as sharing:
                if on_bad == "raise" and any(entry["bad_rows"] for entry in sharing.shards):
                    raise DataError(f'{store} leaves out inputs that give NaN or infinite values; pass on_bad="mark"')
                if verify or not sharing.recognised:
                    into_store(run, loader, sharing, stamp)
        if processes.rank == 0:
            warn_of_labels(run.agreements)
    return _warn_of_bad_rows(Features.load(store))


def extract_each(
    model: nn.Module, loader: Iterable[Any], requests: Sequence[Request], *, store: Path | None = None, **options: Any
) -> list[Features]:
    """Return, for each request, features that have its layers and steps; all that no store has is extracted together.

    What ``store`` lacks is written to a store of its own, ``passes/<digest>/<name>`` beside it. Both are searched the
    next time, so nothing is extracted twice. ``options`` are passed to :func:`oodles.extract`.
    """
    if store is None:
        layers, steps = _union(requests)
        return [extract(model, loader, layers=layers, steps=steps, **options)] * len(requests)
    stores = [store, *sorted(folder / store.name for folder in (store.parent / MORE).glob("*"))]
    found = [next((path for path in stores if _holds(path, request)), None) for request in requests]
    missing = _union([request for request, path in zip(requests, found, strict=True) if path is None])
    new = store if not is_store(store) or _stored(store) == _record(missing) else _beside(store, missing)
    opened: dict[Path | None, Features] = {}
    for request, path in zip(requests, found, strict=True):
        if path not in opened:
            layers, steps = missing if path is None else request
            opened[path] = extract(model, loader, layers=layers, steps=steps, store=path or new, **options)
    return [opened[path] for path in found]


def _union(requests: Sequence[Request]) -> Request:
    layers = dict.fromkeys(name for names, _ in requests for name in names)
    return tuple(layers), distinct_steps(step for _, steps in requests for step in steps)


def _record(request: Request) -> Record:
    """Describe layers by name, and steps by name and identity."""
    layers, steps = request
    return {"layers": list(layers), "steps": [[step.name, step.identity] for step in steps]}


def _stored(store: Path) -> Record:
    about = read_manifest(store)["about"]
    return {kind: about.get(kind, []) for kind in ("layers", "steps")}


def _holds(store: Path, request: Request) -> bool:
    """Return whether a store is complete and has all that is requested; it may have more, and is then used as it is."""
    if not is_store(store) or not read_manifest(store)["complete"]:
        return False
    stored = _stored(store)
    return all(each in stored[kind] for kind, parts in _record(request).items() for each in parts)


def _beside(store: Path, request: Request) -> Path:
    layers, steps = request
    named = [*layers, *(f"{step.name} {step.identity}" for step in steps)]
    return store.parent / MORE / hashlib.sha256("\n".join(named).encode()).hexdigest()[:12] / store.name


@dataclass(frozen=True)
class Run:
    """The network of an extraction, and what is kept of each batch of its loader."""

    forward: ForwardPass
    reader: BatchReader
    device: torch.device
    steps: tuple[Step, ...]
    amp: torch.dtype | None
    dtype: torch.dtype
    on_bad: OnBad
    names: tuple[str, ...]
    on_batch: Callable[[int, Inputs], None] | None
    transform: Transform | None
    progress: bool
    agreements: list[Tensor] = field(default_factory=list)  # of the batches with labels

    def batches(self, loader: Iterable[Any]) -> Generator[tuple[Inputs, Tensor | None]]:
        """The loader's batches, with labels as numbers of the model's classes; a terminal shows their progress."""
        batches = tracked(self.reader.read(loader), "extract", length_hint(loader) or None, shown=self.progress)
        for number, (inputs, labels) in enumerate(batches):
            if number == 0 and self.transform is not None:
                images_of(inputs, self.transform)
            if self.on_batch is not None:
                self.on_batch(number, inputs)
            yield inputs, labels

    def locate(self, inputs: Inputs) -> None:
        """Locate the last layer on the first batch of the loader, in full precision."""
        self.forward.find_head(self.forward.pieces(inputs.to(self.device))[0])

    def good_rows(self, inputs: Inputs, labels: Tensor | None, place: str | int) -> tuple[Columns, list[int]]:
        """What is kept of one batch, as it is stored, and which of its inputs are left out.

        ``place`` is the number of the batch's first input, or names the batch.
        """
        kept = as_stored(self._columns(inputs, labels), self.dtype)
        bad = rows_not_finite(kept)
        if bad and self.on_bad == "raise":
            kind = " as float16, whose largest number is 65504" if self.dtype == torch.float16 else ""
            first = f"input {place + bad[0]}" if isinstance(place, int) else f"input {bad[0]} of {place}"
            raise DataError(
                f"{len(bad)} of {len(inputs)} inputs of a batch give NaN or infinite values{kind}, the first is {first}"
                '; check that input and the model\'s output for it, or leave such inputs out with on_bad="mark"'
            )
        if bad:
            good = torch.ones(len(inputs), dtype=torch.bool)
            good[bad] = False
            kept = {name: column[good] for name, column in kept.items()}
        if "labels" in kept:
            self.agreements.append(agreement(kept["logits"], kept["labels"]))
        return kept, bad

    def _columns(self, inputs: Inputs, labels: Tensor | None) -> Columns:
        """The columns of one batch of the loader, on the CPU."""
        pieces = []
        for part in self.forward.pieces(inputs.to(self.device)):
            self.forward.find_head(part)
            with nullcontext() if self.amp is None else torch.autocast(self.device.type, dtype=self.amp):
                pieces.append(run_with_steps(self.forward, part, self.steps).columns)
        columns = {name: torch.cat([piece[name].float().cpu() for piece in pieces]) for name in pieces[0]}
        if labels is not None and labels.ndim == 2:
            if labels.shape[1] != columns["logits"].shape[1]:
                raise DataError(
                    f"the loader gave zeros and ones {tuple(labels.shape)} as labels, but the model has "
                    f"{columns['logits'].shape[1]} classes; pass labels= with the key or position of the labels in a "
                    "batch, or labels=False"
                )
            if not self.forward.multilabel:
                raise DataError(
                    f"the loader gave labels {tuple(labels.shape)} of zeros and ones; pass multilabel=True if an input "
                    "may have several classes, else give class indices (labels.argmax(dim=1))"
                )
        elif labels is not None:
            if labels.is_floating_point() and not self.forward.single_logit:
                raise not_labels(labels)
            columns["labels"] = labels.long().cpu()
        return columns

    def head(self) -> Head | None:
        """The last layer, once it has been found."""
        head = self.forward.feature_head()
        return None if head is None else head.to("cpu")

    def class_names(self, classes: int, loader: object) -> tuple[str, ...]:
        """The names of the classes; folders that do not match the classes are reported and give no names."""
        names, folders = self.names, folder_names(loader)
        if len(names) in (0, classes):
            return names
        if names != folders:
            raise ArgumentError(f"classes= has {len(names)} names, but the model has {classes} classes; name each")
        warnings.warn(
            f"{len(names)} class folders were numbered 0 to {len(names) - 1}, but the model has {classes} classes, so "
            f"labels may be wrong; {LABELS_REMEDY}",
            stacklevel=4,
        )
        return ()


def _in_memory(run: Run, loader: Iterable[Any]) -> Features:
    whole = Shard(0)
    names: tuple[str, ...] = ()
    with closing(run.batches(loader)) as batches:
        for number, (inputs, labels) in enumerate(batches):
            whole.add(len(inputs), *run.good_rows(inputs, labels, whole.rows))
            if number == 0:
                names = run.class_names(whole.columns[0]["logits"].shape[1], loader)
    if not whole.rows:
        raise DataError(NO_BATCH)
    check_some_good(whole.rows, whole.bad)
    columns = whole.joined()
    layers = {name.removeprefix(LAYER): columns.pop(name) for name in list(columns) if name.startswith(LAYER)}
    about: dict[str, Any] = {
        "class_names": names,
        "multilabel": run.forward.multilabel,
        "bad_rows": whole.bad,
        **columns,
    }
    return Features(layers=layers, head=run.head(), **about)


def _warn_of_bad_rows(features: Features) -> Features:
    if features.bad_rows:
        warnings.warn(
            f"{len(features.bad_rows)} of {len(features) + len(features.bad_rows)} inputs give NaN or infinite values "
            f"and are left out, the first is input {features.bad_rows[0]}; features.bad_rows lists them",
            stacklevel=3,
        )
    return features


@contextmanager
def _naming_dead_workers() -> Iterator[None]:
    """Raise one line if a DataLoader's worker dies, whatever code was running when torch reported it."""
    try:
        yield
    except Exception as error:
        chain: list[BaseException] = [error]
        while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
            chain.append(cause)
        dead = next((each for each in chain if isinstance(each, Exception) and is_dead_worker(each)), None)
        if dead is None:
            raise
        for each in chain:
            traceback.clear_frames(each.__traceback__)  # they keep the loader alive
        raise loader_failure(dead) from dead
