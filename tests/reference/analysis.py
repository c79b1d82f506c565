"""Slow versions of ``oodles.paper.analysis``: each class's contributions as an array of rows x units."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def contributions(weight: Array, embedding: Array, label: int) -> Array:
    """``W[c, i] * h[n, i]`` for one class; ``(n, m)``."""
    return np.array([[float(w) * float(h) for w, h in zip(weight[label], row, strict=True)] for row in embedding])


def covariance(values: Array) -> Array:
    """Entry by entry; divided by the number of rows."""
    rows, columns = values.shape
    apart = values - [sum(values[n, i] for n in range(rows)) / rows for i in range(columns)]
    return np.array([[sum(apart[:, i] * apart[:, j]) / rows for j in range(columns)] for i in range(columns)])


def id_order(weight: Array, id_embedding: Array, label: int) -> list[int]:
    """Units by mean ID contribution, ties by index."""
    means = contributions(weight, id_embedding, label).mean(axis=0)
    return sorted(range(len(means)), key=lambda i: (means[i], i))


def outputs(weight: Array, bias: Array, mask: Mask, embedding: Array, label: int) -> tuple[Array, Array]:
    """The outputs of a class with all weights and with the kept ones."""
    values = contributions(weight, embedding, label)
    kept = [i for i in range(values.shape[1]) if mask[label, i]]
    return values.sum(axis=1) + bias[label], values[:, kept].sum(axis=1) + bias[label]


def reduction(weight: Array, mask: Mask, embedding: Array, label: int) -> dict[str, float]:
    """The paper's remark 1, term by term: variances of dropped units and sums over pairs of units."""
    matrix = covariance(contributions(weight, embedding, label))
    units = range(len(matrix))
    dropped = sum(matrix[i, i] for i in units if not mask[label, i])
    pairs = [(i, j) for i in units for j in units if i < j]
    cross_all = 2 * sum(matrix[i, j] for i, j in pairs)
    cross_kept = 2 * sum(matrix[i, j] for i, j in pairs if mask[label, i] and mask[label, j])
    return {
        "independent": dropped,
        "cross_all": cross_all,
        "cross_kept": cross_kept,
        "correlated": dropped + cross_all - cross_kept,
    }
