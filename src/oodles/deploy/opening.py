"""``open_guard``: a saved guard or an exported one, which are used alike."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from oodles.calibration import Threshold
from oodles.data.transforms import Transform
from oodles.deploy.artefact import is_exported
from oodles.deploy.exported import ArrayVerdict, ExportedGuard
from oodles.errors import ArgumentError
from oodles.explanation.findings import Explanation
from oodles.records.files import Key

if TYPE_CHECKING:  # an exported guard is opened without torch
    from torch import nn


class OpenGuard(Protocol):
    """What can be done with a guard, saved or exported.

    ``guard.judge(guard.batch(pixels))`` gives the verdict for images that ``guard.transform`` has resized and cropped,
    uint8 ``(n, 3, size, size)``, and ``guard.explain`` of the same batch says why.
    """

    path: Path
    detector: str
    threshold: Threshold
    class_names: tuple[str, ...]
    transform: Transform | None
    identity: str
    """A checksum of everything that the scores depend on."""

    def batch(self, pixels: npt.NDArray[np.uint8]) -> Any:
        """Return pixels as :meth:`judge` and :meth:`explain` take them."""

    def judge(self, batch: Any) -> ArrayVerdict:
        """Return the verdict for a batch; a saved guard also takes features."""

    def explain(self, batch: Any) -> list[Explanation]:
        """Say why each input of a batch is accepted or rejected."""

    def check_images(self) -> object:
        """Raise unless the guard can judge images."""

    def check_features(self, folder: Path) -> None:
        """Raise unless the guard can judge the features in a folder."""

    def compare_with(self, folder: Path) -> None:
        """Let explanations name nearest rows and usual values in the features that the detector was fitted on."""

    def score_features(self, folder: Path) -> npt.NDArray[np.float64]:
        """Return the scores of the features in a folder."""

    def save_threshold(self, threshold: Threshold) -> None:
        """Give the files another threshold."""


def open_guard(
    path: str | Path,
    model: "nn.Module | Callable[[], nn.Module] | None" = None,
    *,
    preprocessing: Mapping[str, Any] | None = None,
    key: Key | None = None,
    device: str | None = None,
    threads: int | None = None,
) -> OpenGuard:
    """Open a guard that :meth:`oodles.Guard.save` or :meth:`oodles.Guard.export` wrote.

    A saved guard needs its ``model`` to judge images, or a function that returns it, which is called after the guard
    was read; and if it does not record how images are preprocessed, ``preprocessing``: ``size``, ``mean``, ``std`` and
    perhaps ``resize``. With a ``key`` it must be signed with it. An exported guard contains its model and
    preprocessing and needs no torch. ``threads`` is the number that the network runs on, by default one per core.
    """
    folder = Path(path)
    if is_exported(folder):
        given = {"model": model, "preprocessing": preprocessing or None, "key": key}
        unused = next((name for name, value in given.items() if value is not None), None)
        if unused is not None:
            raise ArgumentError(
                f"{folder} is exported and contains its model and preprocessing; leave out the {unused}"
            )
        return ExportedGuard.open(folder, device=device or "cpu", threads=threads)

    from oodles.deploy.saved import SavedGuard

    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    return SavedGuard(folder, model, preprocessing=preprocessing, key=key, device=device)
