"""From images, numbers and texts to the arrays that a guard's graph takes, within the service's limits."""

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from fastapi import HTTPException

from oodles.data.image_sets import decode
from oodles.data.limits import MAX_PIXELS, NOTHING, SharedLimit, TooLargeError
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
from oodles.serve.reading import parse_json
from oodles.serve.settings import Settings

STATUSES: dict[type[Exception], int] = {EmptyFileError: 400, NotAnImageError: 415, TooLargeError: 413}
"""What images that cannot be decoded are answered with, if not 422."""
NUMBERS = {bool, int, float}
NOT_STRUCTURE = bytes({*range(256)} - {*b"[],"})
PART_BYTES = 1 << 16
LIGHT = 1_000_000
"""Pixels of an image, or bytes of JSON, that any thread reads."""
ROOM = SharedLimit(MAX_PIXELS)
"""What is read of larger ones at any moment, by all requests together; a pixel or byte takes up to 20 bytes."""
MAX_TOKENIZER_BYTES = 1 << 26
MAX_TOKENS = 512  # of a text; what is longer is cut
MAX_CHARACTERS = 32 * MAX_TOKENS
TOKENIZER_COLUMNS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
"""Inputs of text models, and what the tokenizers package calls them."""

Array = npt.NDArray[Any]
Buffer = bytes | msgspec.Raw


class HeavyError(Exception):
    """Inputs need much memory or time; read them in a thread for such inputs."""


class _Thread(threading.local):
    heavy = False


THREAD = _Thread()


def room(amount: int) -> AbstractContextManager[None]:
    """Hold the memory for so many pixels or bytes of JSON; raises if that is much and this thread is for little."""
    if amount > LIGHT and not THREAD.heavy:
        raise HeavyError
    return ROOM.take(amount) if amount > LIGHT else NOTHING


# Images -------------------------------------------------------------------------------------------


def files_arrays(
    contents: Sequence[bytes | memoryview], guard: ExportedGuard, settings: Settings
) -> tuple[Arrays | None, list[HTTPException | None]]:
    """Decode images one by one, or take the bytes of files; return what can be read, together, and each error."""
    transform = guard.transform
    if transform is None:
        parts = [guard.arrays(bytes(content)) for content in contents]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, [None] * len(parts)
    found, errors = [], list[HTTPException | None]()
    for content in contents:
        try:
            found.append(_image(content, transform, settings))
            errors.append(None)
        except HTTPException as error:
            errors.append(error)
    return {INPUT: uncropped(np.stack(found), transform)} if found else None, errors


def _image(content: bytes | memoryview, transform: Transform, settings: Settings) -> Array:
    """Decode, resize and crop one image; size and format are checked before anything is decoded."""
    try:
        with open_bytes(bytes(content)) as image:
            _check_size(*image.size, settings)
            with room(transform.pixels(*image.size)):
                return transform(decode(image))
    except (HTTPException, HeavyError):
        raise
    except Exception as error:  # Pillow's decoders raise all kinds
        status = next((status for kind, status in STATUSES.items() if isinstance(error, kind)), 422)
        raise HTTPException(status, one_line(error)) from None


def pixel_arrays(pixels: npt.NDArray[np.uint8], transform: Transform, settings: Settings) -> Arrays:
    """Resize images ``(n, height, width, channels)`` one by one; the graph would need memory for all at once."""
    _, height, width, _ = pixels.shape
    _check_size(width, height, settings)
    with room(transform.pixels(width, height)):
        prepared = np.stack([transform(each) for each in pixels])
    return {INPUT: uncropped(prepared, transform)}


def _check_size(width: int, height: int, settings: Settings) -> None:
    if max(width, height) > settings.max_side or width * height > settings.max_pixels:
        limit = f"{settings.max_side:,} a side and {settings.max_pixels:,} in all"
        raise HTTPException(413, f"{width} x {height} pixels, more than {limit}; send a smaller image")


# Numbers ------------------------------------------------------------------------------------------


def score_arrays(body: bytes, guard: ExportedGuard, tokenizer: "TextTokenizer | None", settings: Settings) -> Arrays:
    """Make arrays of the inputs or texts of a request."""
    with room(len(body)):
        given = parse_json(body, ScoreRequest)
        if (given.inputs is None) == (given.texts is None):
            raise HTTPException(400, 'the body needs either "inputs" or "texts"')
        if given.texts is not None:
            return text_arrays(given.texts, guard, tokenizer, settings)
        wanted = {each["name"]: each["dtype"] for each in guard.record["inputs"]}
        arrays = {}
        for name, value in (given.inputs or {}).items():
            shape = nested_shape(name, value)
            _check_rows(shape[:1], settings)
            arrays[name] = number_array(name, value, shape, wanted.get(name))
    return guard_arrays(guard, arrays, settings)


def nested_shape(name: str, value: Buffer) -> tuple[int, ...]:
    """Return the lengths of nested lists in JSON by their brackets and commas alone, before anything is built.

    Raises unless all lists of a level have the same length.
    """
    skeleton = bytes(value).translate(None, NOT_STRUCTURE)
    depth = len(skeleton) - len(skeleton.lstrip(b"["))
    shape: tuple[int, ...] = ()
    part = b""  # a list of the level below
    for level in range(min(depth, MAX_DIMENSIONS)):
        inside = skeleton.find(b"]" * (level + 1)) + 2 * level - depth  # between the brackets of the first list
        size = (inside + 1) // (len(part) + 1)
        part = b"[" + (part + b",") * (size - 1) + part + b"]"
        shape = (size, *shape)
    if part != skeleton:
        raise _not_numbers(name)
    return shape


def number_array(name: str, value: Buffer, shape: tuple[int, ...], dtype: str | None) -> Array:
    """Make an array of the numbers in nested lists; raises if they are not as many as the shape takes, or do not fit.

    They are read in parts, so that there are few Python numbers at a time and other threads have their turn.
    """
    text = bytes(value).translate(None, b"[]")
    parts, start = [], 0
    try:
        while start <= len(text):
            end = text.find(b",", start + PART_BYTES)
            end = len(text) if end < 0 else end
            numbers = msgspec.json.decode(b"[%b]" % text[start:end])
            kinds = {*map(type, numbers)}
            if not kinds <= NUMBERS:
                raise _not_numbers(name, dtype)
            whole = dtype == "uint64" and float not in kinds and min(numbers, default=0) >= 0
            parts.append(np.asarray(numbers, dtype if whole else None))  # NumPy might round large ones to floats
            start = end + 1
        found = np.concatenate(parts).reshape(shape)
    except (ValueError, OverflowError, msgspec.MsgspecError):
        raise _not_numbers(name, dtype) from None
    if found.dtype.kind not in "biuf":
        raise _not_numbers(name, dtype)
    if found.ndim > 2 and found.dtype.kind in "biu" and np.dtype(dtype).kind == "f":
        return found  # whole numbers in place of prepared images, which the guard refuses
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is found by the comparison
        converted = found.astype(dtype or found.dtype, copy=False)
    fits = converted == found if converted.dtype.kind in "biu" else np.isfinite(converted)
    if not fits.all():
        raise _not_numbers(name, dtype)
    return converted


def _not_numbers(name: str, dtype: str | None = None) -> HTTPException:
    fitting = "" if dtype is None else f" that fit {dtype}"
    return HTTPException(400, f"{printable(name)[:100]} must be nested lists of equal lengths with numbers{fitting}")


def guard_arrays(guard: ExportedGuard, named: Mapping[str, Array], settings: Settings) -> Arrays:
    """Give arrays as the graph takes them; raises unless they are finite and have its names, types and shapes."""
    names = [each["name"] for each in guard.record["inputs"]]
    for name, value in named.items():
        if name not in names:
            raise HTTPException(400, f"the guard has no input {printable(name)!r:.100}; it takes {', '.join(names)}")
        _check_rows(value.shape[:1], settings)
    if guard.transform is not None:
        return pixel_arrays(guard.arrays(*named.values())[INPUT], guard.transform, settings)
    with np.errstate(over="ignore"):
        arrays = guard.arrays(**named)
    for name, value in arrays.items():
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise HTTPException(422, f"{name} has values that are NaN, infinite or too large for {value.dtype}")
    return arrays


def _check_rows(shape: Sequence[int], settings: Settings) -> None:
    """Raise if a shape begins with more rows than one request may have."""
    if shape and shape[0] > settings.max_images:
        message = f"{shape[0]} inputs in one request, more than {settings.max_images}; send them in several"
        raise HTTPException(413, message)


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
        """Give one row per text; all but the beginning of a long text is cut off before it is read."""
        encoded = self._tokenizer.encode_batch([text[:MAX_CHARACTERS] for text in texts])
        for text, found in zip(texts, encoded, strict=True):
            if len(text) > MAX_CHARACTERS and not found.overflowing:  # so the rest might have counted
                message = f"a text of {len(text):,} characters has fewer than {MAX_TOKENS} tokens in its first"
                raise HTTPException(413, f"{message} {MAX_CHARACTERS:,}; send a shorter one")
        return {
            name: np.array([getattr(each, TOKENIZER_COLUMNS[name]) for each in encoded], kind)
            for name, kind in self._inputs.items()
        }


def text_arrays(
    texts: Sequence[str], guard: ExportedGuard, tokenizer: TextTokenizer | None, settings: Settings
) -> Arrays:
    """Make arrays of texts; raises if the guard has no tokenizer."""
    if tokenizer is None:
        raise HTTPException(400, "this guard has no tokenizer; send numbers, or start the service with --tokenizer")
    _check_rows((len(texts),), settings)
    return guard_arrays(guard, tokenizer(texts), settings)
