"""ODIN and Generalized ODIN: scores after a small input step that raises them."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from oodles.columns import LAYER, Columns
from oodles.detectors.arguments import check_positive
from oodles.detectors.network_detector import SteppedDetector
from oodles.features import Features
from oodles.functional import max_logit, msp
from oodles.records.calls import write_call
from oodles.steps import Step

ODIN_GRID = tuple(round(0.0002 * step, 4) for step in range(21))  # the 21 step sizes of ODIN's authors, from 0 to 0.004
GODIN_GRID = (0.0, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08)  # the step sizes of Generalized ODIN's authors


class _OneColumn(SteppedDetector):
    """Scores one column, as it is or after an input step that raises the score.

    With ``epsilon=None`` the step of the grid with the largest mean score on held-out ID images is chosen, so no
    outliers are needed.
    """

    column: str

    @abstractmethod
    def score_values(self, values: Tensor) -> Tensor:
        """Scores of the column's rows."""

    @abstractmethod
    def step(self, epsilon: float) -> Step:
        """The input step of that size."""

    @property
    @override
    def scores_from(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(step.column for step in self.steps()) or (self.column,)

    @override
    def steps(self) -> tuple[Step, ...]:
        return (self.step(self.step_size),) if self.step_size else ()

    @override
    def trials(self) -> tuple[Step, ...]:
        return tuple(self.step(epsilon) for epsilon in self.grid if epsilon) if self.epsilon is None else ()

    @override
    def tune(self, held_out: Features, adversarial: Features | None = None) -> None:
        columns = [self.step(epsilon).column if epsilon else self.column for epsilon in self.grid]
        means = [float(self.score_values(held_out.column(column).double()).mean()) for column in columns]
        self.choice_ = torch.tensor(means.index(max(means)))
        self.to(held_out.device)

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        return self.score_values(others[0] if others else logits)


class ODIN(_OneColumn):
    """Maximum softmax probability at a high temperature, after a step that raises it (Liang et al., ICLR 2018).

    ``x - epsilon * sign(gradient of -log softmax(z / T)[argmax z])``, then ``log max softmax(z / T)`` of the moved
    input. With ``std`` the step is divided by it per channel, as in the authors' code, so that epsilon is in units of
    raw pixels. The DICE paper uses T = 1000 and epsilon 0.004 on CIFAR, 0 on ImageNet; ``std`` reproduces its rows.

    >>> [step.epsilon for step in ODIN(epsilon=0.004).steps()]  # what extract(..., steps=) runs
    [0.004]
    >>> ODIN(epsilon=0).steps(), ODIN().tuned  # no step; one that oodles.selection.tune is to choose
    ((), False)
    """

    grid = ODIN_GRID
    column = "logits"
    share = 1.0

    def __init__(self, *, temperature: float = 1000.0, epsilon: float | None = None, std: Sequence[float] = ()) -> None:
        super().__init__(epsilon, std)
        self.temperature = float(check_positive("temperature", temperature))

    @override
    def score_values(self, values: Tensor) -> Tensor:
        return msp(values, self.temperature)

    @override
    def step(self, epsilon: float) -> Step:
        name = write_call(self.text_name(), {"temperature": self.temperature, "epsilon": epsilon, "std": self.std})
        return Step(name, NegativeLogProbability(self.temperature), epsilon, std=self.std, share=self.share)


class IODIN(ODIN):
    """ODIN with a step that moves only the input value with the largest gradient, as in OpenOOD.

    >>> [(step.column, step.share) for step in IODIN(epsilon=0.1).steps()]
    [('layer.iodin(temperature=1000.0, epsilon=0.1, std=())', 0.0)]
    """

    share = 0.0


class GODIN(_OneColumn):
    """Largest cosine of a DeConf-C head, after a step that raises it (Hsu et al., CVPR 2020).

    Needs a network trained with that head (``oodles train --head-type deconf``); ``layer`` is the name of the module
    that computes the cosines. The DICE paper chose epsilon on 1,000 ID images and got 0.02.

    >>> GODIN(epsilon=0).scores_from  # a column of its own: the cosines of a DeConf head
    ('layer.fc.cosine',)
    """

    grid = GODIN_GRID

    def __init__(self, *, epsilon: float | None = None, layer: str = "fc.cosine", std: Sequence[float] = ()) -> None:
        super().__init__(epsilon, std)
        self.layer = layer
        self.layers = (layer,)
        self.column = LAYER + layer

    @override
    def score_values(self, values: Tensor) -> Tensor:
        return max_logit(values)

    @override
    def step(self, epsilon: float) -> Step:
        name = write_call("godin", {"epsilon": epsilon, "layer": self.layer, "std": self.std})
        return Step(name, NegativeMaximum(self.column), epsilon, keep=self.column, std=self.std)


@dataclass(frozen=True)
class NegativeLogProbability:
    """Minus the logarithm of the largest softmax probability at a temperature: ODIN's objective."""

    temperature: float

    def __call__(self, columns: Columns) -> Tensor:
        """One number per row."""
        return -msp(columns["logits"], self.temperature)


@dataclass(frozen=True)
class NegativeMaximum:
    """Minus the largest value of a column: the objective of Generalized ODIN and AdaSCALE."""

    column: str

    def __call__(self, columns: Columns) -> Tensor:
        """One number per row."""
        return -max_logit(columns[self.column])
