"""The functions of PyTorch that may be a network's last layer, and what their arguments mean."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

CONVOLUTIONS = ("conv2d", "conv3d")
Operands = tuple[str, int, Tensor, Tensor, Tensor | None]
"""The operation, the position of the input among its arguments, input, weight ``(C, m)`` and bias."""


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Operands:  # noqa: A002
    return "linear", 0, input, weight, bias


def _matmul(input: Tensor, other: Tensor | None = None, *, mat2: Tensor | None = None) -> Operands | None:  # noqa: A002
    right = other if other is not None else mat2
    if right is None or right.ndim != 2 or input.ndim < 2:
        return None
    return "matmul", 0, input, right.T, None


def _addmm(input: Tensor, mat1: Tensor, mat2: Tensor, **scales: float) -> Operands | None:  # noqa: A002
    plain = all(scale == 1 for scale in scales.values())
    return ("addmm", 1, mat1, mat2.T, input) if plain and input.ndim == 1 else None


def _cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Operands | None:
    """Rows ``(n, 1, m)`` against classes ``(1, C, m)`` or ``(C, m)``, in either order."""
    for position, (rows, classes) in enumerate(((x1, x2), (x2, x1))):
        last = max(rows.ndim, classes.ndim) - 1
        if rows.ndim == 3 and rows.shape[1] == 1 and classes.shape[:-2].numel() == 1 and dim in (-1, last):
            return "cosine_similarity", position, rows, F.normalize(classes.reshape(-1, classes.shape[-1])), None
    return None


def _einsum(equation: object, *factors: Any) -> Operands | None:
    """``nd,cd->nc`` and ``nd,dc->nc``, whatever the letters."""
    if not isinstance(equation, str) or len(factors) != 2 or any(factor.ndim != 2 for factor in factors):
        return None
    left, _, result = equation.replace(" ", "").partition("->")
    rows, _, classes = left.partition(",")
    if len(rows) != 2 or len(classes) != 2 or not set(rows) & set(classes):
        return None
    shared = next(letter for letter in rows if letter in classes)
    if rows[1] != shared or result != rows[0] + classes.replace(shared, ""):
        return None
    return "einsum", 1, factors[0], factors[1] if classes[1] == shared else factors[1].T, None


def _convolution(input: Tensor, weight: Tensor, bias: Tensor | None = None, *_: Any, **__: Any) -> Operands | None:  # noqa: A002
    covers = weight.shape[2:] == input.shape[2:]
    if input.ndim != weight.ndim or weight.shape[1] != input.shape[1] or not (weight.shape[2:].numel() == 1 or covers):
        return None
    return f"conv{input.ndim - 2}d", 0, input, weight.flatten(1), bias


LINEAR: dict[Any, Callable[..., Operands | None]] = {
    F.linear: _linear,
    torch.matmul: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.Tensor.__matmul__: _matmul,
    torch.mm: _matmul,
    torch.Tensor.mm: _matmul,
    torch.addmm: _addmm,
    torch.Tensor.addmm: _addmm,
    F.conv2d: _convolution,
    F.conv3d: _convolution,
    F.cosine_similarity: _cosine_similarity,
    torch.einsum: _einsum,
}

NON_AFFINE: dict[Any, str] = {
    F.cosine_similarity: "a cosine head of an unknown form",
    torch.cdist: "a prototype head (distances to class centres)",
}


def operands(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operands | None:
    """What a call computes with if it is a linear operation ``input @ weight.T + bias``; None if it is not."""
    read = LINEAR.get(func)
    return None if read is None else read(*args, **kwargs)
