"""Finding a classifier's last linear layer, and verifying it.

Names and module types are unreliable: a head may be a functional call or a 1x1 convolution, have tied or normalised
weights, be followed by a scale or averaged with a second head. So the search compares numbers: it records every linear
operation of a small pass and takes the last one whose output *is* the logits, bit for bit, or else the first of a few
known combinations that reproduces them. The candidate is then verified twice: on a batch of another size, and by
shifting the embedding and checking that the logits change accordingly.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oodles.errors import ArgumentError, DataError, HeadError
from oodles.features import Head
from oodles.network.taps import LinearCall, Recorder, Tap, TapPoint, logits_of, unwrap

PROBE_ROWS = 4
TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 5e-2}
STRICT = 1e-4
FOLDED = ("linear, then a scale", "linear, then a scale per class")

Finish = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class LocatedHead:
    """A head that was found: its weights, where its input can be tapped, and what kind of head it is.

    ``finish`` is what the model applies to the logits afterwards: nothing, or a (log-)softmax.
    """

    head: Head
    points: tuple[TapPoint, ...]
    kind: str
    name: str
    finish: Finish | None = None

    def embedding(self, entering: Sequence[Tensor]) -> Tensor:
        """The embedding ``(n, m)`` from the inputs at the tap points."""
        parts = [_as_rows(tensor, self.head.width // len(entering)) for tensor in entering]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)).to(self.head.weight.dtype)

    def logits(self, embedding: Tensor, output: Tensor) -> Tensor:
        """The logits: the model's own output, or what came before its softmax."""
        logits = self.head(embedding)
        predicted = (logits if self.finish is None else self.finish(logits)).detach()
        self._check(predicted, output.detach())
        return output.to(logits.dtype) if self.finish is None else logits

    def _check(self, predicted: Tensor, output: Tensor) -> None:
        """Raise if the head does not reproduce the logits, except in rows that are not finite.

        Those are handled elsewhere: Features refuses them, Guard never calls them ID.
        """
        allowed, same_shape = TOLERANCE.get(output.dtype, STRICT), predicted.shape == output.shape
        # strictly less, because infinite logits would make both sides infinite
        if same_shape and (predicted - output).abs().amax() < allowed * output.abs().amax().clamp(min=1e-2):
            return
        finite = torch.isfinite(predicted).all(dim=1) & torch.isfinite(output).all(dim=1)
        gap = _gap(predicted[finite], output[finite])
        if gap > allowed:
            raise HeadError(
                f"the head {self.name} does not reproduce this batch's logits (relative error {gap:.2g}); the model "
                "takes another path for it. Pass head= with the name of the right layer"
            )


def locate_head(model: nn.Module, images: Tensor, name: str | None = None) -> LocatedHead:
    """Find the last linear layer of ``model``, which must be in eval mode, from one batch of its inputs.

    ``name`` is the module to use if the search finds the wrong one or none.
    """
    network = unwrap(model)
    _refuse_kind(network)
    if name is not None and name not in dict(network.named_modules()):
        raise ArgumentError(f"head={name!r} is not a module of {type(network).__name__}")
    probe, check = _probes(images)
    try:
        output, recorder = _record(network, probe)
    except RuntimeError as error:
        shape, reason = tuple(images.shape[1:]), str(error).strip().splitlines()[0]
        raise DataError(
            f"{type(network).__name__} does not accept inputs of shape {shape} ({reason}); is the size right?"
        ) from None
    if not torch.isfinite(output).all():
        # some networks give NaN for noise, e.g. those that take roots of pixels: use real inputs
        probe, check = _real_probes(images)
        output, recorder = _record(network, probe)
    if not torch.isfinite(output).all():
        raise HeadError(f"{type(network).__name__} gives NaN or infinite logits for this batch; check its first images")
    again = _record(network, probe)[0]
    if _gap(again, output) > (0 if output.device.type == "cpu" else 1e-3):
        raise HeadError(
            f"{type(network).__name__} is stochastic: the same input gave different logits twice in eval mode. "
            "Is dropout or sampling applied functionally? Make the forward pass deterministic first"
        )
    calls = [call for call in recorder.calls if name in (None, call.module)]
    for candidate in _candidates(calls, output):
        if _holds(network, candidate, probe, output) and _holds(network, candidate, check):
            _refuse_cosine(candidate, calls, network)
            if candidate.finish is not None:
                warnings.warn(
                    f"{type(network).__name__} returns probabilities; the logits before its softmax are used",
                    stacklevel=3,
                )
            return candidate
    raise HeadError(_no_head(network, recorder, calls, output, name))


# The candidates, in the order they are tried --------------------------------------------------------


def _candidates(calls: Sequence[LinearCall], output: Tensor) -> Iterator[LocatedHead]:
    """Every way in which the recorded operations could produce the output, the simplest first."""
    backwards = list(reversed(calls))
    for call in backwards:
        rows = _output_rows(call)
        if rows is not None and rows.shape == output.shape and torch.equal(rows.to(output.dtype), output):
            yield _candidate(call, "linear")
    fitting = [call for call in backwards if call.weight.shape[0] == output.shape[1]]
    for call in fitting:
        if (rows := _output_rows(call)) is not None:
            finishes: tuple[Finish, ...] = (_softmax, _log_softmax)
            for finish in finishes:
                if _gap(finish(rows.float()), output) <= STRICT:
                    yield _candidate(call, "linear before a softmax", finish=finish)
        else:
            pooled = call.output.flatten(2).mean(dim=2) if call.operation == "conv2d" else call.output.mean(dim=1)
            if _gap(pooled, output) <= STRICT:
                yield _candidate(call, "pooled after a 1x1 convolution")
    for first, second in zip(fitting[1:], fitting, strict=False):
        one, two = _output_rows(first), _output_rows(second)
        if one is not None and two is not None and _gap((one + two) / 2, output) <= STRICT:
            yield _averaged(first, second)
    for call in fitting:
        if (rows := _output_rows(call)) is not None:
            yield from _rescaled(call, rows.cpu().double(), output.cpu().double())


def _candidate(call: LinearCall, kind: str, head: Head | None = None, finish: Finish | None = None) -> LocatedHead:
    head = head or Head(_floating(call.weight), None if call.bias is None else _floating(call.bias))
    return LocatedHead(head, (_point(call),), kind, call.module or call.operation, finish)


def _averaged(first: LinearCall, second: LinearCall) -> LocatedHead:
    """Two heads whose logits are averaged are one head on both embeddings side by side."""
    weight = torch.cat([first.weight, second.weight], dim=1) / 2
    biases = [call.bias for call in (first, second) if call.bias is not None]
    head = Head(_floating(weight), _floating(torch.stack(biases).sum(dim=0) / 2) if biases else None)
    name = f"{first.module or first.operation} and {second.module or second.operation}"
    return LocatedHead(head, (_point(first), _point(second)), "the mean of two heads", name)


def _rescaled(call: LinearCall, rows: Tensor, output: Tensor) -> Iterator[LocatedHead]:
    """A scale (one number, or one per class) and an offset after the call fold into the head."""
    spread, wanted = rows - rows.mean(dim=0), output - output.mean(dim=0)
    per_class = (wanted * spread).sum(dim=0), (spread * spread).sum(dim=0)
    for kind, (numerator, denominator) in (
        (FOLDED[0], (per_class[0].sum(), per_class[1].sum())),
        (FOLDED[1], per_class),
    ):
        if bool((denominator <= 0).any()):
            return
        scale = (numerator / denominator).expand(rows.shape[1])
        offset = (output - scale * rows).mean(dim=0)
        if _curved(scale * rows + offset, output) or bool((scale.abs() < 1e-6).any()):
            continue
        weight = call.weight.cpu().double() * scale[:, None]
        bias = offset if call.bias is None else call.bias.cpu().double() * scale + offset
        vanishes = call.bias is None and float(offset.abs().max()) <= 1e-6 * float(output.abs().max())
        parts = {"weight": weight} if vanishes else {"weight": weight, "bias": bias}
        head = Head(**{name: part.float().to(call.weight.device) for name, part in parts.items()})
        yield _candidate(call, kind, head)


# Verification -------------------------------------------------------------------------------------


def _holds(network: nn.Module, candidate: LocatedHead, images: Tensor, output: Tensor | None = None) -> bool:
    """Whether the candidate reproduces the outputs, and still does when its input is shifted."""
    raw, entering, _ = Tap(network, candidate.points)(images)
    if output is None:
        output = logits_of(raw)
    embedding = candidate.embedding(entering)
    finish = candidate.finish or _identity
    tolerance = TOLERANCE.get(output.dtype, STRICT)
    predicted = finish(candidate.head(embedding))
    if _gap(predicted, output) > tolerance or (candidate.kind in FOLDED and _curved(predicted, output)):
        return False
    generator = torch.Generator().manual_seed(0)
    size = float(embedding.abs().mean()) + 1e-3
    step = (torch.rand(candidate.head.width, generator=generator) * size).to(embedding)
    steps = step.chunk(len(candidate.points))
    shift = {point.ordinal: part for point, part in zip(candidate.points, steps, strict=True)}
    moved, _ = _record(network, images, shift)
    predicted = finish(candidate.head(embedding + step))
    return _gap(predicted, moved) <= tolerance and not (candidate.kind in FOLDED and _curved(predicted, moved))


def _record(network: nn.Module, images: Tensor, shift: dict[int, Tensor] | None = None) -> tuple[Tensor, Recorder]:
    with Recorder(network, shift) as recorder:
        output = logits_of(network(images))
    return output, recorder


def _probes(images: Tensor) -> tuple[Tensor, Tensor]:
    """Four inputs to search with and three to verify with.

    They are the same for every batch of a shape, so that the same model always gives the same head.
    """
    shape = (2 * PROBE_ROWS - 1, *images.shape[1:])
    if images.is_floating_point():
        inputs = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(images)
    else:
        inputs = images[:1].expand(shape).clone()
    if images.ndim == 4 and images.is_contiguous(memory_format=torch.channels_last):
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    return inputs[:PROBE_ROWS], inputs[PROBE_ROWS:]


def _real_probes(images: Tensor) -> tuple[Tensor, Tensor]:
    """The first images, and darker copies of them, in place of noise."""
    rows = images[torch.arange(PROBE_ROWS, device=images.device) % len(images)]
    fade = torch.linspace(1.0, 0.7, PROBE_ROWS, device=images.device).to(images.dtype)
    fade = fade.view(-1, *[1] * (images.ndim - 1))
    return rows * fade, rows[: PROBE_ROWS - 1] * 0.9 * fade[: PROBE_ROWS - 1]


# Heads that are refused -------------------------------------------------------------------------------


def _refuse_kind(network: nn.Module) -> None:
    if isinstance(network, torch.jit.ScriptModule):
        raise HeadError("the layers of a TorchScript model cannot be observed; pass the nn.Module it was made from")
    for name, module in network.named_modules():
        if "quantized" in type(module).__module__:
            raise HeadError(f"{name or type(network).__name__} is quantised; pass the float model it was made from")


def _refuse_cosine(candidate: LocatedHead, calls: Sequence[LinearCall], network: nn.Module) -> None:
    call = next(call for call in calls if _point(call) == candidate.points[0])
    norms = [torch.linalg.vector_norm(_floating(part).flatten(1), dim=1) for part in (call.input, call.weight)]
    # either side may be scaled, so a cosine head is recognised by norms that are all equal
    if all(_gap(norm / norm.mean(), torch.ones_like(norm)) < 1e-3 for norm in norms):
        raise HeadError(_not_affine(network, "a cosine head", candidate.name))


def _no_head(
    network: nn.Module, recorder: Recorder, calls: Sequence[LinearCall], output: Tensor, name: str | None
) -> str:
    suspects = [_suspect(call, output) for call in calls]
    reason = next((suspect for suspect in suspects if suspect), None) or next(iter(recorder.non_affine), None)
    if reason is not None:
        return _not_affine(network, reason, calls[-1].module or calls[-1].operation if calls else "its output")
    seen = "; ".join(str(call) for call in recorder.calls[-5:]) or "none"
    asked = f"head={name!r} does not produce the logits" if name else "no linear operation produces the logits"
    return (
        f"{type(network).__name__}: {asked} of width {output.shape[1]}, alone or rescaled. Last linear operations: "
        f"{seen}. Pass head= with the name of the module that produces the logits, or, in Python, head=False for "
        "detectors that only need logits"
    )


def _suspect(call: LinearCall, output: Tensor) -> str | None:
    rows = _output_rows(call)
    if rows is None or rows.shape != output.shape:
        return None
    if _gap(torch.sigmoid(rows.float()), output) <= STRICT:
        return "a sigmoid head"
    entering = _as_rows(call.input, call.weight.shape[1])
    cosine = F.normalize(entering.double()) @ F.normalize(call.weight.double()).T
    scale = (cosine * output).sum() / (cosine * cosine).sum().clamp_min(1e-12)
    return "a cosine head" if _gap(scale * cosine, output) <= STRICT else None


def _not_affine(network: nn.Module, reason: str, name: str) -> str:
    return (
        f"{type(network).__name__} has {reason} ({name}): its logits are not one affine map of an embedding, so "
        "methods that need a linear head do not apply. In Python, head=False keeps only the logits"
    )


# Tensors ----------------------------------------------------------------------------------------------


def _point(call: LinearCall) -> TapPoint:
    return TapPoint(call.module if call.input_is_modules else None, call.ordinal)


def _output_rows(call: LinearCall) -> Tensor | None:
    """The output as ``(n, C)``, if it is one vector per row."""
    classes = call.weight.shape[0]
    return call.output.reshape(-1, classes) if call.output[0].numel() == classes else None


def _as_rows(entering: Tensor, width: int) -> Tensor:
    if entering[0].numel() == width:
        return entering.reshape(len(entering), width)
    return entering.mean(dim=(2, 3)) if entering.ndim == 4 else entering.mean(dim=1)


def _floating(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().float() if tensor.dtype != torch.float64 else tensor.detach().clone()


def _gap(a: Tensor, b: Tensor) -> float:
    """The largest difference relative to the largest ``b``; infinite if shapes differ or a value is NaN."""
    if a.shape != b.shape:
        return float("inf")
    if not a.numel():
        return 0.0
    ours, theirs = a.cpu().double(), b.cpu().double()  # some devices have no float64
    gap = float((ours - theirs).abs().max()) / max(1e-2, float(theirs.abs().max()))
    return gap if gap == gap else float("inf")


def _curved(predicted: Tensor, output: Tensor) -> bool:
    """Whether outputs deviate from a fitted straight line by more than rounding errors.

    The deviation is relative to their spread over rows, because a sigmoid is nearly straight near its middle.
    """
    rounding = TOLERANCE.get(output.dtype, 2e-6)
    wide, predicted = output.cpu().double(), predicted.cpu().double()
    spread = float((wide - wide.mean(dim=0)).abs().max())
    error = float((predicted - wide).abs().max())
    return not error <= 1e-5 * spread + rounding * float(wide.abs().max())


def _softmax(logits: Tensor) -> Tensor:
    return logits.softmax(dim=-1)


def _log_softmax(logits: Tensor) -> Tensor:
    return logits.log_softmax(dim=-1)


def _identity(logits: Tensor) -> Tensor:
    return logits
