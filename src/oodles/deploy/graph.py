"""A guard as one ONNX graph: preprocessing, network, detector and threshold."""

import copy
import io
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

import onnx
import torch
from onnx import compose, numpy_helper
from torch import Tensor, nn

from oodles.calibration import Threshold
from oodles.data.inputs import Inputs
from oodles.data.transforms import Transform
from oodles.deploy.explaining import output_names
from oodles.deploy.exported import OUTPUTS, THRESHOLD
from oodles.deploy.preprocessing import IMAGES, preprocessing_graph
from oodles.deploy.user_graph import UserGraph
from oodles.detectors import Detector
from oodles.detectors.base import INPUTS, extra_columns
from oodles.detectors.ensemble import RankEnsemble
from oodles.errors import ArgumentError
from oodles.explanation.explaining import explained_parts, is_sparsified, shaped_rows, split
from oodles.functional import label_probability
from oodles.network.forward import ForwardPass
from oodles.network.onnx_model import OnnxModel
from oodles.records.files import Record
from oodles.records.text import one_line

OPSET, IR_VERSION = 20, 10
PREFIX = "preprocessing/"
MAX_BYTES = (1 << 31) - (1 << 20)  # of a Protocol Buffers message


def described_explanation(detector: Detector, forward: ForwardPass) -> Record:
    """What the graph of a guard explains, as the record of an exported guard says it."""
    parts, ensemble = explained_parts(detector), isinstance(detector, RankEnsemble)
    known_head = forward.feature_head() is not None
    return {
        "reduction": detector.reduction if isinstance(detector, RankEnsemble) else None,
        "members": [part.spec for part in parts] if ensemble else [],
        "limits": detector.limits() if isinstance(detector, RankEnsemble) else [],
        "sparsified": [place for place, part in enumerate(parts) if known_head and is_sparsified(part)],
    }


class GuardGraph(nn.Module):
    """What a guard computes for one batch, without the checks that look at numbers."""

    detector: Detector
    weight: Tensor
    bias: Tensor

    def __init__(
        self, forward: ForwardPass, detector: Detector, threshold: Threshold, names: Sequence[str], multilabel: bool
    ) -> None:
        super().__init__()
        # of an ONNX file only what comes after it is converted, from its output and the inputs of its head
        self._onnx = isinstance(forward.network, OnnxModel)
        self.network = None if self._onnx else forward.network
        self.detector = detector
        self._forward = forward
        self._names = tuple(names)
        self._multilabel = multilabel
        self._columns = (*INPUTS, *extra_columns(detector))
        self.like = next((each for each in detector.buffers() if each.is_floating_point()), torch.empty(0))
        scores = None if threshold.id_scores is None else torch.from_numpy(threshold.id_scores.copy())
        self.register_buffer("id_scores", scores)
        explanation, head = described_explanation(detector, forward), forward.feature_head()
        self.outputs = (*OUTPUTS, *output_names(explanation))
        self._sparsified: list[int] = explanation["sparsified"]
        if head is not None and self._sparsified:
            self.register_buffer("weight", head.weight.detach())
            self.register_buffer("bias", head.full_bias().detach())

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """The outputs in the order of ``outputs``; the last of ``values`` is the threshold, the others are inputs."""
        *given, threshold = values
        by_position = len(given) - len(self._names)
        named = dict(zip(self._names, given[by_position:], strict=True))
        output, columns = self._forward.trace(
            lambda network: given if self._onnx else network(*given[:by_position], **named)
        )
        like = self.like.to(torch.float64 if self.like.dtype == torch.float64 else torch.float32)
        used = [
            columns[name].to(like) if name in columns else output.new_empty(output.shape[0], 0).to(like)
            for name in self._columns
        ]
        of_members: tuple[Tensor, ...] = ()
        if isinstance(self.detector, RankEnsemble):
            members = self.detector.member_scores(*used)
            score, of_members = self.detector.combined(members), (members.T.float(),)
        else:
            score = self.detector(*used)
        # NaN for a row with a value that is not finite: zero times such a value is NaN
        score = score + sum((column * 0).sum(dim=1) for column in (*used, score[:, None]))
        logits = columns["logits"].float()
        label, probability = logits.argmax(dim=1), label_probability(logits, multilabel=self._multilabel)
        is_id = (score >= threshold) & (score < math.inf)
        verdict = output, label, probability, score, self._p_values(score), is_id
        return *verdict, *of_members, *self._contributions(used[INPUTS.index("embedding")], label)

    def _contributions(self, embedding: Tensor, label: Tensor) -> tuple[Tensor, ...]:
        """What units add to the logit of the predicted class, for each detector that sparsifies the head."""
        parts = explained_parts(self.detector)
        found = [
            split(part, self.weight, self.bias, shaped_rows(part, embedding), label)
            for part in (parts[place] for place in self._sparsified)
            if is_sparsified(part)
        ]
        return tuple(torch.stack(each, dim=1).float() for each in zip(*found, strict=True))

    def _p_values(self, score: Tensor) -> Tensor:
        known = self.id_scores
        if not isinstance(known, Tensor):
            return torch.full_like(score, math.nan, dtype=torch.float32)
        at_most = (known <= score[:, None]).float().sum(dim=1)
        return (1 + torch.where(score < math.inf, at_most, 0)) / (len(known) + 1)


def build(
    forward: ForwardPass,
    inputs: Inputs,
    detector: Detector,
    threshold: Threshold,
    *,
    transform: Transform | None,
    multilabel: bool,
) -> onnx.ModelProto:
    """The guard as an ONNX model; ``inputs`` are two rows that the network takes.

    With ``transform`` its input is ``pixels``, uint8 ``(n, height, width, c)``; otherwise the network's own inputs.
    ``threshold`` is an input with a default.
    """
    names, values = tensor_inputs(inputs)
    source = None
    if isinstance(forward.network, OnnxModel):
        source = UserGraph(forward.network, forward, images=transform is not None)
    named = tuple(inputs.kwargs)
    if source is not None:
        names, values, named = source.taps(inputs)
    module = GuardGraph(forward, copy.deepcopy(detector), threshold, named, multilabel).eval()
    limit = torch.tensor(threshold.value, dtype=torch.float64 if module.like.dtype == torch.float64 else torch.float32)
    opset = OPSET if source is None else source.opset
    model = _convert(module, (*values, limit), [*names, THRESHOLD], opset)
    if source is not None:
        model = source.joined(model, IR_VERSION)
        names = [*source.inputs]
    if transform is not None:
        before = preprocessing_graph(transform, opset, IR_VERSION)
        before.ir_version = model.ir_version
        before = compose.add_prefix(before, PREFIX, rename_inputs=False)
        model = compose.merge_models(before, model, io_map=[(PREFIX + IMAGES, names[0])])
    _name_rows(model)
    model.ir_version = max(IR_VERSION, model.ir_version)
    model.producer_name, model.producer_version = "oodles", ""
    # an input with an initialiser of the same name has a default
    model.graph.initializer.append(numpy_helper.from_array(limit.numpy(), THRESHOLD))
    if model.ByteSize() > MAX_BYTES:
        raise ArgumentError(f"the model takes {model.ByteSize() / 1e9:.1f} GB as ONNX; at most 2 GB can be exported")
    onnx.checker.check_model(model)
    return model


def _name_rows(model: onnx.ModelProto) -> None:
    """Call the number of rows ``n`` everywhere; torch makes up a name."""
    for value in (*model.graph.input, *model.graph.output):
        dimensions = value.type.tensor_type.shape.dim
        if dimensions and not dimensions[0].HasField("dim_value"):
            dimensions[0].dim_param = "n"
    del model.graph.value_info[:]


def tensor_inputs(inputs: Inputs) -> tuple[list[str], list[Tensor]]:
    """The names and tensors of a network's inputs as an exported graph has them."""
    given = inputs.named
    odd = next((name for name, value in given.items() if not isinstance(value, Tensor) or value.ndim == 0), None)
    if odd is not None:
        raise ArgumentError(
            f"the model's {odd} is a {type(given[odd]).__name__}; only tensors with rows can be exported"
        )
    positional = {*given} - {*inputs.kwargs}
    return [name.replace(" ", "_") if name in positional else name for name in given], list(given.values())


def _convert(module: GuardGraph, values: tuple[Tensor, ...], names: list[str], opset: int) -> onnx.ModelProto:
    """torch's own conversion, with a number of rows that is left open, and of tokens too if there are any."""
    rows = torch.export.Dim.DYNAMIC
    shapes: list[Any] = [
        {0: rows}
        if value.is_floating_point() and value.ndim != 3
        else {axis: rows if axis == 0 else torch.export.Dim.AUTO for axis in range(value.ndim)}
        for value in values[:-1]
    ]
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                module,
                values,
                dynamo=True,
                input_names=names,
                output_names=list(module.outputs),
                dynamic_shapes=((*shapes, None),),
                opset_version=opset,
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # of several libraries
        raise ArgumentError(f"the guard cannot be converted to ONNX: {_reason(error)}") from error
    model: onnx.ModelProto = program.model_proto  # type: ignore[union-attr]  # None is for the old exporter
    return model


def _reason(error: BaseException) -> str:
    """The innermost cause in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return one_line(error, kind=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's progress, warnings and logs."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
