"""Input steps: inputs moved a small step against the sign of a gradient, and the network's response."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oodles.columns import Columns
from oodles.data.inputs import Inputs, describe_inputs
from oodles.errors import ArgumentError, HeadError
from oodles.network.forward import CPU_ROWS, ForwardPass, Pass
from oodles.network.taps import eval_mode, unwrap
from oodles.steps import Objective, Step

FGSM_SIZE = 0.05


def run_with_steps(forward: ForwardPass, inputs: Inputs, steps: Sequence[Step]) -> Pass:
    """One pass over the inputs and one more per step; each distinct objective costs one backward pass."""
    if not steps:
        return forward.run(inputs)
    objectives = dict.fromkeys(step.objective for step in steps)
    images = movable(inputs, f"the input step {steps[0].name}")
    first, gradients = _gradients(forward, inputs, images, objectives)
    columns = {name: column.detach() for name, column in first.columns.items()}
    for step in steps:
        moved = step.move(images, gradients[step.objective])
        after = forward.run(inputs.replace(images, moved)).columns
        columns[step.column] = after[step.keep]
    return Pass(first.output.detach(), columns)


def fgsm(model: nn.Module, inputs: Inputs, labels: Tensor, bounds: tuple[Tensor, Tensor]) -> Inputs:
    """Return adversarial inputs, moved along the sign of the gradient of the loss (Goodfellow et al., ICLR 2015).

    They are clamped to ``bounds``, see :func:`channel_bounds`. The model's parameters, their ``.grad``, its training
    flags and hooks are left as they were.
    """
    images = movable(inputs, "an adversarial copy")
    adversarial = []
    with eval_mode(model) as device:
        forward = ForwardPass(unwrap(model), head=False)
        pieces = forward.pieces(inputs.to(device), CPU_ROWS)
        for piece, classes in zip(pieces, torch.split(labels.to(device), CPU_ROWS), strict=True):

            def loss(columns: Columns, classes: Tensor = classes) -> Tensor:
                return F.cross_entropy(columns["logits"], classes, reduction="none")

            part = movable(piece, "an adversarial copy")
            _, gradients = _gradients(forward, piece, part, [loss])
            adversarial.append(Step("", loss, -FGSM_SIZE).move(part, gradients[loss]))
        moved = torch.empty_like(images).copy_(torch.cat(adversarial))  # in their memory layout and on their device
        return inputs.replace(images, torch.clamp(moved, *bounds))


def channel_bounds(images: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value of each channel, in a shape that broadcasts against images."""
    others = [axis for axis in range(images.ndim) if axis != 1]
    return images.amin(dim=others, keepdim=True), images.amax(dim=others, keepdim=True)


def movable(inputs: Inputs, what: str) -> Tensor:
    """The one input that a gradient step can move; integers, such as token ids, and several inputs are refused."""
    floating = list(inputs.floating().values())
    first = next(iter(inputs.batched.values()))
    # a floating-point mask beside token ids is not what a step should move
    if len(floating) != 1 or floating[0] is not first:
        several = "several floating-point inputs" if len(floating) > 1 else "an integer input first"
        count = several if floating else "no floating-point input"
        raise ArgumentError(
            f"{what} moves one floating-point input, and the model takes {count}: {describe_inputs(inputs.named)}; "
            "use a detector without input steps"
        )
    return floating[0]


def _gradients(
    forward: ForwardPass, inputs: Inputs, images: Tensor, objectives: Iterable[Objective]
) -> tuple[Pass, dict[Objective, Tensor]]:
    """The network's response to the inputs, and each objective's gradient with respect to ``images`` among them."""
    wanted = list(objectives)
    with torch.no_grad():
        forward.find_head(inputs)  # the search for the last layer needs no gradients
    gradients: dict[Objective, Tensor] = {}
    # a caller's inference mode would record nothing, and tensors made in it cannot be differentiated
    with torch.inference_mode(False), torch.enable_grad():
        leaf = (images.clone() if images.is_inference() else images.detach()).requires_grad_()
        first = forward.run(inputs.replace(images, leaf))
        for objective in wanted:
            total = objective(first.columns).sum()
            gradient = None
            if total.requires_grad:
                last = objective is wanted[-1]
                (gradient,) = torch.autograd.grad(total, leaf, retain_graph=not last, allow_unused=True)
            if gradient is None:
                raise HeadError(
                    f"{type(forward.network).__name__} passes no gradient to its input, which an input step needs; "
                    "is part of it under no_grad?"
                )
            gradients[objective] = gradient
    return first, gradients
