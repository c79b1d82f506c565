"""``NetworkDetector``: detectors that need more of the network than one embedding and the logits per image."""

from collections.abc import Iterable, Sequence

from torch import Tensor
from typing_extensions import override

from oodles.detectors.base import Detector
from oodles.errors import ArgumentError
from oodles.features import Features
from oodles.steps import Step, distinct_steps


class NetworkDetector(Detector):
    """A detector that needs inner layers or input steps, or has something to choose with the network at hand.

    It sees only ``Features``; the code that has the network runs it. ``layers`` are the inner modules whose
    activations to keep, :meth:`steps` the input steps it scores after. While ``tuned`` is False,
    :func:`oodles.selection.tune` runs the :meth:`trials` on held-out ID images, and on adversarial copies of them if
    the method ``learns_against`` such, and calls :meth:`tune`, which fills the buffers ``tunes``.

    >>> from oodles.detectors import ODIN, RankFeat
    >>> RankFeat(layer="layer4").layers  # for extract(..., layers=)
    ('layer4', 'layer4:rankfeat')
    >>> [step.column for step in ODIN(epsilon=0.002).steps()]  # for extract(..., steps=)
    ['layer.odin(temperature=1000.0, epsilon=0.002, std=())']
    """

    layers: tuple[str, ...] = ()
    learns_against = False
    tunes: tuple[str, ...] = ()

    def layer_widths(self) -> dict[str, int]:
        """How wide the columns of inner layers were that it was fitted on, as far as it is known."""
        return {}

    def steps(self) -> tuple[Step, ...]:
        """The input steps that scores are computed after, as far as they are known."""
        return ()

    def trials(self) -> tuple[Step, ...]:
        """The input steps whose results on held-out images :meth:`tune` compares."""
        return ()

    def tune(self, held_out: Features, adversarial: Features | None = None) -> None:
        """Choose what cannot be learned from embeddings."""

    @property
    def tuned(self) -> bool:
        """Whether nothing is left to choose."""
        return True

    @property
    @override
    def fitted(self) -> bool:
        return self.tuned and super().fitted

    @override
    def _remedy(self) -> str:
        if super().fitted:
            return "call oodles.selection.tune([detector], model, held_out_loader) first"
        return super()._remedy()


class SteppedDetector(NetworkDetector):
    """A detector that scores after an input step of size ``epsilon``, divided by ``std`` per channel if given.

    With ``epsilon=None`` the size is chosen from ``grid`` by :func:`oodles.selection.tune`; with 0 there is no step.
    """

    grid: tuple[float, ...]
    tunes: tuple[str, ...] = ("choice_",)
    choice_: Tensor | None  # the place of the chosen size in the grid

    def __init__(self, epsilon: float | None, std: Sequence[float]) -> None:
        super().__init__()
        if not isinstance(std, list | tuple):
            raise ArgumentError(f"std={std} must be a list with one number per channel")
        if epsilon is not None and not 0 <= epsilon < 1e6:
            raise ArgumentError(f"epsilon={epsilon} must be 0 or more; None lets oodles.selection.tune choose it")
        if not all(value > 0 for value in std):
            raise ArgumentError(f"std={std} must be positive in every channel")
        self.epsilon = None if epsilon is None else float(epsilon)
        self.std = tuple(float(value) for value in std)

    @property
    def step_size(self) -> float | None:
        """The size of the step, given or chosen; None as long as it has not been chosen."""
        return self.epsilon if self.choice_ is None else self.grid[int(self.choice_)]

    @property
    @override
    def tuned(self) -> bool:
        return self.step_size is not None


def needs_network(detector: Detector) -> bool:
    """Whether plain features are not enough: inner layers, input steps, or something left to tune."""
    return isinstance(detector, NetworkDetector) and bool(detector.layers or detector.steps() or not detector.tuned)


def needs_head(detector: Detector) -> bool:
    """Whether the detector needs embeddings or the last layer, and not only logits."""
    return bool({"embedding", "head"} & {*detector.learns_from, *detector.scores_from})


def is_tuned(detector: Detector) -> bool:
    """Whether nothing is left to choose with the network at hand."""
    return not isinstance(detector, NetworkDetector) or detector.tuned


def tuning_summary(detector: Detector) -> str:
    """Return what tuning chose, in words; empty if there was nothing to choose."""
    stepped = isinstance(detector, SteppedDetector) and detector.epsilon is None
    return f"epsilon {detector.step_size:g}" if stepped and detector.step_size is not None else ""


def layers_of(detectors: Iterable[Detector]) -> tuple[str, ...]:
    """The inner layers that any of the detectors needs, each once."""
    return tuple(dict.fromkeys(name for detector in _network_ones(detectors) for name in detector.layers))


def steps_of(detectors: Iterable[Detector]) -> tuple[Step, ...]:
    """The input steps that any of the detectors scores after, each once."""
    return distinct_steps(step for detector in _network_ones(detectors) for step in detector.steps())


def _network_ones(detectors: Iterable[Detector]) -> list[NetworkDetector]:
    return [detector for detector in detectors if isinstance(detector, NetworkDetector)]
