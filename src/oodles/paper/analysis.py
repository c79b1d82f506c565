"""The theory of the DICE paper as measurements on ``Features``.

The contribution of unit ``i`` to the output of class ``c`` is ``W[c, i] h_i``. Means, variances and covariances of
contributions, with all units or without some, follow from the mean and covariance of the embedding, which are
accumulated batch by batch; no array of rows x classes x units is ever built.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from oodles.detectors.sparsifiers import DICE
from oodles.detectors.statistics import Moments
from oodles.errors import ArgumentError, DataError, ShapeError
from oodles.features import Features, Head

Array = npt.NDArray[np.float64]


def moments(features: Features) -> Moments:
    """Mean and covariance of the embedding, accumulated over batches in float64.

    >>> features = Features(torch.tensor([[1.0, 0.0], [3.0, 4.0]]), head=Head(torch.tensor([[1.0, 1.0], [2.0, -1.0]])))
    >>> moments(features).mean()
    tensor([2., 2.], dtype=torch.float64)
    """
    total = Moments()
    for batch in features.batches():
        total.add(batch.embedding)
    return total


def id_order(head: Head, id_moments: Moments, label: int) -> Tensor:
    """Indices of the units, sorted by mean ID contribution to a class, smallest first.

    >>> features = Features(torch.tensor([[1.0, 0.0], [3.0, 4.0]]), head=Head(torch.tensor([[1.0, 1.0], [2.0, -1.0]])))
    >>> id_order(features.head, moments(features), 1)  # unit 1 lowers the second class
    tensor([1, 0])
    """
    return torch.argsort(_class_weight(head, label) * id_moments.mean(), stable=True)


def contribution_moments(head: Head, set_moments: Moments, label: int, order: Tensor) -> tuple[Array, Array]:
    """Mean and variance of each unit's contribution to a class on one data set, units in ``order`` (figures 1, 4).

    >>> features = Features(torch.tensor([[1.0, 0.0], [3.0, 4.0]]), head=Head(torch.tensor([[1.0, 1.0], [2.0, -1.0]])))
    >>> contribution_moments(features.head, moments(features), 1, torch.tensor([0, 1]))
    (array([ 4., -2.]), array([4., 4.]))
    """
    weight = _class_weight(head, label)
    mean, variance = weight * set_moments.mean(), weight**2 * set_moments.covariance().diagonal()
    return mean[order].numpy(), variance[order].numpy()


def contribution_covariance(head: Head, set_moments: Moments, label: int, order: Tensor) -> Array:
    """Covariance matrix of the contributions to a class on one data set, units in ``order`` (appendix figure).

    >>> features = Features(torch.tensor([[1.0, 0.0], [3.0, 4.0]]), head=Head(torch.tensor([[1.0, 1.0], [2.0, -1.0]])))
    >>> contribution_covariance(features.head, moments(features), 1, torch.tensor([0, 1]))
    array([[ 4., -4.],
           [-4.,  4.]])
    """
    weight = _class_weight(head, label)
    matrix = weight[:, None] * set_moments.covariance() * weight[None, :]
    return matrix[order][:, order].numpy()


@dataclass(frozen=True)
class Variances:
    """Variance of each class's output with all weights and with the kept ones, and the reduction; ``(C,)`` each.

    ``full`` and ``kept`` are computed from the embedding's covariance, ``direct_full`` and ``direct_kept`` from the
    outputs. ``independent`` is the reduction by the paper's lemma: the sum of the dropped units' variances.
    ``cross_all`` and ``cross_kept`` are twice the sums of the covariances of all pairs of units and of pairs of kept
    units, which ``correlated`` takes into account.

    >>> features = Features(torch.tensor([[1.0, 0.0], [3.0, 4.0]]), head=Head(torch.tensor([[1.0, 1.0], [2.0, -1.0]])))
    >>> found = variances(features.head, torch.tensor([[True, False], [True, True]]), features)
    >>> found.full, found.kept, found.correlated
    (array([9., 0.]), array([1., 0.]), array([8., 0.]))
    """

    full: Array
    kept: Array
    independent: Array
    cross_all: Array
    cross_kept: Array
    direct_full: Array
    direct_kept: Array

    @property
    def correlated(self) -> Array:
        """The reduction by the paper's remark 1: ``direct_full - direct_kept``, up to rounding."""
        return self.independent + self.cross_all - self.cross_kept

    @property
    def ratio(self) -> Array:
        """Fraction of the variance that is left; 1 if there was none."""
        full = self.direct_full
        return np.divide(self.direct_kept, full, out=np.ones_like(full), where=full > 0)


def variances(head: Head, mask: Tensor, features: Features, set_moments: Moments | None = None) -> Variances:
    """Output variance of every class with all weights and with those of ``mask`` (``(C, m)``, True = kept).

    >>> features = Features(torch.tensor([[1.0, 0.0], [3.0, 4.0]]), head=Head(torch.tensor([[1.0, 1.0], [2.0, -1.0]])))
    >>> variances(features.head, torch.tensor([[True, False], [True, True]]), features).ratio
    array([0.11111111, 1.        ])
    """
    if mask.shape != head.weight.shape:
        raise ShapeError(f"the mask has shape {tuple(mask.shape)}, the head's weight {tuple(head.weight.shape)}")
    covariance = (set_moments or moments(features)).covariance()
    weight = head.weight.double()
    kept_weight, dropped_weight = weight * mask, weight * ~mask
    full, kept = (((rows @ covariance) * rows).sum(dim=1) for rows in (weight, kept_weight))
    dropped, kept_own = ((rows**2 @ covariance.diagonal()) for rows in (dropped_weight, kept_weight))
    cross_all, cross_kept = full - (dropped + kept_own), kept - kept_own
    direct_full, direct_kept = _output_variance(features, weight, kept_weight)
    columns = (full, kept, dropped, cross_all, cross_kept, direct_full, direct_kept)
    return Variances(*(column.numpy() for column in columns))


def drop_lowest(head: Head, id_moments: Moments, dropped: int) -> Tensor:
    """The mask of the paper's lemma: each class keeps all but the ``dropped`` units of smallest ID contribution.

    >>> features = Features(torch.tensor([[1.0, 0.0], [3.0, 4.0]]), head=Head(torch.tensor([[1.0, 1.0], [2.0, -1.0]])))
    >>> drop_lowest(features.head, moments(features), 1)
    tensor([[False,  True],
            [ True, False]])
    """
    if not 0 <= dropped < head.width:
        raise ArgumentError(f"dropped={dropped} must lie between 0 and {head.width - 1} for {head.width} units")
    ranks = torch.argsort(torch.argsort(head.weight.double() * id_moments.mean(), dim=1, stable=True), dim=1)
    return ranks >= dropped


def dice_mask(head: Head, id_moments: Moments, p: float) -> Tensor:
    """The mask of DICE itself: the largest contributions over all classes.

    >>> features = Features(torch.tensor([[1.0, 0.0], [3.0, 4.0]]), head=Head(torch.tensor([[1.0, 1.0], [2.0, -1.0]])))
    >>> dice_mask(features.head, moments(features), 0.5)
    tensor([[False, False],
            [ True, False]])
    """
    return DICE(p=p).mask(head.weight, id_moments.mean())


def near_zero(matrix: Array, tolerance: float = 0.01) -> float:
    """Fraction of off-diagonal entries that are below ``tolerance`` times the largest variance in absolute value.

    >>> near_zero(np.array([[1.0, 0.001], [0.001, 1.0]]))
    1.0
    """
    largest = float(np.abs(np.diagonal(matrix)).max())
    off = ~np.eye(len(matrix), dtype=bool)
    return float((np.abs(matrix[off]) < tolerance * largest).mean()) if off.any() else 1.0


def class_outputs(head: Head, mask: Tensor, features: Features, label: int) -> tuple[Array, Array]:
    """Output of one class for each row, with all weights and with the kept ones (figure 2).

    >>> features = Features(torch.tensor([[1.0, 0.0], [3.0, 4.0]]), head=Head(torch.tensor([[1.0, 1.0], [2.0, -1.0]])))
    >>> class_outputs(features.head, torch.tensor([[True, True], [True, False]]), features, 1)
    (array([2., 2.]), array([2., 6.]))
    """
    weight, bias = _class_weight(head, label), 0.0 if head.bias is None else float(head.bias[label])
    both = torch.stack([weight, weight * mask[label]], dim=1)
    outputs = torch.cat([batch.embedding.double() @ both for batch in features.batches()]) + bias
    return outputs[:, 0].numpy(), outputs[:, 1].numpy()


def head_of(features: Features) -> Head:
    """The head of the features, which the analysis needs.

    >>> head_of(Features(torch.eye(2), head=Head(torch.eye(2)))).shape
    (2, 2)
    """
    if features.head is None:
        raise DataError(f"{features} has no head; the analysis needs the weights of the last layer")
    return features.head


def _class_weight(head: Head, label: int) -> Tensor:
    if not 0 <= label < head.classes:
        raise ArgumentError(f"label={label} must lie between 0 and {head.classes - 1} for {head.classes} classes")
    return head.weight[label].double()


def _output_variance(features: Features, *weights: Tensor) -> list[Tensor]:
    """Variance over the rows of each weight matrix's outputs, in one pass."""
    count = 0
    # sums of squares of outputs far from 0 would lose digits, so the outputs of the first row are subtracted
    shifts = [weight @ features[:1].embedding[0].double() for weight in weights]
    sums = [torch.zeros(len(weight), dtype=torch.float64) for weight in weights]
    squares = [torch.zeros_like(total) for total in sums]
    for batch in features.batches():
        embedding = batch.embedding.double()
        count += len(batch)
        for shift, weight, total, square in zip(shifts, weights, sums, squares, strict=True):
            outputs = embedding @ weight.T - shift
            total += outputs.sum(dim=0)
            square += (outputs**2).sum(dim=0)
    return [square / count - (total / count) ** 2 for total, square in zip(sums, squares, strict=True)]
