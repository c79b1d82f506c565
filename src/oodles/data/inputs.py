"""``Inputs``: what a model is called with, be it one tensor, several, or keyword arguments."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from oodles.columns import dtype_name
from oodles.errors import DataError

IMAGES = "images"  # the name of an input that is given by position and alone


@dataclass(frozen=True, eq=False)
class Inputs:
    """The arguments of one call of a model.

    Tensors and packed sequences among them have one row per input, the same number in each. Numbers, text, None and
    tensors without dimensions are passed on as they are. Lists, arrays and mappings are refused, because they may have
    rows as well, and would not be split and compared with those of the tensors.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.args) == 1 and not self.kwargs and _is_plain(self.args[0]):
            return  # one tensor, as at most calls of a guard
        for name, value in self.named.items():
            if isinstance(value, Tensor) and not _is_strided(value):
                raise DataError(f"the model's {name} is a sparse or nested tensor; give a dense one")
            if _may_have_rows(value):
                raise DataError(f"the model's {name} is a {type(value).__name__}; give a tensor with one row per input")
        counts = {name: _rows(value) for name, value in self.batched.items()}
        if not counts or 0 in counts.values():
            got = describe_inputs(self.named) or "nothing"
            raise DataError(f"the model was given {got}; give at least one row of tensors")
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{name} {rows}" for name, rows in counts.items())
            raise DataError(f"the model's inputs differ in rows ({listed}); each needs one row per input")

    def __len__(self) -> int:
        return next(_rows(value) for value in (*self.args, *self.kwargs.values()) if _is_batched(value))

    def __call__(self, model: Callable[..., Any]) -> Any:
        """The model's output."""
        return model(*self.args, **self.kwargs)

    @cached_property
    def named(self) -> dict[str, Any]:
        """Every argument by its name, those given by position as ``images``, ``input 1``, ``input 2``, ..."""
        first = "input 0" if IMAGES in self.kwargs else IMAGES
        by_position = {(f"input {place}" if place else first): value for place, value in enumerate(self.args)}
        return by_position | dict(self.kwargs)

    @cached_property
    def batched(self) -> dict[str, Tensor | PackedSequence]:
        """The arguments that have one row per input."""
        return {name: value for name, value in self.named.items() if _is_batched(value)}

    def tensors(self) -> dict[str, Tensor]:
        """The same as plain tensors, a packed sequence as its parts."""
        found: dict[str, Tensor] = {}
        for name, value in self.batched.items():
            if isinstance(value, Tensor):
                found[name] = value
            else:
                parts = {"data": value.data, "sizes": value.batch_sizes, "order": value.sorted_indices}
                found |= {f"{name}.{part}": tensor for part, tensor in parts.items() if tensor is not None}
        return found

    def floating(self) -> dict[str, Tensor]:
        """The floating-point tensors among the arguments."""
        return {
            name: value
            for name, value in self.batched.items()
            if isinstance(value, Tensor) and value.is_floating_point()
        }

    def map(self, function: Callable[[Any], Any]) -> "Inputs":
        """The same call with ``function`` applied to every argument that has rows."""
        args = tuple(function(value) if _is_batched(value) else value for value in self.args)
        return Inputs(args, {name: function(v) if _is_batched(v) else v for name, v in self.kwargs.items()})

    def replace(self, old: Tensor, new: Tensor) -> "Inputs":
        """The same call with one tensor replaced."""
        return self.map(lambda value: new if value is old else value)

    def to(self, device: torch.device) -> "Inputs":
        """The same call on another device."""
        if device.type != "meta" and any(value.is_meta for value in self.tensors().values()):
            raise DataError("the model was given a tensor on the meta device, which holds no numbers; give the numbers")
        return self.map(lambda value: value.to(device, non_blocking=True))

    def take(self, rows: Sequence[int]) -> "Inputs":
        """The call for some rows only, in the given order."""
        return self.map(lambda value: _take(value, torch.tensor(rows)))

    def split(self, size: int) -> list["Inputs"]:
        """Calls for at most ``size`` consecutive rows each."""
        if len(self) <= size:
            return [self]
        starts = range(0, len(self), size)
        return [self.map(partial(_span, start=start, stop=min(start + size, len(self)))) for start in starts]


def describe_inputs(arguments: Mapping[str, Any]) -> str:
    """Arguments in words, for messages: names, types and shapes."""
    shown = (
        f"{name} ({dtype_name(value.dtype)} {tuple(value.shape)})"
        if isinstance(value, Tensor)
        else f"{name} ({type(value).__name__})"
        for name, value in arguments.items()
    )
    return ", ".join(shown)


def _is_plain(value: Any) -> bool:
    return isinstance(value, Tensor) and _is_strided(value) and any(value.shape[:1])


def _is_strided(value: Tensor) -> bool:
    return value.layout is torch.strided and not value.is_nested


def _is_batched(value: Any) -> bool:
    return (isinstance(value, Tensor) and value.ndim > 0) or isinstance(value, PackedSequence)


def _may_have_rows(value: Any) -> bool:
    if isinstance(value, tuple) and not isinstance(value, PackedSequence):
        return not all(isinstance(each, int | float) for each in value)  # else it is a size or the like
    return isinstance(value, list | Mapping | np.ndarray)


def _rows(value: Tensor | PackedSequence) -> int:
    return int(value.batch_sizes[0]) if isinstance(value, PackedSequence) else len(value)


def _span(value: Tensor | PackedSequence, start: int, stop: int) -> Tensor | PackedSequence:
    return value[start:stop] if isinstance(value, Tensor) else _take(value, torch.arange(start, stop))


def _take(value: Tensor | PackedSequence, rows: Tensor) -> Tensor | PackedSequence:
    if isinstance(value, Tensor):
        return value[rows.to(value.device)]
    padded, lengths = pad_packed_sequence(value, batch_first=True)
    return pack_padded_sequence(padded[rows], lengths[rows], batch_first=True, enforce_sorted=False)
