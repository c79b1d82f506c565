"""Detectors that are a score alone: a function of the network's own logits, with nothing before it."""

import inspect
from functools import partial
from typing import Any, ClassVar

from typing_extensions import override

from oodles.detectors.logit import LogitDetector, ScoreFunction
from oodles.functional import doctor, energy, entropy, gen, joint_energy, max_logit, msp


class ScoreDetector(LogitDetector):
    """A score alone: a function of the network's own logits, ``function``."""

    function: ClassVar[ScoreFunction]

    def __init__(self, **settings: Any) -> None:
        super().__init__(score=partial(type(self).function, **settings))

    @override
    def arguments(self) -> dict[str, Any]:
        return {name: self.scoring.settings[name] for name in inspect.signature(type(self)).parameters}


class MSP(ScoreDetector):
    """Maximum softmax probability, as a logarithm (Hendrycks & Gimpel, ICLR 2017)."""

    function = staticmethod(msp)

    def __init__(self, *, temperature: float = 1.0) -> None:
        super().__init__(temperature=temperature)


class MaxLogit(ScoreDetector):
    """Largest logit (Hendrycks et al., ICML 2022)."""

    function = staticmethod(max_logit)

    def __init__(self) -> None:
        super().__init__()


class Energy(ScoreDetector):
    """Negative free energy of the logits (Liu et al., NeurIPS 2020)."""

    function = staticmethod(energy)

    def __init__(self, *, temperature: float = 1.0) -> None:
        super().__init__(temperature=temperature)


class Entropy(ScoreDetector):
    """Negative entropy of the softmax."""

    function = staticmethod(entropy)

    def __init__(self, *, temperature: float = 1.0) -> None:
        super().__init__(temperature=temperature)


class GEN(ScoreDetector):
    """Negative generalised entropy of the largest softmax probabilities (Liu et al., CVPR 2023)."""

    function = staticmethod(gen)

    def __init__(self, *, gamma: float = 0.1, top: int = 100) -> None:
        super().__init__(gamma=gamma, top=top)


class JointEnergy(ScoreDetector):
    """Sum of the energies of all classes, for multi-label models (Wang et al., NeurIPS 2021)."""

    function = staticmethod(joint_energy)

    def __init__(self) -> None:
        super().__init__()


class DOCTOR(ScoreDetector):
    """Logarithm of the probability that two draws from the softmax agree (Granese et al., NeurIPS 2021)."""

    function = staticmethod(doctor)

    def __init__(self, *, temperature: float = 1.0) -> None:
        super().__init__(temperature=temperature)
