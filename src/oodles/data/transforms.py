"""Preprocessing: from an image to a network's input."""

import io as io
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import IO, Any

import msgspec
import numpy as np
import numpy.typing as npt
from PIL import Image

from oodles.data.limits import MAX_PIXELS
from oodles.errors import ArgumentError, DataError
from oodles.records.fields import MAX_PADDING, MAX_SIDE, MAX_VALUE, MAX_WINDOW, MIN_STD, PreprocessingFields

MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # of images, by their number of channels
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@dataclass(frozen=True)
class Transform:
    """Resize the shorter side to ``resize``, centre-crop to ``size``, scale to [0, 1], normalise per channel.

    Images become grey, RGB or RGBA if there are one, three or four means. ``interpolation`` is bilinear or bicubic.
    ``squash`` resizes both sides to ``resize``, whatever the aspect ratio. Half of an odd margin is rounded to the even
    number, as in torchvision; ``floor`` rounds it down, as in transformers.
    """

    size: int
    resize: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bilinear"
    squash: bool = False
    floor: bool = False

    def __post_init__(self) -> None:
        if not 1 <= len(self.mean) == len(self.std):
            raise ArgumentError(f"mean={self.mean} and std={self.std} must have as many values as images have channels")
        if self.interpolation not in FILTERS:
            raise ArgumentError(f"interpolation={self.interpolation!r} must be one of {', '.join(FILTERS)}")
        if not 1 <= self.size <= self.resize <= MAX_SIDE:
            raise ArgumentError(
                f"size={self.size} must lie between 1 and resize={self.resize}, which must be at most {MAX_SIDE}"
            )
        if not all(abs(value) <= MAX_VALUE for value in (*self.mean, *self.std)):
            raise ArgumentError(f"mean={self.mean} and std={self.std} must be finite, at most {MAX_VALUE:g}")
        if min(self.std) < MIN_STD:
            raise ArgumentError(f"std={self.std} must be positive in every channel, at least {MIN_STD:g}")

    @property
    def channels(self) -> int:
        """How many channels the network's images have."""
        return len(self.mean)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of an image as the network takes it."""
        return self.channels, self.size, self.size

    def __call__(self, image: Image.Image | npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """The resized and cropped image as uint8 ``(channels, size, size)``; batches are normalised later.

        An array ``(height, width, channels)`` may have any number of channels.
        """
        if isinstance(image, np.ndarray):
            bands = [Image.fromarray(np.ascontiguousarray(band)) for band in image.transpose(2, 0, 1)]
        elif self.channels in MODES:
            # one by one: Pillow would multiply colours by the opacity before it resizes
            mode = MODES[self.channels]
            bands = [*(image if image.mode == mode else image.convert(mode)).split()]
        else:
            raise DataError(f"an image cannot have the {self.channels} channels of the preprocessing; give an array")
        return np.stack([np.asarray(self._crop(band)) for band in bands])

    def _crop(self, band: Image.Image) -> Image.Image:
        target = self._resized(*band.size)
        # columns before rows: left to itself, Pillow chooses by its version and the size, and the two round apart
        for size in ((target[0], band.height), target):
            if size != band.size:
                band = band.resize(size, FILTERS[self.interpolation])
        left, top = (self.margin(length) for length in band.size)
        return band.crop((left, top, left + self.size, top + self.size))

    def margin(self, length: int) -> int:
        """How much the crop cuts off before the centre of a side."""
        spare = length - self.size
        return spare // 2 if self.floor else round(spare / 2)

    def pixels(self, width: int, height: int) -> int:
        """The pixels of the image or of its resized copy, whichever has more."""
        return max(width * height, math.prod(self._resized(width, height)))

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        sides = (width, height) if self.squash else (min(width, height),) * 2
        target = self.resize * width // sides[0], self.resize * height // sides[1]
        if target[0] * target[1] > MAX_PIXELS:
            resized = f"{target[0]} x {target[1]} when resized"
            raise DataError(f"{width} x {height} pixels would become {resized}, more than {MAX_PIXELS:,}")
        return target

    def as_record(self) -> dict[str, Any]:
        """The settings as plain values, for JSON; without those that have their usual values."""
        record: dict[str, Any] = msgspec.to_builtins(msgspec.convert(asdict(self), PreprocessingFields))
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Transform":
        """The transform that :meth:`as_record` described; other names and types are errors."""
        try:
            known = msgspec.to_builtins(msgspec.convert(record, PreprocessingFields))
        except msgspec.ValidationError as error:
            raise ArgumentError(f"preprocessing={record!r:.200} does not describe a Transform: {error}") from None
        return cls(**known | {name: tuple(known[name]) for name in ("mean", "std")})


@dataclass(frozen=True)
class FileBytes:
    """The first and the last bytes of a file as whole numbers, without the white space before and after them.

    Where there are fewer, ``padding`` stands at the end of the first ones and before the last ones. White space is
    looked for in four times as many bytes.

    >>> FileBytes(4, 2, padding=256)(io.BytesIO(b"  abc"))
    array([ 97,  98,  99, 256,  98,  99], dtype=int32)
    """

    first: int
    last: int
    padding: int = 256

    def __post_init__(self) -> None:
        sizes = 0 <= self.first <= MAX_WINDOW and 0 <= self.last <= MAX_WINDOW and self.first + self.last > 0
        if not sizes or not 0 <= self.padding <= MAX_PADDING:
            raise ArgumentError(f"{self}: windows have 0 to {MAX_WINDOW} bytes, padding is 0 to {MAX_PADDING}")

    def __call__(self, file: IO[bytes]) -> npt.NDArray[np.int32]:
        """The numbers ``(first + last,)``; only both ends of the file are read."""
        start = file.read(4 * self.first).lstrip()[: self.first]
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 4 * self.last))
        end = file.read(4 * self.last).rstrip()
        end = end[max(0, len(end) - self.last) :]
        numbers = np.full(self.first + self.last, self.padding, np.int32)
        numbers[: len(start)] = [*start]
        numbers[len(numbers) - len(end) :] = [*end]
        return numbers

    def as_record(self) -> dict[str, Any]:
        """The settings as plain values, for JSON."""
        return asdict(self)


def image_transform(record: Mapping[str, Any] | None) -> Transform | None:
    """The preprocessing of images that a record describes, if it does."""
    return None if record is None or "size" not in record else Transform.from_record(dict(record))


def file_bytes(record: Mapping[str, Any] | None) -> FileBytes | None:
    """The bytes of files that a record describes, if it does."""
    return None if record is None or "first" not in record else FileBytes(**record)


Preprocessing = Transform | FileBytes


CIFAR = Transform(32, 32, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
IMAGENET = Transform(224, 256, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
