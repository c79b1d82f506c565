"""Logit detectors: shape the embedding, sparsify the head, score the logits, in any combination.

Every statistic that a stage learns is of the raw ID embeddings, whatever precedes it in the chain: one pass is enough,
and DICE's mask comes from the unclipped mean, as in its authors' code.
"""

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, TypeAlias, TypeVar

from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from oodles.detectors.arguments import Described, check_positive, check_whole, describe
from oodles.detectors.base import Detector, Statistics
from oodles.detectors.statistics import EMBEDDING_STATISTICS, Statistic
from oodles.errors import ArgumentError, FitWarning
from oodles.features import Head
from oodles.functional import energy, gen, joint_energy, max_logit
from oodles.records.calls import write_call

ScoreFunction = Callable[..., Tensor]
EXCESS = 0.05  # the fraction of weights dropped beyond p that is reported
SCORES: dict[ScoreFunction, str] = {}  # of the registered score functions, in text and in files


class Score(Described):
    """The last stage: a function of the logits, with its parameters fixed."""

    def __init__(self, function: ScoreFunction) -> None:
        super().__init__()
        whole = function if isinstance(function, partial) else partial(function)
        if whole.args:
            raise ArgumentError(f"pass the parameters of {whole.func.__name__} by keyword")
        self.function = whole.func
        parameters = list(inspect.signature(self.function).parameters.values())[1:]
        self.defaults = {parameter.name: parameter.default for parameter in parameters}
        unknown = [name for name in whole.keywords if name not in self.defaults]
        if unknown:
            known = ", ".join(self.defaults) or "none"
            raise ArgumentError(f"the score {self.name_of_function()} has no parameter {unknown[0]!r}; it has: {known}")
        self.settings: dict[str, Any] = self.defaults | whole.keywords
        check_positive("temperature", self.settings.get("temperature", 1.0))
        if self.function is gen:
            check_positive("gamma", self.settings["gamma"])
            check_whole("top", self.settings["top"], 1)

    @override
    def arguments(self) -> dict[str, Any]:
        return {"function": self.function, **self.settings}

    @property
    @override
    def spec(self) -> str:
        return write_call(self.name_of_function(), self._changed(), "temperature")

    def __str__(self) -> str:
        given = "".join(f", {name}={value}" for name, value in self._changed().items())
        return f"partial({self.name_of_function()}{given})" if given else self.name_of_function()

    def name_of_function(self) -> str:
        """The name the function is registered under, else where it comes from."""
        path = f"{self.function.__module__}:{getattr(self.function, '__qualname__', self.function)}"
        return SCORES.get(self.function, path)

    def forward(self, logits: Tensor) -> Tensor:
        """Scores ``(n,)`` of logits ``(n, C)``."""
        return self.function(logits, **self.settings)

    def _changed(self) -> dict[str, Any]:
        return {name: value for name, value in self.settings.items() if value != self.defaults.get(name)}


class LogitDetector(Detector):
    """``score(sparsify(head)(shape(embedding)))``.

    ``shape`` is nothing, one :class:`Shape` or a sequence of them applied in order; ``sparsify`` is a
    :class:`Sparsifier`, or None for the dense head; ``score`` is a function of logits such as
    :func:`oodles.functional.energy`, with its parameters fixed by ``functools.partial``. A shape or a sparsifier is
    itself such a detector, with nothing else in its chain: ``ReAct(percentile=90)`` alone scores with the energy of
    clipped activations, and ``DICE(p=0.7, shape=ReAct(percentile=90))`` has both stages.

    >>> from oodles.detectors import DICE, ReAct
    >>> from oodles.functional import msp
    >>> LogitDetector(shape=ReAct(percentile=90), sparsify=DICE(p=0.7), score=msp).spec
    'react(90)+dice(0.7)+msp'
    >>> LogitDetector().dense  # nothing precedes the score: the energy of the network's own logits
    True
    """

    _shares_statistics = True
    weight_: Tensor
    bias_: Tensor

    def __init__(
        self, *, shape: "Shapes" = (), sparsify: "Sparsifier | None" = None, score: ScoreFunction = energy
    ) -> None:
        super().__init__()
        shapes = shape if isinstance(shape, Sequence) else (shape,)
        self.shapes = nn.ModuleList(_stage("shape", part, Shape) for part in shapes)
        self.sparsify = None if sparsify is None else _stage("sparsify", sparsify, Sparsifier)
        self.scoring = Score(score)

    @cached_property
    def dense(self) -> bool:
        """Whether nothing precedes the score, so that the network's own logits are scored, bit for bit."""
        sparsifier = self.sparsifier()
        return not self.shape_stages() and (sparsifier is None or sparsifier.p == 0)

    @property
    @override
    def learns_from(self) -> tuple[str, ...]:  # type: ignore[override]
        return () if self.dense else ("embedding", "head")

    @property
    @override
    def scores_from(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("logits",) if self.dense else ("embedding",)

    @property
    @override
    def needs_softmax(self) -> bool:
        return self.scoring.function not in (max_logit, joint_energy)

    def shape_stages(self) -> "tuple[Shape, ...]":
        """The shapes, in the order they are applied."""
        return tuple(shape for shape in self.shapes if isinstance(shape, Shape))

    def sparsifier(self) -> "Sparsifier | None":
        """The sparsifier, if there is one."""
        return self.sparsify

    @override
    def arguments(self) -> dict[str, Any]:
        # `score` is a method, so the argument of that name is kept under another
        kept = {"shape": tuple(self.shapes), "score": self.scoring}
        return {
            name: kept[name] if name in kept else getattr(self, name)
            for name in inspect.signature(type(self)).parameters
        }

    @property
    @override
    def spec(self) -> str:
        return "+".join([*(stage.stage_spec for stage in self._stages()), self.scoring.spec])

    @override
    def begin(self) -> dict[str, Statistic]:
        return {name: EMBEDDING_STATISTICS[name]() for stage in self._stages() for name in stage.needs}

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        if self.dense:
            return
        for shape in self.shape_stages():
            shape.learn_shape(statistics, head)
        weight, sparsifier = head.weight, self.sparsifier()
        if sparsifier is not None:
            mean = statistics["mean"].value() if "mean" in statistics else weight.new_empty(0)
            mask = sparsifier.mask(weight, mean)
            dropped = 1 - float(mask.double().mean())
            if dropped > sparsifier.p + EXCESS + 1 / head.width:  # p of a few units is rounded
                warnings.warn(
                    f"{self.spec} drops {dropped:.0%} of the weights, not p={sparsifier.p:.0%}: weights with equal "
                    "contributions, such as those of dead units, are dropped together, as in the DICE paper",
                    FitWarning,
                    stacklevel=2,
                )
            weight = weight * mask
        self.weight_ = weight.clone()
        self.bias_ = head.full_bias().clone()

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        scores: Tensor = self.scoring(self.shaped_logits(embedding, logits))
        return scores

    def shaped_logits(self, embedding: Tensor, logits: Tensor) -> Tensor:
        """The logits of the shaped embedding under the sparsified head: one matrix product, whatever the stages."""
        if self.dense:
            return logits
        embedding, factors = self.shaped(embedding)
        logits = F.linear(embedding, self.weight_, self.bias_)
        for factor in factors:
            logits = logits * factor
        return logits

    def shaped(self, embedding: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The embedding after all shapes, and what the logits are multiplied by."""
        factors = []
        for shape in self.shape_stages():
            factor = shape.logit_factor(embedding)
            factors += [] if factor is None else [factor]
            embedding = shape.transform(embedding)
        return embedding, factors

    def with_p(self, p: float) -> "LogitDetector":
        """The same detector, not fitted, with another sparsity."""
        sparsifier = self.sparsifier()
        if sparsifier is None:
            raise ArgumentError(f"{self} has no sparsifier, so no p to choose; use one that has, such as DICE()")
        arguments = {**sparsifier.arguments(), "shape": (), "score": energy, "p": p}
        score = partial(self.scoring.function, **self.scoring.settings)
        return LogitDetector(shape=self.shape_stages(), sparsify=type(sparsifier)(**arguments), score=score)

    def _stages(self) -> "tuple[Stage, ...]":
        sparsifier = self.sparsifier()
        return self.shape_stages() if sparsifier is None else (*self.shape_stages(), sparsifier)


CHAIN = ("shape", "score")  # arguments of a stage that concern the rest of its chain


class Stage(LogitDetector):
    """One stage of a chain, which is a detector by itself; ``needs`` names the embedding statistics it learns from."""

    needs: tuple[str, ...] = ()

    @override
    def arguments(self) -> dict[str, Any]:
        return {name: value for name, value in super().arguments().items() if not (self._in_chain() and name in CHAIN)}

    def _in_chain(self) -> bool:
        """Inside a chain a stage has no head, shape or score of its own."""
        return "weight_" not in self._buffers

    @property
    def stage_spec(self) -> str:
        """The stage in text, without the rest of its chain: ``react(90)``."""
        parameters = inspect.signature(type(self)).parameters
        first = next(iter(parameters))
        given = {
            name: value
            for name, value in self.arguments().items()
            if name not in CHAIN and value is not None and (name == first or value != parameters[name].default)
        }
        return write_call(self.text_name(), given, first)


class Shape(Stage):
    """A map from embedding to embedding, ``(n, m) -> (n, m)``; alone, a detector with that one shape.

    >>> import torch
    >>> class Halve(Shape):
    ...     def transform(self, embedding):
    ...         return embedding / 2
    >>> Halve().transform(torch.tensor([[2.0, 4.0]]))
    tensor([[1., 2.]])
    """

    def __init__(self, score: ScoreFunction = energy) -> None:
        super().__init__(score=score)

    @override
    def shape_stages(self) -> "tuple[Shape, ...]":
        return (self,)

    def learn_shape(self, statistics: Mapping[str, Any], head: Head) -> None:
        """Compute the shape's buffers from the statistics and the dense head; most shapes have none."""

    def transform(self, embedding: Tensor) -> Tensor:
        """The shaped embedding."""
        raise NotImplementedError

    def logit_factor(self, embedding: Tensor) -> Tensor | None:
        """What the logits are multiplied by, ``(n, 1)``, or None."""
        return None


Shapes: TypeAlias = Shape | Sequence[Shape]


class Sparsifier(Stage):
    """A map from head to head that keeps some weights; ``p`` is the fraction dropped. ``shape`` may precede it.

    >>> import torch
    >>> class PositiveWeights(Sparsifier):
    ...     def mask(self, weight, mean):
    ...         return weight > 0
    >>> PositiveWeights(p=0.5).mask(torch.tensor([[1.0, -2.0]]), torch.ones(2))
    tensor([[ True, False]])
    """

    def __init__(self, *, p: float = 0.9, shape: Shapes = (), score: ScoreFunction = energy) -> None:
        super().__init__(shape=shape, score=score)
        if not 0 <= p < 1:
            raise ArgumentError(f"p={p} must lie in [0, 1); p is a fraction: 0.9, not 90")
        self.p = p

    @override
    def sparsifier(self) -> "Sparsifier | None":
        return self

    def mask(self, weight: Tensor, mean: Tensor) -> Tensor:
        """True where a weight of ``(C, m)`` is kept, given the mean ID embedding ``(m,)``."""
        raise NotImplementedError


Kind = TypeVar("Kind", bound=Stage)


def _stage(argument: str, given: object, kind: type[Kind]) -> Kind:
    """A copy of a stage for use in a chain, where it has no head of its own."""
    if not isinstance(given, kind):
        examples = {"shape": "ReAct(percentile=90) or a list of shapes", "sparsify": "DICE(p=0.9)"}
        raise ArgumentError(f"{argument}={given!r} is not a {kind.__name__}; give e.g. {examples[argument]}")
    if given.shapes or describe(given.scoring) != describe(Score(energy)):
        raise ArgumentError(f"{argument}={given!r} has a shape or a score of its own; give those to the whole chain")
    stage = copy.deepcopy(given)  # a stage shared by two detectors would learn from both
    for name in ("weight_", "bias_", "shape_", "probe_"):
        if name in stage._buffers:
            delattr(stage, name)
    return stage
