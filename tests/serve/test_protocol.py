"""Tensors of the inference protocol: what is written can be read, and whatever cannot be read is a 400."""

import json
from typing import Any

import numpy as np
import pytest
from fastapi import HTTPException
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.serving import anything

from oodles.serve.protocol import TYPES, read_inference, write_inference

OUTPUTS = ("score", "label")
ABOUT = {"model_name": "m", "model_version": "v"}
SIZES = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "FP32": 4,
    "FP64": 8,
}


@st.composite
def tensors(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    kind = np.dtype(draw(st.sampled_from([*TYPES.values()])))
    numbers = arrays.from_dtype(kind, allow_nan=False, allow_infinity=False)
    return draw(arrays.arrays(kind, arrays.array_shapes(min_dims=0, max_dims=4, max_side=4), elements=numbers))


def plainly(value: np.ndarray[Any, Any], datatype: str) -> bytes:
    """The bytes of a tensor, one number after another, the lowest byte first."""
    code = {"B": "?", "U": "u", "I": "i", "F": "f"}[datatype[0]]
    width = "" if code == "?" else SIZES[datatype]
    return b"".join(np.asarray(each).astype(f"<{code}{width}").tobytes() for each in value.ravel())


@settings(max_examples=100, deadline=None)
@given(values=st.lists(tensors(), min_size=1, max_size=3), binary=st.booleans(), nested=st.booleans())
def test_tensors_are_read_as_they_were_written(values: list[np.ndarray[Any, Any]], binary: bool, nested: bool) -> None:
    datatypes = [next(name for name, kind in TYPES.items() if kind == str(value.dtype)) for value in values]
    head: list[dict[str, Any]] = []
    tail = b""
    for number, (value, datatype) in enumerate(zip(values, datatypes, strict=True)):
        tensor: dict[str, Any] = {"name": f"t{number}", "datatype": datatype, "shape": list(value.shape)}
        if binary:
            content = plainly(value, datatype)
            tensor["parameters"] = {"binary_data_size": len(content)}
            tail += content
        else:
            data = value.tolist() if nested and value.ndim else value.ravel().tolist()
            tensor["data"] = data
        head.append(tensor)
    text = json.dumps({"inputs": head}).encode()
    found = read_inference(text + tail, len(text) if binary else None, OUTPUTS)
    assert found.outputs == {"score": False, "label": False}
    for number, value in enumerate(values):
        read = found.inputs[f"t{number}"]
        assert read.dtype == value.dtype
        assert np.array_equal(read, value)


@settings(max_examples=50, deadline=None)
@given(value=tensors(), binary=st.booleans())
def test_answers_hold_what_was_computed(value: np.ndarray[Any, Any], binary: bool) -> None:
    body, length = write_inference({"score": value}, {"score": binary}, ABOUT)
    head = json.loads(body if length is None else body[:length])
    (tensor,) = head["outputs"]
    assert (head["model_name"], tensor["name"], tensor["shape"]) == ("m", "score", list(value.shape))
    assert TYPES[tensor["datatype"]] == str(value.dtype)
    if binary:
        assert length is not None
        assert body[length:] == plainly(value, tensor["datatype"])
        assert tensor["parameters"]["binary_data_size"] == len(body) - length
    else:
        assert length is None
        assert tensor["data"] == value.ravel().tolist()


def test_outputs_that_are_not_finite_are_null() -> None:
    body, _ = write_inference({"score": np.array([np.nan, np.inf], "float32")}, {"score": False}, ABOUT)
    assert json.loads(body)["outputs"][0]["data"] == [None, None]


def test_long_answers_are_written_in_parts() -> None:
    value = np.arange(50_000, dtype="float32").reshape(2, -1)
    body, _ = write_inference({"score": value}, {"score": False}, ABOUT)
    assert json.loads(body)["outputs"][0]["data"] == value.ravel().tolist()


GOOD = {"name": "x", "shape": [2], "datatype": "INT8", "data": [1, 2]}
BINARY = {"name": "x", "shape": [2], "datatype": "INT8", "parameters": {"binary_data_size": 2}}


@pytest.mark.parametrize(
    ("request_", "tail", "words"),
    [
        ({"inputs": []}, b"", "inputs"),
        ({}, b"", "inputs"),
        ({"inputs": [GOOD, GOOD]}, b"", "twice"),
        ({"inputs": [{**GOOD, "data": [1, 2, 3]}]}, b"", "has 3 numbers"),
        ({"inputs": [{**GOOD, "data": [1, 200]}]}, b"", "fit int8"),
        ({"inputs": [{**GOOD, "data": [1, 1.5]}]}, b"", "fit int8"),
        ({"inputs": [{**GOOD, "data": [1, "2"]}]}, b"", "fit int8"),
        ({"inputs": [{**GOOD, "data": [[1], [2, 3]]}]}, b"", "equal lengths"),
        ({"inputs": [{**GOOD, "datatype": "FP16", "data": [1, 1e6]}]}, b"", "fit float16"),
        ({"inputs": [{**GOOD, "datatype": "BOOL", "data": [1, 2]}]}, b"", "fit bool"),
        ({"inputs": [{**GOOD, "datatype": "TEXT"}]}, b"", "TEXT, not one of"),
        ({"inputs": [{**GOOD, "shape": [-2]}]}, b"", "shape[0]"),
        ({"inputs": [{**GOOD, "shape": [1] * 9}]}, b"", "length <= 8"),
        ({"inputs": [{**GOOD, "shape": [0, 2**40, 2**40], "data": []}]}, b"", "shape[0]"),
        ({"inputs": [{**GOOD, "shape": [2**62, 2**62], "data": []}]}, b"", "has 1 numbers"),
        ({"inputs": [{**GOOD, "datatype": "BYTES"}]}, b"", "list of texts"),
        ({"inputs": [{**GOOD, "datatype": "BYTES", "data": ["a"]}]}, b"", "1 texts"),
        ({"inputs": [{**BINARY, "datatype": "BYTES"}]}, b"ab", "list of texts"),
        (
            {"inputs": [{**BINARY, "datatype": "BYTES", "parameters": {"binary_data_size": 5}}]},
            b"\1\0\0\0\xff",
            "UTF-8",
        ),
        ({"inputs": [{**GOOD, **BINARY}]}, b"ab", "either data or binary_data_size"),
        ({"inputs": [{**GOOD, "data": None}]}, b"", "either data or binary_data_size"),
        ({"inputs": [BINARY]}, b"a", "takes 2 bytes; 2 are stated, 1 are left"),
        ({"inputs": [BINARY]}, b"abc", "1 bytes after the last tensor"),
        ({"inputs": [{**BINARY, "parameters": {"binary_data_size": 3}}]}, b"abc", "3 are stated"),
        ({"inputs": [{**BINARY, "parameters": {"binary_data_size": "2"}}]}, b"ab", "binary_data_size"),
        ({"inputs": [GOOD], "outputs": [{"name": "y\n"}]}, b"", r"no output 'y\\n'; there are score, label"),
    ],
)
def test_malformed_requests_say_what_is_wrong(request_: dict[str, Any], tail: bytes, words: str) -> None:
    text = json.dumps(request_).encode()
    with pytest.raises(HTTPException) as refused:
        read_inference(text + tail, len(text), OUTPUTS)
    assert refused.value.status_code == 400
    assert words in refused.value.detail
    assert len(refused.value.detail.splitlines()) == 1


odd = st.fixed_dictionaries(
    {},
    optional={
        "name": st.just("x") | anything,
        "shape": st.lists(st.integers(-1, 5) | st.integers(0, 2**70), max_size=10) | anything,
        "datatype": st.sampled_from([*TYPES]) | anything,
        "data": anything,
        "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": st.integers(-1, 9) | anything})
        | anything,
    },
)
requests = st.fixed_dictionaries(
    {"inputs": st.lists(odd, max_size=3) | anything},
    optional={"id": anything, "outputs": st.lists(odd, max_size=2) | anything, "parameters": anything},
)


@settings(max_examples=300, deadline=None)
@given(
    body=requests.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60),
    tail=st.binary(max_size=9),
    length=st.none() | st.just(-1) | st.integers(0, 300),
)
def test_nothing_but_a_400_is_raised(body: bytes, tail: bytes, length: int | None) -> None:
    given_length = len(body) if length == -1 else length
    try:
        found = read_inference(body + tail, given_length, OUTPUTS)
    except HTTPException:  # which is always a 400
        return
    assert all(isinstance(value, np.ndarray) for value in found.inputs.values())
