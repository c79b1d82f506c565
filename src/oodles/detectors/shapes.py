"""Shapes: what is done to an embedding before the head."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from oodles.detectors.logit import ScoreFunction, Shape
from oodles.errors import ArgumentError
from oodles.functional import between, binarise_top, clip, energy, keep_top, prune_and_scale, scale_rows, top_ratio


class ReAct(Shape):
    """Clip activations at a percentile of ID activations (Sun, Guo & Li, NeurIPS 2021).

    The percentile is of all activations together, or of each unit separately (``per="unit"``); ``threshold`` is a
    constant to clip at instead.
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
            raise ArgumentError(f"ReAct takes percentile={percentile} or threshold={threshold}, not both")
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
    def learn_shape(self, statistics: Mapping[str, Any]) -> None:
        if self.percentile is not None:
            self.threshold_ = _percentile(statistics, self.per, self.percentile)

    @override
    def transform(self, embedding: Tensor) -> Tensor:
        return clip(embedding, self.threshold_)


class VRA(Shape):
    """Zero activations below one percentile of ID activations, clip those above another (Xu et al., NeurIPS 2023).

    The percentiles are of all activations together, or of each unit separately, as its authors have them on CIFAR.
    """

    low_: Tensor
    high_: Tensor

    def __init__(self, *, low: float = 60, high: float = 95, per: str = "all", score: ScoreFunction = energy) -> None:
        super().__init__(score)
        if not 0 <= low < high <= 100 or 0 < high < 1:
            raise ArgumentError(f"low={low} and high={high} must be percentiles, 0 to 100, with low < high")
        self.low = low
        self.high = high
        self.per = per
        self.needs = (_statistic(per),)

    @override
    def learn_shape(self, statistics: Mapping[str, Any]) -> None:
        self.low_, self.high_ = (_percentile(statistics, self.per, each) for each in (self.low, self.high))

    @override
    def transform(self, embedding: Tensor) -> Tensor:
        return between(embedding, self.low_, self.high_)


class _TopUnits(Shape):
    def __init__(self, *, percentile: float = 90, score: ScoreFunction = energy) -> None:
        super().__init__(score)
        if not (percentile == 0 or 1 <= percentile < 100):
            raise ArgumentError(f"percentile={percentile} must lie in [1, 100): it is in percent, 90 and not 0.9")
        self.percentile = percentile


class ASHP(_TopUnits):
    """Keep each input's largest activations (ASH-P; Djurisic et al., ICLR 2023)."""

    @override
    def transform(self, embedding: Tensor) -> Tensor:
        return keep_top(embedding, self.percentile)


class ASHB(_TopUnits):
    """Keep each input's largest activations and set them all to the same value (ASH-B; Djurisic et al., ICLR 2023)."""

    @override
    def transform(self, embedding: Tensor) -> Tensor:
        return binarise_top(embedding, self.percentile)


class ASHS(_TopUnits):
    """Keep each input's largest activations and scale them up (ASH-S; Djurisic et al., ICLR 2023)."""

    @override
    def transform(self, embedding: Tensor) -> Tensor:
        return prune_and_scale(embedding, self.percentile)


class SCALE(_TopUnits):
    """Scale each input by the ratio of its sum to the sum of its largest activations (Xu et al., ICLR 2024)."""

    def __init__(self, *, percentile: float = 85, score: ScoreFunction = energy) -> None:
        super().__init__(percentile=percentile, score=score)

    @override
    def transform(self, embedding: Tensor) -> Tensor:
        return scale_rows(embedding, self.percentile)


class LTS(_TopUnits):
    """Scale the logits, bias included, by the square of SCALE's ratio (Djurisic et al., 2024).

    The only shape that acts after the head: the embedding is unchanged, and the logits are multiplied.
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


def _percentile(statistics: Mapping[str, Any], per: str, percentile: float) -> Tensor:
    if per == "all":
        return torch.tensor(statistics["activations"].quantile(percentile / 100))
    return torch.quantile(statistics["rows"].rows(), percentile / 100, dim=0)
