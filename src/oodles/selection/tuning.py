"""``tune``: what a detector can only choose with the network at hand, from held-out ID images."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from oodles.data.batches import BatchReader, LabelsAt, first_batches
from oodles.data.inputs import Inputs
from oodles.detectors.base import Detector
from oodles.detectors.network_detector import NetworkDetector, layers_of
from oodles.errors import DataError, NotFittedError
from oodles.network.extraction import extract
from oodles.network.forward import HeadName
from oodles.network.perturbation import channel_bounds, fgsm, movable
from oodles.network.taps import unwrap
from oodles.steps import distinct_steps

MAX_IMAGES = 1000  # images used: 500 to learn from and 500 to choose by


def tune(
    detectors: Sequence[Detector],
    model: nn.Module,
    loader: Iterable[Any],
    *,
    head: HeadName = None,
    device: torch.device | str | None = None,
    labels: LabelsAt = True,
    max_images: int = MAX_IMAGES,
) -> None:
    """Choose what is still open in ``detectors``: input steps, and how layers are combined. Fit them first.

    Uses the first ``max_images`` ID images of ``loader`` (labelled, if any detector learns against adversarial copies
    of them). All detectors share the passes: each input step runs once, however many need it.
    """
    untuned = [detector for detector in detectors if isinstance(detector, NetworkDetector) and not detector.tuned]
    if not untuned:
        return
    for detector in untuned:
        if detector.learns_from and detector.shape_ is None:
            raise NotFittedError(f"{detector} has not been fitted; call .fit(features) before tuning it")
    against = any(detector.learns_against for detector in untuned)
    batches = first_batches(BatchReader(unwrap(model), labels), loader, max_images, against)
    steps = distinct_steps(step for detector in untuned for step in detector.trials())
    if steps or against:
        movable(batches[0][0], f"tuning {untuned[0].spec}")
    options: dict[str, Any] = {"head": head, "layers": layers_of(untuned), "device": device, "progress": False}
    held_out = extract(model, [inputs for inputs, _ in batches], steps=steps, labels=False, **options)
    adversarial = None
    if against:
        copies = _adversarial(model, batches, held_out.classes)
        adversarial = extract(model, copies, steps=steps, labels=False, **options)
    for detector in untuned:
        detector.tune(held_out, adversarial)


def _adversarial(model: nn.Module, batches: Sequence[tuple[Inputs, Tensor | None]], classes: int) -> list[Inputs]:
    """The same inputs after a step that raises the loss, within the range that each channel has over all batches."""
    images = [movable(inputs, "an adversarial copy") for inputs, _ in batches]
    lows, highs = zip(*(channel_bounds(part) for part in images), strict=True)
    bounds = torch.stack(lows).amin(dim=0), torch.stack(highs).amax(dim=0)
    copies = []
    for (inputs, labels), part in zip(batches, images, strict=True):
        if labels is None or labels.ndim != 1:
            raise DataError("adversarial copies are made from labelled images, and the loader gives no labels")
        bad = (labels < 0) | (labels >= classes)
        if bad.any():
            raise DataError(
                f"{int(bad.sum())} of {len(labels)} labels are not classes of this model, 0 to {classes - 1}; tune on "
                "images of the classes it was trained on"
            )
        copies.append(inputs.replace(part, fgsm(model, part, labels, bounds=bounds, inputs=inputs)))
    return copies
