"""What scores a batch: a saved guard with its model, or an exported guard, behind one small interface."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from oodles.cli.guards import ModelOptions, SavedGuard, network_inputs
from oodles.errors import ArgumentError

if TYPE_CHECKING:
    from torch import Tensor

    from oodles.calibration import Threshold
    from oodles.data.transforms import Transform
    from oodles.deploy.exported import ExportedGuard
    from oodles.features import Features
    from oodles.guard import Guard

Floats = npt.NDArray[np.floating[Any]]


class Scored(NamedTuple):
    """What a guard says about a batch, one entry per input; a p-value is NaN if the guard cannot give one."""

    label: npt.NDArray[np.int64]
    probability: Floats
    score: Floats
    p_value: Floats
    is_id: npt.NDArray[np.bool_]


class Scorer(Protocol):
    """A guard, whatever runs its network."""

    @property
    def detector(self) -> str:
        """The detector as text."""

    @property
    def threshold(self) -> "Threshold":
        """Its threshold."""

    @property
    def identity(self) -> str:
        """A checksum of all that the scores depend on."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, or ()."""

    def preprocessing(self) -> "Transform":
        """How images become pixels."""

    def prepare(self, stores: Sequence[Path], images: bool) -> None:
        """Load what is needed for folders of features and for images, and refuse what cannot be scored."""

    def score_images(self, pixels: npt.NDArray[np.uint8]) -> Scored:
        """Score a batch of pixels ``(n, 3, size, size)``."""

    def score_features(self, features: "Features") -> Scored:
        """Score rows of a feature store."""


class SavedScorer:
    """A saved guard; its model is loaded only if there are images, since features do not need it."""

    def __init__(self, saved: SavedGuard, given: ModelOptions) -> None:
        self.saved = saved
        self.detector = saved.detector.spec
        self.threshold = saved.threshold
        self.identity = saved.identity
        self.class_names = saved.class_names
        self._given = given
        self._guard: Guard | None = None

    def preprocessing(self) -> "Transform":
        """The recorded preprocessing, or what the options say."""
        return self.saved.preprocessing(self._given.images)

    def prepare(self, stores: Sequence[Path], images: bool) -> None:
        """Check that features are those of the guard's model, and load the model for images."""
        for folder in stores:
            self.saved.check_features(folder)
        if images:
            self.preprocessing()
            self._loaded()

    def score_images(self, pixels: npt.NDArray[np.uint8]) -> Scored:
        """Normalise the pixels and run the model on them."""
        images = network_inputs(pixels, self.preprocessing(), self._given.device)
        verdict, probability = self._loaded().with_probability(images)
        return self._scored(verdict.label, probability, verdict.score, verdict.is_id)

    def score_features(self, features: "Features") -> Scored:
        """Score rows of a feature store by arithmetic alone."""
        from oodles.functional import label_probability

        self.class_names = self.class_names or features.class_names
        scores = self.saved.detector.score(features)
        probability = label_probability(features.logits, multilabel=features.multilabel)
        return self._scored(features.logits.argmax(dim=1), probability, scores, self.threshold.is_id(scores))

    def _loaded(self) -> "Guard":
        if self._guard is None:
            self._guard = self.saved.with_model(self._given)
            self.class_names = self._guard.class_names
        return self._guard

    def _scored(self, label: "Tensor", probability: "Tensor", score: "Tensor", is_id: "Tensor") -> Scored:
        numbers, values = label.cpu().numpy(), score.detach().cpu().numpy()
        chances = probability.detach().float().cpu().numpy()
        return Scored(numbers, chances, values, self.threshold.p_values(values), is_id.cpu().numpy())


class ExportedScorer:
    """An exported guard, which contains its model and needs no torch."""

    def __init__(self, path: Path, guard: "ExportedGuard") -> None:
        self._path = path
        self._guard = guard
        self.detector = guard.detector
        self.threshold = guard.threshold
        self.identity = guard.identity
        self.class_names = guard.class_names

    @classmethod
    def open(cls, path: Path, device: str, threads: int | None) -> "ExportedScorer":
        """The guard in a folder or ``.zip``, run by ``threads`` threads."""
        from oodles.deploy.exported import ExportedGuard

        return cls(path, ExportedGuard.open(path, device=device, threads=threads))

    def preprocessing(self) -> "Transform":
        """The preprocessing that was exported with the guard."""
        if self._guard.transform is None:
            raise ArgumentError(f"{self._path} guards a model whose inputs are not images; call it from Python")
        return self._guard.transform

    def prepare(self, stores: Sequence[Path], images: bool) -> None:
        """Refuse features, since an exported guard begins with the network."""
        if stores:
            raise ArgumentError(
                f"{self._path} is exported and takes images, not the features in {stores[0]}; score those with the "
                "guard it was exported from"
            )
        self.preprocessing()

    def score_images(self, pixels: npt.NDArray[np.uint8]) -> Scored:
        """Run the exported network."""
        verdict = self._guard.judge(pixels)
        return Scored(verdict.label, verdict.probability, verdict.score, verdict.p_value, verdict.is_id)

    def score_features(self, features: "Features") -> Scored:
        """Never called, see :meth:`prepare`."""
        raise NotImplementedError
