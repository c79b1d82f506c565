"""Batches as loaders yield them, split into what the model is called with and labels."""

import inspect
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, Dataset, IterableDataset

from oodles.columns import native
from oodles.data.inputs import Inputs, describe_inputs
from oodles.errors import ArgumentError, DataError

IMAGE_KEYS = ("pixel_values", "image", "images")
LABEL_KEYS = ("labels", "label")
NO_BATCH = "the loader gave no batch; is the folder empty or the iterator exhausted?"

LabelsAt = bool | str | int
"""Where a batch has its labels: True to find them, False to leave them out, or their key or position."""


class BatchReader:
    """Reads the batches of a loader as calls of ``model`` and labels.

    A batch is a tensor, a tuple of inputs, or a mapping of keyword arguments; labels come last in a tuple, or in a pair
    with the inputs, or under the key ``labels`` or ``label``. What ``forward`` can take decides what is an input:
    ``(a, b)`` are an input and labels unless ``forward`` requires two arguments. ``labels`` says where labels are if
    that is not so. ``relabel`` has the model's number of each class of the loader, if they differ.
    """

    def __init__(self, model: nn.Module, labels: LabelsAt = True, relabel: Tensor | None = None) -> None:
        self.labels = labels
        self._relabel = relabel
        self._position = labels if isinstance(labels, int) and not isinstance(labels, bool) else None
        self._model = type(model).__name__
        self._takes = _Takes(model)

    def read(self, loader: Iterable[Any], wanted: bool = True) -> Iterator[tuple[Inputs, Tensor | None]]:
        """Every batch; its labels are None if they are not wanted or not given."""
        check_gives_batches(loader)
        for batch in _batches_of(loader):
            inputs, labels = self.split(batch)
            if labels is None or self.labels is False or not wanted:
                yield inputs, None
                continue
            classes = as_labels(labels, len(inputs))
            yield inputs, classes if self._relabel is None else self._relabel[classes]

    def split(self, batch: Any) -> tuple[Inputs, Any]:
        """The model's inputs and the labels (or None) of one batch."""
        if isinstance(batch, Tensor) and batch.ndim > 1 and self._takes.most:
            return Inputs((batch,)), None  # the usual case, at every call of a guard
        if isinstance(batch, Inputs):
            return batch, None
        if isinstance(batch, tuple) and len(batch) == 2 and isinstance(batch[0], Inputs):
            return batch  # split before
        if isinstance(batch, Mapping):
            return self._split_mapping(batch)
        if isinstance(batch, tuple | list) and not isinstance(batch, PackedSequence):
            return self._split_sequence(batch)
        return self._inputs((batch,), {}), None

    def _split_mapping(self, batch: Mapping[str, Any]) -> tuple[Inputs, Any]:
        has = f"the batch, which has {', '.join(map(str, batch))}"
        if self._position is not None:
            raise ArgumentError(f"labels={self.labels} is a position, but keys name the items of {has}; give a key")
        if isinstance(self.labels, str) and self.labels not in batch:
            raise ArgumentError(f"labels={self.labels!r} is not in {has}")
        keys = (self.labels,) if isinstance(self.labels, str) else LABEL_KEYS
        labels = next((batch[key] for key in keys if key in batch), None)
        return self._named_inputs({key: value for key, value in batch.items() if key not in keys}), labels

    def _named_inputs(self, batch: Mapping[str, Any]) -> Inputs:
        others = {key: value for key, value in batch.items() if key not in LABEL_KEYS}
        known = self._takes.known(others)
        if known:
            return self._inputs((), known)
        # a network with forward(x) does not know the loader's names
        alone = [others[key] for key in IMAGE_KEYS if key in others] or list(others.values())
        if len(alone) != 1:
            raise DataError(
                f"the loader gave {', '.join(map(str, others)) or 'no inputs'}, none of which {self._model}.forward "
                f"takes ({self._takes}); rename the keys, or wrap the model in one that takes them"
            )
        return self._inputs((alone[0],), {})

    def _split_sequence(self, batch: Sequence[Any]) -> tuple[Inputs, Any]:
        items = list(batch)
        if not items:
            raise DataError("the loader gave an empty tuple; give a tensor, (inputs, labels), or a mapping")
        if len(items) == 1 and isinstance(items[0], Mapping):
            return self._split_mapping(items[0])
        if isinstance(self.labels, str):
            raise ArgumentError(
                f"labels={self.labels!r} is a key, but the batch is a tuple of {len(items)} items; give a position"
            )
        labels: Any = None
        if self._position is not None:
            if not -len(items) <= self._position < len(items):
                raise ArgumentError(f"labels={self.labels} is not a position in a batch of {len(items)} items")
            labels = items.pop(self._position)
            items = items[: self._takes.most] if self._takes.most else items
        elif _is_nested(items[0]) and len(items) <= 2:
            labels = items.pop() if len(items) == 2 else None
        else:
            count = max(1, self._takes.required)
            if len(items) > count + 1 and (self._takes.most or len(self._takes.by_name)) > count:
                raise DataError(
                    f"the loader gave {len(items)} items, and {self._model}.forward takes {count} inputs or more; say "
                    f"which item has the labels, e.g. labels={len(items) - 1}"
                )
            labels = items[count] if len(items) > count else None
            items = items[:count]
        if len(items) == 1 and _is_nested(items[0]):
            inner = items[0]
            return self._named_inputs(inner) if isinstance(inner, Mapping) else self._inputs(tuple(inner), {}), labels
        return self._inputs(tuple(items), {}), labels

    def _inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Inputs:
        if len(args) == 1 and self._takes.most == 0 and len(self._takes.by_name) >= 1:
            return self._inputs((), {self._takes.by_name[0]: args[0]})  # forward(*, pixel_values)
        given: dict[str, Any] = {f"item {place}": value for place, value in enumerate(args)}
        given.update(kwargs)
        if not any(isinstance(value, PackedSequence) or _is_rows(value) for value in given.values()):
            raise DataError(
                f"the loader gave {describe_inputs(given)} instead of a batch of tensors; give tensors, "
                "(inputs, labels), or mappings of what the model takes"
            )
        return Inputs(args, dict(kwargs))


def _batches_of(loader: Iterable[Any]) -> Iterator[Any]:
    """The loader's batches; what its worker processes raise, or that one of them died, becomes one line."""
    try:
        yield from loader
    except Exception as error:
        if isinstance(loader, DataLoader) and loader.num_workers:
            raise loader_failure(error) from error
        raise


def only(loader: Iterable[Any], numbers: Sequence[int], total: int) -> Iterable[Any]:
    """The loader's batches of these numbers, which ascend; ``total`` is how many it has.

    Our own loader and a plain DataLoader read nothing else; any other loader is run through.
    """
    if isinstance(loader, DataLoader):
        if type(loader) is DataLoader and loader.batch_sampler is not None:
            every = list(loader.batch_sampler)
            return DataLoader(
                loader.dataset,
                batch_sampler=[every[number] for number in numbers],
                num_workers=loader.num_workers,
                collate_fn=loader.collate_fn,
                pin_memory=loader.pin_memory,
                timeout=loader.timeout,
                worker_init_fn=loader.worker_init_fn,
                multiprocessing_context=loader.multiprocessing_context,
                generator=loader.generator,
                prefetch_factor=loader.prefetch_factor,
            )
    elif hasattr(loader, "only"):
        chosen: Iterable[Any] = loader.only(numbers)
        return chosen
    return _filtered(loader, set(numbers), total)


def _filtered(loader: Iterable[Any], wanted: set[int], total: int) -> Iterator[Any]:
    last = max(wanted, default=-1)
    number = -1
    for number, batch in enumerate(_batches_of(loader)):
        if number in wanted:
            yield batch
        if number == last < total - 1:
            return
    if wanted and number != total - 1:
        raise DataError(f"the loader gave {number + 1} batches, but its length is {total}; give it the right length")


def loader_failure(error: Exception) -> DataError:
    """The error of a worker process in one line: that with its message, at the end of the traceback in its text."""
    name, lines = type(error).__name__, str(error).strip().splitlines() or [""]
    if lines[0].startswith("Caught "):
        reason = next((line for line in reversed(lines) if re.match(rf"[\w.]*\b{name}\b", line)), lines[-1])
        return DataError(f"the loader's dataset failed in a worker process: {reason}")
    # the variables of its frames keep the loader's iterator alive, and while it lives torch reports the end of its
    # workers, at any moment
    traceback.clear_frames(error.__traceback__)
    # whether torch reports its end or its connection is lost first is a matter of time
    died = is_dead_worker(error) or isinstance(error, ConnectionError | EOFError)
    what = "a worker process of the loader died" if died else "the loader failed"
    return DataError(
        f"{what} ({lines[0].strip() or name}); use fewer workers or smaller batches if memory is short, or "
        "num_workers=0 to see the cause"
    )


def is_dead_worker(error: Exception) -> bool:
    """Whether an error is torch's report that a DataLoader's worker has ended, which may come at any moment."""
    return isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker")


class _Takes:
    """What a model's ``forward`` takes: how many inputs by position, and which by name."""

    def __init__(self, model: nn.Module) -> None:
        names = getattr(model, "input_names", None)  # of an ONNX file
        if names is not None:
            self.required = self.most = len(names)
            self.by_name, self.any_name = [*names], False
            return
        try:
            parameters = list(inspect.signature(model.forward).parameters.values())
        except (TypeError, ValueError):  # compiled code has no signature: assume one input
            parameters = [inspect.Parameter("input", inspect.Parameter.POSITIONAL_ONLY)]
        by_position = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
        self.required = sum(each.default is each.empty for each in by_position)
        self.most = 1000 if any(each.kind is each.VAR_POSITIONAL for each in parameters) else len(by_position)
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        self.by_name = [each.name for each in parameters if each.kind in named]
        self.any_name = any(each.kind is each.VAR_KEYWORD for each in parameters)

    def known(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that can be given by name; ``**kwargs`` takes every tensor, and all if none is a parameter.

        Wrappers name some of the inner model's inputs and pass the rest on.
        """
        named = {key: value for key, value in given.items() if key in self.by_name}
        if not self.any_name:
            return named
        if not named:
            return {} if self.required else dict(given)
        return {
            key: value for key, value in given.items() if key in named or isinstance(value, Tensor | PackedSequence)
        }

    def __str__(self) -> str:
        return ", ".join(self.by_name) or "arguments by position only"


def check_gives_batches(loader: object) -> None:
    """Raise if the loader is a dataset of single examples."""
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        raise DataError(
            f"{type(loader).__name__} is a Dataset, which gives single examples; give batches: "
            "torch.utils.data.DataLoader(dataset, batch_size=64)"
        )


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping | tuple | list) and not isinstance(value, PackedSequence)


def _is_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 1 and len(value) > 0


def as_labels(labels: Any, rows: int) -> Tensor:
    """The labels of a batch: class indices ``(n,)``, or ``(n, C)`` zeros and ones of a multi-label task.

    Zeros and ones for a single logit may be floats, ``(n,)`` or ``(n, 1)``.
    """
    try:
        classes = torch.as_tensor(native(labels))
    except (ValueError, TypeError, RuntimeError):
        raise DataError(
            f"the loader gave labels that are not numbers ({type(labels).__name__}); give class indices, or pass "
            "labels=False"
        ) from None
    if len(classes.shape) and len(classes) != rows:
        raise DataError(f"the loader gave {rows} inputs with {len(classes)} labels")
    if classes.ndim == 1 and not classes.is_floating_point():
        return classes
    if classes.ndim not in (1, 2) or not bool(((classes == 0) | (classes == 1)).all()):
        raise not_labels(classes)
    return classes if classes.shape[1:].numel() > 1 else classes.flatten().float()


def not_labels(given: Tensor) -> DataError:
    """The error that what a loader gave as labels is something else."""
    kind = f"{given.dtype} of shape {tuple(given.shape)}"
    return DataError(
        f"labels must be integers, one per input, the loader gave {kind}; pass labels= with the key or position of "
        "the labels in a batch, or labels=False"
    )


def first_batches(
    reader: BatchReader, loader: Iterable[Any], count: int, labels: bool = True
) -> Iterator[tuple[Inputs, Tensor | None]]:
    """The first ``count`` rows of a loader, in its batches, with labels if they are wanted."""
    left = count
    for inputs, classes in reader.read(loader, labels):
        if len(inputs) > left:
            inputs, classes = inputs.split(left)[0], None if classes is None else classes[:left]
        left -= len(inputs)
        yield inputs, classes
        if left == 0:
            return
    if left == count:
        raise DataError(NO_BATCH)


def first_rows(reader: BatchReader, loader: Iterable[Any], count: int) -> Inputs:
    """Up to ``count`` rows of a loader as one call: its first batches, as far as they fit together."""
    first, *others = (inputs for inputs, _ in first_batches(reader, loader, count, labels=False))
    alike = list(takewhile(lambda each: _shapes(each) == _shapes(first), others))
    if not alike or any(not isinstance(value, Tensor) for value in first.batched.values()):
        return first
    parts = [inputs.tensors() for inputs in (first, *alike)]
    joined = {id(value): torch.cat([part[name] for part in parts]) for name, value in first.batched.items()}
    return first.map(lambda value: joined[id(value)])


def _shapes(inputs: Inputs) -> dict[str, Any]:
    return {name: (tensor.dtype, tensor.shape[1:]) for name, tensor in inputs.tensors().items()}


def first_images(reader: BatchReader, loader: Iterable[Any], count: int) -> tuple[Tensor, Tensor | None]:
    """The first ``count`` images of a loader, and their class labels if all batches have them.

    Inputs other than one floating-point tensor are refused.
    """
    batches = list(first_batches(reader, loader, count))
    for inputs, _ in batches:
        if len(inputs.batched) != 1 or len(inputs.floating()) != 1:
            raise DataError(
                f"synthetic outliers are made from images, the loader gave {describe_inputs(inputs.named)}; make "
                "them from embeddings instead: oodles.selection.mixed_features"
            )
    images = torch.cat([next(iter(inputs.floating().values())) for inputs, _ in batches])
    labels = [each for _, each in batches if each is not None and each.ndim == 1]
    return images, torch.cat(labels) if len(labels) == len(batches) else None
