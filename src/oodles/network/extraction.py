"""``extract``: a model and a loader in, ``Features`` out; the network runs once per input."""

import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from operator import length_hint
from pathlib import Path
from typing import Any, get_args

import torch
from torch import nn

from oodles.columns import LAYER, Columns, check_precision
from oodles.data.batches import NO_BATCH, BatchReader, LabelsAt, is_dead_worker, loader_failure
from oodles.data.inputs import Inputs
from oodles.data.transforms import Transform, preprocessing_record
from oodles.distributed.processes import Processes
from oodles.errors import ArgumentError, DataError
from oodles.features import Features
from oodles.network.batch_columns import BatchColumns, OnBad, check_some_good, same_columns
from oodles.network.classes import class_names, label_map
from oodles.network.fingerprints import is_fingerprint_of, model_fingerprint
from oodles.network.forward import ForwardPass, HeadName
from oodles.network.progress import Advance, progress_bar
from oodles.network.storing import into_store, open_store
from oodles.network.taps import eval_mode, unwrap
from oodles.network.wanted import Wanted
from oodles.steps import Step
from oodles.store import is_store, read_manifest

AMP = (torch.bfloat16, torch.float16)


def extract(
    model: nn.Module,
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
    batch_size: int | None = None,
    store: str | Path | None = None,
    note: str = "",
    preprocessing: Transform | Mapping[str, Any] | None = None,
    amp: torch.dtype | None = None,
    verify: bool = False,
    processes: Processes | None = None,
    progress: bool = True,
    on_first: Callable[[Inputs], None] | None = None,
) -> Features:
    """Run ``model`` once over ``loader`` and keep the inputs of its last linear layer, and its logits.

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
    ``.layers`` and ``.steps()``. ``batch_size`` is how many inputs the network sees at a time. The model is left as it
    was. The loader is read once; ``on_first`` is called with the inputs of its first batch, for example to keep their
    shapes.

    An input for which the network gives NaN or infinite values is an error that names it. With ``on_bad="mark"`` such
    inputs are left out of the features and listed in ``features.bad_rows``, and a warning counts them.

    With ``store`` the features are written to that folder shard by shard. If the folder already has them, for the same
    model and the same inputs in batches of the same size, they are read instead of computed, even from a folder that
    has more layers and steps; and an extraction that was interrupted continues after its last complete shard. ``note``
    and ``preprocessing`` (how images were resized and normalised) are kept with them.

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
    network = unwrap(model)
    relabel = None if labels is False else label_map(network, loader, classes)
    with eval_mode(model, device) as target, _naming_dead_workers():
        run = BatchColumns(
            forward=ForwardPass(network, head, layers, optional_head=optional_head),
            on_first=on_first,
            reader=BatchReader(network, labels),
            steps=tuple(steps),
            device=target,
            batch_size=batch_size,
            relabel=relabel,
            declared_multilabel=multilabel,
            dtype=dtype,
            on_bad=on_bad,
            declared_names=class_names(network, None if labels is False else loader, classes),
            amp=amp,
        )
        with progress_bar(length_hint(loader) // processes.size or None, progress and processes.rank == 0) as advance:
            if store is None:
                return _warn_of_bad_rows(_in_memory(run, loader, advance))
            with processes.raise_together():
                processes.all_gather(None)  # an extraction that failed may still be leaving the store
                about = {
                    "model": _fingerprint(network, Path(store)),
                    "head": head,
                    "optional_head": optional_head,
                    **Wanted(layers, steps).record_in(Path(store)),
                    "dtype": str(dtype),
                    "labels": labels,
                    "classes": None if classes is None else list(map(str, classes)),
                    "multilabel": multilabel,
                    "preprocessing": preprocessing_record(preprocessing, loader),
                    "amp": None if amp is None else str(amp),
                }
                stamp = loader.stamp() if hasattr(loader, "stamp") else None
                processes.all_gather(None)  # all have read what is there, so it may be changed
                with open_store(Path(store), about, note, stamp, processes) as sharing:
                    if on_bad == "raise" and any(entry["bad_rows"] for entry in sharing.shards):
                        raise DataError(
                            f'{store} leaves out inputs that give NaN or infinite values; pass on_bad="mark"'
                        )
                    if verify or not sharing.recognised:
                        into_store(run, loader, sharing, advance, stamp)
    return _warn_of_bad_rows(Features.load(store))


def _fingerprint(network: nn.Module, store: Path) -> str:
    """The fingerprint of the network; a store that has an older kind of it keeps that."""
    stored = read_manifest(store)["about"].get("model") if is_store(store) else None
    return stored if stored and is_fingerprint_of(stored, network) else model_fingerprint(network)


def _in_memory(run: BatchColumns, loader: Iterable[Any], advance: Advance) -> Features:
    kept: list[Columns] = []
    bad: list[int] = []
    names: tuple[str, ...] = ()
    seen = 0
    with closing(run.batches(loader, advance)) as batches:
        for inputs, labels in batches:
            columns, left_out = run.good_rows(inputs, labels, seen)
            kept.append(columns)
            bad += [seen + row for row in left_out]
            seen += len(inputs)
            same_columns(kept[0], kept[-1])
            if len(kept) == 1:
                names = run.names(kept[0]["logits"].shape[1], loader)
    if not kept:
        raise DataError(NO_BATCH)
    check_some_good(seen, bad)
    columns = {name: torch.cat([part.pop(name) for part in kept]) for name in list(kept[0])}
    layers = {name.removeprefix(LAYER): columns.pop(name) for name in list(columns) if name.startswith(LAYER)}
    about: dict[str, Any] = {"class_names": names, "multilabel": run.multilabel, "bad_rows": bad, **columns}
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
