"""Logit detectors: shape the embedding, sparsify the head, score the logits; any three go together."""

import copy
import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oodles.detectors.base import Detector, Statistics
from oodles.detectors.stages import (
    Clip,
    LogitScale,
    Scale,
    Score,
    ScoreFunction,
    Shape,
    Sparsifier,
    Stage,
    TopContribution,
)
from oodles.detectors.statistics import EMBEDDING_STATISTICS, Statistic
from oodles.errors import ArgumentError
from oodles.features import Features, Head
from oodles.functional import energy, entropy, max_logit, msp


class LogitDetector(Detector):
    """``score(sparsify(head)(shape(embedding)))``.

    ``shape`` is none, one or several :class:`Shape` applied in order; ``sparsify`` a
    :class:`Sparsifier` or None for the dense head; ``score`` a function of logits such as
    :func:`oodles.functional.energy`, with parameters fixed by ``functools.partial`` where it has any.
    """

    shares = True
    weight_: Tensor
    bias_: Tensor

    def __init__(
        self,
        *,
        shape: Shape | Sequence[Shape] = (),
        sparsify: Sparsifier | None = None,
        score: ScoreFunction = energy,
    ) -> None:
        super().__init__()
        given = shape if isinstance(shape, Sequence) else (shape,)
        # copies: a shape that two detectors shared would learn from both
        shapes = tuple(copy.deepcopy(part) for part in given)
        strange = next((part for part in shapes if not isinstance(part, Shape)), None)
        if strange is not None:
            raise ArgumentError(f"shape={strange!r} is no Shape; give Clip(...) or a list of shapes")
        if sparsify is not None and not isinstance(sparsify, Sparsifier):
            raise ArgumentError(f"sparsify={sparsify!r} is no Sparsifier; give e.g. TopContribution(p=0.9)")
        self.shapes = nn.ModuleList(shapes)
        self.sparsify = sparsify
        self.scoring = Score(score)
        self.register_buffer("weight_", None)
        self.register_buffer("bias_", None)
        # with nothing before the score the network's own logits are the answer, bit for bit
        self.dense = not shapes and (sparsify is None or sparsify.p == 0)
        self.learns_from = () if self.dense else ("embedding", "head")
        self.scores_from = ("logits",) if self.dense else ("embedding",)

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments; ``shape`` and ``score`` live under other names, ``score`` being a method."""
        kept = {"shape": self._shapes(), "score": self.scoring}
        return {
            name: kept[name] if name in kept else getattr(self, name)
            for name in inspect.signature(type(self)).parameters
        }

    @property
    def spec(self) -> str:
        """The stages joined by ``+``, e.g. ``react(90)+dice(0.7)+energy``."""
        stages: tuple[Stage | Score, ...] = (*self._stages(), self.scoring)
        return "+".join(stage.spec for stage in stages)

    def begin(self) -> dict[str, Statistic]:
        """The embedding statistics its stages ask for, each once."""
        return {name: EMBEDDING_STATISTICS[name]() for stage in self._stages() for name in stage.learns}

    def observe(self, batch: Features, statistics: Statistics) -> None:
        """Add one batch of embeddings."""
        for statistic in statistics.values():
            statistic.add(batch.embedding)

    def learn(self, statistics: Statistics, head: Head | None) -> None:
        """Fix the shapes and mask the head."""
        if self.dense or head is None:
            return
        for shape in self._shapes():
            shape.learn(statistics)
        weight = head.weight
        if self.sparsify is not None:
            mean = statistics["mean"].value().to(weight.device) if "mean" in statistics else weight.new_empty(0)
            weight = weight * self.sparsify.mask(weight, mean).to(weight.device)
        self.weight_ = weight.clone()
        self.bias_ = torch.zeros_like(weight[:, 0]) if head.bias is None else head.bias.clone()

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """One matrix product, whatever the stages."""
        if not self.dense:
            factors = []
            for shape in self.shapes:
                if isinstance(shape, LogitScale):
                    factors.append(shape.factor(embedding))
                embedding = shape(embedding)
            logits = F.linear(embedding, self.weight_, self.bias_)
            for factor in factors:
                logits = logits * factor
        scores: Tensor = self.scoring(logits)
        return scores

    def with_p(self, p: float) -> "LogitDetector":
        """The same detector, not fitted, with another sparsity."""
        if self.sparsify is None:
            raise ArgumentError(f"{self} has no sparsifier, so no p to choose")
        sparsify = type(self.sparsify)(**{**self.sparsify.arguments(), "p": p})
        score = partial(self.scoring.function, **self.scoring.settings)
        return LogitDetector(shape=self._shapes(), sparsify=sparsify, score=score)

    def _stages(self) -> tuple[Stage, ...]:
        return (*self._shapes(), self.sparsify) if self.sparsify is not None else self._shapes()

    def _shapes(self) -> tuple[Shape, ...]:
        return tuple(shape for shape in self.shapes if isinstance(shape, Shape))


class MSP(LogitDetector):
    """Largest softmax probability, as a logarithm (Hendrycks & Gimpel, ICLR 2017)."""

    def __init__(self, *, temperature: float = 1.0) -> None:
        super().__init__(score=partial(msp, temperature=temperature))
        self.temperature = temperature


class MaxLogit(LogitDetector):
    """Largest logit (Hendrycks et al., ICML 2022)."""

    def __init__(self) -> None:
        super().__init__(score=max_logit)


class Energy(LogitDetector):
    """Negative free energy of the logits (Liu et al., NeurIPS 2020)."""

    def __init__(self, *, temperature: float = 1.0) -> None:
        super().__init__(score=partial(energy, temperature=temperature))
        self.temperature = temperature


class Entropy(LogitDetector):
    """Negative entropy of the softmax."""

    def __init__(self, *, temperature: float = 1.0) -> None:
        super().__init__(score=partial(entropy, temperature=temperature))
        self.temperature = temperature


class ReAct(LogitDetector):
    """Activations clipped at a percentile of ID activations, then energy (Sun, Guo & Li, NeurIPS 2021)."""

    def __init__(
        self,
        *,
        percentile: float | None = None,
        threshold: float | None = None,
        score: ScoreFunction = energy,
    ) -> None:
        clip = Clip(percentile=percentile, threshold=threshold)
        super().__init__(shape=clip, score=score)
        self.percentile = clip.percentile
        self.threshold = clip.threshold


class Trio(LogitDetector):
    """Clip, scale, sparsify, then energy: ReAct, SCALE and DICE at mild settings, which together beat each alone.

    Activations are cut off at a percentile of ID activations, each input is scaled by the ratio of its sum to that of
    its largest activations, and the weights that contribute least are dropped.
    """

    def __init__(self, *, percentile: float = 97, scale: float = 65, p: float = 0.05) -> None:
        super().__init__(
            shape=[Clip(percentile=percentile), Scale(percentile=scale)], sparsify=TopContribution(p=p), score=energy
        )
        self.percentile = percentile
        self.scale = scale
        self.p = p


class DICE(LogitDetector):
    """Only the weights that contribute most on ID data, then energy (Sun & Li, ECCV 2022).

    ``p`` is the fraction of weights dropped: 0.9 is the paper's choice on CIFAR, 0.7 on ImageNet.
    With ``shape=Clip(percentile=90)`` it is DICE + ReAct, with ``score=msp`` DICE + MSP.
    """

    def __init__(self, *, p: float = 0.9, shape: Shape | Sequence[Shape] = (), score: ScoreFunction = energy) -> None:
        super().__init__(shape=shape, sparsify=TopContribution(p=p), score=score)
        self.p = p
