"""What a model says about its classes: their names, and whether an input may have several."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from oodles.errors import ArgumentError, DataError


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
