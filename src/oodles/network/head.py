"""Finding a classifier's last linear layer, and verifying it.

Names and module types are unreliable: a head may be a functional call or a 1x1 convolution, have tied or normalised
weights, be followed by a scale or averaged with a second head. So the search compares numbers: it records every linear
operation of a small pass and takes the last one whose output *is* the logits, bit for bit, or else the first of a few
known combinations that reproduces them. The candidate is then verified twice: on a batch of another size, and by
shifting the embedding and checking that the logits change accordingly.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oodles.data.inputs import Inputs
from oodles.errors import ArgumentError, HeadError
from oodles.network.candidates import (
    FINISHES,
    FOLDED,
    STRICT,
    TOLERANCE,
    LocatedHead,
    candidates,
    is_curved,
    relative_gap,
)
from oodles.network.linear_operations import CONVOLUTIONS
from oodles.network.outputs import logits_of, output_items
from oodles.network.probes import first_pass, record
from oodles.network.taps import LinearCall, Recorder, Tap, unwrap


def locate_head(model: nn.Module, inputs: Inputs, name: str | None = None) -> LocatedHead:
    """Find the last linear layer of ``model``, which must be in eval mode, from one batch of its inputs.

    ``name`` is the module to use if the search finds the wrong one or none.
    """
    network = unwrap(model)
    _refuse_kind(network)
    if name is not None and name not in dict(network.named_modules()):
        raise ArgumentError(f"head={name!r} is not a module of {type(network).__name__}; see model.named_modules()")
    probe, check, outputs, recorder = first_pass(network, inputs)
    again = output_items(record(network, probe)[0])
    if any(
        relative_gap(again[item], output) > (0 if output.device.type == "cpu" else 1e-3)
        for item, output in outputs.items()
    ):
        raise HeadError(
            f"{type(network).__name__} is stochastic: the same input gave different logits twice in eval mode. "
            "Is dropout or sampling applied functionally? Make the forward pass deterministic first"
        )
    _check_rows(network, probe, outputs)
    calls = [call for call in recorder.calls if name in (None, call.module)]
    found = [_first_verified(network, calls, item, output, (probe, check)) for item, output in outputs.items()]
    heads = [head for head in found if head is not None]
    plain = {head.name for head in heads if head.finish is None}
    # of the logits and the probabilities of one layer, the logits
    heads = [head for head in heads if head.finish is None or head.name not in plain]
    if len(heads) > 1:
        names = [head.name for head in heads]
        once = len(set(names)) == len(names)
        remedy = "pass head= with the name of the one that gives the logits" if once else "return the logits alone"
        raise HeadError(
            f"{type(network).__name__} returned several tensors, each the output of a linear layer "
            f"({', '.join(names)}); {remedy}"
        )
    if not heads:
        raise HeadError(_no_head(network, recorder, calls, next(iter(outputs.values())), name))
    (located,) = heads
    if located.finish is not None:
        applied = "sigmoid" if located.finish is torch.sigmoid else "softmax"
        warnings.warn(
            f"{type(network).__name__} returns probabilities; the logits before its {applied} are used", stacklevel=3
        )
    return located


def _check_rows(network: nn.Module, probe: Inputs, outputs: dict[int, Tensor]) -> None:
    """Raise if the logits of an input depend on the other inputs in its batch: no score of it would mean anything."""
    part = output_items(record(network, probe.take([2, 0]))[0])
    for item, output in outputs.items():
        allowed = TOLERANCE.get(output.dtype, 1e-3)
        if len(output) != len(probe) or item not in part or relative_gap(part[item], output[[2, 0]]) > allowed:
            raise HeadError(
                f"{type(network).__name__} mixes the inputs of a batch: the logits of an input depend on the others. "
                "Batch normalisation without running statistics, or a forgotten batch_first=True, does that"
            )


def _first_verified(
    network: nn.Module, calls: Sequence[LinearCall], item: int, output: Tensor, batches: Sequence[Inputs]
) -> LocatedHead | None:
    """Return the first candidate for one item of the output that holds on all batches."""
    located = (replace(candidate, item=item) for candidate in candidates(calls, output))
    return next((head for head in located if all(_reproduces_shifted(network, head, each) for each in batches)), None)


# Verification -------------------------------------------------------------------------------------


def _reproduces_shifted(network: nn.Module, candidate: LocatedHead, inputs: Inputs) -> bool:
    """Whether the candidate reproduces the outputs, and still does when its input is shifted."""
    raw, head_inputs, _ = Tap(network, candidate.points)(inputs)
    output = logits_of(raw, candidate.item)
    embedding = candidate.embedding(head_inputs, output)
    if not _reproduces(candidate, embedding, output):
        return False
    generator = torch.Generator().manual_seed(0)
    size = float(torch.cat([part.flatten() for part in head_inputs]).abs().mean()) + 1e-3
    step = (torch.rand(candidate.head.width, generator=generator) * size).to(embedding)
    # a sigmoid of small numbers is nearly a straight line, and is not if they are large
    for factor in (1.0, 1e3) if candidate.kind in FOLDED else (1.0,):
        far = factor * step
        steps = torch.split(far, list(candidate.widths or (candidate.head.width,)))
        shift = {point.ordinal: part for point, part in zip(candidate.points, steps, strict=True)}
        shift |= {point.ordinal: far for point in candidate.same_input}
        moved_raw, _ = record(network, inputs, shift)
        moved = logits_of(moved_raw, candidate.item)
        if not _reproduces(candidate, candidate.embedding(head_inputs, output, far), moved):
            return False
        if not _same_others(raw, moved_raw, candidate.item):
            return False
    return True


def _reproduces(candidate: LocatedHead, embedding: Tensor, output: Tensor) -> bool:
    """Whether the candidate gives these outputs for these embeddings, up to rounding."""
    predicted = candidate.predict(embedding)
    if relative_gap(predicted, output) > TOLERANCE.get(output.dtype, STRICT):
        return False
    return candidate.kind not in FOLDED or not is_curved(predicted, output)


def _same_others(raw: object, moved: object, item: int | None) -> bool:
    """Whether the model's other outputs are unchanged: what they are computed from is an embedding, not the logits.

    Probabilities are computed from logits.
    """
    before, after = output_items(raw), output_items(moved)
    return all(
        relative_gap(after[place], before[place]) <= STRICT
        or (item is not None and any(relative_gap(end(after[item]), after[place]) <= STRICT for end in FINISHES))
        for place in before
        if place != item
    )


# Refusals -----------------------------------------------------------------------------------------


def _refuse_kind(network: nn.Module) -> None:
    if isinstance(network, torch.jit.ScriptModule):
        raise HeadError("the layers of a TorchScript model cannot be observed; pass the nn.Module it was made from")
    for name, module in network.named_modules():
        # FloatFunctional is part of float models that are ready to be quantised
        if "quantized" in type(module).__module__ and type(module).__name__ != "FloatFunctional":
            raise HeadError(f"{name or type(network).__name__} is quantised; pass the float model it was made from")


def _no_head(
    network: nn.Module, recorder: Recorder, calls: Sequence[LinearCall], output: Tensor, name: str | None
) -> str:
    reason = recorder.non_affine
    for call in calls:
        # the outputs may be the mean of a convolution's maps after a ReLU
        fits = call.weight.shape[0] == output.shape[1] and call.operation in CONVOLUTIONS
        if fits and relative_gap(F.relu(call.output).flatten(2).mean(dim=2), output) <= STRICT:
            reason = f"a ReLU between its last convolution and its logits ({call.name})"
    if reason is not None:
        return (
            f"{type(network).__name__} has {reason}: its logits are not one affine map of an embedding, so "
            "methods that need a linear head do not apply. In Python, head=False keeps only the logits, for detectors "
            "that need nothing else (msp, energy, gen, ...)"
        )
    seen = "; ".join(str(call) for call in recorder.calls[-5:]) or "none"
    asked = f"head={name!r} does not produce the logits" if name else "no linear operation produces the logits"
    return (
        f"{type(network).__name__}: {asked} of width {output.shape[1]}, alone or rescaled. Last linear operations: "
        f"{seen}. Pass head= with the name of the module that produces the logits, or, in Python, head=False for "
        "detectors that only need logits"
    )
