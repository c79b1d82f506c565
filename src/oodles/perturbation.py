"""Input-gradient passes: images moved a small step against the sign of a gradient, and what the network says then."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oodles.errors import ArgumentError, HeadError
from oodles.features import LAYER
from oodles.store import Columns
from oodles.tap import at_rest, unwrap
from oodles.view import CPU_ROWS, View

Objective = Callable[[Columns], Tensor]
"""One number an image, which a step lowers, from ``embedding``, ``logits`` and ``layer.<name>``."""


@dataclass(frozen=True, eq=False)
class Step:
    """Images moved by ``-epsilon * sign(gradient of objective)``; of the pass that follows, ``keep`` is kept.

    It becomes the column ``layer.<name>``, so the name must tell objective and epsilon from all others;
    ``identity`` tells apart objectives of one name that were learned from different rows. With
    ``std`` the step is divided by it per channel, so that epsilon counts in raw pixels, as ODIN's authors have
    it. With ``share`` only that share of an image's values is moved, those of smallest gradient. A value
    without any gradient stays. Steps that share an objective share its backward pass.
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
        """Where what is kept can be found again."""
        return LAYER + self.name

    def move(self, images: Tensor, gradient: Tensor) -> Tensor:
        """The images after the step."""
        step = gradient.sign()
        if self.share < 1:
            size = gradient.abs().flatten(1)
            limit = size.kthvalue(max(1, round(self.share * size.shape[1])), dim=1).values
            step = step * (size <= limit[:, None]).view_as(step)
        if self.std:
            if images.ndim < 3 or len(self.std) != images.shape[1]:
                raise ArgumentError(f"std={self.std} does not fit images of shape {tuple(images.shape[1:])}")
            step = step / step.new_tensor(self.std).view(1, -1, *(1,) * (images.ndim - 2))
        return images - self.epsilon * step


def distinct(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Steps of the same name once."""
    once: dict[str, Step] = {}
    for step in steps:
        if once.setdefault(step.name, step).identity != step.identity:
            raise ArgumentError(
                f"two detectors fitted on different rows both ask for the step {step.name!r}; run them apart"
            )
    return tuple(once.values())


def look_with(view: View, images: Tensor, steps: Sequence[Step]) -> Columns:
    """One pass over the images, and one more for each step; only objectives cost a backward pass."""
    if not steps:
        return view.look(images)
    objectives = dict.fromkeys(step.objective for step in steps)
    columns, gradients = _gradients(view, images, objectives)
    columns = {name: column.detach() for name, column in columns.items()}
    for step in steps:
        after = view.look(step.move(images, gradients[step.objective]))
        columns[step.column] = after[step.keep]
    return columns


def perturb(
    model: nn.Module,
    images: Tensor,
    objective: Objective,
    epsilon: float,
    *,
    std: Sequence[float] = (),
    layer: str | Literal[False] | None = None,
    layers: Sequence[str] = (),
    rows: int | None = None,
) -> Tensor:
    """``images`` moved by ``-epsilon * sign(gradient of objective)``, in eval mode, batch by batch.

    ``objective`` sees ``embedding``, ``logits`` and ``layer.<name>`` for each of ``layers``, and gives one
    number an image. With ``std`` the step is divided by it per channel. The model's parameters, their
    ``.grad``, its flags and hooks are left as they were.
    """
    step = Step("", objective, epsilon, std=tuple(std))
    with at_rest(model) as device:
        view = View(unwrap(model), layer, layers)
        moved = [
            step.move(part, _gradients(view, part, [objective])[1][objective])
            for part in view.pieces(images.to(device), rows)
        ]
    return torch.cat(moved).to(images.device)


def fgsm(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    size: float = 0.05,
    bounds: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Adversarial images: ``size`` up the sign of the loss's gradient (Goodfellow et al., ICLR 2015).

    They are kept inside ``bounds``: by default each channel's own smallest and largest value among ``images``.
    """
    low, high = channel_bounds(images) if bounds is None else bounds
    adversarial = []
    for part, truth in zip(torch.split(images, CPU_ROWS), torch.split(labels, CPU_ROWS), strict=True):
        moved = perturb(model, part, _loss(truth), -size, layer=False)
        adversarial.append(torch.maximum(torch.minimum(moved, high), low))
    return torch.cat(adversarial)


def channel_bounds(images: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value of each channel, shaped to be compared with images."""
    others = [axis for axis in range(images.ndim) if axis != 1]
    return images.amin(dim=others, keepdim=True), images.amax(dim=others, keepdim=True)


def _loss(labels: Tensor) -> Objective:
    return lambda columns: F.cross_entropy(columns["logits"], labels.to(columns["logits"].device), reduction="none")


def _gradients(view: View, images: Tensor, objectives: Iterable[Objective]) -> tuple[Columns, dict[Objective, Tensor]]:
    """What the network says of the images, and each objective's gradient by them; nothing else is given one."""
    if not images.is_floating_point():
        raise ArgumentError(f"an input step needs images of floating numbers, got {images.dtype}; normalise them first")
    wanted = list(objectives)
    with torch.no_grad():
        view.find(images)  # the search for the last layer needs no gradients
    gradients: dict[Objective, Tensor] = {}
    # a caller's inference mode would record nothing, and its tensors cannot be differentiated by
    with torch.inference_mode(False), torch.enable_grad():
        leaf = (images.clone() if images.is_inference() else images.detach()).requires_grad_()
        columns = view.look(leaf)
        for objective in wanted:
            total = objective(columns).sum()
            gradient = None
            if total.requires_grad:
                last = objective is wanted[-1]
                (gradient,) = torch.autograd.grad(total, leaf, retain_graph=not last, allow_unused=True)
            if gradient is None:
                raise HeadError(
                    f"{type(view.network).__name__} passes no gradient on to its input, which an input step needs; "
                    "is part of it under no_grad?"
                )
            gradients[objective] = gradient
    return columns, gradients
