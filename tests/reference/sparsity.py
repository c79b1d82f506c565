"""Masks by the rule of the DICE authors' code."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def above_percentile(values: Array, p: float) -> Mask:
    """True where an entry is strictly above the percentile of all entries; everywhere if p is 0."""
    return values > np.percentile(values, 100 * p) if p else np.ones(values.shape, dtype=bool)


def contribution(weight: Array, mean: Array) -> Array:
    return np.array([[float(w) * float(h) for w, h in zip(row, mean, strict=True)] for row in weight])


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
