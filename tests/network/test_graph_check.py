"""The check of a graph's encoding, compared with what the package ``onnx`` reads from the same bytes."""

import random
from collections.abc import Iterator
from typing import Any

import onnx
import pytest
from google.protobuf.message import DecodeError, Message
from onnx import TensorProto, helper

from oodles.errors import FileError
from oodles.network.graph_check import check_graph


def messages(message: Message) -> Iterator[Any]:
    """A message and all that it contains."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in value if field.is_repeated else [value]:
                yield from messages(each)


def is_outside(message: Message) -> bool:
    return isinstance(message, TensorProto) and bool(message.data_location or message.external_data)


def is_foreign(message: Message) -> bool:
    return isinstance(message, onnx.NodeProto) and message.domain not in ("", "ai.onnx", "com.microsoft")


def graph(draw: random.Random, depth: int = 3) -> onnx.GraphProto:
    """Some nodes with constants and branches, of which a few name other files or foreign operators."""
    nodes, tensors = [], []
    for number in range(draw.randrange(1, 4)):
        tensor = helper.make_tensor(f"t{number}", TensorProto.FLOAT, [2], [1.0, 2.0])
        if draw.random() < 0.1:
            tensor.data_location = TensorProto.EXTERNAL
        if draw.random() < 0.1:
            tensor.external_data.add(key="location", value="x")
        tensors.append(tensor)
        nodes.append(helper.make_node("Constant", [], [f"c{number}"], value=tensor))
        if depth and draw.random() < 0.5:
            inner = graph(draw, depth - 1)
            nodes.append(helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner))
        if draw.random() < 0.05:
            nodes[-1].domain = draw.choice(("ai.onnx", "com.microsoft", "com.example"))
    return helper.make_graph(nodes, "g", [], [], tensors if draw.random() < 0.5 else [])


@pytest.mark.parametrize("seed", range(20))
def test_what_onnx_reads_is_what_is_checked(seed):
    """Also of damaged bytes: whatever onnx still reads and finds outside or foreign is refused."""
    draw = random.Random(seed)
    refused = accepted = 0
    for _ in range(60):
        content = bytearray(helper.make_model(graph(draw)).SerializeToString())
        intact = draw.random() < 0.5
        if not intact:
            for _ in range(draw.choice((1, 1, 3))):
                content[draw.randrange(len(content))] = draw.randrange(256)
        try:
            model = onnx.load_from_string(bytes(content))
        except DecodeError:
            model = onnx.ModelProto()
        wrong = any(is_outside(each) or is_foreign(each) for each in messages(model))
        try:
            check_graph(bytes(content))
            found = False
        except FileError:
            found = True
        assert found or not wrong
        assert wrong or not (found and intact)
        refused += found
        accepted += not found
    assert refused > 5
    assert accepted > 5


def test_the_same_number_may_be_written_in_several_ways():
    """Numbers may have more bytes than they need: a tag that does is no way around the check."""
    external = TensorProto(name="w", external_data=[onnx.StringStringEntryProto(key="location", value="x")])
    content = external.SerializeToString()
    assert content.count(b"\x6a") == 1
    longer = content.replace(b"\x6a", b"\xea\x00")
    assert TensorProto.FromString(longer) == external

    def model(tensor: bytes) -> bytes:
        inside = b"\x2a" + bytes([len(tensor)]) + tensor
        return b"\x3a" + bytes([len(inside)]) + inside

    for tensor in (content, longer):
        assert len(onnx.ModelProto.FromString(model(tensor)).graph.initializer[0].external_data) == 1
        with pytest.raises(FileError, match="names another file"):
            check_graph(model(tensor))
    check_graph(model(TensorProto(name="w").SerializeToString()))


@pytest.mark.parametrize("operator", ["Loop", "Scan", "EPContext"])
def test_operators_without_a_bound_or_with_files_are_refused(operator):
    """A loop may run for years."""
    inner = helper.make_graph([helper.make_node(operator, ["x"], ["y"])], "g", [], [])
    outer = helper.make_graph([helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)], "g", [], [])
    with pytest.raises(FileError, match=operator):
        check_graph(helper.make_model(outer).SerializeToString())
