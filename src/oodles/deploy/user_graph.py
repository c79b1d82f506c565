"""The user's own ONNX graph, to which the graph of a detector is appended."""

import onnx
from onnx import compose, inliner, version_converter
from torch import Tensor

from oodles.data.inputs import Inputs
from oodles.deploy.exported import INPUT, OUTPUTS, THRESHOLD
from oodles.errors import ArgumentError
from oodles.network.forward import ForwardPass
from oodles.network.onnx_graph import declare, with_outputs
from oodles.network.onnx_model import OnnxModel
from oodles.records.text import one_line

MIN_OPSET = 18  # that torch converts to
PREFIX, RENAMED = "oodles/", "model/"
STANDARD = ("", "ai.onnx")


class UserGraph:
    """The graph of a user's file with a free number of rows, and its opset, which that of the detector has to be.

    Nodes stay as they are. Only a file from before opset 18 is converted to that, and a tensor that is called like an
    output of the guard is renamed.
    """

    def __init__(self, network: OnnxModel, forward: ForwardPass, *, images: bool) -> None:
        self._network = network
        points = forward.located.points if forward.located else ()
        self._names = [network.output, *(str(point.module) for point in points)]
        reserved = {*OUTPUTS, THRESHOLD}
        taken = next((name for name in network.input_names if name in reserved), None)
        if taken is not None:
            raise ArgumentError(f"{network.path} has an input called {taken}, as an exported guard has; rename it")
        model = network.parsed()
        if model.functions:
            model = inliner.inline_local_functions(model)
        self.opset = max(each.version for each in model.opset_import if each.domain in STANDARD)
        if self.opset < MIN_OPSET:
            model, self.opset = _converted(model, network), MIN_OPSET
        self._reserved = reserved | {INPUT} if images else reserved
        _rename(model.graph, self._reserved)
        defaults = {each.name for each in model.graph.initializer}
        kept = [each for each in model.graph.input if each.name not in defaults]
        del model.graph.input[:], model.graph.value_info[:]
        model.graph.input.extend(kept)
        self._model, self.inputs = model, [each.name for each in kept]

    def taps(self, inputs: Inputs) -> tuple[list[str], list[Tensor], tuple[str, ...]]:
        """Names and values of what the detector is given for two rows: the file's output, the inputs of its head."""
        self._values = self._network.run(inputs.args, inputs.kwargs, self._names[1:])
        return [f"{PREFIX}given_{place}" for place in range(len(self._names))], self._values, ()

    def joined(self, detector: onnx.ModelProto, ir_version: int) -> onnx.ModelProto:
        """The user's graph and behind it the detector's, whose outputs are the only ones."""
        names = [RENAMED + name if name in self._reserved else name for name in self._names]
        model = with_outputs(self._model, names)
        for value in [each for each in model.graph.output if each.name not in names]:
            model.graph.output.remove(value)
        declare(model, {name: value.numpy() for name, value in zip(names, self._values, strict=True)})
        for value in (*model.graph.input, *model.graph.output):
            dimensions = value.type.tensor_type.shape.dim
            if dimensions and self._network.fixed_rows is not None:
                dimensions[0].dim_param = "n"
        own = [each.name for each in detector.graph.input]
        detector = compose.add_prefix(detector, PREFIX, rename_inputs=False, rename_outputs=False)
        model.ir_version = detector.ir_version = max(ir_version, model.ir_version)
        versions = {("" if each.domain in STANDARD else each.domain): each.version for each in model.opset_import}
        for part in (model, detector):
            del part.opset_import[:]
            part.opset_import.extend(onnx.helper.make_opsetid(*each) for each in versions.items())
        return compose.merge_models(model, detector, io_map=[*zip(names, own[:-1], strict=True)])


def _converted(model: onnx.ModelProto, network: OnnxModel) -> onnx.ModelProto:
    try:
        return version_converter.convert_version(model, MIN_OPSET)
    except Exception as error:  # of onnx, whose errors have no common class
        raise ArgumentError(
            f"{network.path} cannot be converted to opset {MIN_OPSET}, which a guard needs ({one_line(error)}); export "
            f"the model at opset {MIN_OPSET} or later"
        ) from None


def _rename(graph: onnx.GraphProto, names: set[str]) -> None:
    """Give tensors that are called like an output of the guard other names, those inside branches and loops too."""

    def new(name: str) -> str:
        return RENAMED + name if name in names else name

    for node in graph.node:
        for part in (node.input, node.output):
            if not names.isdisjoint(part):
                part[:] = [new(name) for name in part]
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _rename(inner, names)
    for each in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        each.name = new(each.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = new(sparse.values.name)
