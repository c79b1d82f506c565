"""``Step``: a small move of the inputs along a gradient, which some detectors score after."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from oodles.columns import LAYER, Columns
from oodles.errors import ArgumentError

Objective = Callable[[Columns], Tensor]  # one number per image, which an input step lowers, from its columns


@dataclass(frozen=True, eq=False)
class Step:
    """Images moved by ``-epsilon * sign(gradient of objective)``; of the following pass the column ``keep`` is kept.

    The result becomes the column ``layer.<name>``, so the name must distinguish objective and epsilon from all others;
    ``identity`` distinguishes objectives of the same name that were learned from different rows. With ``std`` the step
    is divided by it per channel, so that epsilon is in units of raw pixels, as in ODIN's code. With ``share`` only
    that fraction of an image's values is moved, those with the smallest gradients, and with ``share=0`` the one value
    with the largest gradient. A value whose gradient is zero does not move. Steps with the same objective share its
    backward pass.
    """

    name: str
    objective: Objective
    epsilon: float
    keep: str = "logits"
    std: tuple[float, ...] = ()
    share: float = 1.0
    identity: str = ""

    @property
    def column(self) -> str:
        """The column that holds the result."""
        return LAYER + self.name

    def move(self, images: Tensor, gradient: Tensor) -> Tensor:
        """The images after the step."""
        step = gradient.sign()
        if self.share == 0:
            size = gradient.abs().flatten(1)
            step = step * torch.zeros_like(size).scatter(1, size.argmax(dim=1, keepdim=True), 1).view_as(step)
        elif self.share < 1:
            size = gradient.abs().flatten(1)
            limit = size.kthvalue(max(1, round(self.share * size.shape[1])), dim=1).values
            step = step * (size <= limit[:, None]).view_as(step)
        if self.std:
            if images.ndim < 3 or len(self.std) != images.shape[1]:
                raise ArgumentError(f"std={self.std} does not fit images of shape {tuple(images.shape[1:])}")
            step = step / step.new_tensor(self.std).view(1, -1, *(1,) * (images.ndim - 2))
        return images - self.epsilon * step


def distinct_steps(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Steps of the same name once."""
    once: dict[str, Step] = {}
    for step in steps:
        if once.setdefault(step.name, step).identity != step.identity:
            raise ArgumentError(f"two detectors fitted on different rows need the step {step.name!r}; run each alone")
    return tuple(once.values())
