"""``tune``: what a detector can only decide with the network at hand, from held-out ID images."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import nn

from oodles.detectors import Detector
from oodles.errors import DataError, NotFittedError
from oodles.extraction import extract, first_images
from oodles.perturbation import Step, channel_bounds, distinct, fgsm

ROWS = 1000
"""Images looked at: 500 to learn from and 500 to choose by."""


def tune(
    detectors: Sequence[Detector],
    model: nn.Module,
    loader: Iterable[Any],
    *,
    layer: str | Literal[False] | None = None,
    device: torch.device | str | None = None,
    rows: int = ROWS,
) -> None:
    """Settle what is open in ``detectors``: input steps, and how layers are joined. Fit them first.

    Takes the first ``rows`` ID images of ``loader`` (labelled, if any detector learns against adversarial copies of
    them). All detectors share the passes: each input step is run once, whoever asked for it.
    """
    open_ones = [detector for detector in detectors if not detector.tuned]
    if not open_ones:
        return
    for detector in open_ones:
        if detector.learns_from and detector.shape_ is None:
            raise NotFittedError(f"{detector} has not been fitted; call .fit(features) before it is tuned")
    against = any(detector.learns_against for detector in open_ones)
    images, labels = first_images(loader, rows, against)
    if against and labels is None:
        raise DataError("adversarial copies are made from labelled images, and the loader gives no labels")
    steps = distinct(step for detector in open_ones for step in detector.trials())
    options: dict[str, Any] = {"layer": layer, "layers": layers_of(open_ones), "device": device, "progress": False}
    held_out = extract(model, [images], steps=steps, labels=False, **options)
    adversarial = None
    if against and labels is not None:
        bad = (labels < 0) | (labels >= held_out.classes)
        if bad.any():
            raise DataError(
                f"{int(bad.sum())} of {len(labels)} labels are no classes of this model (0 to {held_out.classes - 1}); "
                "tune on images of the classes it was trained on"
            )
        copies = fgsm(model, images, labels, bounds=channel_bounds(images))
        adversarial = extract(model, [copies], steps=steps, labels=False, **options)
    for detector in open_ones:
        detector.tune(held_out, adversarial)


def layers_of(detectors: Iterable[Detector]) -> tuple[str, ...]:
    """The inner layers any of the detectors looks at, each once."""
    return tuple(dict.fromkeys(name for detector in detectors for name in detector.layers))


def steps_of(detectors: Iterable[Detector]) -> tuple[Step, ...]:
    """The input steps any of the detectors scores after, each once."""
    return distinct(step for detector in detectors for step in detector.steps())
