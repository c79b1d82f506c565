"""The theory of the DICE paper as measurements, on ``Features`` alone.

The contribution of unit ``i`` to the output of class ``c`` is ``v_i = W[c, i] h_i``. Everything said of
contributions (means, variances, covariances, before and after dropping some) follows from the mean and
covariance of the embedding, which stream; no array of rows x classes x units is ever made.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from oodles.detectors import TopContribution
from oodles.detectors.statistics import Moments
from oodles.errors import ArgumentError, DataError, ShapeError
from oodles.features import Features, Head

Array = npt.NDArray[np.float64]


def moments(features: Features) -> Moments:
    """Mean and covariance of the embedding, folded over batches in float64."""
    folded = Moments()
    for batch in features.batches():
        folded.add(batch.embedding)
    return folded


@dataclass(frozen=True)
class Units:
    """One class's units in ascending order of mean ID contribution, with what they do on ID and on OOD data."""

    label: int
    order: Array
    id_mean: Array
    id_variance: Array
    ood_mean: Array
    ood_variance: Array


def units(head: Head, id_moments: Moments, ood_moments: Moments, label: int) -> Units:
    """Per-unit mean and variance of contribution, both kinds of data in the ID order (figures 1 and 4)."""
    weight = _row(head, label)
    order = id_order(head, id_moments, label)
    columns = []
    for part in (id_moments, ood_moments):
        mean, variance = weight * part.mean(), weight**2 * part.covariance().diagonal()
        columns += [mean[order].numpy(), variance[order].numpy()]
    return Units(label, order.numpy(), *columns)


def id_order(head: Head, id_moments: Moments, label: int) -> Tensor:
    """Units from least to most mean ID contribution to a class."""
    return torch.argsort(_row(head, label) * id_moments.mean(), stable=True)


@dataclass(frozen=True)
class Variances:
    """Variance of every class's output with all weights and with the kept ones, by three routes; ``(C,)`` each.

    ``independent`` is the paper's lemma: the sum of the dropped units' variances. ``cross_all`` and
    ``cross_kept`` are twice the sums of covariances, of all units and of the kept ones; ``correlated``, the
    paper's remark 1, is ``independent + cross_all - cross_kept``. ``direct_full`` and ``direct_kept`` are
    measured on the outputs themselves; ``correlated`` is their difference up to rounding.
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
        """The reduction when units may be correlated."""
        return self.independent + self.cross_all - self.cross_kept

    @property
    def ratio(self) -> Array:
        """Variance left after dropping, as a fraction of the whole; 1 where there was none to lose."""
        return _ratio(self.direct_kept, self.direct_full)


def variances(head: Head, mask: Tensor, features: Features, part: Moments | None = None) -> Variances:
    """Output variances of every class before and after keeping ``mask`` (``(C, m)``, True = kept)."""
    if mask.shape != head.weight.shape:
        raise ShapeError(f"the mask is {tuple(mask.shape)}, the head's weight {tuple(head.weight.shape)}")
    covariance = (part or moments(features)).covariance()
    weight = head.weight.double()
    kept_weight, dropped_weight = weight * mask, weight * ~mask
    full, kept = (((rows @ covariance) * rows).sum(dim=1) for rows in (weight, kept_weight))
    dropped, kept_own = ((rows**2 @ covariance.diagonal()) for rows in (dropped_weight, kept_weight))
    cross_all, cross_kept = full - (dropped + kept_own), kept - kept_own
    direct_full, direct_kept = _output_variance(features, weight, kept_weight)
    columns = (full, kept, dropped, cross_all, cross_kept, direct_full, direct_kept)
    return Variances(*(column.numpy() for column in columns))


def drop_lowest(head: Head, id_moments: Moments, dropped: int) -> Tensor:
    """The mask of the paper's lemma: in every class, all units but the ``dropped`` of least ID contribution."""
    if not 0 <= dropped < head.width:
        raise ArgumentError(f"dropped={dropped} must lie between 0 and {head.width - 1}, the units of this head")
    ranks = torch.argsort(torch.argsort(head.weight.double() * id_moments.mean(), dim=1, stable=True), dim=1)
    return ranks >= dropped


def dice_mask(head: Head, id_moments: Moments, p: float) -> Tensor:
    """The mask of DICE itself: the largest contributions of all classes together."""
    return TopContribution(p=p).mask(head.weight, id_moments.mean())


def contribution_covariance(head: Head, id_moments: Moments, part: Moments, label: int) -> Array:
    """Covariance matrix of a class's contributions, units in ID order (appendix figure)."""
    weight, order = _row(head, label), id_order(head, id_moments, label)
    matrix = weight[:, None] * part.covariance() * weight[None, :]
    return matrix[order][:, order].numpy()


def near_zero(matrix: Array, tolerance: float = 0.01) -> float:
    """Share of off-diagonal entries smaller in absolute value than ``tolerance`` times the largest variance.

    >>> near_zero(np.array([[1.0, 0.001], [0.001, 1.0]]))
    1.0
    """
    largest = float(np.abs(np.diagonal(matrix)).max())
    off = ~np.eye(len(matrix), dtype=bool)
    return float((np.abs(matrix[off]) < tolerance * largest).mean()) if off.any() else 1.0


def class_outputs(head: Head, mask: Tensor, features: Features, label: int) -> tuple[Array, Array]:
    """Outputs of one class for every row, with all weights and with the kept ones (figure 2)."""
    weight, bias = _row(head, label), 0.0 if head.bias is None else float(head.bias[label])
    both = torch.stack([weight, weight * mask[label]], dim=1)
    outputs = torch.cat([batch.embedding.double() @ both for batch in features.batches()]) + bias
    return outputs[:, 0].numpy(), outputs[:, 1].numpy()


def variance_ratios(head: Head, id_moments: Moments, p: float, ood: Mapping[str, Features]) -> dict[str, Array]:
    """What the paper claims, measured: each class's output variance under DICE over the dense one, per OOD set."""
    weight = head.weight.double()
    kept = weight * dice_mask(head, id_moments, p)
    ratios = {}
    for name, features in ood.items():
        full, left = (part.numpy() for part in _output_variance(features, weight, kept))
        ratios[name] = _ratio(left, full)
    return ratios


def head_of(features: Features) -> Head:
    """The head that came with the features; without one there is nothing to analyse."""
    if features.head is None:
        raise DataError(f"{features} has no head; the analysis is of embeddings and the layer they enter")
    return features.head


def _ratio(left: Array, full: Array) -> Array:
    return np.divide(left, full, out=np.ones_like(full), where=full > 0)


def _row(head: Head, label: int) -> Tensor:
    if not 0 <= label < head.classes:
        raise ArgumentError(f"label={label} is no class of this head; it has {head.classes}, counted from 0")
    return head.weight[label].double()


def _output_variance(features: Features, *weights: Tensor) -> list[Tensor]:
    """Variance over rows of the outputs of each weight matrix, measured by a fold with a shared shift."""
    count = 0
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
