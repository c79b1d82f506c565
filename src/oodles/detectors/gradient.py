"""Detectors that look at an input again after a small step: ODIN and Generalized ODIN."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from oodles.calls import write_call
from oodles.detectors.base import Detector
from oodles.errors import ArgumentError
from oodles.features import LAYER, Features
from oodles.functional import max_logit, msp
from oodles.perturbation import Step
from oodles.store import Columns

ODIN_GRID = tuple(round(0.0002 * step, 4) for step in range(21))
"""The 21 steps of ODIN's authors, from 0 to 0.004."""
GODIN_GRID = (0.0, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08)
"""The steps of Generalized ODIN's authors."""


class SteppedDetector(Detector):
    """Scores one column, as it is or after an input step of ``epsilon`` that raises the score.

    ``epsilon=None`` leaves the choice to :func:`oodles.tune`: the step of the ``grid`` with the largest mean score
    on held-out ID images, so that no outlier is needed. With 0 there is no step and no further pass.
    """

    tunes = ("choice_",)
    grid: tuple[float, ...]
    column: str
    choice_: Tensor | None

    def __init__(self, epsilon: float | None, std: tuple[float, ...]) -> None:
        super().__init__()
        self.epsilon, self.std = check_step(epsilon, std)
        self.register_buffer("choice_", None)

    @abstractmethod
    def rate(self, values: Tensor) -> Tensor:
        """Scores of the column's rows."""

    @abstractmethod
    def step(self, epsilon: float) -> Step:
        """The input step of that size."""

    @property
    def chosen(self) -> float | None:
        """The size of the step, given or chosen; None while it is open."""
        return self.epsilon if self.choice_ is None else self.grid[int(self.choice_)]

    @property
    def tuned(self) -> bool:
        """Whether the size of the step is known."""
        return self.chosen is not None

    @property
    def scores_from(self) -> tuple[str, ...]:  # type: ignore[override]
        """The column after the step; before it where there is none."""
        return tuple(step.column for step in self.steps()) or (self.column,)

    def steps(self) -> tuple[Step, ...]:
        """The step scores are made after, if any."""
        return (self.step(self.chosen),) if self.chosen else ()

    def trials(self) -> tuple[Step, ...]:
        """Every step of the grid, where one is to be chosen."""
        return tuple(self.step(epsilon) for epsilon in self.grid if epsilon) if self.epsilon is None else ()

    def tune(self, held_out: Features, adversarial: Features | None = None) -> None:
        """Take the step with the largest mean score on ID rows."""
        columns = [self.step(epsilon).column if epsilon else self.column for epsilon in self.grid]
        means = [float(self.rate(held_out.column(column).double()).mean()) for column in columns]
        self.choice_ = torch.tensor(means.index(max(means)))

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """Scores from the one column there is."""
        return self.rate(others[0] if others else logits)


class ODIN(SteppedDetector):
    """Largest softmax probability at a high temperature, after a step that raises it (Liang et al., ICLR 2018).

    ``x - epsilon * sign(gradient of -log softmax(z / T)[argmax z])``, then ``log max softmax(z / T)`` of the moved
    input. With ``std`` the step is divided by it per channel, as ODIN's authors do, so that epsilon counts in raw
    pixels. The DICE paper takes T = 1000 and epsilon 0.004 on CIFAR, 0 on ImageNet; its rows come out with ``std``.
    """

    grid = ODIN_GRID
    column = "logits"

    def __init__(
        self, *, temperature: float = 1000.0, epsilon: float | None = None, std: tuple[float, ...] = ()
    ) -> None:
        super().__init__(epsilon, std)
        if not temperature > 0:
            raise ArgumentError(f"temperature={temperature} must be positive")
        self.temperature = float(temperature)

    def rate(self, values: Tensor) -> Tensor:
        """Logarithm of the largest probability."""
        return msp(values, self.temperature)

    def step(self, epsilon: float) -> Step:
        """Towards a more confident softmax."""
        name = write_call("odin", {"temperature": self.temperature, "epsilon": epsilon, "std": self.std})
        return Step(name, Doubt(self.temperature), epsilon, std=self.std)


class GODIN(SteppedDetector):
    """Largest cosine of a DeConf-C head, after a step that raises it (Hsu et al., CVPR 2020).

    Needs a network trained with that head (``oodles train --head deconf``); ``layer`` names the module that gives
    the cosines. The DICE paper chose epsilon on 1,000 ID images and got 0.02.
    """

    grid = GODIN_GRID

    def __init__(self, *, epsilon: float | None = None, layer: str = "fc.cosine", std: tuple[float, ...] = ()) -> None:
        super().__init__(epsilon, std)
        self.layer = layer
        self.layers = (layer,)
        self.column = LAYER + layer

    def rate(self, values: Tensor) -> Tensor:
        """The largest cosine."""
        return max_logit(values)

    def step(self, epsilon: float) -> Step:
        """Towards the nearest class."""
        name = write_call("godin", {"epsilon": epsilon, "layer": self.layer, "std": self.std})
        return Step(name, Remoteness(self.column), epsilon, keep=self.column, std=self.std)


@dataclass(frozen=True)
class Doubt:
    """Minus the logarithm of the largest probability at a temperature: ODIN's objective."""

    temperature: float

    def __call__(self, columns: Columns) -> Tensor:
        """One number a row."""
        return -msp(columns["logits"], self.temperature)


@dataclass(frozen=True)
class Remoteness:
    """Minus the largest value of a column: the objective of Generalized ODIN and AdaSCALE."""

    column: str

    def __call__(self, columns: Columns) -> Tensor:
        """One number a row."""
        return -max_logit(columns[self.column])


def check_step(epsilon: float | None, std: tuple[float, ...]) -> tuple[float | None, tuple[float, ...]]:
    """The size and the spread as floats; raises unless an input step can be made of them."""
    if not isinstance(std, list | tuple):
        raise ArgumentError(f"std={std} must be a list with a number for each channel")
    if epsilon is not None and not 0 <= epsilon < 1e6:
        raise ArgumentError(f"epsilon={epsilon} must be 0 or more; None has it chosen by oodles.tune")
    if not all(value > 0 for value in std):
        raise ArgumentError(f"std={std} must be positive in every channel")
    return None if epsilon is None else float(epsilon), tuple(float(value) for value in std)
