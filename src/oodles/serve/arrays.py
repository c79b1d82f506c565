"""From a body of JSON to what a guard's graph takes: numbers by name, or texts for a tokenizer."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from oodles.deploy.artefact import Arrays
from oodles.deploy.exported import INPUT, ExportedGuard
from oodles.errors import OodlesError
from oodles.records.files import Record
from oodles.records.text import printable
from oodles.serve.images import pixel_arrays
from oodles.serve.nested import nested_numbers
from oodles.serve.problems import Problem, problem_with_inputs
from oodles.serve.reading import parse_json
from oodles.serve.settings import Settings


class Tokenizer(Protocol):
    """What turns texts into the arrays of a guard."""

    def __call__(self, texts: Sequence[str]) -> Arrays:
        """One row per text."""


class Body(Struct, forbid_unknown_fields=True):
    """Either the model's inputs by name, or texts."""

    inputs: dict[str, Any] | None = None
    texts: list[str] | None = None


def arrays_from_json(body: bytes, guard: ExportedGuard, tokenizer: Tokenizer | None, settings: Settings) -> Arrays:
    """The rows in ``{"inputs": {name: numbers}}`` or ``{"texts": [...]}``."""
    given = parse_json(body, Body, '{"inputs": {...}} or {"texts": [...]}')
    if (given.inputs is None) == (given.texts is None):
        raise Problem(400, 'the body needs either "inputs" or "texts"')
    if given.inputs is not None:
        return checked(guard, {name: as_array(name, value, guard) for name, value in given.inputs.items()}, settings)
    if tokenizer is None:
        raise Problem(400, 'this guard has no tokenizer; send "inputs", or start the service with --tokenizer')
    if not given.texts:
        raise Problem(400, '"texts" is empty; send at least one')
    _check_rows(len(given.texts), settings)
    return checked(guard, tokenizer(given.texts), settings)


def as_array(name: str, value: Any, guard: ExportedGuard) -> npt.NDArray[Any]:
    """Nested lists of numbers as an array of the type that the guard takes, if every number has a place in it."""
    wanted = _wanted(name, guard)
    kind = np.dtype(wanted["dtype"])
    found = nested_numbers(value)
    if found is None:
        raise Problem(400, f"{name} must be nested lists of equal lengths with numbers that fit {kind}")
    if kind.kind in "iu" and found.dtype.kind in "iu" and found.size:
        limits = np.iinfo(wanted["dtype"])
        if found.min() < limits.min or found.max() > limits.max:
            raise Problem(400, f"{name} has numbers outside {limits.min} to {limits.max} ({kind})")
        return found.astype(kind)
    return found


def checked(guard: ExportedGuard, named: Mapping[str, npt.NDArray[Any]], settings: Settings) -> Arrays:
    """Arrays with the names, types and shapes that the guard takes, all of them finite, as its graph takes them."""
    for name, value in named.items():
        _wanted(name, guard)
        _check_rows(len(value) if value.ndim else 1, settings)
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise Problem(422, f"{name} has values that are NaN or infinite, which cannot be scored")
    try:
        with np.errstate(over="ignore"):
            arrays = guard.arrays(**named) if guard.transform is None else guard.arrays(*named.values())
    except OodlesError as error:
        raise problem_with_inputs(error) from None
    if guard.transform is not None:
        return pixel_arrays(arrays[INPUT], guard.transform, settings)
    for name, value in arrays.items():
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise Problem(422, f"{name} has numbers that are too large for {value.dtype}, which cannot be scored")
    return arrays


def _check_rows(rows: int, settings: Settings) -> None:
    if rows > settings.images:
        raise Problem(413, f"{rows} inputs in one request, more than {settings.images}; send them in several")


def _wanted(name: str, guard: ExportedGuard) -> Record:
    wanted: Record | None = next((each for each in guard.record["inputs"] if each["name"] == name), None)
    if wanted is None:
        names = ", ".join(each["name"] for each in guard.record["inputs"])
        raise Problem(400, f"the guard has no input {printable(name)!r:.100}; it takes {names}")
    return wanted
