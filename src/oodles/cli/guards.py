"""What the commands that use a guard share: which guard, which inputs, which model, which preprocessing."""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING

from oodles.cli.checks import GUARD_RECORD, ImageOptions, is_guard, is_store
from oodles.cli.common import IMAGENET_MEAN, IMAGENET_STD, load_model, notice, report_ignored
from oodles.errors import ArgumentError, DataError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL import Image
    from torch import Tensor

    from oodles.calibration import Threshold
    from oodles.data.readers import ImageSet
    from oodles.data.transforms import Transform
    from oodles.detectors import Detector
    from oodles.guard import Guard
    from oodles.records.files import Record

SHIPPED = "cifar10-small"  # the network that is used if the user names no guard


def split_paths(command: str, paths: Sequence[Path], model: str | None) -> tuple[Path | None, list[Path]]:
    """The guard, or None if the first path is not one, and the inputs."""
    guard, inputs = (paths[0], [*paths[1:]]) if _is_any_guard(paths[0]) else (None, [*paths])
    if not inputs:
        raise ArgumentError(f"{command} needs an input besides the guard {guard}; give images or a folder of them")
    later = next((path for path in inputs if _is_any_guard(path)), None)
    if later is not None:
        raise ArgumentError(f"{later} is a guard; {command} takes one guard, before the inputs")
    if guard is None and model is not None:
        raise ArgumentError(
            f"--model needs a guard, and {inputs[0]} is none: it holds no {GUARD_RECORD}; give a folder written by "
            "`oodles fit` before the inputs"
        )
    return guard, inputs


def is_exported_guard(path: Path) -> bool:
    """Whether a folder or a ``.zip`` holds an exported guard, which contains its model."""
    from oodles.deploy.artefact import is_exported

    return is_exported(path)


def _is_any_guard(path: Path) -> bool:
    return is_guard(path) or is_exported_guard(path)


def open_inputs(paths: Sequence[Path]) -> list["ImageSet | Path"]:
    """The inputs in order: neighbouring image inputs as one set, so that they share batches, and folders of features.

    Every image is named by the path that leads to it, since two folders may hold images of the same name.
    """
    from oodles.data.readers import open_images

    sources: list[ImageSet | Path] = []
    for stored, group in groupby(paths, key=is_store):
        if stored:
            sources += group
        else:
            sets = [name_by_path(path, open_images(path)) for path in group]
            for images in sets:
                report_ignored(images)
            sources.append(_join(sets))
    return sources


def name_by_path(path: Path, images: "ImageSet") -> "ImageSet":
    """The images with names that lead to them from where ``path`` does."""
    if [*images.names] == [str(path)]:
        return images
    folder = path.parent if path.is_file() and path.suffix.lower() != ".zip" else path
    return replace(images, names=[str(folder / name) for name in images.names])


def _join(sets: Sequence["ImageSet"]) -> "ImageSet":
    from oodles.data.readers import ImageSet

    if len(sets) == 1:
        return sets[0]
    ends = list(accumulate(map(len, sets)))

    def opened(row: int) -> AbstractContextManager["Image.Image"]:
        part = bisect_right(ends, row)
        return sets[part].open(row - ends[part] + len(sets[part]))

    return ImageSet(f"{len(sets)} inputs", [name for each in sets for name in each.names], opened)


@dataclass(frozen=True)
class ModelOptions:
    """What the options of a command say about the model of a guard and its images; None where the user gave nothing.

    ``key`` is the file that the guard must be signed with.
    """

    model: str | None = None
    checkpoint: Path | None = None
    device: str | None = None
    key: Path | None = None
    images: ImageOptions = field(default_factory=ImageOptions)

    def refuse_for(self, guard: Path) -> None:
        """Raise if the options describe a model or its preprocessing, which an exported guard contains."""
        given = {"model": self.model, "checkpoint": self.checkpoint, "key": self.key, **vars(self.images)}
        unused = next((name for name, value in given.items() if value is not None), None)
        if unused is not None:
            raise ArgumentError(f"{guard} is exported and contains its model and preprocessing; leave out --{unused}")


def network_inputs(pixels: "npt.NDArray[np.uint8]", transform: "Transform", device: str | None) -> "Tensor":
    """Pixels ``(n, 3, size, size)`` as a network takes them."""
    import torch

    from oodles.data.loaders import normalise

    images = normalise(transform, torch.from_numpy(pixels).to(device))
    # the layout that convolutions on a CPU are fastest in
    return images.contiguous(memory_format=torch.channels_last)


@dataclass(frozen=True)
class SavedGuard:
    """A guard without its model, read from ``folder``; ``own`` is False for the one that comes with oodles."""

    folder: Path
    own: bool
    detector: "Detector"
    threshold: "Threshold"
    record: "Record"
    class_names: tuple[str, ...]

    def preprocessing(self, given: ImageOptions) -> "Transform":
        """The preprocessing of the features that the guard was fitted on, which options must not contradict."""
        from oodles.data.transforms import Transform

        if self.record["preprocessing"] is None:
            if None in (given.size, given.mean, given.std):
                raise ArgumentError(
                    f"{self.folder} does not record how images were preprocessed; give --size, --mean and --std as "
                    f"used for the model, e.g. --size 224 --mean {IMAGENET_MEAN} --std {IMAGENET_STD}"
                )
            return given.transform()
        known = Transform.from_record(self.record["preprocessing"])
        asked = (given.size, given.resize, given.mean, given.std)
        recalled = (known.size, known.resize, known.mean, known.std)
        if any(value not in (None, own) for value, own in zip(asked, recalled, strict=True)):
            raise ArgumentError(
                f"{self.folder} was fitted with other preprocessing ({known}); leave out --size, --mean, --std"
            )
        return known

    def with_model(self, given: ModelOptions) -> "Guard":
        """The guard with the model that the options name, or the one that comes with oodles."""
        from oodles.guard import Guard
        from oodles.models import load
        from oodles.network.taps import usable_device

        if self.own and given.model is None:
            raise ArgumentError(f"{self.folder} guards your own model, so images need --model and --checkpoint")
        network = load(SHIPPED) if given.model is None else load_model(given.model, given.checkpoint)
        if not self.own:
            _introduce()
        if given.device is not None:
            network.to(usable_device(given.device))
        return Guard.restore(self.folder, network, self.detector, self.threshold, self.record)

    @property
    def identity(self) -> str:
        """SHA-256 of the guard's record, which names the checksum of its tensors and the fingerprint of its model."""
        return hashlib.sha256(json.dumps(self.record, sort_keys=True).encode()).hexdigest()

    def check_features(self, path: Path) -> None:
        """Raise if the features in a folder came from another model than the guard's."""
        from oodles.store import read_manifest

        origin = read_manifest(path)["about"].get("model")
        if None not in (origin, self.record["model"]) and origin != self.record["model"]:
            raise DataError(f"{path} has features of another model than {self.folder} was fitted on")


def load_saved(folder: Path | None, key: Path | None = None) -> SavedGuard:
    """The guard in ``folder``, signed with ``key`` if there is one; without a folder, that of the shipped network."""
    from oodles.deploy.saving import load_guard
    from oodles.models.shipped import GUARD, shipped_folder

    path = shipped_folder(SHIPPED) / GUARD if folder is None else folder
    detector, threshold, record = load_guard(path, key)
    return SavedGuard(path, folder is not None, detector, threshold, record, tuple(record["class_names"]))


def _introduce() -> None:
    """Say which network is used, since the user named none."""
    from oodles.models import read_card

    card = read_card(SHIPPED)
    network = f"{SHIPPED}, {card['what']} ({', '.join(card['classes'])})"
    accuracy = f"{card['test accuracy']:.1%} accurate on JPEG test images"
    notice(f"no guard given: using {network}, {accuracy}. Pictures are resized to 32 pixels.")
