"""The graph of an ONNX file: what its output is computed from, and parts of it as graphs of their own."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from oodles.records.text import printable

# operators that multiply their input with weights, if those are constant
LINEAR = {"Gemm", "MatMul", "Conv", "Einsum", "MatMulNBits", "FusedMatMul", "FusedGemm", "FusedConv"}
QUANTISED = {"MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv", "QGemm", "DynamicQuantizeMatMul"}
WEIGHTED = LINEAR | QUANTISED | {"MatMulIntegerToFloat", "LinearClassifier", "LinearRegressor"}
MAX_TAIL = 200  # operators behind a head
SIZES = ("Shape", "Size")  # what they give depends on the number of rows, not on the rows


class HeadInputs(NamedTuple):
    """The tensors that the last weighted operators on the way to an output are given, and these operators."""

    names: tuple[str, ...]
    operators: tuple[onnx.NodeProto, ...]


class OnnxGraph:
    """A graph, by the names of its tensors."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self._nodes = model.graph.node
        self._producer = {name: place for place, node in enumerate(self._nodes) for name in node.output if name}
        self._tensors = {each.name: each for each in model.graph.initializer}
        self._constant = {*self._tensors, *(each.values.name for each in model.graph.sparse_initializer), ""}
        for node in self._nodes:
            if node.op_type in SIZES or all(name in self._constant for name in _read_by(node)):
                self._constant.update(node.output)

    def last_operator(self, name: str) -> str:
        """The type of the operator that gives a tensor, or what else it is."""
        return self._nodes[self._producer[name]].op_type if name in self._producer else "an input of the graph"

    def is_quantised(self) -> bool:
        """Whether numbers are rounded to integers on the way."""
        return any("Quantize" in node.op_type or "Integer" in node.op_type for node in self._nodes)

    def cuts(self, output: str) -> list[str]:
        """The tensors that alone decide the output, from itself back to the last weighted operator."""
        found: list[str] = []
        frontier = {output}
        for _ in range(MAX_TAIL):
            if len(frontier) == 1:
                found.append(*frontier)
            place = max((self._producer.get(name, -1) for name in frontier), default=-1)
            if place < 0 or self._is_weighted(self._nodes[place]):
                break
            node = self._nodes[place]
            frontier = (frontier - {*node.output}) | {*self._varying(node)}
        return found

    def head_inputs(self, output: str) -> HeadInputs | str:
        """Where every way back from the output first meets a weighted operator; else what it meets instead."""
        names: dict[str, None] = {}
        operators: dict[int, onnx.NodeProto] = {}
        for place in self._places([output], stop_at_weights=True):
            node = self._nodes[place]
            if self._is_weighted(node):
                names |= dict.fromkeys(self._varying(node))
                operators[place] = node
            else:
                without = next((name for name in self._varying(node) if name not in self._producer), None)
                if without is not None:
                    return f"a way to its output without a linear layer, from the input {printable(without)}"
        if not names:
            return "no linear layer"
        return HeadInputs(tuple(names), tuple(operators[place] for place in sorted(operators)))

    def part(self, inputs: Sequence[str], outputs: Sequence[str], *, raw_scores: bool) -> onnx.ModelProto:
        """The part from some tensors to others as a model of its own; the sizes of other tensors are inputs as well.

        With ``raw_scores``, a linear classifier of scikit-learn gives its scores before its own softmax.
        """
        places: set[int] = set()
        sizes: dict[str, None] = {}
        needed = [*outputs]
        inside = {name for place in self._places(outputs, inputs) for name in self._nodes[place].output}
        inside |= {*inputs, *self._constant}
        while needed:
            name = needed.pop()
            place = self._producer.get(name, -1)
            if name in inputs or place < 0 or place in places:
                continue
            node = self._nodes[place]
            if node.op_type in SIZES and node.input[0] not in inside:
                sizes[name] = None
                continue
            places.add(place)
            needed += _read_by(node)
        nodes = [onnx.NodeProto.FromString(self._nodes[place].SerializeToString()) for place in sorted(places)]
        for node in nodes if raw_scores else ():
            for attribute in node.attribute:
                if node.op_type == "LinearClassifier" and attribute.name == "post_transform":
                    attribute.s = b"NONE"
        used = {name for node in nodes for name in _read_by(node)} | {*outputs}
        graph = helper.make_graph(
            nodes,
            "part",
            [onnx.ValueInfoProto(name=name) for name in (*inputs, *sizes)],
            [onnx.ValueInfoProto(name=name) for name in outputs],
            [tensor for name, tensor in self._tensors.items() if name in used],
        )
        graph.sparse_initializer.extend(
            each for each in self.model.graph.sparse_initializer if each.values.name in used
        )
        return helper.make_model(graph, opset_imports=self.model.opset_import, ir_version=self.model.ir_version)

    def _is_weighted(self, node: onnx.NodeProto) -> bool:
        weights = any(name and name in self._constant for name in node.input)
        return node.op_type in WEIGHTED and (weights or node.op_type.startswith("Linear"))

    def _varying(self, node: onnx.NodeProto) -> list[str]:
        return [name for name in _read_by(node) if name not in self._constant]

    def _places(self, outputs: Sequence[str], inputs: Sequence[str] = (), *, stop_at_weights: bool = False) -> set[int]:
        """The nodes on all ways from ``inputs``, or from the last weighted operators, to ``outputs``."""
        found: set[int] = set()
        waiting = [name for name in outputs if name not in inputs]
        while waiting:
            place = self._producer.get(waiting.pop(), -1)
            if place < 0 or place in found:
                continue
            found.add(place)
            if not (stop_at_weights and self._is_weighted(self._nodes[place])):
                waiting += [name for name in self._varying(self._nodes[place]) if name not in inputs]
        return found


def _read_by(node: onnx.NodeProto) -> Iterable[str]:
    """The tensors that a node reads, those inside its branches and loops included."""
    names = [name for name in node.input if name]
    waiting = [graph for each in node.attribute for graph in (each.g, *each.graphs)]
    while waiting:
        graph = waiting.pop()
        own = {name for inner in graph.node for name in inner.output}
        own |= {each.name for each in (*graph.input, *graph.initializer)}
        for inner in graph.node:
            names += [name for name in inner.input if name and name not in own]
            waiting += [nested for each in inner.attribute for nested in (each.g, *each.graphs)]
        names += [each.name for each in graph.output if each.name not in own]
    return names


def with_outputs(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """A copy of the model that also gives these tensors."""
    tapped = onnx.ModelProto()
    tapped.CopyFrom(model)
    known = {each.name for each in model.graph.output}
    tapped.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    return tapped


def declare(model: onnx.ModelProto, arrays: dict[str, npt.NDArray[np.generic]]) -> None:
    """Give the inputs and outputs of these names the types of the arrays, with sizes that are left open."""
    for value in (*model.graph.input, *model.graph.output):
        if value.name in arrays:
            array = arrays[value.name]
            kind, shape = helper.np_dtype_to_tensor_dtype(array.dtype), [None] * array.ndim
            value.CopyFrom(helper.make_tensor_value_info(value.name, kind, shape))
