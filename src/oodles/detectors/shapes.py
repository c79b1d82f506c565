"""Shapes: what is done to an embedding before the head."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from oodles.detectors.arguments import check_whole
from oodles.detectors.logit import ScoreFunction, Shape
from oodles.errors import ArgumentError, DataError
from oodles.features import Head
from oodles.functional import (
    between,
    binarise_top,
    clip,
    energy,
    keep_top,
    prune_and_scale,
    quantile,
    scale_rows,
    top_ratio,
)


class ReAct(Shape):
    """Clip activations at a percentile of ID activations (Sun, Guo & Li, NeurIPS 2021).

    The percentile is of all activations together, or of each unit separately (``per="unit"``); ``threshold`` is a
    constant to clip at instead. Only the top is clipped: negative activations below the threshold stay as they are.

    >>> ReAct(threshold=1.0).transform(torch.tensor([[0.5, 3.0, -2.0]]))
    tensor([[ 0.5000,  1.0000, -2.0000]])
    """

    threshold_: Tensor

    def __init__(
        self,
        *,
        percentile: float | None = None,
        threshold: float | None = None,
        per: str = "all",
        score: ScoreFunction = energy,
    ) -> None:
        super().__init__(score)
        if percentile is not None and threshold is not None:
            raise ArgumentError(
                f"ReAct takes percentile={percentile} or threshold={threshold}, not both; leave one out"
            )
        if percentile is None and threshold is None:
            percentile = 90
        if percentile is not None and not (percentile == 0 or 1 <= percentile <= 100):
            raise ArgumentError(f"percentile={percentile} must lie in [1, 100]: it is in percent, 90 and not 0.9")
        if threshold is not None and not math.isfinite(threshold):
            raise ArgumentError(f"threshold={threshold} must be finite; give the activation to clip at")
        self.percentile = percentile
        self.threshold = threshold
        self.per = per
        self.needs = () if percentile is None else (_statistic(per),)
        self.register_buffer("threshold_", None if threshold is None else torch.tensor(float(threshold)))

    @override
    def learn_shape(self, statistics: Mapping[str, Any], head: Head) -> None:
        if self.percentile is not None:
            (self.threshold_,) = _percentiles(statistics, self.per, self.percentile)

    @override
    def transform(self, embedding: Tensor) -> Tensor:
        return clip(embedding, self.threshold_)


class VRA(Shape):
    """Zero activations below one percentile of ID activations, clip those above another (Xu et al., NeurIPS 2023).

    The percentiles are of each unit separately, as its authors have them, or of all activations together
    (``per="all"``). Negative activations below the lower percentile become 0 like all others below it, so they rise.

    >>> from oodles.features import Features
    >>> train = Features(torch.tensor([[0.0, 1.0], [1.0, 2.0], [2.0, 9.0]]), head=Head(torch.eye(2)))
    >>> shape = VRA(low=50, high=75, per="all").fit(train)
    >>> shape.low_, shape.high_
    (tensor(1.5000), tensor(2.))
    >>> shape.transform(torch.tensor([[1.0, 1.8, 5.0]]))
    tensor([[0.0000, 1.8000, 2.0000]])
    """

    low_: Tensor
    high_: Tensor

    def __init__(self, *, low: float = 60, high: float = 95, per: str = "unit", score: ScoreFunction = energy) -> None:
        super().__init__(score)
        if not 0 <= low < high <= 100 or 0 < high < 1:
            raise ArgumentError(f"low={low} and high={high} must be percentiles, 0 to 100, with low < high")
        self.low = low
        self.high = high
        self.per = per
        self.needs = (_statistic(per),)

    @override
    def learn_shape(self, statistics: Mapping[str, Any], head: Head) -> None:
        self.low_, self.high_ = _percentiles(statistics, self.per, self.low, self.high)

    @override
    def transform(self, embedding: Tensor) -> Tensor:
        return between(embedding, self.low_, self.high_)


class OptFS(Shape):
    """Multiply each activation by a factor learned for its size (Zhao et al., ICLR 2024).

    Activations from the 0.1 to the 99.9 percentile of ID activations fall into ``bins`` of equal width. A bin's factor
    is proportional to what its activations add to the predicted class's logit, ``sum w_yi h_i``, on average over
    training rows, and the vector of all factors has length 1,000. Activations outside become 0. Negative activations
    fall into bins like all others, and the factor of a bin that lowers the predicted class's logit is negative.

    >>> from oodles.features import Features
    >>> head = Head(torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    >>> train = Features(torch.linspace(0.0, 1.0, 40).view(20, 2), head=head)
    >>> OptFS(bins=4).fit(train).factors_  # large activations add most to the predicted class
    tensor([107.0485, 344.9342, 582.8198, 727.9301])
    """

    needs = ("rows",)
    low_: Tensor
    high_: Tensor
    factors_: Tensor

    def __init__(self, *, bins: int = 100, score: ScoreFunction = energy) -> None:
        super().__init__(score)
        self.bins = check_whole("bins", bins, 2, 100_000)

    @override
    def learn_shape(self, statistics: Mapping[str, Any], head: Head) -> None:
        rows = statistics["rows"].rows()
        low, high = (quantile(rows, q) for q in (0.001, 0.999))
        if not low < high:
            raise DataError(f"{self}: all activations are equal ({low:.3g}), so there is nothing to shape")
        weight = head.weight.double().cpu()
        total = torch.zeros(self.bins, dtype=torch.float64)
        self.low_, self.high_ = torch.tensor(low), torch.tensor(high)
        for part in rows.split(1024):
            predicted = head(part).argmax(dim=1).cpu()
            place, inside = self._bin(part)
            added = torch.where(inside, weight[predicted] * part.double(), 0.0)
            total.index_add_(0, place.flatten(), added.flatten())
        self.factors_ = (1000 * total / torch.linalg.vector_norm(total).clamp(min=1e-300)).float()

    @override
    def transform(self, embedding: Tensor) -> Tensor:
        place, inside = self._bin(embedding)
        return embedding * torch.where(inside, self.factors_[place], 0.0)

    def _bin(self, embedding: Tensor) -> tuple[Tensor, Tensor]:
        """The bin of each activation, and whether it lies in any."""
        inside = (embedding >= self.low_) & (embedding < self.high_)
        place = ((embedding - self.low_) / (self.high_ - self.low_) * self.bins).floor()
        return place.nan_to_num(0.0).clamp(0, self.bins - 1).long(), inside


class _TopUnits(Shape):
    def __init__(self, *, percentile: float = 90, score: ScoreFunction = energy) -> None:
        super().__init__(score)
        if not (percentile == 0 or 1 <= percentile < 100):
            raise ArgumentError(f"percentile={percentile} must lie in [1, 100): it is in percent, 90 and not 0.9")
        self.percentile = percentile


class ASHP(_TopUnits):
    """Keep each input's largest activations (ASH-P; Djurisic et al., ICLR 2023).

    The largest are by value, not by absolute value, so negative activations are the first to become 0.

    >>> ASHP(percentile=50).transform(torch.tensor([[4.0, 3.0, 1.0, 0.0]]))
    tensor([[4., 3., 0., 0.]])
    """

    @override
    def transform(self, embedding: Tensor) -> Tensor:
        return keep_top(embedding, self.percentile)


class ASHB(_TopUnits):
    """Keep each input's largest activations and set them all to the same value (ASH-B; Djurisic et al., ICLR 2023).

    The value is the sum of the activations divided by the number kept. Negative activations count as 0, because a
    negative sum would turn the largest activations into negative ones.

    >>> ASHB(percentile=50).transform(torch.tensor([[4.0, 3.0, 1.0, 0.0]]))  # the same sum, in two equal parts
    tensor([[4., 4., 0., 0.]])
    """

    @override
    def transform(self, embedding: Tensor) -> Tensor:
        return binarise_top(embedding.relu(), self.percentile)


class ASHS(_TopUnits):
    """Keep each input's largest activations and scale them up (ASH-S; Djurisic et al., ICLR 2023).

    The factor is ``exp(sum / sum of those kept)``; negative activations count as 0 in both sums, and one among the
    largest is kept and scaled.

    >>> ASHS(percentile=50).transform(torch.tensor([[4.0, 3.0, 1.0, 0.0]]))  # two are kept, times exp(8 / 7)
    tensor([[12.5429,  9.4071,  0.0000,  0.0000]])
    """

    @override
    def transform(self, embedding: Tensor) -> Tensor:
        return prune_and_scale(embedding, self.percentile)


class SCALE(_TopUnits):
    """Scale each input by the ratio of its sum to the sum of its largest activations (Xu et al., ICLR 2024).

    The factor is the exponential of the ratio. Negative activations count as 0 in both sums, so that the ratio is at
    least 1, and are scaled like all others; the ratio is 1 if none is positive.

    >>> SCALE(percentile=50).transform(torch.tensor([[4.0, 3.0, 1.0, 0.0]]))  # all are kept, times exp(8 / 7)
    tensor([[12.5429,  9.4071,  3.1357,  0.0000]])
    """

    def __init__(self, *, percentile: float = 85, score: ScoreFunction = energy) -> None:
        super().__init__(percentile=percentile, score=score)

    @override
    def transform(self, embedding: Tensor) -> Tensor:
        return scale_rows(embedding, self.percentile)


class LTS(_TopUnits):
    """Scale the logits, bias included, by the square of SCALE's ratio (Djurisic et al., 2024).

    The only shape that acts after the head: the embedding is unchanged, and the logits are multiplied. Negative
    activations count as 0 in the ratio, which is therefore at least 1.

    >>> LTS(percentile=50).logit_factor(torch.tensor([[4.0, 3.0, 1.0, 0.0]]))  # (8 / 7) squared
    tensor([[1.3061]])
    """

    def __init__(self, *, percentile: float = 95, score: ScoreFunction = energy) -> None:
        super().__init__(percentile=percentile, score=score)

    @override
    def transform(self, embedding: Tensor) -> Tensor:
        return embedding

    @override
    def logit_factor(self, embedding: Tensor) -> Tensor:
        return top_ratio(embedding, self.percentile).square()


def _statistic(per: str) -> str:
    """The statistic that percentiles are computed from."""
    statistics = {"all": "activations", "unit": "rows"}
    if per not in statistics:
        raise ArgumentError(f"per={per!r} must be 'all' (activations together) or 'unit' (each unit separately)")
    return statistics[per]


def _percentiles(statistics: Mapping[str, Any], per: str, *percentiles: float) -> tuple[Tensor, ...]:
    fractions = [each / 100 for each in percentiles]
    if per == "all":
        return tuple(torch.tensor(statistics["activations"].quantile(fraction)) for fraction in fractions)
    rows = statistics["rows"].rows().T.contiguous().numpy()  # contiguous units sort several times faster
    return tuple(torch.from_numpy(np.quantile(rows, fractions, axis=1)).float())
