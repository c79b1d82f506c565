"""``tune``: what a detector can only choose with the network at hand, from held-out ID images."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from oodles.data.batches import first_images
from oodles.detectors.base import Detector
from oodles.detectors.network_detector import NetworkDetector, layers_of
from oodles.errors import DataError, NotFittedError
from oodles.features import distinct_steps
from oodles.network.extraction import extract
from oodles.network.forward import HeadName
from oodles.network.perturbation import channel_bounds, fgsm

MAX_IMAGES = 1000  # images used: 500 to learn from and 500 to choose by


def tune(
    detectors: Sequence[Detector],
    model: nn.Module,
    loader: Iterable[Any],
    *,
    head: HeadName = None,
    device: torch.device | str | None = None,
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
    images, labels = first_images(loader, max_images, against)
    if against and labels is None:
        raise DataError("adversarial copies are made from labelled images, and the loader gives no labels")
    steps = distinct_steps(step for detector in untuned for step in detector.trials())
    options: dict[str, Any] = {"head": head, "layers": layers_of(untuned), "device": device, "progress": False}
    held_out = extract(model, [images], steps=steps, labels=False, **options)
    adversarial = None
    if against and labels is not None:
        bad = (labels < 0) | (labels >= held_out.classes)
        if bad.any():
            raise DataError(
                f"{int(bad.sum())} of {len(labels)} labels are not classes of this model, 0 to {held_out.classes - 1}; "
                "tune on images of the classes it was trained on"
            )
        copies = fgsm(model, images, labels, bounds=channel_bounds(images))
        adversarial = extract(model, [copies], steps=steps, labels=False, **options)
    for detector in untuned:
        detector.tune(held_out, adversarial)
