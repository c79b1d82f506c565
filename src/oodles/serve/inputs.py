"""From images, numbers and texts to the arrays that a guard's graph takes, within the service's limits."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from fastapi import HTTPException
from PIL import Image

from oodles.data.image_sets import decode
from oodles.data.limits import PIXELS, TooLargeError
from oodles.data.readers import EmptyFileError, NotAnImageError, open_bytes
from oodles.data.transforms import Transform
from oodles.deploy.artefact import Arrays
from oodles.deploy.exported import INPUT, ExportedGuard
from oodles.deploy.inputs import uncropped
from oodles.errors import ArgumentError, FileError
from oodles.extras import needed_by
from oodles.records.files import read_regular
from oodles.records.text import one_line, printable
from oodles.serve.bodies import MAX_DIMENSIONS, ScoreRequest
from oodles.serve.settings import Settings

STATUSES: dict[type[Exception], int] = {EmptyFileError: 400, NotAnImageError: 415, TooLargeError: 413}
"""What images that cannot be decoded are answered with, if not 422."""
NUMBERS = {bool, int, float}
MAX_TOKENIZER_BYTES = 1 << 26
MAX_TOKENS = 512  # of a text; what is longer is cut
TOKENIZER_COLUMNS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
"""Inputs of text models, and what the tokenizers package calls them."""

Array = npt.NDArray[Any]


# Images -------------------------------------------------------------------------------------------


def image_arrays(content: bytes, transform: Transform, settings: Settings) -> Arrays:
    """Decode, resize and crop one image; size and format are checked before anything is decoded."""
    try:
        with open_bytes(content) as image:
            _check_size(*image.size, settings)
            with PIXELS.take(transform.pixels(*image.size)):
                pixels = transform(decode(image))
    except HTTPException:
        raise
    except Exception as error:  # Pillow's decoders raise all kinds
        status = next((status for kind, status in STATUSES.items() if isinstance(error, kind)), 422)
        raise HTTPException(status, one_line(error)) from None
    return {INPUT: uncropped(pixels[None], transform)}


def pixel_arrays(pixels: npt.NDArray[np.uint8], transform: Transform, settings: Settings) -> Arrays:
    """Resize images ``(n, height, width, 3)`` one by one; the graph would need memory for all at once."""
    _, height, width, _ = pixels.shape
    _check_size(width, height, settings)
    with PIXELS.take(transform.pixels(width, height)):
        prepared = np.stack([transform(Image.fromarray(each)) for each in pixels])
    return {INPUT: uncropped(prepared, transform)}


def _check_size(width: int, height: int, settings: Settings) -> None:
    if max(width, height) > settings.max_side or width * height > settings.max_pixels:
        limit = f"{settings.max_side:,} a side and {settings.max_pixels:,} in all"
        raise HTTPException(413, f"{width} x {height} pixels, more than {limit}; send a smaller image")


# Numbers ------------------------------------------------------------------------------------------


def request_arrays(
    given: ScoreRequest, guard: ExportedGuard, tokenizer: "TextTokenizer | None", settings: Settings
) -> Arrays:
    """Make arrays of the inputs or texts of a request."""
    if (given.inputs is None) == (given.texts is None):
        raise HTTPException(400, 'the body needs either "inputs" or "texts"')
    if given.inputs is not None:
        wanted = {each["name"]: each["dtype"] for each in guard.record["inputs"]}
        arrays = {name: number_array(name, value, wanted.get(name)) for name, value in given.inputs.items()}
        return guard_arrays(guard, arrays, settings)
    if tokenizer is None:
        raise HTTPException(400, 'this guard has no tokenizer; send "inputs", or start the service with --tokenizer')
    texts = given.texts or []
    _check_rows(len(texts), settings)
    return guard_arrays(guard, tokenizer(texts), settings)


def number_array(name: str, value: Any, dtype: str | None) -> Array:
    """Make an array of nested lists; raises if they are not numbers of equal lengths that all fit the type.

    NumPy is given nothing but numbers: of strings it would make an array with room for the longest of them everywhere.
    """
    try:
        found = np.asarray(value) if _are_numbers(value) else None
    except (ValueError, OverflowError):
        found = None
    if found is not None and found.dtype.kind in "biuf":
        if dtype is None or found.dtype == dtype:
            return found
        with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is found by the comparison
            converted = found.astype(dtype)
        fits = converted == found if converted.dtype.kind in "biu" else np.isfinite(converted)
        if fits.all():
            return converted
    shown = printable(name)[:100]
    raise HTTPException(400, f"{shown} must be nested lists of equal lengths with numbers that fit {dtype}")


def _are_numbers(value: Any) -> bool:
    """Whether nested lists have numbers at their ends, all at the same depth."""
    level = [value]
    for _ in range(MAX_DIMENSIONS + 1):
        kinds = set(map(type, level))
        if kinds <= NUMBERS:
            return True
        if kinds != {list}:
            return False
        level = list(chain.from_iterable(level))
    return False


def guard_arrays(guard: ExportedGuard, named: Mapping[str, Array], settings: Settings) -> Arrays:
    """Give arrays as the graph takes them; raises unless they are finite and have its names, types and shapes."""
    names = [each["name"] for each in guard.record["inputs"]]
    for name, value in named.items():
        if name not in names:
            raise HTTPException(400, f"the guard has no input {printable(name)!r:.100}; it takes {', '.join(names)}")
        _check_rows(len(value) if value.ndim else 1, settings)
    if guard.transform is not None:
        return pixel_arrays(guard.arrays(*named.values())[INPUT], guard.transform, settings)
    with np.errstate(over="ignore"):
        arrays = guard.arrays(**named)
    for name, value in arrays.items():
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise HTTPException(422, f"{name} has values that are NaN, infinite or too large for {value.dtype}")
    return arrays


def _check_rows(rows: int, settings: Settings) -> None:
    if rows > settings.max_images:
        raise HTTPException(413, f"{rows} inputs in one request, more than {settings.max_images}; send them in several")


# Texts --------------------------------------------------------------------------------------------


class TextTokenizer:
    """Texts as the inputs of one guard, by a tokenizer file of Hugging Face: padded to the longest, cut at 512."""

    def __init__(self, path: Path, guard: ExportedGuard) -> None:
        self._inputs = {each["name"]: np.dtype(each["dtype"]) for each in guard.record["inputs"]}
        unknown = next((name for name in self._inputs if name not in TOKENIZER_COLUMNS), None)
        if unknown is not None:
            given = ", ".join(TOKENIZER_COLUMNS)
            raise ArgumentError(f"{guard.path} takes {unknown}, which a tokenizer does not give; it gives {given}")
        with needed_by("a tokenizer"):
            from tokenizers import Tokenizer
        content = read_regular(path, MAX_TOKENIZER_BYTES, links=True, remedy="give a tokenizer.json")
        try:
            self._tokenizer = Tokenizer.from_str(content.decode())
        except Exception as error:  # of the tokenizers package, which raises plain ones
            raise FileError(f"{path} is not a tokenizer.json ({one_line(error)})") from None
        if self._tokenizer.padding is None:
            self._tokenizer.enable_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)

    def __call__(self, texts: Sequence[str]) -> Arrays:
        """Give one row per text."""
        encoded = self._tokenizer.encode_batch(list(texts))
        return {
            name: np.array([getattr(each, TOKENIZER_COLUMNS[name]) for each in encoded], kind)
            for name, kind in self._inputs.items()
        }
