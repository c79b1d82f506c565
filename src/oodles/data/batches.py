"""Batches as loaders yield them: tensors, ``(images, labels)`` pairs, or dicts with either."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from oodles.errors import DataError

IMAGE_KEYS = ("pixel_values", "image", "images")
LABEL_KEYS = ("labels", "label")
NO_BATCH = "the loader gave no batch; is the folder empty or the iterator exhausted?"


def read_batches(loader: Iterable[Any], labelled: bool) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Every batch as images and labels; labels are None if not wanted or not given."""
    for batch in loader:
        images, labels = split_batch(batch)
        yield images, as_labels(labels, images) if labelled else None


def split_batch(batch: Any) -> tuple[Tensor, Any]:
    """Images and labels (or None) of one batch."""
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
            f"the loader gave {got} instead of a batch of images; give tensors, (images, labels), or dicts "
            f"with {' or '.join(IMAGE_KEYS)}"
        )
    return images, labels


def as_labels(labels: Any, images: Tensor) -> Tensor | None:
    """The labels of a batch as integers, one per image; None if there are none."""
    if labels is None:
        return None
    try:
        classes = torch.as_tensor(labels)
    except (ValueError, TypeError, RuntimeError):
        raise DataError(
            f"the loader gave labels that are not numbers ({type(labels).__name__}); give class indices, or pass "
            "labels=False"
        ) from None
    if classes.is_floating_point() or classes.ndim != 1:
        kind = f"{classes.dtype} of shape {tuple(classes.shape)}"
        raise DataError(f"labels must be integers, one per image, the loader gave {kind}; or pass labels=False")
    if len(classes) != len(images):
        raise DataError(f"the loader gave {len(images)} images with {len(classes)} labels")
    return classes


def first_images(loader: Iterable[Any], count: int, labelled: bool = True) -> tuple[Tensor, Tensor | None]:
    """The first ``count`` images of a loader, and their labels if they are wanted and available."""
    images: list[Tensor] = []
    labels: list[Tensor] = []
    for batch, classes in read_batches(loader, labelled):
        images.append(batch)
        labels += [] if classes is None else [classes]
        if sum(map(len, images)) >= count:
            break
    if not images:
        raise DataError(NO_BATCH)
    return torch.cat(images)[:count], torch.cat(labels)[:count] if len(labels) == len(images) else None
