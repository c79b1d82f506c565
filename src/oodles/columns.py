"""Named columns of tensors, one row per image: blocks of rows, validation, storage form and fingerprint."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from oodles.errors import ArgumentError, DataError, ShapeError
from oodles.records.text import one_line

Columns = dict[str, Tensor]
"""Tensors by column name: ``embedding``, ``logits``, ``labels`` and ``layer.<name>``, one row per image."""

LOGITS_TOLERANCE = 2e-2  # of the largest logit; half precision stays below it
LAYER = "layer."  # prefix of the columns that hold activations of inner layers, and what is kept after an input step
PRECISIONS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class Block(Protocol):
    """Some rows: tensors in memory, or a shard that is memory-mapped when its rows are used."""

    @property
    def rows(self) -> int: ...  # noqa: D102

    def columns(self) -> Columns: ...  # noqa: D102


@dataclass(frozen=True, eq=False)
class InMemory:
    """Rows as tensors."""

    rows: int
    tensors: Columns

    def columns(self) -> Columns:  # noqa: D102
        return self.tensors


@dataclass(frozen=True, eq=False)
class Gathered:
    """Some rows of another block, copied out of it each time they are used and not kept."""

    block: Block
    index: Tensor

    @property
    def rows(self) -> int:  # noqa: D102
        return len(self.index)

    def columns(self) -> Columns:  # noqa: D102
        return {name: column[self.index] for name, column in self.block.columns().items()}


def as_tensor(name: str, values: Any) -> Tensor:
    """A tensor from a tensor, an array or nested lists; one without plain numbers in memory is refused."""
    try:
        tensor = torch.as_tensor(native(values))
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{name} cannot be read as numbers ({one_line(error)}); give a tensor or an array") from None
    if not is_dense(tensor):
        raise DataError(f"{name} is sparse, nested or on the meta device; give a dense tensor")
    return tensor


def native(values: Any) -> Any:
    """Return the same, but a copy of an array that torch cannot use: one in reverse, or with bytes in another order."""
    usable = not isinstance(values, np.ndarray) or (values.dtype.isnative and min(values.strides, default=0) >= 0)
    return values if usable else values.astype(values.dtype.newbyteorder("="), order="C")


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor has its numbers in memory, one after another: it is not sparse, nested or on meta."""
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_meta


def check_precision(dtype: torch.dtype | None) -> None:
    """Raise unless features can be kept in this type."""
    if dtype is not None and dtype not in PRECISIONS:
        raise ArgumentError(f"dtype={dtype} cannot hold features; choose one of {', '.join(map(str, PRECISIONS))}")


def check_columns(columns: Columns, head_shape: tuple[int, int] | None) -> None:
    """Raise unless row counts match, widths fit the head ``(C, m)``, values are finite and labels are valid classes."""
    if "embedding" not in columns and "logits" not in columns:
        raise DataError("features need an embedding or logits, and got neither; give one of them")
    rows = {name: column.shape[0] if column.ndim else 0 for name, column in columns.items()}
    if len(set(rows.values())) > 1:
        counts = ", ".join(f"{name} {n}" for name, n in rows.items())
        raise ShapeError(f"columns differ in rows: {counts}; give each of them one row per input")
    if 0 in rows.values():
        raise DataError("features have no rows; is the loader empty?")
    for name, column in columns.items():
        if name == "labels":
            continue
        if column.ndim != 2 or column.dtype not in PRECISIONS:
            kind = f"{column.dtype} of shape {tuple(column.shape)}"
            raise ShapeError(
                f"{name} must be a floating-point tensor of 16, 32 or 64 bits and of shape (rows, width), got {kind}"
            )
        _check_finite(name, column)
    classes = head_shape[0] if head_shape else columns["logits"].shape[1] if "logits" in columns else None
    for name, want in zip(("logits", "embedding"), head_shape or (), strict=False):
        if name in columns and columns[name].shape[1] != want:
            raise ShapeError(
                f"{name} has width {columns[name].shape[1]}, but the head needs {want}; are both from one model?"
            )
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


def check_some_good(inputs: int, bad: Sequence[int]) -> None:
    """Raise if every input is bad."""
    if len(bad) == inputs:
        raise DataError(f"all {inputs} inputs give NaN or infinite values; check the model and the preprocessing")


def check_same_columns(first: Columns, other: Columns) -> None:
    """Raise unless both have the same columns of the same widths."""
    if first.keys() != other.keys():
        differing = ", ".join(sorted(first.keys() ^ other.keys()))
        raise DataError(f"some batches have {differing} and some do not; all batches must have the same parts")
    for name, column in first.items():
        if column.shape[1:] != other[name].shape[1:]:
            widths = f"{tuple(column.shape[1:])} and {tuple(other[name].shape[1:])}"
            raise DataError(f"{name} has different widths in different batches, {widths}; is it per input?")


def as_stored(columns: Columns, dtype: torch.dtype) -> Columns:
    """Columns on the CPU, floats as ``dtype`` and labels as 64-bit integers."""
    kinds = {name: torch.int64 if name == "labels" else dtype for name in columns}
    return {name: column.detach().to("cpu", kinds[name]) for name, column in columns.items()}


def to_storage(columns: Columns, dtype: torch.dtype) -> Columns:
    """Columns as they are written to disk; numbers too large for ``dtype`` are an error."""
    converted = as_stored(columns, dtype)
    for name, column in converted.items():
        if torch.promote_types(columns[name].dtype, column.dtype) != column.dtype:
            _check_finite(f"{name} as {dtype_name(dtype)} (largest value {torch.finfo(dtype).max:.6g})", column)
    return converted


def dtype_name(dtype: torch.dtype) -> str:
    """The name without its module, as in ``float32``."""
    return str(dtype).removeprefix("torch.")


def rows_not_finite(columns: Columns) -> list[int]:
    """The numbers of the rows in which a column other than the labels has NaN or infinite values."""
    values = [column for name, column in columns.items() if name != "labels" and not is_finite(column)]
    bad = [~torch.isfinite(column).all(dim=1) for column in values]
    return torch.stack(bad).any(dim=0).nonzero().flatten().tolist() if bad else []


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, dtypes, shapes and bytes: equal exactly when the tensors are."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def is_finite(column: Tensor) -> bool:
    """Whether no value is NaN or infinite."""
    # min and max propagate NaN and infinity, so the usual case needs no mask the size of the data
    return not column.numel() or all(torch.isfinite(end) for end in torch.aminmax(column))


def _check_finite(name: str, column: Tensor) -> None:
    if is_finite(column):
        return
    bad = torch.nonzero(~torch.isfinite(column).all(dim=1)).flatten()
    raise DataError(
        f"{name}: {len(bad)} of {len(column)} rows contain NaN or infinite values, the first is row {int(bad[0])}; "
        "check that input and the model's output for it"
    )


def _check_labels(labels: Tensor, classes: int | None) -> None:
    if labels.ndim != 1 or labels.dtype not in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        got = f"{labels.dtype} {tuple(labels.shape)}"
        raise ShapeError(f"labels must be integers of shape (rows,), got {got}; convert them with labels.long()")
    labels = labels.long()  # a small type cannot be compared with a large number of classes
    outside = labels < 0 if classes is None else (labels < 0) | (labels >= classes)
    bad = torch.nonzero(outside).flatten()
    if len(bad):
        first = int(bad[0])
        raise DataError(
            f"{len(bad)} of {len(labels)} labels are not classes of this model (0 to {classes and classes - 1}), "
            f"the first is {int(labels[first])} in row {first}; leave labels out for data of other classes"
        )
