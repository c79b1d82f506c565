"""Ways in which a network's linear operations could produce its logits: every head that oodles knows.

A candidate is only a guess from the numbers of one small batch; :mod:`oodles.network.head` verifies it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from oodles.errors import HeadError
from oodles.features import Head
from oodles.network.linear_operations import CONVOLUTIONS
from oodles.network.taps import LinearCall, TapPoint

TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 5e-2}
STRICT = 1e-4
MAX_HEADS = 5  # whose sum is tried
FOLDED = ("linear, then a scale", "linear, then a scale per class")

Finish = Callable[[Tensor], Tensor]
Normalised = Literal["", "inside", "afterwards"]


@dataclass(frozen=True, eq=False)
class LocatedHead:
    """A head that was found: its weights, where its input can be tapped, and what kind of head it is.

    ``finish`` is what the model applies to the logits afterwards: nothing, a (log-)softmax or a sigmoid. If the head is
    ``normalised``, inside the operation or afterwards, the embedding is the tapped input divided by its norm. ``item``
    is the position of the logits if the model returns a tuple. ``same_input`` are further linear operations on the
    embedding that the head accounts for. With ``one_token`` the head is applied to every token of a sequence, and the
    model returns the logits of one of them, as decoders do with the last. If there are several tap points, ``widths``
    are those of their inputs, which the embedding has side by side.
    """

    head: Head
    points: tuple[TapPoint, ...]
    kind: str
    name: str
    finish: Finish | None = None
    normalised: Normalised = ""
    item: int | None = None
    same_input: tuple[TapPoint, ...] = ()
    one_token: bool = False
    widths: tuple[int, ...] = ()

    @property
    def multilabel(self) -> bool:
        """Whether the model applies a sigmoid to each of several logits."""
        return self.finish is torch.sigmoid and self.head.classes > 1

    def embedding(self, inputs: Sequence[Tensor], output: Tensor, shift: Tensor | None = None) -> Tensor:
        """Return the embedding ``(n, m)`` from the inputs at the tap points, to which ``shift`` is added first."""
        if self.one_token:
            inputs = [self._returned_token(inputs[0], output)]
        widths = self.widths or (self.head.width,)
        parts = [as_rows(tensor, width) for tensor, width in zip(inputs, widths, strict=True)]
        rows = (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)).to(self.head.weight.dtype)
        moved = rows if shift is None else rows + shift
        if not self.normalised:
            return moved
        # a model that divides by the norm afterwards takes it from the embedding, not from the operation's input
        norm = rows.norm(dim=1, keepdim=True).clamp(min=1e-12)
        return F.normalize(moved) if self.normalised == "inside" else moved / norm

    def _returned_token(self, tokens: Tensor, output: Tensor) -> Tensor:
        """Of each row's tokens ``(n, t, m)`` the one whose logits the model returned."""
        difference = (self.head(tokens) - output[:, None]).abs().amax(dim=2)
        return tokens[torch.arange(len(tokens), device=tokens.device), difference.argmin(dim=1)]

    def logits(self, embedding: Tensor, output: Tensor) -> Tensor:
        """The logits: the model's own output, or what came before its softmax."""
        return output.to(embedding.dtype) if self.finish is None else self.head(embedding)

    def predict(self, embedding: Tensor) -> Tensor:
        """What the model returns for an embedding: the head's logits, after the softmax or sigmoid if it has one."""
        logits = self.head(embedding)
        return logits if self.finish is None else self.finish(logits)

    def check(self, embedding: Tensor, output: Tensor) -> None:
        """Raise if the head does not reproduce the model's output, except in rows that are not finite.

        Those are handled elsewhere: Features refuses them, Guard never calls them ID.
        """
        predicted, output = self.predict(embedding.detach()), output.detach()
        if torch.equal(predicted, output):
            return  # as for a plain linear layer, at every call of a guard
        finite = torch.isfinite(predicted).all(dim=1) & torch.isfinite(output).all(dim=1)
        gap = relative_gap(predicted[finite], output[finite])
        if gap > TOLERANCE.get(output.dtype, STRICT):
            raise HeadError(
                f"the head {self.name} does not reproduce this batch's logits (relative error {gap:.2g}); the model "
                "takes another path for it. Pass head= with the name of the right layer"
            )


def candidates(calls: Sequence[LinearCall], output: Tensor) -> Iterator[LocatedHead]:
    """Yield every way in which the recorded operations could produce the output, the simplest first."""
    backwards = [call for call in reversed(calls) if call.input.numel() and call.output.numel()]
    for call in backwards:
        rows = output_rows(call)
        if rows is not None and rows.shape == output.shape and torch.equal(rows.to(output.dtype), output):
            yield _candidate(call, "linear")
    fitting = [
        call for call in backwards if call.weight.shape[0] == output.shape[1] and len(call.output) == len(output)
    ]
    vectors = {call: rows for call in fitting if (rows := output_rows(call)) is not None}
    for call in fitting:
        if call in vectors:
            for finish, kind in FINISHES.items():
                if relative_gap(finish(vectors[call].float()), output) <= STRICT:
                    yield _candidate(call, kind, finish=finish)
        else:
            maps = call.operation in CONVOLUTIONS
            pooled = call.output.flatten(2).mean(dim=2) if maps else call.output.mean(dim=1)
            if relative_gap(pooled, output) <= STRICT:
                yield _candidate(call, "pooled after a 1x1 convolution" if maps else "linear, then a mean over tokens")
            elif call.output.ndim == 3:
                nearest = (call.output - output[:, None]).abs().amax(dim=2).amin(dim=1)
                if float(nearest.max()) <= STRICT * max(1e-2, float(output.abs().max())):
                    yield replace(_candidate(call, "linear, one token per input"), one_token=True)
    yield from _combined(list(vectors), backwards, output)
    wanted = output.cpu().double()
    for call, rows in vectors.items():
        yield from _rescaled(call, rows.cpu().double(), wanted)
    for call in vectors:
        inputs = as_rows(call.input, call.weight.shape[1]).cpu().double()
        # a cosine head may divide by the norm after the call; for one input, repeated, any scale would fit
        if call.bias is None and not bool((inputs == inputs[0]).all()):
            yield from _rescaled(call, F.normalize(inputs) @ call.weight.cpu().double().T, wanted, "afterwards")


def _candidate(call: LinearCall, kind: str, head: Head | None = None, finish: Finish | None = None) -> LocatedHead:
    head = head or Head(floating_copy(call.weight), None if call.bias is None else floating_copy(call.bias))
    normalised: Normalised = "inside" if call.operation == "cosine_similarity" else ""
    return LocatedHead(head, (tap_point(call),), kind, call.name, finish, normalised)


def _combined(fitting: Sequence[LinearCall], backwards: Sequence[LinearCall], output: Tensor) -> Iterator[LocatedHead]:
    """Yield weighted sums of several heads, such as the mean of an ensemble, as one head on their inputs side by side.

    If all are maps of the same input, perhaps through another linear operation as in a low-rank update (LoRA), it is
    one head on that input.
    """
    for count in range(2, min(MAX_HEADS, len(fitting)) + 1):
        calls = fitting[:count][::-1]
        rows = torch.stack([call.output.reshape(-1).cpu().double() for call in calls], dim=1)
        factors = torch.linalg.lstsq(rows, output.cpu().double().reshape(-1, 1)).solution[:, 0]
        if bool((factors.abs() <= 1e-4).any()) or relative_gap((rows @ factors).view_as(output), output) > STRICT:
            continue
        shared = _maps_of_one_input(calls, backwards)
        parts = list(zip(shared or calls, factors.tolist(), strict=True))
        weights = [factor * call.weight.cpu().double() for call, factor in parts]
        biases = [factor * call.bias.cpu().double() for call, factor in parts if call.bias is not None]
        weight = torch.stack(weights).sum(dim=0) if shared else torch.cat(weights, dim=1)
        points = tuple(tap_point(call) for call, _ in parts)
        direct = [call for call in calls if not shared or call in shared]
        yield LocatedHead(
            _head(weight, torch.stack(biases).sum(dim=0) if biases else None, calls[0].weight.device),
            points[:1] if shared else points,
            f"a sum of {len(calls)} heads" if len(direct) == len(calls) else "linear with a low-rank update",
            " and ".join(call.name for call in direct),
            same_input=points[1:] if shared else (),
            widths=() if shared else tuple(part.shape[1] for part in weights),
        )


def _maps_of_one_input(calls: Sequence[LinearCall], backwards: Sequence[LinearCall]) -> list[LinearCall] | None:
    """Return the calls as linear maps of the same input, directly or after another call; None if they are not."""
    for target in calls:
        found = [_as_map_of(target.input, call, backwards) for call in calls]
        maps = [call for call in found if call is not None]
        if len(maps) == len(calls):
            return maps
    return None


def _as_map_of(start: Tensor, call: LinearCall, backwards: Sequence[LinearCall]) -> LinearCall | None:
    if relative_gap(call.input, start) == 0:
        return call
    for down in backwards:
        if relative_gap(down.output, call.input) == 0 and relative_gap(down.input, start) == 0:
            weight = call.weight.double() @ down.weight.double()
            inner = None if down.bias is None else call.weight.double() @ down.bias.double()
            biases = [bias.double() for bias in (call.bias, inner) if bias is not None]
            return replace(down, weight=weight, bias=torch.stack(biases).sum(dim=0) if biases else None)
    return None


def _rescaled(call: LinearCall, rows: Tensor, output: Tensor, normalised: Normalised = "") -> Iterator[LocatedHead]:
    """Yield heads into which a scale (one number, or one per class) and an offset after the call are folded.

    ``rows`` is the output of the call, or with ``normalised`` that for inputs of norm 1, which gets one scale per class
    and no offset.
    """
    spread, wanted = (rows, output) if normalised else (rows - rows.mean(dim=0), output - output.mean(dim=0))
    per_class = (wanted * spread).sum(dim=0), (spread * spread).sum(dim=0)
    estimates = {FOLDED[0]: (per_class[0].sum(), per_class[1].sum()), FOLDED[1]: per_class}
    if normalised:
        del estimates[FOLDED[0]]
    for kind, (numerator, denominator) in estimates.items():
        if bool((denominator <= 0).any()):
            return
        scale = (numerator / denominator).expand(rows.shape[1])
        offset = torch.zeros_like(scale) if normalised else (output - scale * rows).mean(dim=0)
        if is_curved(scale * rows + offset, output) or bool((scale.abs() < 1e-6).any()):
            continue
        bias = offset if call.bias is None else call.bias.cpu().double() * scale + offset
        vanishes = call.bias is None and float(offset.abs().max()) <= 1e-6 * float(output.abs().max())
        weight = call.weight.cpu().double() * scale[:, None]
        found = _candidate(call, kind, _head(weight, None if vanishes else bias, call.weight.device))
        yield replace(found, normalised=normalised or found.normalised)


def _head(weight: Tensor, bias: Tensor | None, device: torch.device) -> Head:
    return Head(weight.detach().float().to(device), None if bias is None else bias.detach().float().to(device))


FINISHES: dict[Finish, str] = {
    partial(torch.softmax, dim=-1): "linear before a softmax",
    partial(torch.log_softmax, dim=-1): "linear before a softmax",
    torch.sigmoid: "linear before a sigmoid",
}


def tap_point(call: LinearCall) -> TapPoint:
    """Where the call's input can be tapped in later passes."""
    return TapPoint(call.module if call.input_is_modules else None, call.ordinal)


def output_rows(call: LinearCall) -> Tensor | None:
    """The output as ``(n, C)``, if it is one vector per row."""
    classes = call.weight.shape[0]
    return call.output.reshape(-1, classes) if call.output[:1].numel() == classes else None


def as_rows(inputs: Tensor, width: int) -> Tensor:
    """Return a linear operation's input as ``(n, width)``, averaged over space or tokens if it has such."""
    if inputs.shape[1:].numel() == width:
        return inputs.reshape(len(inputs), width) if inputs.ndim > 2 else inputs
    return inputs.flatten(2).mean(dim=2) if inputs.ndim >= 4 else inputs.mean(dim=1)


def floating_copy(tensor: Tensor) -> Tensor:
    """A detached copy in float32, or float64 if it is that already."""
    return tensor.detach().clone().float() if tensor.dtype != torch.float64 else tensor.detach().clone()


def relative_gap(a: Tensor, b: Tensor) -> float:
    """The largest difference relative to the largest ``b``; infinite if shapes differ or a value is NaN."""
    if a.shape != b.shape:
        return float("inf")
    if not a.numel():
        return 0.0
    ours, theirs = a.cpu().double(), b.cpu().double()  # some devices have no float64
    gap = float((ours - theirs).abs().max()) / max(1e-2, float(theirs.abs().max()))
    return gap if gap == gap else float("inf")


def is_curved(predicted: Tensor, output: Tensor) -> bool:
    """Whether outputs deviate from a fitted straight line by more than rounding errors.

    The deviation is relative to their spread over rows, because a sigmoid is nearly straight near its middle.
    """
    rounding = TOLERANCE.get(output.dtype, 2e-6)
    wide, predicted = output.cpu().double(), predicted.cpu().double()
    spread = float((wide - wide.mean(dim=0)).abs().max())
    error = float((predicted - wide).abs().max())
    return not error <= 1e-5 * spread + rounding * float(wide.abs().max())
