"""Masks by the rule of the DICE authors' code, and the masked layer one multiplication at a time."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def above_percentile(values: Array, p: float) -> Mask:
    """True where an entry is strictly above the percentile of all entries; everywhere if p is 0."""
    mask = np.ones(values.shape, dtype=bool)
    if p == 0:
        return mask
    threshold = np.percentile(values, 100 * p)
    for index in np.ndindex(*values.shape):
        mask[index] = values[index] > threshold
    return mask


def contribution(weight: Array, mean: Array) -> Array:
    values = np.zeros(weight.shape, dtype=np.float64)
    for c in range(weight.shape[0]):
        for i in range(weight.shape[1]):
            values[c, i] = float(weight[c, i]) * float(mean[i])
    return values


def dice(weight: Array, mean: Array, p: float) -> Mask:
    return above_percentile(contribution(weight, mean), p)


def bottom_k(weight: Array, mean: Array, p: float) -> Mask:
    return above_percentile(-contribution(weight, mean), p)


def top_bottom_k(weight: Array, mean: Array, p: float) -> Mask:
    return above_percentile(np.abs(contribution(weight, mean)), p)


def weight_pruning(weight: Array, mean: Array, p: float) -> Mask:
    return above_percentile(np.abs(weight.astype(np.float64)), p)


def unit_pruning(weight: Array, mean: Array, p: float) -> Mask:
    norms = np.array([sum(float(value) ** 2 for value in column) ** 0.5 for column in weight.T])
    return np.array([above_percentile(norms, p)] * len(weight))


MASKS: dict[str, Callable[[Array, Array, float], Mask]] = {
    "dice": dice,
    "bottom_k": bottom_k,
    "top_bottom_k": top_bottom_k,
    "weight_pruning": weight_pruning,
    "unit_pruning": unit_pruning,
}
"""The masks computed from weights and means alone, by the name of the stage."""


def masked_logits(embedding: Array, weight: Array, bias: Array, mask: Mask, clip: float = np.inf) -> Array:
    """``(M * W) min(h, c) + b``, entry by entry."""
    logits = np.zeros((len(embedding), len(weight)))
    for n, row in enumerate(embedding):
        for c in range(len(weight)):
            total = float(bias[c])
            for i in range(len(row)):
                if mask[c, i]:
                    total += float(weight[c, i]) * min(float(row[i]), clip)
            logits[n, c] = total
    return logits
