"""Find and prove the last linear layer of an ONNX graph.

Names and lists of operators are unreliable: a softmax may be five nodes, a head two averaged ones, its weights packed
or normalised. So the search walks back from the output to the last operators with constant weights, and reads weight
and bias off the part behind them by running it alone on zeros and on unit vectors. That it is this affine map, and
nothing else, is proved by random embeddings of several sizes: on real rows alone, a softmax may look straight.
"""

import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from oodles.data.inputs import Inputs
from oodles.errors import FileError, HeadError
from oodles.features import Head
from oodles.network.candidates import FINISHES, STRICT, TOLERANCE, Finish, LocatedHead, as_rows, relative_gap
from oodles.network.onnx_graph import HeadInputs, OnnxGraph, declare, with_outputs
from oodles.network.onnx_model import OnnxModel
from oodles.network.probes import first_pass
from oodles.network.taps import TapPoint
from oodles.records.text import printable

MAX_WEIGHTS = 1 << 26  # of a head
ROWS, SMALL_ROWS = 64, 4  # that a part of a graph is given at a time; the latter is what sizes were taken from
SIZES = (1.0, 10.0, 100.0)  # of random embeddings, times that of real ones
SOFTMAX = next(iter(FINISHES))
ONLY_LOGITS = (
    "in Python, head=False keeps only the logits, for detectors that need nothing else (msp, energy, gen, ...)"
)


def locate_graph_head(model: OnnxModel, inputs: Inputs, name: str | None = None) -> LocatedHead:
    """Find the last linear layer of the graph from one batch, as :func:`oodles.network.head.locate_head` does."""
    if name is not None:
        raise HeadError(f"head={name!r}: {model.path} has no modules; to choose an output, give {model.path}:{name}")
    if model.found is None:
        model.found = _Search(model, inputs).located()
    if model.found.finish is not None:
        applied = "sigmoid" if model.found.finish is torch.sigmoid else "softmax"
        warnings.warn(f"{model.path} returns probabilities; the logits before its {applied} are used", stacklevel=4)
    return model.found  # type: ignore[no-any-return]


class _Search:
    """One search: the graph, where its head's inputs are, and what they are for a few rows."""

    def __init__(self, model: OnnxModel, inputs: Inputs) -> None:
        self.model = model
        self.probe, self.check, _, _ = first_pass(model, inputs)
        self.plain = model(*self.probe.args, **self.probe.kwargs)
        self.tolerance = TOLERANCE.get(self.plain.dtype, STRICT)
        self.graph = OnnxGraph(model.parsed())
        found = self.graph.head_inputs(model.output)
        if isinstance(found, str):
            raise self._refusal(found)
        self.places: HeadInputs = found

    def located(self) -> LocatedHead:
        """The first of the candidates that is proved."""
        self._check_rows()
        self._tap()
        for upper in self.graph.cuts(self.model.output):
            for widths in self._widths():
                head = self._read(upper, widths)
                if head is None:
                    continue
                if not head.weight.any():
                    raise HeadError(f"{self.model.path}: the weights of its last layer are all zero; was it trained?")
                for shown, finish in self._finished(head):
                    located = self._candidate(shown, finish, widths)
                    if self._is_proved(located):
                        return located
        raise self._refusal(f"{self.graph.last_operator(self.model.output)} behind {self._operators()}")

    def _check_rows(self) -> None:
        """Raise if the output is random, or depends on other rows."""
        again = self.model(*self.probe.args, **self.probe.kwargs)
        if not torch.equal(again, self.plain):
            raise HeadError(
                f"{self.model.path} is stochastic: the same input gave different outputs twice. Was it exported in "
                "training mode? Export it again in eval mode"
            )
        part = self.probe.take([2, 0])
        if relative_gap(self.model(*part.args, **part.kwargs), self.plain[[2, 0]]) > self.tolerance:
            raise HeadError(
                f"{self.model.path} mixes the inputs of a batch: the output of an input depends on the others. Dynamic "
                "quantisation and batch normalisation in training mode do that; export it again without"
            )

    def _tap(self) -> None:
        """Run the graph with the head's inputs as further outputs, which must not change its own."""
        names = self.places.names
        self.model.expose(names)
        output, *self.values = self.model.run(self.probe.args, self.probe.kwargs, names)
        gap = relative_gap(output, self.plain)
        if any(not each.is_floating_point() for each in self.values):
            raise self._refusal("a last layer of integers")
        if gap > self.tolerance:
            raise self._refusal(f"an output that changes by {gap:.2g} if the input of its last layer is looked at")
        if not torch.equal(output, self.plain):
            warnings.warn(
                f"{self.model.path}: its output changes by {gap:.1g}, relatively, when the input of its last layer is "
                "looked at, since onnxruntime then joins other operators",
                stacklevel=6,
            )

    def _widths(self) -> Iterator[tuple[int, ...]]:
        """The widths that embeddings can have: of maps and tokens the mean over positions first, then all numbers."""
        tails = [each.shape[1:] for each in self.values]
        pooled = tuple(tail[-1] if len(tail) == 2 else tail[0] for tail in tails)
        whole = tuple(tail.numel() for tail in tails)
        yield from dict.fromkeys(each for each in (pooled, whole) if sum(each) * self.plain.shape[1] <= MAX_WEIGHTS)

    def _read(self, upper: str, widths: tuple[int, ...]) -> Head | None:
        """Weight and bias of the part from the head's inputs to ``upper``; None if it is not an affine map."""
        run = self._part(upper, raw_scores=True)
        if run is None:
            return None
        double = self.values[0].dtype == torch.float64
        size = 1.0 if self.values[0].dtype == torch.float16 else 1024.0  # larger than a bias, so that no bit is lost
        bias = run(self._lifted(torch.zeros(1, sum(widths)), widths))
        if bias is None:
            return None
        rows = []
        for block in torch.split(torch.eye(sum(widths)), 1024):
            found = run(self._lifted(block * size, widths))
            if found is None or not found.isfinite().all():
                return None
            rows.append(((found.double() - bias.double()) / size).to(torch.float64 if double else torch.float32))
        head = Head(torch.cat(rows).T.contiguous(), bias[0].to(rows[0].dtype))
        for values in self._random(SIZES):
            found = run(values)
            joined = torch.cat([as_rows(each, width) for each, width in zip(values, widths, strict=True)], dim=1)
            if found is None or relative_gap(head(joined), found) > self.tolerance:
                return None
        return head

    def _finished(self, head: Head) -> Iterator[tuple[Head, Finish | None]]:
        """The ways in which the output can be what the head gives: as it is, or after a softmax or sigmoid."""
        classes = self.plain.shape[1]
        weight, bias = head.weight, head.full_bias()
        if head.classes == classes:
            if classes == 2 and torch.equal(weight[0], -weight[1]) and torch.equal(bias[0], -bias[1]):
                yield Head(F.pad(weight[1:], (0, 0, 1, 0)), F.pad(bias[1:], (1, 0))), SOFTMAX
            yield from ((head, finish) for finish in (None, *FINISHES))
        elif (head.classes, classes) == (1, 2):  # of one logit z, the probabilities of both classes
            yield Head(F.pad(weight, (0, 0, 1, 0)), F.pad(bias, (1, 0))), SOFTMAX

    def _is_proved(self, located: LocatedHead) -> bool:
        """Whether the head and what is applied to it give the output: for real rows, and for random embeddings."""
        for batch in (self.probe, self.check):
            output, *values = self.model.run(batch.args, batch.kwargs, self.places.names)
            flat = output.flatten(1)
            if relative_gap(located.predict(located.embedding(values, flat)), flat) > self.tolerance:
                return False
        run = self._part(self.model.output, raw_scores=False)
        for values in self._random((0.1, 1.0)) if located.finish is not None and run is not None else ():
            found = run(values)
            if found is None or relative_gap(located.predict(located.embedding(values, found)), found) > self.tolerance:
                return False
        return run is not None

    def _candidate(self, head: Head, finish: Finish | None, widths: tuple[int, ...]) -> LocatedHead:
        points = tuple(TapPoint(name, place) for place, name in enumerate(self.places.names))
        pooled = any(value.shape[1:].numel() != width for value, width in zip(self.values, widths, strict=True))
        count = len(self.places.operators)
        kind = "linear" if count == 1 else f"a sum of {count} linear maps"
        kind += ", pooled" if pooled else ""
        kind += "" if finish is None else " before a " + ("sigmoid" if finish is torch.sigmoid else "softmax")
        return LocatedHead(head, points, kind, self._operators(), finish, widths=widths)

    def _operators(self) -> str:
        return " and ".join(printable(f"{each.op_type} {each.name}".strip()) for each in self.places.operators[:3])

    # Parts of the graph -----------------------------------------------------------------------------

    def _part(self, upper: str, *, raw_scores: bool) -> Any:
        """A function that runs the part from the head's inputs to ``upper``; None if onnxruntime refuses it."""
        names = self.places.names
        if upper in names:
            return None
        model = self.graph.part(names, [upper], raw_scores=raw_scores)
        known = dict(zip(names, (each.numpy() for each in self.values), strict=True))
        sizes = [each.name for each in model.graph.input if each.name not in names]
        if sizes:
            session = self.model.start(with_outputs(self.graph.model, sizes).SerializeToString())
            arrays = self.model.arrays(self.probe.args, self.probe.kwargs)
            known |= dict(zip(sizes, session.run(sizes, arrays), strict=True))
        declare(model, known)
        try:
            session = self.model.start(model.SerializeToString())
        except FileError:
            return None
        fixed = {name: known[name] for name in sizes}
        count = self.model.fixed_rows or (SMALL_ROWS if sizes else ROWS)
        return partial(_run, session, names, fixed, count)

    def _lifted(self, rows: Tensor, widths: Sequence[int]) -> list[Tensor]:
        """Embeddings as inputs of the head: at every position, if they are means over positions."""
        lifted = []
        for part, value in zip(torch.split(rows, [*widths], dim=1), self.values, strict=True):
            tail = value.shape[1:]
            if tail.numel() == part.shape[1]:
                whole = part.reshape(-1, *tail)
            elif len(tail) == 2:
                whole = part[:, None].expand(-1, *tail)
            else:
                whole = part.reshape(*part.shape, *[1] * (len(tail) - 1)).expand(-1, *tail)
            lifted.append(whole.to(value.dtype))
        return lifted

    def _random(self, sizes: Sequence[float]) -> Iterator[list[Tensor]]:
        """Random inputs of the head, of several times the size of real ones."""
        generator = torch.Generator().manual_seed(0)
        half = self.values[0].dtype == torch.float16
        for size in sizes:
            yield [
                (torch.randn(SMALL_ROWS, *each.shape[1:], generator=generator) * (each.float().abs().mean() + 1e-3))
                .mul(size / 10 if half else size)
                .to(each.dtype)
                for each in self.values
            ]

    def _refusal(self, fact: str) -> HeadError:
        remedy = "it is quantised, so give the float model it was made from; " if self.graph.is_quantised() else ""
        return HeadError(
            f"{self.model.path} has {fact}: its logits are not one affine map of an embedding; {remedy}{ONLY_LOGITS}"
        )


def _run(
    session: Any, names: Sequence[str], fixed: dict[str, Any], count: int, values: Sequence[Tensor]
) -> Tensor | None:
    """What a part of a graph gives, a few rows at a time; None if it fails."""
    found, rows = [], len(values[0])
    for start in range(0, rows, count):
        places = [min(start + row, rows - 1) for row in range(count)]
        given = {name: np.ascontiguousarray(value[places].numpy()) for name, value in zip(names, values, strict=True)}
        try:
            (answer,) = session.run(None, given | fixed)
        except Exception:  # of onnxruntime, which has no common class
            return None
        if answer.shape[:1] != (count,) or answer.size % count:
            return None
        found.append(torch.from_numpy(answer).reshape(count, -1))
    return torch.cat(found)[:rows]
