"""Tensors of the Open Inference Protocol (version 2): as JSON, and as bytes after the JSON."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from oodles.records.text import printable
from oodles.serve.nested import MAX_DIMENSIONS, nested_numbers
from oodles.serve.problems import Problem
from oodles.serve.reading import parse_json

TYPES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
}
MAX_NUMBERS = 1 << 40  # of a tensor; no body is as large
NAMES = {kind: name for name, kind in TYPES.items()}
Array = npt.NDArray[Any]


class _Tensor(Struct):
    name: str
    shape: list[int]
    datatype: str
    data: list[Any] | None = None
    parameters: dict[str, Any] = field(default_factory=dict)


class _Output(Struct):
    name: str
    parameters: dict[str, Any] = field(default_factory=dict)


class _Request(Struct):
    inputs: list[_Tensor]
    id: str | None = None
    outputs: list[_Output] | None = None
    parameters: dict[str, Any] = field(default_factory=dict)


class Inference(NamedTuple):
    """A request: its inputs by name, and the outputs that are asked for, with whether each is wanted as bytes."""

    id: str | None
    inputs: dict[str, Array]
    outputs: dict[str, bool]


def read_inference(body: bytes, header_length: str | None, outputs: Sequence[str]) -> Inference:
    """A request from its body; ``header_length`` is where its JSON ends and bytes begin, ``outputs`` what there is."""
    end = len(body) if header_length is None else _length(header_length, len(body))
    request = parse_json(body[:end], _Request, "an inference request")
    rest = memoryview(body)[end:]
    arrays: dict[str, Array] = {}
    for tensor in request.inputs:
        if tensor.name in arrays:
            raise Problem(400, f"the input {printable(tensor.name)!r:.100} is given twice")
        arrays[tensor.name], rest = _array(tensor, rest)
    if len(rest):
        raise Problem(400, f"{len(rest)} bytes after the last tensor belong to no input")
    if not arrays:
        raise Problem(400, "the request has no inputs")
    return Inference(request.id, arrays, _wanted(request, outputs))


def write_inference(
    answers: Mapping[str, Array], outputs: Mapping[str, bool], about: Mapping[str, Any]
) -> tuple[bytes, int | None]:
    """The body of an answer and, if tensors follow as bytes, where its JSON ends."""
    described, tail = [], []
    for name, binary in outputs.items():
        value = answers[name]
        tensor: dict[str, Any] = {"name": name, "datatype": NAMES[str(value.dtype)], "shape": list(value.shape)}
        if binary:
            tail.append(np.ascontiguousarray(value).tobytes())
            described.append({**tensor, "parameters": {"binary_data_size": len(tail[-1])}})
        else:
            described.append({**tensor, "data": value.ravel().tolist()})
    head = msgspec.json.encode({**about, "outputs": described})
    return b"".join([head, *tail]), len(head) if tail else None


def _wanted(request: _Request, known: Sequence[str]) -> dict[str, bool]:
    """The outputs that a request asks for, or all; a tensor is sent as bytes if the request or the output says so."""
    always = request.parameters.get("binary_data_output") is True
    if not request.outputs:
        return dict.fromkeys(known, always)
    other = next((each.name for each in request.outputs if each.name not in known), None)
    if other is not None:
        raise Problem(400, f"there is no output {printable(other)!r:.100}; there are {', '.join(known)}")
    return {each.name: each.parameters.get("binary_data", always) is True for each in request.outputs}


def _length(text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) <= most):
        raise Problem(400, f"Inference-Header-Content-Length {text[:100]!r} is not a length within the body of {most}")
    return int(text)


def _array(tensor: _Tensor, rest: memoryview) -> tuple[Array, memoryview]:
    """One tensor, and the bytes that are left."""
    name = printable(tensor.name)[:100]
    kind = TYPES.get(tensor.datatype)
    if kind is None:
        raise Problem(400, f"{name} has the datatype {printable(tensor.datatype)[:20]}, not one of {', '.join(TYPES)}")
    if len(tensor.shape) > MAX_DIMENSIONS or any(size < 0 for size in tensor.shape):
        raise Problem(400, f"{name} has the shape {tensor.shape[:10]}; give up to {MAX_DIMENSIONS} sizes from 0")
    count = math.prod(tensor.shape)
    if count > MAX_NUMBERS or max(tensor.shape, default=0) > MAX_NUMBERS:
        raise Problem(400, f"{name} has the shape {tensor.shape}, more numbers than a body can hold")
    stated = tensor.parameters.get("binary_data_size")
    if (tensor.data is None) == (stated is None):
        raise Problem(400, f"{name} needs either data or binary_data_size")
    if tensor.data is not None:
        return _from_numbers(tensor.data, kind, count, name).reshape(tensor.shape), rest
    size = count * np.dtype(kind).itemsize
    if type(stated) is not int or stated != size or size > len(rest):
        raise Problem(
            400,
            f"{name} of {tensor.datatype} {tensor.shape} takes {size} bytes; {stated} are stated, {len(rest)} are left",
        )
    return np.frombuffer(rest[:size], np.dtype(kind).newbyteorder("<")).astype(kind).reshape(tensor.shape), rest[size:]


def _from_numbers(data: list[Any], kind: str, count: int, name: str) -> Array:
    """A flat array from numbers, nested or not, if every one of them has a place in the type."""
    found = nested_numbers(data)
    if found is not None and found.size == count:
        with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is found by the comparison
            converted = found.ravel().astype(kind)
        same = converted == found.ravel() if np.dtype(kind).kind in "biu" else np.isfinite(converted)
        if same.all():
            return converted
    raise Problem(400, f"the data of {name} are not {count} numbers that fit {kind}")
