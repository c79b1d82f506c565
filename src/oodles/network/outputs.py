"""Where the logits are in what a model returns: a tensor, an object, a mapping or a tuple."""

from collections.abc import Iterator, Mapping

from torch import Tensor

from oodles.columns import PRECISIONS, dtype_name, is_dense
from oodles.errors import HeadError

EMBEDDING_KEYS = ("embed", "hidden", "pool", "feature", "attention")  # of outputs that are not logits


def logits_of(output: object, item: int | None = None) -> Tensor:
    """The logits in a model's output: a tensor, ``.logits``, a mapping with ``logits``, or an item of a tuple.

    ``item`` says which one; by default the only one that has the shape of logits.
    """
    if isinstance(output, Tensor) and _is_logits(output):
        return output  # the usual case, at every call of a guard
    found = output_items(output)
    if item is not None and item in found:
        return found[item]
    if len(found) > 1:
        shapes = " and ".join(str(tuple(each.shape)) for each in found.values())
        raise HeadError(
            f"the model returned {len(found)} tensors {shapes} that could be its logits; return the logits alone, or a "
            "dict or an object with `logits`"
        )
    if not found:
        raise HeadError(f"the model returned {_describe_output(output)}; return logits of shape (rows, classes)")
    return next(iter(found.values()))


def output_items(output: object) -> dict[int, Tensor]:
    """The tensors in a model's output that have the shape of logits, ``(rows, classes)``, by their position."""
    if not isinstance(output, Tensor):
        named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
        if named is not None:
            output = named
    tensors = {place: _flat(item) for place, item in enumerate(_leaves(output))}
    return {place: item for place, item in tensors.items() if _is_logits(item)}


def _is_logits(output: Tensor) -> bool:
    return output.ndim == 2 and output.dtype in PRECISIONS and is_dense(output)


def _leaves(output: object) -> Iterator[Tensor]:
    """The tensors in a model's output, in order; those whose key says that they are embeddings are left out."""
    if isinstance(output, Mapping):
        for key, value in output.items():
            if not any(part in str(key) for part in EMBEDDING_KEYS):
                yield from _leaves(value)
    elif isinstance(output, tuple | list):
        for value in output:
            yield from _leaves(value)
    elif isinstance(output, Tensor):
        yield output


def _flat(output: Tensor) -> Tensor:
    return output.flatten(1) if output.ndim > 2 and output.shape[2:].numel() == 1 else output


def _describe_output(output: object) -> str:
    """What a model returned, which kind of model does so, and how such an output becomes logits."""
    tensor = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if isinstance(output, Mapping):  # segmentation models return a dict
        tensor = next((part for part in (tensor, *output.values()) if isinstance(part, Tensor)), None)
    if not isinstance(tensor, Tensor):
        return f"a {type(output).__name__} without logits"
    shape = f"{dtype_name(tensor.dtype)} {tuple(tensor.shape)}"
    if tensor.dtype not in PRECISIONS:
        return f"{shape}, not floating-point numbers of 16, 32 or 64 bits"
    if not is_dense(tensor):
        return f"{shape}, which is not a dense tensor ({'meta' if tensor.is_meta else tensor.layout})"
    kinds = {
        1: "one number per input: if it is a logit, return it as a column, output[:, None]",
        3: "one prediction per token: take one of them, or their mean",
        4: "one prediction per pixel, as in segmentation: take their mean, output.mean(dim=(2, 3))",
    }
    return f"{shape}, {kinds[tensor.ndim]}" if tensor.ndim in kinds else shape
