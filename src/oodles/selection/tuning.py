"""Tune hyperparameters that need the network, on ID images."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from oodles.columns import fingerprint
from oodles.data.batches import BatchReader, LabelsAt, first_batches
from oodles.data.inputs import Inputs
from oodles.detectors.base import Detector
from oodles.detectors.network_detector import NetworkDetector
from oodles.errors import DataError, NotFittedError
from oodles.features import Features
from oodles.network.extraction import extract_each
from oodles.network.outputs import folder_names
from oodles.network.perturbation import FGSM_SIZE, channel_bounds, fgsm, movable
from oodles.network.taps import unwrap

MAX_IMAGES = 1000  # images used: 500 to learn from and 500 to choose by


def tune(
    detectors: Sequence[Detector],
    model: nn.Module,
    loader: Iterable[Any],
    *,
    labels: LabelsAt = True,
    max_images: int = MAX_IMAGES,
    store: Path | None = None,
    **options: Any,
) -> int:
    """Tune what ``detectors`` choose with the network at hand: the input step, how layers are combined. Fit them first.

    Uses the first ``max_images`` ID images of ``loader`` (labelled, if any detector learns against adversarial copies
    of them), and returns their number. All detectors share the passes: each input step runs once, however many need
    it. With ``store``, the features of these images and of their copies are kept in that folder, and the network does
    not run for them again. ``options`` are passed to :func:`oodles.extract`.

    >>> from oodles.detectors import ODIN
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> detector = ODIN()
    >>> tune([detector], model, [torch.rand(20, 3, 2, 2)])  # images used
    20
    >>> detector.tuned, detector.step_size in detector.grid
    (True, True)
    """
    untuned = [detector for detector in detectors if isinstance(detector, NetworkDetector) and not detector.tuned]
    if not untuned:
        return 0
    for detector in untuned:
        if detector.learns_from and detector.shape_ is None:
            raise NotFittedError(f"{detector} has not been fitted; call .fit(features) before tuning it")
    wanted = {detector: (detector.layers, detector.trials()) for detector in untuned}
    against = [detector for detector in untuned if detector.learns_against]
    # a store has the labels that there are, so that it serves any detector; else they are read if they are needed
    labelled = labels is not False and (bool(against) or store is not None)
    reader = BatchReader(unwrap(model), labels if labelled else False)
    images = _HeldOut(reader, loader, max_images, bool(against))
    options.setdefault("progress", False)
    home = None if store is None else store / "held_out"
    plain, *held_out = extract_each(model, images, [((), ()), *wanted.values()], store=home, labels=labelled, **options)
    adversarial: dict[NetworkDetector, Features] = {}
    if against and not plain.holds("labels"):
        raise DataError("adversarial copies are made from labelled images, and the loader gives no labels")
    if against:
        home = None if store is None else store / "adversarial"
        loader = _Adversarial(model, images, plain)
        options["verify"] = False  # the images were; copies of the same images may differ in their last bits
        copies = extract_each(
            model, loader, [wanted[detector] for detector in against], store=home, labels=False, **options
        )
        adversarial = dict(zip(against, copies, strict=True))
    for detector, rows in zip(untuned, held_out, strict=True):
        detector.tune(rows, adversarial.get(detector))
    return len(plain)


class _HeldOut:
    """The first images of a loader, as a loader; with ``keep`` they stay in memory, as a loader may not repeat them."""

    def __init__(self, reader: BatchReader, loader: Iterable[Any], count: int, keep: bool) -> None:
        self._reader, self._loader, self._count, self._keep = reader, loader, count, keep
        self._kept: list[tuple[Inputs, Tensor | None]] = []
        self.class_names = folder_names(loader)

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor | None]]:
        if not self._keep:
            return first_batches(self._reader, self._loader, self._count)
        self._kept = self._kept or list(first_batches(self._reader, self._loader, self._count))
        return iter(self._kept)

    def __len__(self) -> int:
        loader: Any = self._loader
        return min(len(loader), -(-self._count // loader.batch_size)) if hasattr(loader, "batch_size") else len(loader)

    def stamp(self) -> str | None:
        """The loader's stamp, if it has one, for this number of images."""
        stamp = getattr(self._loader, "stamp", lambda: None)()
        return None if stamp is None else f"{stamp} {self._count}"


class _Adversarial:
    """Held-out images after a step that raises the loss, made batch by batch while they are extracted.

    They stay within the range that each channel has over all images. ``features`` are those of the images, which have
    the labels as classes of the model.
    """

    def __init__(self, model: nn.Module, images: _HeldOut, features: Features) -> None:
        self._model, self._images, self._features = model, images, features

    def __len__(self) -> int:
        return len(self._images)

    def __iter__(self) -> Iterator[Inputs]:
        batches = [inputs for inputs, _ in self._images]
        images = [movable(inputs, "an adversarial copy") for inputs in batches]
        lows, highs = zip(*map(channel_bounds, images), strict=True)
        bounds = torch.stack(lows).amin(dim=0), torch.stack(highs).amax(dim=0)
        labels = torch.split(self._features.column("labels"), [len(inputs) for inputs in batches])
        for inputs, classes in zip(batches, labels, strict=True):
            yield fgsm(self._model, inputs, classes, bounds)

    def stamp(self) -> str:
        """Identifies the images by the network's response to them, and how they are moved."""
        known = {name: self._features.column(name) for name in ("logits", "labels")}
        return f"fgsm {FGSM_SIZE} {fingerprint(known)}"
