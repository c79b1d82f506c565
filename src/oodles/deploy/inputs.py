"""What an exported guard is given, as its graph takes it: pixels of images, or a model's own inputs."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from oodles.data.image_sets import decode
from oodles.data.limits import PIXELS
from oodles.data.readers import check_image, open_bytes, open_image
from oodles.data.transforms import Transform
from oodles.errors import DataError
from oodles.records.files import Record

Array = npt.NDArray[Any]


def pixels_of(given: Any, transform: Transform) -> Array:
    """One image or several as uint8 ``(n, height, width, 3)``; an array of that shape is resized by the graph."""
    if isinstance(given, np.ndarray) and given.ndim == 4:
        return _checked_pixels(given)
    alone = isinstance(given, str | Path | bytes | Image.Image | np.ndarray) or not isinstance(given, Iterable)
    prepared = [_prepared(picture, transform) for picture in ([given] if alone else given)]
    if not prepared:
        raise DataError("the guard was given no images; give at least one")
    return uncropped(np.stack(prepared), transform)


def uncropped(pixels: Array, transform: Transform) -> Array:
    """Prepared images ``(n, 3, size, size)`` as the graph takes them, ``(n, resize, resize, 3)``.

    It resizes and crops by itself: with this margin there is nothing to resize, and the margin is cut off.
    """
    size, side = transform.size, transform.resize
    start = round((side - size) / 2)
    whole = np.zeros((len(pixels), side, side, 3), np.uint8)
    whole[:, start : start + size, start : start + size] = pixels.transpose(0, 2, 3, 1)
    return whole


def _prepared(picture: Any, transform: Transform) -> Array:
    """One image, resized and cropped as the training images were."""
    if isinstance(picture, bytes | str | Path):
        opened = open_bytes(picture) if isinstance(picture, bytes) else open_image(Path(picture))
        with opened as image, PIXELS.take(transform.pixels(*image.size)):
            return transform(decode(image))
    if isinstance(picture, np.ndarray):
        picture = Image.fromarray(_checked_pixels(picture[None])[0])
    if not isinstance(picture, Image.Image):
        kind = type(picture).__name__
        raise DataError(f"an image is a path, bytes, a Pillow image or a uint8 array, got {kind}")
    check_image(picture)
    return transform(decode(picture))


def _checked_pixels(pixels: Array) -> Array:
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3 or 0 in pixels.shape:
        raise DataError(
            f"pixels are uint8 (n, height, width, 3) in RGB, got {pixels.dtype} {pixels.shape}; give values from 0 to "
            "255 with the channels last"
        )
    return pixels


def fitting(value: Array, wanted: Record) -> Array:
    """An input as the graph takes it: lists of numbers may be converted, arrays must have the right type."""
    kind, shape = np.dtype(wanted["dtype"]), wanted["shape"]
    fits = value.ndim == len(shape) and all(size in (None, own) for size, own in zip(shape, value.shape, strict=True))
    if not fits or not np.can_cast(value.dtype, kind, "same_kind"):
        shown = ", ".join("any" if size is None else str(size) for size in shape)
        raise DataError(f"{wanted['name']} must be {kind} ({shown}), got {value.dtype} {value.shape}")
    return np.ascontiguousarray(value, kind)
