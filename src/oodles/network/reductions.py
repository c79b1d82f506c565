"""What is kept of an inner layer's output: its mean over positions, or what a detector needs of the whole map.

A layer is named ``module`` or ``module:steps``. The steps are ``relu``, for a network that applies it as a function
after the module, and one reduction: ``layer4``, ``bn1:relu``, ``layer4:rankfeat``, ``bn1:relu+gram(5)``.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from oodles.errors import ArgumentError, HeadError
from oodles.functional import gram_row_sums, without_first_component
from oodles.records.calls import read_call, read_expression

KNOWN = "relu, rankfeat and gram(orders), e.g. 'layer4:rankfeat' or 'bn1:relu+gram(5)'"
MAX_ORDERS = 10

Reduction = Callable[[Tensor], Tensor]
"""Maps ``(n, channels, positions)`` to one vector per row."""


@dataclass(frozen=True)
class Layer:
    """An inner layer: the name of its module, and what is kept of the module's output."""

    name: str
    module: str
    relu: bool = False
    reduction: Reduction | None = None

    def __call__(self, output: object) -> Tensor:
        """One vector per row of feature maps ``(n, c, h, w)``, token sequences ``(n, t, c)`` or vectors ``(n, c)``."""
        if isinstance(output, tuple | list) and output:
            output = output[0]  # transformer blocks return the hidden states first
        if not isinstance(output, Tensor) or output.ndim not in (2, 3, 4):
            shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise HeadError(
                f"layer {self.name} returns {shape}; only feature maps, token sequences and vectors can be pooled"
            )
        if self.relu:
            output = output.relu()
        if self.reduction is None:
            return output if output.ndim == 2 else output.mean(dim=1 if output.ndim == 3 else (2, 3))
        maps = output.mT if output.ndim == 3 else output.flatten(2) if output.ndim == 4 else output[:, :, None]
        try:
            # in float32 at least: products of half-precision values would overflow
            with torch.autocast(maps.device.type, enabled=False):
                return self.reduction(maps.float() if maps.dtype in (torch.float16, torch.bfloat16) else maps)
        except ValueError as error:
            raise HeadError(f"layer {self.name}: {error}") from None


def read_layer(name: str, modules: Container[str], network: str) -> Layer:
    """The layer of that name in a network with these modules.

    >>> read_layer("bn1:relu", {"bn1"}, "DenseNet").relu
    True
    """
    if name in modules:
        return Layer(name, name)
    module, colon, text = name.rpartition(":")
    if not colon or module not in modules:
        raise ArgumentError(
            f"layers= names {module or name!r}, which is not a module of {network}; see model.named_modules()"
        )
    steps = text.split("+")
    relu = steps[0].strip() == "relu"
    if relu:
        steps.pop(0)
    if not steps:
        return Layer(name, module, relu)
    if len(steps) > 1:
        raise ArgumentError(f"layers= names {name!r}, which has more than relu and one reduction; there are {KNOWN}")
    return Layer(name, module, relu, _read_reduction(name, steps[0]))


def _read_reduction(name: str, text: str) -> Reduction:
    try:
        word, values, named = read_call(read_expression(text))
    except ValueError:
        word, values, named = "", [], {}
    if word == "rankfeat" and not values and not named:
        return _rankfeat
    if word == "gram":
        if not named and len(values) == 1 and type(values[0]) is int and 1 <= values[0] <= MAX_ORDERS:
            return partial(gram_row_sums, orders=values[0])
        raise ArgumentError(f"layers= names {name!r}; write gram(orders) with a whole number from 1 to {MAX_ORDERS}")
    raise ArgumentError(f"layers= names {name!r}, but there is no reduction {text!r}; there are {KNOWN}")


def _rankfeat(maps: Tensor) -> Tensor:
    if maps.shape[2] == 1:
        raise ValueError("its maps have one position, and without their first singular component nothing is left")
    return without_first_component(maps)
