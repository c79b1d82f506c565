"""``SavedGuard``: a guard that was saved without its model, with the model if there is one."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from oodles.calibration import Threshold
from oodles.data.loaders import normalise
from oodles.data.transforms import Preprocessing, Transform, file_bytes, image_transform
from oodles.deploy.artefact import digest_of, identity_of
from oodles.deploy.saving import learned_tensors, load_guard, save_threshold
from oodles.deploy.verdict import ArrayVerdict, Verdict
from oodles.errors import ArgumentError, DataError
from oodles.explanation.findings import Explanation
from oodles.features import Features
from oodles.functional import label_probability
from oodles.guard import Guard
from oodles.network.onnx_model import as_model
from oodles.network.taps import usable_device
from oodles.records.files import Key, Record, checksum
from oodles.store import read_manifest


class SavedGuard:
    """A guard that :meth:`oodles.Guard.save` wrote; see :func:`oodles.deploy.opening.open_guard`.

    It judges features by itself, and images with the model that it was saved for. ``transform`` says how images are
    preprocessed; None if unknown. ``fitted`` is the detector.
    """

    def __init__(
        self,
        path: Path,
        model: nn.Module | str | Path | Callable[[], nn.Module] | None = None,
        *,
        preprocessing: Mapping[str, Any] | None = None,
        key: Key | None = None,
        device: str | None = None,
    ) -> None:
        self.fitted, self.threshold, self.record = load_guard(path, key)
        self.path = path
        self.detector: str = self.fitted.spec
        self.version = checksum(self.record)
        learned = {name: tensor.numpy() for name, tensor in learned_tensors(self.fitted).items()}
        self.identity = identity_of(self.record, digest_of(learned), self.threshold)
        self.class_names: tuple[str, ...] = tuple(self.record["class_names"])
        self.transform = known_transform(path, self.record["preprocessing"], preprocessing or {})
        self.reads: Preprocessing | None = self.transform or file_bytes(self.record["preprocessing"])
        self._key, self._device = key, torch.device("cpu")
        self._guard: Guard | None = None
        self._train: Features | None = None
        if model is None:
            return
        network = as_model(model) if isinstance(model, nn.Module | str | Path) else model()
        if device is not None:
            network.to(usable_device(device))
        self._device = next(network.parameters(), torch.empty(0)).device
        self._guard = Guard.restore(path, network, self.fitted, self.threshold, self.record)
        self.class_names = self._guard.class_names

    def check_images(self) -> tuple[Guard, Preprocessing]:
        """Raise unless images can be judged; returns the guard with its model, and the preprocessing."""
        if self._guard is None:
            raise ArgumentError(f"{self.path} guards your own model, so images need --model and --checkpoint")
        if self.reads is None:
            raise ArgumentError(
                f"{self.path} does not record how images were preprocessed; give --size, --mean and --std as used for "
                "the model, e.g. --size 224 --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225"
            )
        return self._guard, self.reads

    def batch(self, pixels: npt.NDArray[Any]) -> Any:
        """Return images that ``transform`` has resized and cropped, uint8 ``(n, c, size, size)``, for :meth:`judge`."""
        images = normalise(self.check_images()[1], torch.from_numpy(pixels).to(self._device))
        # the layout that convolutions on a CPU are fastest in
        return images.contiguous(memory_format=torch.channels_last) if images.ndim == 4 else images

    def judge(self, batch: Tensor | Features) -> ArrayVerdict:
        """Return the verdict for images as :meth:`batch` gives them, or for features, which need no model."""
        if isinstance(batch, Features):
            self.class_names = self.class_names or batch.class_names
            logits, scores = batch.logits, self.fitted.score(batch)
            probability = label_probability(logits, multilabel=batch.multilabel)
            decision = self.threshold.p_values(scores), self.threshold.is_id(scores)
            verdict = Verdict(logits, logits.argmax(dim=1), probability, scores, *decision)
        else:
            verdict = self.check_images()[0](batch)
        columns = {name: column.detach().cpu() for name, column in verdict._asdict().items() if name != "explanations"}
        columns["probability"] = columns["probability"].float()
        return Verdict(**{name: column.numpy() for name, column in columns.items()})

    def explain(self, batch: Tensor) -> list[Explanation]:
        """Say why images are accepted or rejected, see :meth:`oodles.Guard.explain`."""
        guard, _ = self.check_images()
        guard.class_names = self.class_names
        return guard.explain(batch, train=self._train)

    def compare_with(self, folder: Path) -> None:
        """Let explanations name nearest rows and usual values in the features that the detector was fitted on."""
        self.check_features(folder)
        self._train = Features.load(folder)

    def check_features(self, folder: Path) -> None:
        """Raise if the features in ``folder`` are of a model other than the guard's."""
        origin = read_manifest(folder)["about"].get("model")
        if None not in (origin, self.record["model"]) and origin != self.record["model"]:
            raise DataError(f"{folder} has features of another model than {self.path} was fitted on")

    def score_features(self, folder: Path) -> npt.NDArray[np.float64]:
        """Return the scores of the features in ``folder``."""
        self.check_features(folder)
        return self.fitted.score(Features.load(folder)).double().numpy()

    def save_threshold(self, threshold: Threshold) -> None:
        """Give the files another threshold, in one atomic step; this object stays as it is."""
        save_threshold(self.path, threshold, self._key)


def known_transform(path: Path, recorded: Record | None, given: Mapping[str, Any]) -> Transform | None:
    """Return the preprocessing that a guard records, which what is given must not contradict, or else what is given.

    ``given`` may leave out settings. None if the guard records nothing and not everything is given.
    """
    if recorded is None:
        complete = given.keys() >= {"size", "mean", "std"}
        return Transform(**{"resize": given["size"], **given}) if complete else None
    known = image_transform(recorded)
    if any(getattr(known, name, None) != value for name, value in given.items()):
        raise ArgumentError(f"{path} was fitted with other preprocessing ({known}); leave out --size, --mean, --std")
    return known
