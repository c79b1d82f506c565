"""Preprocessing: from an image to a network's input."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from oodles.data.limits import MAX_PIXELS
from oodles.errors import ArgumentError, DataError
from oodles.records.fields import MAX_SIDE, MAX_VALUE, MIN_STD


@dataclass(frozen=True)
class Transform:
    """Resize the shorter side to ``resize``, centre-crop to ``size``, scale to [0, 1], normalise per channel."""

    size: int
    resize: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __post_init__(self) -> None:
        if not 1 <= self.size <= self.resize <= MAX_SIDE:
            raise ArgumentError(
                f"size={self.size} must lie between 1 and resize={self.resize}, which must be at most {MAX_SIDE}"
            )
        if not all(abs(value) <= MAX_VALUE for value in (*self.mean, *self.std)):
            raise ArgumentError(f"mean={self.mean} and std={self.std} must be finite, at most {MAX_VALUE:g}")
        if min(self.std) < MIN_STD:
            raise ArgumentError(f"std={self.std} must be positive in every channel, at least {MIN_STD:g}")

    def __call__(self, image: Image.Image) -> npt.NDArray[np.uint8]:
        """The resized and cropped image as uint8 ``(3, size, size)``; batches are normalised later."""
        if image.mode != "RGB":
            image = image.convert("RGB")
        target = self._resized(*image.size)
        # columns before rows: left to itself, Pillow chooses by its version and the size, and the two round apart
        for size in ((target[0], image.height), target):
            if size != image.size:
                image = image.resize(size, Image.Resampling.BILINEAR)
        width, height = image.size
        left, top = round((width - self.size) / 2), round((height - self.size) / 2)
        pixels = np.asarray(image.crop((left, top, left + self.size, top + self.size)))
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))

    def pixels(self, width: int, height: int) -> int:
        """The pixels of the image or of its resized copy, whichever has more."""
        return max(width * height, math.prod(self._resized(width, height)))

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        short = min(width, height)
        target = self.resize * width // short, self.resize * height // short
        if target[0] * target[1] > MAX_PIXELS:
            resized = f"{target[0]} x {target[1]} when resized"
            raise DataError(f"{width} x {height} pixels would become {resized}, more than {MAX_PIXELS:,}")
        return target

    def as_record(self) -> dict[str, Any]:
        """The settings as plain values, for JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Transform":
        """The transform that :meth:`as_record` described."""
        return cls(record["size"], record["resize"], tuple(record["mean"]), tuple(record["std"]))


def preprocessing_record(preprocessing: Transform | Mapping[str, Any] | None, loader: object = None) -> Any:
    """Preprocessing as plain values: as given, or as the loader has it; None if unknown."""
    given = getattr(loader, "transform", None) if preprocessing is None else preprocessing
    if given is None or isinstance(given, Mapping):
        return None if given is None else dict(given)
    return given.as_record() if isinstance(given, Transform) else None


CIFAR = Transform(32, 32, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
IMAGENET = Transform(224, 256, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
