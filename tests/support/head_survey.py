"""What :func:`oodles.extract` makes of an architecture with random weights: the head it finds, or why it refuses.

Nothing may be silently wrong, so a head that was found must reproduce the model's own output, and what a refusal
recommends must work.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import oodles
from oodles.data.batches import BatchReader
from oodles.errors import OodlesError
from oodles.network.head import locate_head
from oodles.network.taps import eval_mode, unwrap

Inputs = Callable[[int, torch.Generator], Any]
"""Makes what the model is called with: a tensor, a tuple of arguments, or keyword arguments, with that many rows."""

BATCHES = (3, 2)
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Architecture:
    """A model and its inputs.

    ``answer`` takes the logits from the model's output, and ``finish`` gives that answer from logits, if the model
    applies something to them. If no head can be found, ``remedy`` does to the model what the message asks for, after
    which it returns the answer itself, or ``named_head`` is the layer that the message asks for. ``classifier`` is
    False for models of another task.
    """

    library: str
    name: str
    make: Callable[[], nn.Module]
    inputs: Inputs
    answer: Callable[[Any], Tensor] = lambda output: output
    finish: Callable[[Tensor], Tensor] = lambda logits: logits
    remedy: Callable[[nn.Module], nn.Module] | None = None
    named_head: str | None = None
    classifier: bool = True
    slow: bool = False


@dataclass(frozen=True)
class Found:
    """A head that reproduces the model's output, and what oodles warned about."""

    kind: str
    layer: str
    width: int
    classes: int
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Refused:
    """Why no head was found, and which of the message's recommendations work."""

    message: str
    remedies: tuple[str, ...]


class Finished(nn.Module):
    """A network whose answer is a function of what it returns."""

    def __init__(self, network: nn.Module, finish: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.network, self.finish = network, finish

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.finish(self.network(*args, **kwargs))


class SurveyError(Exception):
    """A result that is wrong, or a refusal that leaves the user without anything that works."""


def survey(architecture: Architecture) -> Found | Refused:
    """Build the model and search its head; anything wrong is a :class:`SurveyError`, or whatever oodles let through."""
    model = build(architecture)
    try:
        return find(architecture, model)
    except OodlesError as error:
        return Refused(str(error).partition(". ")[0], remedies(architecture, model, str(error)))


def build(architecture: Architecture) -> nn.Module:
    """The model with random weights; those that are zero at first are drawn too, because they would hide errors."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), torch.no_grad():
        warnings.simplefilter("ignore")  # the libraries' own
        torch.manual_seed(0)
        model = architecture.make()
        for weight in model.parameters():
            if weight.ndim > 1 and not weight.any():
                weight.normal_(std=0.1)
    return model


def find(architecture: Architecture, model: nn.Module, head: str | None = None) -> Found:
    """The head that ``extract`` finds, after comparing its logits with the model's own output."""
    batches = list(inputs_of(architecture))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        features = oodles.extract(model, [with_labels(batch) for batch in batches], head=head, progress=False)
    with eval_mode(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answers = torch.cat([architecture.answer(call(model, batch)) for batch in batches])
        inputs, _ = BatchReader(unwrap(model)).split(with_labels(batches[0]))
        located = locate_head(unwrap(model), inputs, head)
    if features.head is None:
        raise SurveyError(f"{architecture.name}: extract found no head and did not say so")
    predicted = architecture.finish(features.head(features.embedding))
    if predicted.shape != answers.shape:
        raise SurveyError(f"{architecture.name}: the head gives {predicted.shape}, the model {answers.shape}")
    gap = float((predicted - answers).abs().max() / answers.abs().max())
    if not gap <= TOLERANCE:
        raise SurveyError(f"{architecture.name}: {located.name} differs from the model's output by {gap:.2g}")
    return Found(located.kind, located.name, located.head.width, located.head.classes, _messages(caught))


def remedies(architecture: Architecture, model: nn.Module, message: str) -> tuple[str, ...]:
    """Those of the message's recommendations that can be tried: all must work, and a classifier must have one."""
    working = []
    if "head=False" in message:
        working.append(scores_without_head(architecture, model))
    if architecture.named_head is not None and "pass head=" in message.lower():
        find(architecture, model, architecture.named_head)
        working.append(f"`head={architecture.named_head!r}`")
    if architecture.remedy is not None:
        changed = replace(architecture, answer=lambda output: output)
        working.append(f"done as it says: {find_again(changed, architecture.remedy(model))}")
    if not working and architecture.classifier:
        raise SurveyError(f"{architecture.name} is refused without a remedy: {message}")
    return tuple(working)


def find_again(architecture: Architecture, model: nn.Module) -> str:
    """What is found after the model was changed."""
    try:
        found = find(architecture, model)
    except OodlesError as error:
        if "head=False" not in str(error):
            raise SurveyError(f"{architecture.name} was changed as the message said, and refused: {error}") from error
        return scores_without_head(architecture, model)
    return f"{found.kind} (`{found.layer}`)"


def scores_without_head(architecture: Architecture, model: nn.Module) -> str:
    """Try ``head=False`` with a detector that needs nothing but logits; says what oodles warns about."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = [with_labels(batch) for batch in inputs_of(architecture)]
        features = oodles.extract(model, loader, head=False, progress=False)
        scores = oodles.MSP().fit(features).score(features)
    if len(scores) != sum(BATCHES) or not torch.isfinite(scores).all():
        raise SurveyError(f"{architecture.name}: head=False gives the scores {scores}")
    return "; ".join(["`head=False`, then MSP", *(f"warns that {warning}" for warning in _messages(caught))])


def inputs_of(architecture: Architecture) -> list[Any]:
    """Two batches of different sizes, the same at every call."""
    generator = torch.Generator().manual_seed(1)
    return [architecture.inputs(rows, generator) for rows in BATCHES]


def with_labels(inputs: Any) -> Any:
    """A batch as a loader gives it."""
    labels = torch.zeros(row_count(inputs), dtype=torch.long)
    if isinstance(inputs, Mapping):
        return {**inputs, "labels": labels}
    return (*inputs, labels) if type(inputs) is tuple else (inputs, labels)


def row_count(inputs: Any) -> int:
    """How many inputs a batch has."""
    if isinstance(inputs, nn.utils.rnn.PackedSequence):
        return int(inputs.batch_sizes[0])
    if isinstance(inputs, Mapping):
        return len(next(iter(inputs.values())))
    return len(inputs[0]) if type(inputs) is tuple else len(inputs)


def call(model: nn.Module, inputs: Any) -> Any:
    """The model's own output, with nothing of oodles in between."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if type(inputs) is tuple else model(inputs)


def _messages(caught: Sequence[warnings.WarningMessage]) -> tuple[str, ...]:
    return tuple(str(each.message) for each in caught if issubclass(each.category, UserWarning))
