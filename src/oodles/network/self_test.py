"""A call with made-up inputs, to which a saved guard keeps the answers: a model that has changed gives others."""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta, Struct
from torch import Tensor, nn

from oodles.columns import PRECISIONS, dtype_name
from oodles.data.inputs import Inputs
from oodles.errors import FileError, OodlesError
from oodles.network.candidates import relative_gap
from oodles.network.fingerprints import COPIES, model_fingerprint
from oodles.records.text import one_line

ROWS = 2
MAX_LENGTH, MAX_NUMBERS = 1 << 16, 1 << 22  # of a tensor: along one dimension, and in all
# the largest relative differences: of the same model, on devices that round sums to ten bits, in half precision
SAME, OTHER_DEVICE, ROUNDED = 1e-3, 1e-2, 5e-2

Length = Annotated[int, Meta(ge=1, le=MAX_LENGTH)]
Whole = Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]


class Noise(Struct, forbid_unknown_fields=True, tag=True):
    """A floating-point tensor, made from a seed: uniform with mean 0 and variance 1, the same on every machine."""

    shape: Annotated[list[Length], Meta(min_length=1, max_length=8)]
    dtype: Literal["float32", "float16", "bfloat16", "float64"]


class Numbers(Struct, forbid_unknown_fields=True, tag=True):
    """A tensor of whole numbers, such as token ids."""

    shape: Annotated[list[Length], Meta(min_length=1, max_length=8)]
    dtype: Literal["int64", "int32", "int16", "int8", "uint8", "bool"]
    values: list[Whole]


class Plain(Struct, forbid_unknown_fields=True, tag=True):
    """An argument that is no tensor."""

    value: bool | int | float | str | None


class Probe(Struct, forbid_unknown_fields=True):
    """The arguments of one call of a model, for a few inputs."""

    args: list[Noise | Numbers | Plain]
    kwargs: dict[str, Noise | Numbers | Plain]

    def inputs(self, device: torch.device, precision: torch.dtype | None = None) -> Inputs:
        """The call, with floating-point tensors in another precision if one is given."""

        def make(argument: Noise | Numbers | Plain) -> Any:
            if isinstance(argument, Plain):
                return argument.value
            if math.prod(argument.shape) > MAX_NUMBERS:
                raise ValueError(f"a probe of shape {argument.shape} is too large")
            dtype: torch.dtype = getattr(torch, argument.dtype)
            if isinstance(argument, Numbers):
                return torch.tensor(argument.values).reshape(argument.shape).to(device, dtype)
            uniform = torch.rand(argument.shape, generator=torch.Generator().manual_seed(0))
            return ((2 * uniform - 1) * math.sqrt(3)).to(dtype).to(device, precision)

        return Inputs(tuple(map(make, self.args)), {name: make(each) for name, each in self.kwargs.items()})


class SelfTest(Probe, forbid_unknown_fields=True):
    """A probe, the guard's logits and scores for it, and the model's other fingerprints.

    ``copies`` are those of its copies in half precision, ``weights`` is the one without hyperparameters: other versions
    of torch may write these differently.
    """

    logits: list[list[float]]
    scores: list[float]
    copies: list[str]
    weights: str
    torch: str


Answers = Callable[[Probe, torch.dtype | None], tuple[Tensor, Tensor]]
"""A guard's logits and scores for a probe, of which the floating-point inputs may be given in another precision."""


def take_self_test(model: nn.Module, probe: Probe, answers: Answers) -> SelfTest | None:
    """What :func:`repeat_self_test` repeats; None if noise is refused, or gives NaN or random answers."""
    try:
        logits, scores = answers(probe, None)
        again, _ = answers(probe, None)
    except OodlesError:
        return None
    if relative_gap(again, logits) > SAME or not bool(torch.isfinite(torch.cat([logits.flatten(), scores])).all()):
        return None
    copies = [model_fingerprint(model, dtype=dtype) for dtype in COPIES]
    weights = model_fingerprint(model, hyperparameters=False)
    return SelfTest(probe.args, probe.kwargs, logits.tolist(), scores.tolist(), copies, weights, str(torch.__version__))


def repeat_self_test(test: SelfTest, model: nn.Module, answers: Answers, rounded: bool, path: object) -> None:
    """Raise unless the guard in ``path`` gives what it gave when it was saved, up to rounding.

    ``rounded`` says that the model is a copy in half precision.
    """
    like = next((part for part in model.parameters() if part.is_floating_point()), torch.empty(0))
    try:
        found = answers(test, like.dtype if rounded else None)
        known = torch.tensor(test.logits), torch.tensor(test.scores)
    except (OodlesError, ValueError, TypeError, RuntimeError) as error:
        raise FileError(f"{path} cannot be tried on this model ({one_line(error)})") from None
    allowed = ROUNDED if rounded else SAME if like.device.type == "cpu" else OTHER_DEVICE
    # scores have jumps: a unit that is just cut off, a rank
    limits = {"logits": allowed} if rounded else {"logits": allowed, "scores": 10 * allowed}
    for (name, limit), now, then in zip(limits.items(), found, known, strict=False):
        gap = relative_gap(now, then)
        if gap > limit:
            raise FileError(
                f"{path} guards another model: the {name} for its test inputs differ from those it was saved with "
                f"(relative difference {gap:.2g}); load it with the model it was saved with, or fit it again"
            )


def probe_like(inputs: Inputs) -> Probe | None:
    """A probe of the same types and shapes; None if they cannot be described in a small record.

    Of the inputs themselves only whole numbers are used, halved: no text is kept, and token ids stay in range.
    """
    try:
        return Probe([_describe(each) for each in inputs.args], {k: _describe(v) for k, v in inputs.kwargs.items()})
    except ValueError:
        return None


def image_probe(preprocessing: Mapping[str, Any] | None) -> Probe | None:
    """A probe for a model of which only the size of its images is known."""
    if preprocessing is None or "size" not in preprocessing:
        return None
    shape = len(preprocessing["mean"]), preprocessing["size"], preprocessing["size"]
    return Probe([Noise([ROWS, *shape], "float32")], {})


def _describe(value: Any) -> Noise | Numbers | Plain:
    if value is None or isinstance(value, bool | int | float | str):
        return Plain(value)
    if not isinstance(value, Tensor) or value.ndim == 0:
        raise ValueError("not a tensor with rows")
    shape, name = [ROWS, *value.shape[1:]], dtype_name(value.dtype)
    if max(shape) > MAX_LENGTH or math.prod(shape) > MAX_NUMBERS:
        raise ValueError("too large")
    if value.dtype in PRECISIONS:
        return Noise(shape, name)  # type: ignore[arg-type]
    rows = value[[row % len(value) for row in range(ROWS)]]
    whole = rows // 2 if rows.dtype != torch.bool and int(rows.max()) > 1 else rows  # masks stay as they are
    if whole.numel() > MAX_NUMBERS // 64:
        raise ValueError("too large")
    return Numbers(shape, name, whole.long().flatten().tolist())  # type: ignore[arg-type]
