"""Small batches to search a network's head with, and what to say if the network rejects them."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from oodles.data.batches import is_dead_worker, loader_failure
from oodles.data.inputs import Inputs, describe_inputs
from oodles.errors import DataError, HeadError, OodlesError
from oodles.network.outputs import logits_of, output_items
from oodles.network.taps import Recorder
from oodles.records.text import one_line

PROBE_ROWS = 4


def record(network: nn.Module, inputs: Inputs, shift: dict[int, Tensor] | None = None) -> tuple[object, Recorder]:
    """The network's output and every linear operation of the pass; see :class:`Recorder` for ``shift``."""
    with Recorder(network, shift) as recorder:
        output = inputs(network)
    return output, recorder


def first_pass(network: nn.Module, inputs: Inputs) -> tuple[Inputs, Inputs, dict[int, Tensor], Recorder]:
    """Two small batches to search and to verify with, the outputs for the first, and its linear operations.

    Noise is tried first, because then the same model always gives the same head. Networks that refuse noise or give
    NaN for it, such as those that take roots of pixels, get rows of the batch.
    """
    for probes in (_noise_probes, _real_probes):
        try:
            probe, check = probes(inputs)
            output, recorder = record(network, probe)
        except OodlesError:
            raise
        except Exception as error:  # whatever the network's own code raises
            if probes is _real_probes:
                raise rejected(network, inputs, error) from error
            continue
        outputs = output_items(output) or {0: logits_of(output)}
        if all(torch.isfinite(each).all() for each in outputs.values()):
            return probe, check, outputs, recorder
    state = network.state_dict().items()
    broken = next((key for key, part in state if isinstance(part, Tensor) and not torch.isfinite(part).all()), None)
    raise HeadError(
        f"{type(network).__name__} gives NaN or infinite logits for this batch; "
        + (f"its weights {broken} are not finite: is the checkpoint intact?" if broken else "check its first inputs")
    )


def rejected(network: nn.Module, inputs: Inputs, error: Exception) -> Exception:
    """What to tell the user about an error that the network raised for a batch."""
    if is_dead_worker(error):
        return loader_failure(error)
    name = type(network).__name__
    reason = one_line(error)
    if isinstance(error, NotImplementedError) and "forward" in reason:
        return HeadError(f"{name} has no forward method, so it cannot be called on a batch; give the whole classifier")
    hint = "are these the inputs it was trained on?"
    weights = next((part.dtype for part in network.parameters() if part.is_floating_point()), None)
    kinds = {part.dtype for part in inputs.floating().values()}
    if isinstance(error, torch.OutOfMemoryError):
        hint = "use smaller batches"
    elif isinstance(error, TypeError) and "argument" in reason:
        hint = "give the batches that its forward takes: a tensor, a tuple, or a mapping of its arguments"
    elif weights is not None and kinds and kinds != {weights}:
        hint = f"its weights are {weights}; convert the inputs or the model"
    elif not kinds and any(words in reason.lower() for words in ("dtype", "scalar type", "input type")):
        hint = "if it takes images, convert them to floating point and normalise them"
    return DataError(f"{name} does not accept {describe_inputs(inputs.named)} ({reason}); {hint}")


def _noise_probes(inputs: Inputs) -> tuple[Inputs, Inputs]:
    """Four inputs to search with and three to verify with: noise for floating-point tensors, rows of the others."""
    rows = _cycled(inputs, 2 * PROBE_ROWS - 1)
    copies = torch.arange(len(rows)) // len(inputs)
    generator = torch.Generator().manual_seed(0)

    def noise(value: Any) -> Any:
        if isinstance(value, PackedSequence):
            return value._replace(data=noise(value.data)) if value.data.is_floating_point() else value
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return _smaller(value, copies)
        made = torch.randn(value.shape, generator=generator).to(value)
        images_last = value.ndim == 4 and value.is_contiguous(memory_format=torch.channels_last)
        return made.contiguous(memory_format=torch.channels_last) if images_last else made

    first, second = rows.map(noise).split(PROBE_ROWS)
    return first, second


def _smaller(value: Any, copies: Tensor) -> Any:
    """Token ids of rows that are there for the second time halved, for the third time a third, and so on.

    Equal rows do not show a scale or an offset. A smaller id is in range wherever the id is. Masks stay as they are.
    """
    if not isinstance(value, Tensor) or value.ndim < 2 or value.dtype == torch.bool or int(value.max()) <= 1:
        return value
    return value // (1 + copies).to(value).view(-1, *[1] * (value.ndim - 1))


def _real_probes(inputs: Inputs) -> tuple[Inputs, Inputs]:
    """Return the first inputs, and smaller copies of them, in place of noise."""

    def fade(value: object, factor: float) -> object:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        factors = torch.linspace(1.0, 0.7, PROBE_ROWS)[: len(value)] * factor
        return value * factors.to(value).view(-1, *[1] * (value.ndim - 1))

    first, second = _cycled(inputs, PROBE_ROWS), _cycled(inputs, PROBE_ROWS - 1)
    return first.map(partial(fade, factor=1.0)), second.map(partial(fade, factor=0.9))


def _cycled(inputs: Inputs, count: int) -> Inputs:
    return inputs.take([row % len(inputs) for row in range(count)])
