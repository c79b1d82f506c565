"""What an exported guard is given, as its graph takes it: pixels of images, or a model's own inputs."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from oodles.data.image_sets import decode
from oodles.data.limits import PIXELS
from oodles.data.readers import check_image, open_bytes, open_image
from oodles.data.transforms import FileBytes, Transform
from oodles.errors import DataError
from oodles.records.files import Record, open_regular

Array = npt.NDArray[Any]


def pixels_of(given: Any, transform: Transform) -> Array:
    """One image or several as uint8 ``(n, height, width, c)``; an array of that shape is resized by the graph."""
    if isinstance(given, np.ndarray) and given.ndim == 4:
        return _checked_pixels(given, transform)
    alone = isinstance(given, str | Path | bytes | Image.Image | np.ndarray) or not isinstance(given, Iterable)
    prepared = [_prepared(picture, transform) for picture in ([given] if alone else given)]
    if not prepared:
        raise DataError("the guard was given no images; give at least one")
    return uncropped(np.stack(prepared), transform)


def bytes_of(given: Any, reads: FileBytes) -> Array:
    """One file or several, as paths or as their contents, as the numbers that the graph takes."""
    alone = isinstance(given, str | Path | bytes) or not isinstance(given, Iterable)
    found = []
    for each in [given] if alone else given:
        if not isinstance(each, str | Path | bytes):
            raise DataError(f"a file is a path or bytes, got {type(each).__name__}")
        with io.BytesIO(each) if isinstance(each, bytes) else open_regular(Path(each)) as file:
            found.append(reads(file))
    if not found:
        raise DataError("the guard was given no files; give at least one")
    return np.stack(found)


def uncropped(pixels: Array, transform: Transform) -> Array:
    """Prepared images ``(n, channels, size, size)`` as the graph takes them, ``(n, resize, resize, channels)``.

    It resizes and crops by itself: with this margin there is nothing to resize, and the margin is cut off.
    """
    size, side = transform.size, transform.resize
    start = transform.margin(side)
    whole = np.zeros((len(pixels), side, side, transform.channels), np.uint8)
    whole[:, start : start + size, start : start + size] = pixels.transpose(0, 2, 3, 1)
    return whole


def _prepared(picture: Any, transform: Transform) -> Array:
    """One image, resized and cropped as the training images were."""
    if isinstance(picture, bytes | str | Path):
        opened = open_bytes(picture) if isinstance(picture, bytes) else open_image(Path(picture))
        with opened as image, PIXELS.take(transform.pixels(*image.size)):
            return transform(decode(image))
    if isinstance(picture, np.ndarray):
        grey = picture.ndim == 2 and transform.channels == 1
        return transform(_checked_pixels((picture[..., None] if grey else picture)[None], transform)[0])
    if not isinstance(picture, Image.Image):
        kind = type(picture).__name__
        raise DataError(f"an image is a path, bytes, a Pillow image or a uint8 array, got {kind}")
    check_image(picture)
    return transform(decode(picture))


def _checked_pixels(pixels: Array, transform: Transform) -> Array:
    if pixels.dtype != np.uint8 or pixels.shape[3:] != (transform.channels,) or 0 in pixels.shape:
        raise DataError(
            f"pixels are uint8 (n, height, width, {transform.channels}), got {pixels.dtype} {pixels.shape}; give "
            "values from 0 to 255 with the channels last"
        )
    return pixels


def fitting(value: Array, wanted: Record) -> Array:
    """An input as the graph takes it, from an array of the same kind of numbers.

    Integers for a graph of floats are refused: they may be pixels that nobody scaled and normalised.
    """
    kind, shape = np.dtype(wanted["dtype"]), wanted["shape"]
    fits = value.ndim == len(shape) and all(size in (None, own) for size, own in zip(shape, value.shape, strict=True))
    whole = value.dtype.kind in "biu" and kind.kind == "f"
    if not fits or whole or not np.can_cast(value.dtype, kind, "same_kind"):
        shown = ", ".join("any" if size is None else str(size) for size in shape)
        remedy = "; scale and normalise it as for the model, then give floats" if fits and whole else ""
        raise DataError(f"{wanted['name']} must be {kind} ({shown}), got {value.dtype} {value.shape}{remedy}")
    return np.ascontiguousarray(value, kind)
