"""What an ONNX graph may contain before onnxruntime is given it: its own tensors, and operators that it has itself.

A tensor of a graph can lie in another file, whose name the graph gives. Some versions of onnxruntime open such a file
wherever it is, so a graph that names one is refused here. The check reads the Protocol Buffers encoding itself, because
the package ``onnx`` is not needed to run a guard. Operators are those of ONNX, of onnxruntime itself, and functions
that the file defines. The check looks at nothing else: what the operators compute, and how much
time and memory that takes, is not known before they run.
"""

from collections.abc import Iterator, Mapping, Set

from oodles.errors import FileError

MAX_DEPTH = 32  # of messages within each other
DOMAINS = frozenset((b"", b"ai.onnx", b"ai.onnx.ml", b"com.microsoft"))  # of operators that onnxruntime has
OUTSIDE = frozenset((b"EPContext",))  # the operator of onnxruntime that names another file
LOOPS = frozenset((b"Loop", b"Scan"))  # they repeat a graph as often as a number in it says
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # the ways in which a field is encoded

# What can contain a tensor or a node: for each kind of message, the numbers of its fields and their kinds.
CONTENTS: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse tensor", 23: "sparse tensor"},
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
NODE_OPERATOR, NODE_DOMAIN, EXTERNAL_DATA, DATA_LOCATION = 4, 7, 13, 14
MODEL_FUNCTION, FUNCTION_DOMAIN = 25, 10


def check_graph(content: bytes, *, loops: bool = False) -> None:
    """Raise unless ``content`` is an ONNX model that contains all of its tensors, of operators that are known.

    ``loops`` are allowed where we wrote the graph: resizing images of any size needs one.
    """
    model = memoryview(content)
    functions = (part for number, part in _fields(model) if number == MODEL_FUNCTION and isinstance(part, memoryview))
    own = {bytes(name) for part in functions for number, name in _fields(part) if number == FUNCTION_DOMAIN}
    _check(model, "model", MAX_DEPTH, DOMAINS | own, OUTSIDE if loops else OUTSIDE | LOOPS)


def _check(message: memoryview, kind: str, depth: int, domains: Set[bytes], refused: Set[bytes]) -> None:
    if depth == 0:
        raise FileError(f"the graph is nested more than {MAX_DEPTH} deep")
    inside = CONTENTS[kind]
    for number, value in _fields(message):
        if kind == "tensor" and number in (EXTERNAL_DATA, DATA_LOCATION) and value != 0:
            raise FileError("the graph names another file for its tensors, which is not allowed")
        if kind == "node" and number == NODE_DOMAIN and (isinstance(value, int) or value.tobytes() not in domains):
            raise FileError("the graph has an operator that is not part of ONNX or onnxruntime")
        if kind == "node" and number == NODE_OPERATOR and not isinstance(value, int) and value in refused:
            raise FileError(
                f"the graph has the operator {bytes(value).decode()}, which is not allowed; export without it"
            )
        if number in inside and isinstance(value, memoryview):
            _check(value, inside[number], depth - 1, domains, refused)


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The number and the value of each field; groups, which ONNX does not have, are refused."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        number, encoding = tag >> 3, tag & 7
        value: int | memoryview
        if encoding == VARINT:
            value, place = _varint(message, place)
        elif encoding in (BYTES, FIXED32, FIXED64):
            length, place = _varint(message, place) if encoding == BYTES else (4 if encoding == FIXED32 else 8, place)
            value, place = message[place : place + length], place + length
        else:
            raise _unreadable()
        if place > len(message) or number == 0:
            raise _unreadable()
        yield number, value


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    """An integer of up to ten bytes with seven bits each, and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            raise _unreadable()
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            return value, place
    raise _unreadable()


def _unreadable() -> FileError:
    return FileError("the graph is not an ONNX model")
