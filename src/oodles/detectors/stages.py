"""The three stages of a logit detector: shape the embedding, sparsify the head, score the logits.

Every statistic a stage learns is of the raw ID embeddings, whatever stands before it in the chain:
one pass suffices, and DICE's mask comes from the unclipped mean, as in its authors' code.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from oodles.calls import write_call
from oodles.detectors.base import Described, adopt_buffers
from oodles.errors import ArgumentError
from oodles.functional import (
    between,
    binarise_top,
    clip,
    contribution,
    keep_largest,
    keep_random,
    keep_top,
    keep_units,
    prune_and_scale,
    scale_rows,
    top_ratio,
)
from oodles.functional import scores as score_functions

ScoreFunction = Callable[..., Tensor]
SCORES: tuple[ScoreFunction, ...] = (
    score_functions.energy,
    score_functions.msp,
    score_functions.max_logit,
    score_functions.entropy,
    score_functions.gen,
    score_functions.doctor,
)
"""The score functions that have a name on the command line and in saved files."""


class Stage(Described):
    """One step; ``learns`` names the embedding statistics it needs."""

    name: ClassVar[str]
    learns: tuple[str, ...] = ()

    @property
    def spec(self) -> str:
        """The stage as written on the command line, e.g. ``react(90)``."""
        usual = {name: parameter.default for name, parameter in inspect.signature(type(self)).parameters.items()}
        first = next(iter(usual))
        given = {
            name: value
            for name, value in self.arguments().items()
            if value is not None and (name == first or value != usual[name])
        }
        return write_call(self.name, given, first)


class Shape(Stage):
    """A map from embedding to embedding, ``(n, m) -> (n, m)``."""

    def learn(self, statistics: Mapping[str, Any]) -> None:
        """Turn statistics into buffers; nothing to do for most shapes."""

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        adopt_buffers(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *rest)


class Clip(Shape):
    """Cut activations off at a percentile of ID activations (ReAct; Sun, Guo & Li, NeurIPS 2021).

    The percentile is of all activations together, or of each unit's own; ``threshold`` is a constant instead.
    """

    name = "react"
    threshold_: Tensor

    def __init__(self, *, percentile: float | None = None, threshold: float | None = None, per: str = "all") -> None:
        super().__init__()
        if percentile is not None and threshold is not None:
            raise ArgumentError(f"Clip takes percentile={percentile} or threshold={threshold}, not both")
        if percentile is None and threshold is None:
            percentile = 90
        if percentile is not None and not (percentile == 0 or 1 <= percentile <= 100):
            raise ArgumentError(f"percentile={percentile} must lie in [1, 100]: it is in percent, 90 and not 0.9")
        if threshold is not None and not math.isfinite(threshold):
            raise ArgumentError(f"threshold={threshold} is infinite or NaN; give the activation to clip at")
        self.percentile = percentile
        self.threshold = threshold
        self.per = per
        self.learns = () if percentile is None else (_pool(per),)
        self.register_buffer("threshold_", None if threshold is None else torch.tensor(float(threshold)))

    def learn(self, statistics: Mapping[str, Any]) -> None:
        """Take the percentile of ID activations."""
        if self.percentile is not None:
            self.threshold_ = _percentile(statistics, self.per, self.percentile)

    def forward(self, embedding: Tensor) -> Tensor:
        """The clipped embedding."""
        return clip(embedding, self.threshold_)


class Vra(Shape):
    """Activations below one percentile of ID activations to 0, above another cut off (VRA; Xu et al., NeurIPS 2023).

    The percentiles are of all activations together, or of each unit's own as its authors have them on CIFAR.
    """

    name = "vra"
    low_: Tensor
    high_: Tensor

    def __init__(self, *, low: float = 60, high: float = 95, per: str = "all") -> None:
        super().__init__()
        if not 0 <= low < high <= 100 or 0 < high < 1:
            raise ArgumentError(f"low={low} and high={high} are percentiles, 0 to 100, the first the smaller one")
        self.low = low
        self.high = high
        self.per = per
        self.learns = (_pool(per),)
        self.register_buffer("low_", None)
        self.register_buffer("high_", None)

    def learn(self, statistics: Mapping[str, Any]) -> None:
        """Take both percentiles of ID activations."""
        self.low_, self.high_ = (_percentile(statistics, self.per, each) for each in (self.low, self.high))

    def forward(self, embedding: Tensor) -> Tensor:
        """The embedding between the two."""
        return between(embedding, self.low_, self.high_)


def _pool(per: str) -> str:
    """The statistic that percentiles are taken of."""
    pools = {"all": "activations", "unit": "rows"}
    if per not in pools:
        raise ArgumentError(f"per={per!r} must be 'all' (activations together) or 'unit' (each unit by itself)")
    return pools[per]


def _percentile(statistics: Mapping[str, Any], per: str, percentile: float) -> Tensor:
    if per == "all":
        return torch.tensor(statistics["activations"].quantile(percentile / 100))
    return torch.quantile(statistics["rows"].rows(), percentile / 100, dim=0)


class _TopUnits(Shape):
    def __init__(self, *, percentile: float = 90) -> None:
        super().__init__()
        if not (percentile == 0 or 1 <= percentile < 100):
            raise ArgumentError(f"percentile={percentile} must lie in [1, 100): it is in percent, 90 and not 0.9")
        self.percentile = percentile


class AshP(_TopUnits):
    """Keep each input's largest activations (ASH-P; Djurisic et al., ICLR 2023)."""

    name = "ash_p"

    def forward(self, embedding: Tensor) -> Tensor:
        """The pruned embedding."""
        return keep_top(embedding, self.percentile)


class AshB(_TopUnits):
    """Keep each input's largest activations and make them equal (ASH-B; Djurisic et al., ICLR 2023)."""

    name = "ash_b"

    def forward(self, embedding: Tensor) -> Tensor:
        """The binarised embedding."""
        return binarise_top(embedding, self.percentile)


class AshS(_TopUnits):
    """Keep each input's largest activations and scale them up (ASH-S; Djurisic et al., ICLR 2023)."""

    name = "ash_s"

    def forward(self, embedding: Tensor) -> Tensor:
        """The pruned and scaled embedding."""
        return prune_and_scale(embedding, self.percentile)


class Scale(_TopUnits):
    """Scale each input by how little of it lies in its largest activations (SCALE; Xu et al., ICLR 2024)."""

    name = "scale"

    def __init__(self, *, percentile: float = 85) -> None:
        super().__init__(percentile=percentile)

    def forward(self, embedding: Tensor) -> Tensor:
        """The scaled embedding."""
        return scale_rows(embedding, self.percentile)


class LogitScale(_TopUnits):
    """Scale the logits, bias and all, by the square of SCALE's ratio (LTS; Djurisic et al., 2024).

    The only shape that acts behind the head: the embedding passes unchanged, :meth:`factor` waits for the logits.
    """

    name = "lts"

    def __init__(self, *, percentile: float = 95) -> None:
        super().__init__(percentile=percentile)

    def forward(self, embedding: Tensor) -> Tensor:
        """The embedding as it is."""
        return embedding

    def factor(self, embedding: Tensor) -> Tensor:
        """What the logits are multiplied by, ``(n, 1)``."""
        return top_ratio(embedding, self.percentile).square()


class Sparsifier(Stage):
    """A map from head to head: which weights stay. ``p`` is the fraction dropped."""

    def __init__(self, *, p: float = 0.9) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ArgumentError(f"p={p} must lie in [0, 1); p is a fraction: 0.9, not 90")
        self.p = p

    def mask(self, weight: Tensor, mean: Tensor) -> Tensor:
        """True where a weight of ``(C, m)`` stays, given the mean ID embedding ``(m,)``."""
        raise NotImplementedError


class _NeedsMean(Sparsifier):
    learns = ("mean",)


class _Seeded(Sparsifier):
    def __init__(self, *, p: float = 0.9, seed: int = 0) -> None:
        super().__init__(p=p)
        if not isinstance(seed, int) or not 0 <= seed < 1 << 31:
            raise ArgumentError(f"seed={seed} must be a whole number from 0 to 2**31 - 1")
        self.seed = seed


class TopContribution(_NeedsMean):
    """Keep the weights that contribute most to the logits of ID data (DICE; Sun & Li, ECCV 2022)."""

    name = "dice"

    def mask(self, weight: Tensor, mean: Tensor) -> Tensor:
        """Strictly above the ``p``-quantile of all contributions."""
        return keep_largest(contribution(weight, mean), self.p)


class BottomContribution(_NeedsMean):
    """Keep the weights that contribute least (an ablation of Sun & Li, ECCV 2022)."""

    name = "bottom_k"

    def mask(self, weight: Tensor, mean: Tensor) -> Tensor:
        """Strictly below the ``(1 - p)``-quantile of all contributions."""
        return keep_largest(-contribution(weight, mean), self.p)


class TopBottomContribution(_NeedsMean):
    """Keep the weights whose contributions are largest in absolute value (an ablation of Sun & Li, ECCV 2022)."""

    name = "top_bottom_k"

    def mask(self, weight: Tensor, mean: Tensor) -> Tensor:
        """Strictly above the ``p``-quantile of absolute contributions."""
        return keep_largest(contribution(weight, mean).abs(), self.p)


class RandomContribution(_Seeded):
    """Keep a fixed random choice of contributions (an ablation of Sun & Li, ECCV 2022)."""

    name = "random_k"

    def mask(self, weight: Tensor, mean: Tensor) -> Tensor:
        """A random fraction ``1 - p`` of all entries."""
        return keep_random(tuple(weight.shape), self.p, 2 * self.seed)


class WeightPruning(Sparsifier):
    """Keep the weights that are largest in absolute value (an ablation of Sun & Li, ECCV 2022)."""

    name = "weight_pruning"

    def mask(self, weight: Tensor, mean: Tensor) -> Tensor:
        """Strictly above the ``p``-quantile of absolute weights."""
        return keep_largest(weight.abs(), self.p)


class WeightDropout(_Seeded):
    """Keep a fixed random choice of weights (in law the same as random-k; an ablation of Sun & Li, ECCV 2022)."""

    name = "weight_dropout"

    def mask(self, weight: Tensor, mean: Tensor) -> Tensor:
        """A random fraction ``1 - p`` of all weights, another draw than random-k's for the same seed."""
        return keep_random(tuple(weight.shape), self.p, 2 * self.seed + 1)


class UnitPruning(Sparsifier):
    """Keep whole units of the largest weight vectors or mean activations (an ablation of Sun & Li, ECCV 2022)."""

    name = "unit_pruning"

    def __init__(self, *, p: float = 0.9, by: str = "weight") -> None:
        super().__init__(p=p)
        if by not in ("weight", "activation"):
            raise ArgumentError(f"by={by!r} must be 'weight' (the paper) or 'activation'")
        self.by = by
        self.learns = () if by == "weight" else ("mean",)

    def mask(self, weight: Tensor, mean: Tensor) -> Tensor:
        """Units strictly above the ``p``-quantile of their L2 norms or mean activations."""
        size = torch.linalg.vector_norm(weight.double(), dim=0) if self.by == "weight" else mean
        return keep_units(size, self.p, weight.shape[0])


class UnitDropout(_Seeded):
    """Keep a fixed random choice of whole units (an ablation of Sun & Li, ECCV 2022)."""

    name = "unit_dropout"

    def mask(self, weight: Tensor, mean: Tensor) -> Tensor:
        """A random fraction ``1 - p`` of all units."""
        return keep_random((1, weight.shape[1]), self.p, self.seed).expand(weight.shape[0], -1)


class Score(nn.Module):
    """The last stage: a function of the logits, with its parameters fixed."""

    def __init__(self, function: ScoreFunction) -> None:
        super().__init__()
        whole = function if isinstance(function, partial) else partial(function)
        if whole.args:
            raise ArgumentError(f"give the parameters of {whole.func.__name__} by name")
        self.function = whole.func
        usual = {name: parameter.default for name, parameter in inspect.signature(self.function).parameters.items()}
        self.settings: dict[str, Any] = {
            name: value for name, value in whole.keywords.items() if value != usual.get(name)
        }
        temperature = self.settings.get("temperature", 1.0)
        if not temperature > 0:
            raise ArgumentError(f"temperature={temperature} must be positive")

    @property
    def spec(self) -> str:
        """The score as written on the command line, e.g. ``energy`` or ``msp(temperature=2)``."""
        if self.function not in SCORES:
            known = ", ".join(score.__name__ for score in SCORES)
            raise ArgumentError(
                f"the score {getattr(self.function, '__name__', self.function)} has no name to be saved under; "
                f"the named ones are {known}"
            )
        return write_call(self.function.__name__, self.settings, "temperature")

    def extra_repr(self) -> str:
        """The function and its parameters."""
        given = "".join(f", {name}={value}" for name, value in self.settings.items())
        return getattr(self.function, "__name__", str(self.function)) + given

    def __repr__(self) -> str:
        return self.extra_repr() if not self.settings else f"partial({self.extra_repr()})"

    def forward(self, logits: Tensor) -> Tensor:
        """Scores ``(n,)`` of logits ``(n, C)``."""
        return self.function(logits, **self.settings)


SHAPES: tuple[type[Shape], ...] = (Clip, Vra, AshP, AshB, AshS, Scale, LogitScale)
SPARSIFIERS: tuple[type[Sparsifier], ...] = (
    TopContribution,
    BottomContribution,
    TopBottomContribution,
    RandomContribution,
    WeightPruning,
    WeightDropout,
    UnitPruning,
    UnitDropout,
)
