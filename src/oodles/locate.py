"""Finding a classifier's last linear layer, and proving it.

Names and module types lie: heads are functional calls, 1x1 convolutions, tied or normalised
weights, followed by a scale or averaged with a second head. So the search goes by numbers. It
records every linear product of a small pass, takes the last one whose output *is* the logits, bit
for bit, or else the first of a few named recompositions that gives them, and then checks the claim
twice: on a batch of another size, and by moving the embedding and watching the logits follow.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oodles.errors import ArgumentError, DataError, HeadError
from oodles.features import Head
from oodles.tap import Product, Recorder, Site, Tap, logits_of, unwrap

PROBE_ROWS = 4
TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 5e-2}
STRICT = 1e-4
FOLDED = ("linear, then a scale", "linear, then a scale per class")

Finish = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Located:
    """A head that was found: its numbers, where its input appears, and what kind of head it is.

    ``finish`` is what the model does to the logits afterwards: nothing, or a (log-)softmax.
    """

    head: Head
    sites: tuple[Site, ...]
    kind: str
    name: str
    finish: Finish | None = None

    def embedding(self, entering: Sequence[Tensor]) -> Tensor:
        """The embedding ``(n, m)`` from what entered the head's products."""
        parts = [_as_rows(tensor, self.head.width // len(entering)) for tensor in entering]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)).to(self.head.weight.dtype)

    def logits(self, embedding: Tensor, output: Tensor) -> Tensor:
        """The logits: the model's own output, or what stood before its softmax."""
        logits = self.head(embedding)
        claimed = logits if self.finish is None else self.finish(logits)
        both = torch.isfinite(claimed).all(dim=1) & torch.isfinite(output).all(dim=1)
        gap, allowed = _gap(claimed[both].detach(), output[both].detach()), TOLERANCE.get(output.dtype, STRICT)
        # rows that are not finite are left to others: Features refuses them by row, Guard calls them not ID
        if gap > allowed:
            raise HeadError(
                f"the head {self.name} does not give this batch's logits (off by {gap:.2g} relative to their size); "
                "the model takes another path for it. Pass layer= to name the right layer"
            )
        return output.to(logits.dtype) if self.finish is None else logits


def locate(model: nn.Module, images: Tensor, layer: str | None = None) -> Located:
    """Find the last linear layer of ``model``, which must be at rest, from one batch of its inputs.

    ``layer`` names the module to take where the search finds the wrong one or none.
    """
    network = unwrap(model)
    _refuse_kind(network)
    if layer is not None and layer not in dict(network.named_modules()):
        raise ArgumentError(f"layer={layer!r} names no module of {type(network).__name__}")
    probe, check = _probes(images)
    try:
        output, recorder = _record(network, probe)
    except RuntimeError as error:
        shape, reason = tuple(images.shape[1:]), str(error).strip().splitlines()[0]
        raise DataError(
            f"{type(network).__name__} does not take inputs of shape {shape} ({reason}); is the size right?"
        ) from None
    if not torch.isfinite(output).all():
        # some networks have no answer to noise, e.g. those that take roots of pixels: ask with real inputs
        probe, check = _real_probes(images)
        output, recorder = _record(network, probe)
    if not torch.isfinite(output).all():
        raise HeadError(
            f"{type(network).__name__} gives NaN or infinite logits for this batch; look at its first images"
        )
    again = _record(network, probe)[0]
    if _gap(again, output) > (0 if output.device.type == "cpu" else 1e-3):
        raise HeadError(
            f"{type(network).__name__} is stochastic: the same input gave different logits twice in eval mode. "
            "Is dropout or sampling applied functionally? Make the forward pass deterministic first"
        )
    products = [product for product in recorder.products if layer in (None, product.module)]
    for claim in _claims(products, output):
        if _holds(network, claim, probe, output) and _holds(network, claim, check):
            _refuse_cosine(claim, products, network)
            if claim.finish is not None:
                warnings.warn(
                    f"{type(network).__name__} returns probabilities; the logits before them are used",
                    stacklevel=3,
                )
            return claim
    raise HeadError(_no_head(network, recorder, products, output, layer))


# The claims, in the order they are tried ------------------------------------------------------------


def _claims(products: Sequence[Product], output: Tensor) -> Iterator[Located]:
    """Every way the recorded products could make the output, most literal first."""
    backwards = list(reversed(products))
    for product in backwards:
        rows = _output_rows(product)
        if rows is not None and rows.shape == output.shape and torch.equal(rows.to(output.dtype), output):
            yield _claim(product, "linear")
    fitting = [product for product in backwards if product.weight.shape[0] == output.shape[1]]
    for product in fitting:
        if (rows := _output_rows(product)) is not None:
            finishes: tuple[Finish, ...] = (_softmax, _log_softmax)
            for finish in finishes:
                if _gap(finish(rows.float()), output) <= STRICT:
                    yield _claim(product, "linear before a softmax", finish=finish)
        elif (
            _gap(
                product.output.flatten(2).mean(dim=2) if product.operation == "conv2d" else product.output.mean(dim=1),
                output,
            )
            <= STRICT
        ):
            yield _claim(product, "pooled after a 1x1 convolution")
    for first, second in zip(fitting[1:], fitting, strict=False):
        one, two = _output_rows(first), _output_rows(second)
        if one is not None and two is not None and _gap((one + two) / 2, output) <= STRICT:
            yield _averaged(first, second)
    for product in fitting:
        if (rows := _output_rows(product)) is not None:
            yield from _rescaled(product, rows.cpu().double(), output.cpu().double())


def _claim(product: Product, kind: str, head: Head | None = None, finish: Finish | None = None) -> Located:
    head = head or Head(_floating(product.weight), None if product.bias is None else _floating(product.bias))
    return Located(head, (_site(product),), kind, product.module or product.operation, finish)


def _averaged(first: Product, second: Product) -> Located:
    """Two heads whose logits are averaged are one head on both embeddings side by side."""
    weight = torch.cat([first.weight, second.weight], dim=1) / 2
    biases = [product.bias for product in (first, second) if product.bias is not None]
    head = Head(_floating(weight), _floating(torch.stack(biases).sum(dim=0) / 2) if biases else None)
    name = f"{first.module or first.operation} and {second.module or second.operation}"
    return Located(head, (_site(first), _site(second)), "the mean of two heads", name)


def _rescaled(product: Product, rows: Tensor, output: Tensor) -> Iterator[Located]:
    """A scale (one number, or one per class) and an offset after the product fold into the head."""
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
        weight = product.weight.cpu().double() * scale[:, None]
        bias = offset if product.bias is None else product.bias.cpu().double() * scale + offset
        vanishes = product.bias is None and float(offset.abs().max()) <= 1e-6 * float(output.abs().max())
        parts = {"weight": weight} if vanishes else {"weight": weight, "bias": bias}
        head = Head(**{name: part.float().to(product.weight.device) for name, part in parts.items()})
        yield _claim(product, kind, head)


# The proof ----------------------------------------------------------------------------------------


def _holds(network: nn.Module, claim: Located, images: Tensor, output: Tensor | None = None) -> bool:
    """Whether the claimed head gives the outputs, and follows when its input is moved."""
    raw, entering, _ = Tap(network, claim.sites)(images)
    if output is None:
        output = logits_of(raw)
    embedding = claim.embedding(entering)
    finish = claim.finish or _softmax_free
    tolerance = TOLERANCE.get(output.dtype, STRICT)
    claimed = finish(claim.head(embedding))
    if _gap(claimed, output) > tolerance or (claim.kind in FOLDED and _curved(claimed, output)):
        return False
    generator = torch.Generator().manual_seed(0)
    size = float(embedding.abs().mean()) + 1e-3
    step = (torch.rand(claim.head.width, generator=generator) * size).to(embedding)
    steps = step.chunk(len(claim.sites))
    shift = {site.ordinal: part for site, part in zip(claim.sites, steps, strict=True)}
    moved, _ = _record(network, images, shift)
    claimed = finish(claim.head(embedding + step))
    return _gap(claimed, moved) <= tolerance and not (claim.kind in FOLDED and _curved(claimed, moved))


def _record(network: nn.Module, images: Tensor, shift: dict[int, Tensor] | None = None) -> tuple[Tensor, Recorder]:
    with Recorder(network, shift) as recorder:
        output = logits_of(network(images))
    return output, recorder


def _probes(images: Tensor) -> tuple[Tensor, Tensor]:
    """Four inputs to search with and three to check with.

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
    fade = (
        torch.linspace(1.0, 0.7, PROBE_ROWS, device=images.device).view(-1, *[1] * (images.ndim - 1)).to(images.dtype)
    )
    return rows * fade, rows[: PROBE_ROWS - 1] * 0.9 * fade[: PROBE_ROWS - 1]


# What is refused, by name ---------------------------------------------------------------------------


def _refuse_kind(network: nn.Module) -> None:
    if isinstance(network, torch.jit.ScriptModule):
        raise HeadError("a TorchScript model cannot be looked into; pass the nn.Module it was made from")
    for name, module in network.named_modules():
        if "quantized" in type(module).__module__:
            raise HeadError(f"{name or type(network).__name__} is quantised; pass the float model it was made from")


def _refuse_cosine(claim: Located, products: Sequence[Product], network: nn.Module) -> None:
    product = next(product for product in products if _site(product) == claim.sites[0])
    norms = [torch.linalg.vector_norm(_floating(part).flatten(1), dim=1) for part in (product.input, product.weight)]
    # a scale may stand on either side, so what gives a cosine away is that all norms are the same
    if all(_gap(norm / norm.mean(), torch.ones_like(norm)) < 1e-3 for norm in norms):
        raise HeadError(_not_affine(network, "a cosine head", claim.name))


def _no_head(
    network: nn.Module, recorder: Recorder, products: Sequence[Product], output: Tensor, layer: str | None
) -> str:
    suspects = [_suspect(product, output) for product in products]
    reason = next((suspect for suspect in suspects if suspect), None) or next(iter(recorder.telltales), None)
    if reason is not None:
        return _not_affine(network, reason, products[-1].module or products[-1].operation if products else "its output")
    seen = "; ".join(str(product) for product in recorder.products[-5:]) or "none at all"
    asked = f"layer={layer!r} does not give the logits" if layer else "no linear product gives the logits"
    return (
        f"{type(network).__name__}: {asked} of width {output.shape[1]}, alone or rescaled. Linear products seen last: "
        f"{seen}. Pass layer= with the name of the module that makes the logits, or, in Python, layer=False for "
        "detectors that need logits alone"
    )


def _suspect(product: Product, output: Tensor) -> str | None:
    rows = _output_rows(product)
    if rows is None or rows.shape != output.shape:
        return None
    if _gap(torch.sigmoid(rows.float()), output) <= STRICT:
        return "a sigmoid head"
    entering = _as_rows(product.input, product.weight.shape[1])
    cosine = F.normalize(entering.double()) @ F.normalize(product.weight.double()).T
    scale = (cosine * output).sum() / (cosine * cosine).sum().clamp_min(1e-12)
    return "a cosine head" if _gap(scale * cosine, output) <= STRICT else None


def _not_affine(network: nn.Module, reason: str, name: str) -> str:
    return (
        f"{type(network).__name__} has {reason} ({name}): its logits are not one affine map of an embedding, so "
        "methods that need a linear head do not apply. In Python, layer=False gives the logits alone"
    )


# Small things -----------------------------------------------------------------------------------------


def _site(product: Product) -> Site:
    return Site(product.module if product.input_is_modules else None, product.ordinal)


def _output_rows(product: Product) -> Tensor | None:
    """The product's output as ``(n, C)``, where it is one vector a row."""
    classes = product.weight.shape[0]
    return product.output.reshape(-1, classes) if product.output[0].numel() == classes else None


def _as_rows(entering: Tensor, width: int) -> Tensor:
    if entering[0].numel() == width:
        return entering.reshape(len(entering), width)
    return entering.mean(dim=(2, 3)) if entering.ndim == 4 else entering.mean(dim=1)


def _floating(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().float() if tensor.dtype != torch.float64 else tensor.detach().clone()


def _gap(a: Tensor, b: Tensor) -> float:
    """The largest difference relative to the size of ``b``; infinite where shapes differ or a value is NaN."""
    if a.shape != b.shape:
        return float("inf")
    if not a.numel():
        return 0.0
    ours, theirs = a.cpu().double(), b.cpu().double()  # some devices have no float64
    gap = float((ours - theirs).abs().max()) / max(1e-2, float(theirs.abs().max()))
    return gap if gap == gap else float("inf")


def _curved(claimed: Tensor, output: Tensor) -> bool:
    """Whether outputs depart from a fitted straight line by more than rounding does.

    Relative to their spread over rows: a curve such as a sigmoid is nearly straight near its middle.
    """
    rounding = TOLERANCE.get(output.dtype, 2e-6)
    wide, claimed = output.cpu().double(), claimed.cpu().double()
    spread = float((wide - wide.mean(dim=0)).abs().max())
    error = float((claimed - wide).abs().max())
    return not error <= 1e-5 * spread + rounding * float(wide.abs().max())


def _softmax(logits: Tensor) -> Tensor:
    return logits.softmax(dim=-1)


def _log_softmax(logits: Tensor) -> Tensor:
    return logits.log_softmax(dim=-1)


def _softmax_free(logits: Tensor) -> Tensor:
    return logits
