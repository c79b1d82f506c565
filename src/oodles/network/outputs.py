"""Read what a model returns and says about its classes: where the logits are, the names, one class or several."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from oodles.columns import PRECISIONS, dtype_name, is_dense
from oodles.errors import ArgumentError, DataError, HeadError

LABELS_REMEDY = "give the model's class names (classes=, --classes) or no labels (labels=False, --no-labels)"
EMBEDDING_KEYS = ("embed", "hidden", "pool", "feature", "attention")  # of outputs that are not logits


def logits_of(output: object, item: int | None = None) -> Tensor:
    """The logits in a model's output: a tensor, ``.logits``, a mapping with ``logits``, or an item of a tuple.

    ``item`` says which one; by default the only one that has the shape of logits.
    """
    if isinstance(output, Tensor) and _is_logits(output):
        return output  # the usual case, at every call of a guard
    found = output_items(output)
    if item is not None and item in found:
        return found[item]
    if len(found) > 1:
        shapes = " and ".join(str(tuple(each.shape)) for each in found.values())
        raise HeadError(
            f"the model returned {len(found)} tensors {shapes} that could be its logits; return the logits alone, or a "
            "dict or an object with `logits`"
        )
    if not found:
        raise HeadError(f"the model returned {_describe_output(output)}; return logits of shape (rows, classes)")
    return next(iter(found.values()))


def output_items(output: object) -> dict[int, Tensor]:
    """The tensors in a model's output that have the shape of logits, ``(rows, classes)``, by their position."""
    if not isinstance(output, Tensor):
        named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
        if named is not None:
            output = named
    tensors = {place: _flat(item) for place, item in enumerate(_leaves(output))}
    return {place: item for place, item in tensors.items() if _is_logits(item)}


def _is_logits(output: Tensor) -> bool:
    return output.ndim == 2 and output.dtype in PRECISIONS and is_dense(output)


def _leaves(output: object) -> Iterator[Tensor]:
    """The tensors in a model's output, in order; those whose key says that they are embeddings are left out."""
    if isinstance(output, Mapping):
        for key, value in output.items():
            if not any(part in str(key) for part in EMBEDDING_KEYS):
                yield from _leaves(value)
    elif isinstance(output, tuple | list):
        for value in output:
            yield from _leaves(value)
    elif isinstance(output, Tensor):
        yield output


def _flat(output: Tensor) -> Tensor:
    return output.flatten(1) if output.ndim > 2 and output.shape[2:].numel() == 1 else output


def _describe_output(output: object) -> str:
    """What a model returned, which kind of model does so, and how such an output becomes logits."""
    tensor = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if isinstance(output, Mapping):  # segmentation models return a dict
        tensor = next((part for part in (tensor, *output.values()) if isinstance(part, Tensor)), None)
    if not isinstance(tensor, Tensor):
        return f"a {type(output).__name__} without logits"
    shape = f"{dtype_name(tensor.dtype)} {tuple(tensor.shape)}"
    if tensor.dtype not in PRECISIONS:
        return f"{shape}, not floating-point numbers of 16, 32 or 64 bits"
    if not is_dense(tensor):
        return f"{shape}, which is not a dense tensor ({'meta' if tensor.is_meta else tensor.layout})"
    kinds = {
        1: "one number per input: if it is a logit, return it as a column, output[:, None]",
        3: "one prediction per token: take one of them, or their mean",
        4: "one prediction per pixel, as in segmentation: take their mean, output.mean(dim=(2, 3))",
    }
    return f"{shape}, {kinds[tensor.ndim]}" if tensor.ndim in kinds else shape


def class_names(model: nn.Module, loader: object = None, given: Sequence[str] | None = None) -> tuple[str, ...]:
    """The names of a model's classes: as given, as its configuration has them, or as the loader does; () if unknown.

    A Hugging Face model has them in ``config.id2label``; placeholders such as LABEL_0 do not count. A loader of class
    folders numbers them in the order of their names, which is the model's order if it was trained on such folders.
    """
    if given is not None:
        names = tuple(str(name) for name in given)
        if len(set(names)) < len(names):
            raise ArgumentError(f"classes= has {len(names)} names of which only {len(set(names))} differ")
        return names
    return _configured_names(model) or folder_names(loader)


def _configured_names(model: nn.Module) -> tuple[str, ...]:
    table = getattr(getattr(model, "config", None), "id2label", None)
    if not isinstance(table, Mapping) or sorted(table) != list(range(len(table))):
        return ()
    names = tuple(str(table[place]) for place in range(len(table)))
    return () if names == tuple(f"LABEL_{place}" for place in range(len(names))) else names


def folder_names(loader: object) -> tuple[str, ...]:
    """The class folders that a loader numbers its labels by: ours, and torchvision's datasets in a ``DataLoader``."""
    named = getattr(loader, "class_names", None) or getattr(getattr(loader, "dataset", None), "classes", None)
    plain = isinstance(named, list | tuple) and all(isinstance(name, str) for name in named)
    return tuple(named) if named and plain else ()


def label_map(model: nn.Module, loader: object, given: Sequence[str] | None) -> Tensor | None:
    """For each class folder of the loader, the number of that class in the model; None if the numbers agree already.

    The model's names must be known apart from the loader, and contain every folder's name.
    """
    names, folders = class_names(model, None, given), folder_names(loader)
    if not names or not folders or names == folders:
        return None
    unknown = [folder for folder in folders if folder not in names]
    if unknown:
        raise DataError(
            f"the class folder {unknown[0]} is not a class of {type(model).__name__} ({', '.join(names[:3])}, ...); "
            "rename it, or pass labels=False (--no-labels) for data of other classes"
        )
    return torch.tensor([names.index(folder) for folder in folders])


def is_multilabel(model: nn.Module) -> bool:
    """Whether the model's configuration says that an input may have several classes."""
    config: Any = getattr(model, "config", None)
    return getattr(config, "problem_type", None) == "multi_label_classification"


def agreement(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the number of rows, of those whose label is the predicted class, and the sum of their confidences."""
    right, confidence = logits.argmax(dim=1) == labels, logits.double().softmax(dim=1).amax(dim=1)
    return torch.stack([torch.ones_like(confidence), right.double(), confidence]).sum(dim=1)


def warn_of_labels(batches: Sequence[Tensor]) -> None:
    """Warn if the accuracy is significantly below half the mean confidence: labels may be numbered differently."""
    rows, right, confidence = sum(batches, torch.tensor([1e-9, 0, 0])).tolist()
    if right / rows + rows**-0.5 < confidence / rows / 2:
        warnings.warn(
            f"the model's accuracy by these labels is {right / rows:.1%}, though its mean confidence is "
            f"{confidence / rows:.1%}: are inputs preprocessed as in training, and labels numbered in the order of the "
            f"model's classes? If not, {LABELS_REMEDY}",
            stacklevel=3,
        )
