"""Named columns of tensors, one row per image: their validation, storage form and fingerprint."""

import hashlib
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from oodles.errors import DataError, ShapeError

Columns = dict[str, Tensor]
"""Tensors by column name: ``embedding``, ``logits``, ``labels`` and ``layer.<name>``, one row per image."""

LOGITS_TOLERANCE = 2e-2  # of the largest logit; half precision stays below it
LAYER = "layer."  # prefix of the columns that hold activations of inner layers, and what is kept after an input step


def check_columns(columns: Columns, head_shape: tuple[int, int] | None) -> None:
    """Raise unless row counts match, widths fit the head ``(C, m)``, values are finite and labels are valid classes."""
    if "embedding" not in columns and "logits" not in columns:
        raise DataError("features need an embedding or logits, and got neither")
    rows = {name: column.shape[0] if column.ndim else 0 for name, column in columns.items()}
    if len(set(rows.values())) > 1:
        raise ShapeError("columns differ in rows: " + ", ".join(f"{name} {n}" for name, n in rows.items()))
    if 0 in rows.values():
        raise DataError("features have no rows; is the loader empty?")
    for name, column in columns.items():
        if name == "labels":
            continue
        if column.ndim != 2 or not column.is_floating_point():
            kind = f"{column.dtype} of shape {tuple(column.shape)}"
            raise ShapeError(f"{name} must be a floating-point tensor of shape (rows, width), got {kind}")
        _check_finite(name, column)
    classes = head_shape[0] if head_shape else columns["logits"].shape[1] if "logits" in columns else None
    for name, want in zip(("logits", "embedding"), head_shape or (), strict=False):
        if name in columns and columns[name].shape[1] != want:
            raise ShapeError(f"{name} has width {columns[name].shape[1]}, but the head needs {want}")
    if "labels" in columns:
        _check_labels(columns["labels"], classes)


def check_logits(columns: Columns, head: Callable[[Tensor], Tensor]) -> None:
    """Raise unless a sample of rows has the logits that the head gives their embeddings."""
    if not {"embedding", "logits"} <= columns.keys():
        return
    rows = torch.linspace(0, len(columns["logits"]) - 1, 16).long()
    expected, logits = head(columns["embedding"][rows]).cpu().double(), columns["logits"][rows].cpu().double()
    gap = float((expected - logits).abs().max()) / max(1e-2, float(logits.abs().max()))
    if gap > LOGITS_TOLERANCE:
        raise DataError(
            f"the head does not give these logits from these embeddings (relative error {gap:.2g}); do embedding, "
            "logits and head come from the same model?"
        )


def to_storage(columns: Columns, dtype: torch.dtype) -> Columns:
    """Columns as they are written to disk: on the CPU, floats as ``dtype``, labels as 64-bit integers."""
    kinds = {name: torch.int64 if name == "labels" else dtype for name in columns}
    converted = {name: column.detach().to("cpu", kinds[name]) for name, column in columns.items()}
    if dtype == torch.float16:
        for name, column in converted.items():
            _check_finite(f"{name} as float16 (largest value 65504)", column)
    return converted


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, dtypes, shapes and bytes: equal exactly when the tensors are."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check_finite(name: str, column: Tensor) -> None:
    # min and max propagate NaN and infinity, so the usual case needs no mask the size of the data
    if not column.numel() or all(torch.isfinite(end) for end in torch.aminmax(column)):
        return
    bad = torch.nonzero(~torch.isfinite(column).all(dim=1)).flatten()
    raise DataError(
        f"{name}: {len(bad)} of {len(column)} rows contain NaN or infinite values, the first is row {int(bad[0])}; "
        "check that input and the model's output for it"
    )


def _check_labels(labels: Tensor, classes: int | None) -> None:
    if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ShapeError(f"labels must be integers of shape (rows,), got {labels.dtype} {tuple(labels.shape)}")
    outside = labels < 0 if classes is None else (labels < 0) | (labels >= classes)
    bad = torch.nonzero(outside).flatten()
    if len(bad):
        first = int(bad[0])
        raise DataError(
            f"{len(bad)} of {len(labels)} labels are not classes of this model (0 to {classes and classes - 1}), "
            f"the first is {int(labels[first])} in row {first}; leave labels out for data of other classes"
        )
