"""``Guard``: a model, a detector and a threshold as one module that answers and says when not to trust it."""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from oodles.calibration import Threshold, calibrate, keep_apart
from oodles.detectors import Detector, default_detector, load_detector
from oodles.detectors.base import KIND as DETECTOR_KIND
from oodles.detectors.base import RECORD as DETECTOR_RECORD
from oodles.detectors.base import SCHEMA as DETECTOR_SCHEMA
from oodles.errors import ArgumentError, DataError, FileError, HeadError, ShapeError
from oodles.extraction import extract, model_fingerprint
from oodles.features import LAYER
from oodles.files import Record, read_record, write_record
from oodles.perturbation import look_with
from oodles.tap import logits_of, unwrap
from oodles.tuning import tune
from oodles.view import View

KIND = "guard"
SCHEMA = 1
RECORD = "guard.json"

Layer = str | Literal[False] | None


class Verdict(NamedTuple):
    """What a guard says of a batch: the model's logits untouched, its label, the score, the decision."""

    logits: Tensor
    label: Tensor
    score: Tensor
    is_id: Tensor


class Guard(nn.Module):
    """Runs the model once and gives its logits bit for bit, the label, the score and ``is_id``.

    The model is kept in eval mode. Its last layer is found at the first batch; give the ``layer`` that
    ``extract`` was given, if any. It must have the width the detector was fitted on. ``is_id`` is
    ``score >= threshold``, and the score of an input whose embedding or logits are not finite is NaN, so
    such an input is never in-distribution.
    """

    def __init__(self, model: nn.Module, detector: Detector, threshold: Threshold, *, layer: Layer = None) -> None:
        super().__init__()
        detector.require_fitted()
        if layer is False and detector.needs_head:
            raise ArgumentError(f"{detector} scores embeddings, so layer=False leaves it nothing to look at")
        if not isinstance(threshold, Threshold):
            raise ArgumentError(f"threshold={threshold!r} is no Threshold; make one with calibrate(id_scores)")
        self.model = model
        self.detector = detector
        self.threshold = threshold
        self.layer: Layer = layer
        self._view: View | None = None
        self.prepared: Record | None = None
        self.eval()

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode: a guard serves, it does not train."""
        return super().train(False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moved to another device or precision, the last layer has to be looked at anew."""
        self._view = None
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call,no-any-return]

    @torch.no_grad()
    def forward(self, images: Tensor) -> Verdict:
        """Label, score and decision of each image from one forward pass, and those of the detector's input steps."""
        if len(images) == 0:
            raise DataError("a guard was given no image; give at least one")
        if self.model.training:
            self.model.eval()
        view = self._looking(images)
        output, entering, pooled = view.find(images)(images)
        logits = own = logits_of(output)
        embedding = logits.new_empty(len(logits), 0)
        if view.located is not None:
            embedding = view.located.embedding(entering)
            own = view.located.logits(embedding, logits) if view.located.finish else logits
        others = {LAYER + name: activation for name, activation in pooled.items()}
        steps = self.detector.steps()
        if steps:
            others = look_with(view, images, steps)
        columns = [embedding, own, *(others[name] for name in self.detector.extras)]
        # scores are made where and as the detector learned them, whatever device and precision the model runs in
        like = next((buffer for buffer in self.detector.buffers() if buffer.is_floating_point()), embedding.float())
        with torch.autocast(logits.device.type, enabled=False):
            score = self.detector(*(column.to(like) for column in columns)).to(logits.device)
        # a clip would turn an infinite activation into an ordinary one, and +inf would pass every threshold
        sound = torch.stack([torch.isfinite(column).all(dim=1) for column in columns]).all(dim=0)
        score = torch.where(sound, score, torch.nan)
        return Verdict(logits, logits.argmax(dim=-1), score, self.threshold.is_id(score))

    def _looking(self, images: Tensor) -> View:
        """How the model is looked at: the last layer is found once, and left alone where the detector needs none."""
        if self._view is not None:
            return self._view
        network = unwrap(self.model)
        view = View(network, self.layer, self.detector.layers)
        try:
            view.find(images)
        except HeadError:
            if self.detector.needs_head:
                raise
            view = View(network, False, self.detector.layers)
        shape = self.detector.shape_
        if shape is not None and view.located is not None:
            seen = [view.located.head.width, view.located.head.classes]
            if shape.tolist() != seen:
                raise ShapeError(
                    f"{self.detector} was fitted on (width, classes) {tuple(shape.tolist())}, this model has "
                    f"{tuple(seen)}; fit it on this model's features"
                )
        self._view = view
        return view

    def save(self, path: str | Path) -> None:
        """Write detector and threshold to the folder ``path``; the model itself stays with you.

        A fingerprint of the model's weights is kept, so the guard can only be put back on that model.
        """
        model = model_fingerprint(self.model)
        save_guard(Path(path), self.detector, self.threshold, model, self.layer, self.prepared)

    @classmethod
    def load(cls, path: str | Path, model: nn.Module) -> "Guard":
        """Put a saved guard back on its model; another model's is refused."""
        detector, threshold, record = read_guard(Path(path))
        if record["model"] not in (None, model_fingerprint(model)):
            raise FileError(f"{path} guards another model: the weights differ from those it was saved with")
        guard = cls(model, detector, threshold, layer=record["layer"])
        guard.prepared = record["prepared"]
        return guard


def detect(
    model: nn.Module,
    train: Iterable[Any],
    *,
    held_out: Iterable[Any] | None = None,
    detector: Detector | None = None,
    id_rate: float = 0.95,
    layer: Layer = None,
    device: torch.device | str | None = None,
) -> Guard:
    """A guard for ``model`` from ID images alone: the default detector fitted, its threshold set.

    ``train`` are images to fit on, ``held_out`` ID images the model was not trained on, for the threshold; without
    them a fifth of the training rows is kept out of the fit for that, which accepts fewer new images than asked for.
    """
    chosen = default_detector() if detector is None else detector
    features = extract(model, train, layer=layer, device=device, layers=chosen.layers)
    if held_out is None:
        features, held = keep_apart(features)
        if chosen.needs_network:
            raise ArgumentError(f"{chosen} needs more of the network than embeddings; give held_out images")
    chosen.fit(features)
    if held_out is not None:
        tune([chosen], model, held_out, layer=layer, device=device)
        held = extract(model, held_out, layer=layer, device=device, layers=chosen.layers, steps=chosen.steps())
    return Guard(model, chosen, calibrate(chosen.score(held), id_rate), layer=layer)


def save_guard(
    folder: Path,
    detector: Detector,
    threshold: Threshold,
    model: str | None = None,
    layer: Layer = None,
    prepared: Record | None = None,
) -> None:
    """Write a guard without its model: what ``oodles fit`` knows from features alone.

    ``model`` is the fingerprint of the model the features came from, ``prepared`` how its images were
    resized and normalised; None where nobody knows. The record names the detector's tensors, so that a
    threshold is never read back with another detector than it was set for.
    """
    detector.save(folder)
    record = {
        "kind": KIND,
        "schema": SCHEMA,
        "model": model,
        "layer": layer,
        "prepared": prepared,
        "threshold": asdict(threshold),
        "detector": _detector_digest(folder),
    }
    write_record(folder / RECORD, record)


def read_guard(folder: Path) -> tuple[Detector, Threshold, Record]:
    """The detector, the threshold and the rest of what :func:`save_guard` wrote."""
    record = read_record(folder / RECORD, kind=KIND, schema=SCHEMA)
    if record["detector"] != _detector_digest(folder):
        raise FileError(f"{folder} holds another detector than its threshold was set for; fit and save the guard anew")
    return load_detector(folder), Threshold(**record["threshold"]), record


def _detector_digest(folder: Path) -> list[str]:
    record = read_record(folder / DETECTOR_RECORD, kind=DETECTOR_KIND, schema=DETECTOR_SCHEMA)
    return [record["spec"], record["tensors"]["sha256"]]
