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
from oodles.functional import clip, contribution, keep_largest, keep_random, keep_units
from oodles.functional import scores as score_functions

ScoreFunction = Callable[..., Tensor]
SCORES: tuple[ScoreFunction, ...] = (
    score_functions.energy,
    score_functions.msp,
    score_functions.max_logit,
    score_functions.entropy,
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
    """Cut activations off at a constant (ReAct): a percentile of all ID activations, or ``threshold``."""

    name = "react"
    threshold_: Tensor

    def __init__(self, *, percentile: float | None = None, threshold: float | None = None) -> None:
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
        self.learns = () if percentile is None else ("activations",)
        self.register_buffer("threshold_", None if threshold is None else torch.tensor(float(threshold)))

    def learn(self, statistics: Mapping[str, Any]) -> None:
        """Take the percentile of all ID activations."""
        if self.percentile is not None:
            self.threshold_ = torch.tensor(statistics["activations"].quantile(self.percentile / 100))

    def forward(self, embedding: Tensor) -> Tensor:
        """The clipped embedding."""
        return clip(embedding, self.threshold_)


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
    """Keep the weights that contribute most to the logits of ID data (DICE)."""

    name = "dice"

    def mask(self, weight: Tensor, mean: Tensor) -> Tensor:
        """Strictly above the ``p``-quantile of all contributions."""
        return keep_largest(contribution(weight, mean), self.p)


class BottomContribution(_NeedsMean):
    """Keep the weights that contribute least (an ablation of the paper)."""

    name = "bottom_k"

    def mask(self, weight: Tensor, mean: Tensor) -> Tensor:
        """Strictly below the ``(1 - p)``-quantile of all contributions."""
        return keep_largest(-contribution(weight, mean), self.p)


class TopBottomContribution(_NeedsMean):
    """Keep the weights whose contributions are largest in absolute value (an ablation of the paper)."""

    name = "top_bottom_k"

    def mask(self, weight: Tensor, mean: Tensor) -> Tensor:
        """Strictly above the ``p``-quantile of absolute contributions."""
        return keep_largest(contribution(weight, mean).abs(), self.p)


class RandomContribution(_Seeded):
    """Keep a fixed random choice of contributions (an ablation of the paper)."""

    name = "random_k"

    def mask(self, weight: Tensor, mean: Tensor) -> Tensor:
        """A random fraction ``1 - p`` of all entries."""
        return keep_random(tuple(weight.shape), self.p, 2 * self.seed)


class WeightPruning(Sparsifier):
    """Keep the weights that are largest in absolute value (an ablation of the paper)."""

    name = "weight_pruning"

    def mask(self, weight: Tensor, mean: Tensor) -> Tensor:
        """Strictly above the ``p``-quantile of absolute weights."""
        return keep_largest(weight.abs(), self.p)


class WeightDropout(_Seeded):
    """Keep a fixed random choice of weights (an ablation of the paper; in law the same as random-k)."""

    name = "weight_dropout"

    def mask(self, weight: Tensor, mean: Tensor) -> Tensor:
        """A random fraction ``1 - p`` of all weights, another draw than random-k's for the same seed."""
        return keep_random(tuple(weight.shape), self.p, 2 * self.seed + 1)


class UnitPruning(Sparsifier):
    """Keep whole units: those with the largest weight vectors, or with the largest mean activation."""

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
    """Keep a fixed random choice of whole units (an ablation of the paper)."""

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


SHAPES: tuple[type[Shape], ...] = (Clip,)
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
