"""Tensors of the inference protocol: what is written can be read, and whatever cannot be read is a 400."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from oodles.serve.nested import MAX_DIMENSIONS, nested_numbers
from oodles.serve.problems import Problem
from oodles.serve.tensors import TYPES, read_inference, write_inference

OUTPUTS = ("score", "label")
SIZES = {"BOOL": 1, "UINT8": 1, "INT8": 1, "INT16": 2, "INT32": 4, "INT64": 8, "FP16": 2, "FP32": 4, "FP64": 8}


@st.composite
def tensors(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    kind = np.dtype(draw(st.sampled_from([*TYPES.values()])))
    numbers = arrays.from_dtype(kind, allow_nan=False, allow_infinity=False)
    return draw(
        arrays.arrays(kind, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4), elements=numbers)
    )


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
    found = read_inference(text + tail, str(len(text)) if binary else None, OUTPUTS)
    assert found.outputs == {"score": False, "label": False}
    for number, value in enumerate(values):
        read = found.inputs[f"t{number}"]
        assert read.dtype == value.dtype
        assert np.array_equal(read, value)


@settings(max_examples=50, deadline=None)
@given(value=tensors(), binary=st.booleans())
def test_answers_hold_what_was_computed(value: np.ndarray[Any, Any], binary: bool) -> None:
    body, length = write_inference({"score": value}, {"score": binary}, {"model_name": "m"})
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
    body, _ = write_inference({"score": np.array([np.nan, np.inf], "float32")}, {"score": False}, {})
    assert json.loads(body)["outputs"][0]["data"] == [None, None]


GOOD = {"name": "x", "shape": [2], "datatype": "INT8", "data": [1, 2]}
BINARY = {"name": "x", "shape": [2], "datatype": "INT8", "parameters": {"binary_data_size": 2}}


@pytest.mark.parametrize(
    ("request_", "tail", "words"),
    [
        ({"inputs": []}, b"", "no inputs"),
        ({}, b"", "inputs"),
        ({"inputs": [GOOD, GOOD]}, b"", "twice"),
        ({"inputs": [{**GOOD, "data": [1, 2, 3]}]}, b"", "2 numbers that fit int8"),
        ({"inputs": [{**GOOD, "data": [1, 200]}]}, b"", "fit int8"),
        ({"inputs": [{**GOOD, "data": [1, 1.5]}]}, b"", "fit int8"),
        ({"inputs": [{**GOOD, "data": [1, "2"]}]}, b"", "fit int8"),
        ({"inputs": [{**GOOD, "data": [[1], [2, 3]]}]}, b"", "fit int8"),
        ({"inputs": [{**GOOD, "datatype": "FP16", "data": [1, 1e6]}]}, b"", "fit float16"),
        ({"inputs": [{**GOOD, "datatype": "BOOL", "data": [1, 2]}]}, b"", "fit bool"),
        ({"inputs": [{**GOOD, "datatype": "BYTES"}]}, b"", "BYTES, not one of"),
        ({"inputs": [{**GOOD, "shape": [-2]}]}, b"", "shape [-2]"),
        ({"inputs": [{**GOOD, "shape": [1] * 9}]}, b"", "up to 8 sizes"),
        ({"inputs": [{**GOOD, "shape": [0, 10**30], "data": []}]}, b"", "more numbers than"),
        ({"inputs": [{**GOOD, "shape": [2**62, 2**62], "data": []}]}, b"", "more numbers than"),
        ({"inputs": [{**GOOD, **BINARY}]}, b"ab", "either data or binary_data_size"),
        ({"inputs": [{**GOOD, "data": None}]}, b"", "either data or binary_data_size"),
        ({"inputs": [BINARY]}, b"a", "takes 2 bytes; 2 are stated, 1 are left"),
        ({"inputs": [BINARY]}, b"abc", "1 bytes after the last tensor"),
        ({"inputs": [{**BINARY, "parameters": {"binary_data_size": 3}}]}, b"abc", "3 are stated"),
        ({"inputs": [{**BINARY, "parameters": {"binary_data_size": "2"}}]}, b"ab", "2 are stated"),
        ({"inputs": [GOOD], "outputs": [{"name": "y\n"}]}, b"", r"no output 'y\\n'; there are score, label"),
    ],
)
def test_malformed_requests_say_what_is_wrong(request_: dict[str, Any], tail: bytes, words: str) -> None:
    text = json.dumps(request_).encode()
    with pytest.raises(Problem) as refused:
        read_inference(text + tail, str(len(text)), OUTPUTS)
    assert refused.value.status == 400
    assert words in refused.value.message
    assert len(refused.value.message.splitlines()) == 1


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.integers(10**18, 10**25),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
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
    length=st.none() | st.just("") | st.text(max_size=5) | st.integers(-2, 300).map(str),
)
def test_nothing_but_a_400_is_raised(body: bytes, tail: bytes, length: str | None) -> None:
    given_length = str(len(body)) if length == "" else length
    try:
        found = read_inference(body + tail, given_length, OUTPUTS)
    except Problem:  # which is always a 400
        return
    assert all(isinstance(value, np.ndarray) for value in found.inputs.values())


@settings(max_examples=200, deadline=None)
@given(value=anything)
def test_nested_numbers_are_what_numpy_makes_of_numbers(value: Any) -> None:
    """Beside a slow rule: every leaf is a number, and all lists of a level have the same length."""

    def shape(part: Any) -> tuple[int, ...] | None:
        if isinstance(part, bool | int | float):
            return ()
        if not isinstance(part, list):
            return None
        inner = [shape(each) for each in part]
        if None in inner or len({*inner}) > 1:
            return None
        return (len(part), *(inner[0] or ())) if inner else (0,)

    found, expected = nested_numbers(value), shape(value)
    if found is None:
        big = any(abs(each) >= 2**63 for each in leaves(value) if isinstance(each, int))
        assert expected is None or big or len(expected) > MAX_DIMENSIONS
    else:
        assert found.shape == expected
        assert all(
            a == b or math.isnan(b)
            for a, b in zip(found.ravel().tolist(), leaves(value), strict=True)
            if abs(b) < 2**53
        )


def leaves(value: Any) -> list[Any]:
    return [leaf for each in value for leaf in leaves(each)] if isinstance(value, list) else [value]
