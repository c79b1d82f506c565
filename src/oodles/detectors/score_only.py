"""Detectors that are a score alone: a function of the network's own logits, with nothing before it."""

import inspect
from functools import partial
from typing import Any, ClassVar

from typing_extensions import override

from oodles.detectors.logit import LogitDetector, ScoreFunction
from oodles.functional import doctor, energy, entropy, gen, joint_energy, max_logit, msp


class ScoreDetector(LogitDetector):
    """A score alone: a function of the network's own logits, ``function``.

    >>> class Margin(ScoreDetector):
    ...     function = staticmethod(lambda logits: logits.amax(dim=1) - logits.mean(dim=1))
    ...     def __init__(self):
    ...         super().__init__()
    >>> import torch
    >>> Margin()(torch.empty(1, 0), torch.tensor([[4.0, 0.0]]))
    tensor([2.])
    """

    function: ClassVar[ScoreFunction]

    def __init__(self, **settings: Any) -> None:
        super().__init__(score=partial(type(self).function, **settings))

    @override
    def arguments(self) -> dict[str, Any]:
        return {name: self.scoring.settings[name] for name in inspect.signature(type(self)).parameters}


class MSP(ScoreDetector):
    """Maximum softmax probability, as a logarithm (Hendrycks & Gimpel, ICLR 2017).

    >>> import torch
    >>> logits = torch.tensor([[2.0, 0.0], [9.0, 7.0]])
    >>> MSP()(torch.empty(2, 0), logits).exp()  # only differences of logits count
    tensor([0.8808, 0.8808])
    """

    function = staticmethod(msp)

    def __init__(self, *, temperature: float = 1.0) -> None:
        super().__init__(temperature=temperature)


class MaxLogit(ScoreDetector):
    """Largest logit (Hendrycks et al., ICML 2022).

    >>> import torch
    >>> logits = torch.tensor([[2.0, 0.0], [9.0, 7.0]])
    >>> MaxLogit()(torch.empty(2, 0), logits)  # how large logits are counts
    tensor([2., 9.])
    """

    function = staticmethod(max_logit)

    def __init__(self) -> None:
        super().__init__()


class Energy(ScoreDetector):
    """Negative free energy of the logits (Liu et al., NeurIPS 2020).

    >>> import torch
    >>> logits = torch.tensor([[2.0, 0.0], [9.0, 7.0]])
    >>> Energy()(torch.empty(2, 0), logits)  # a little above the largest logit
    tensor([2.1269, 9.1269])
    """

    function = staticmethod(energy)

    def __init__(self, *, temperature: float = 1.0) -> None:
        super().__init__(temperature=temperature)


class Entropy(ScoreDetector):
    """Negative entropy of the softmax.

    >>> import torch
    >>> logits = torch.tensor([[9.0, 0.0], [1.0, 1.0]])
    >>> Entropy()(torch.empty(2, 0), logits)  # -log 2 if both classes are as likely
    tensor([-0.0012, -0.6931])
    """

    function = staticmethod(entropy)

    def __init__(self, *, temperature: float = 1.0) -> None:
        super().__init__(temperature=temperature)


class GEN(ScoreDetector):
    """Negative generalised entropy of the largest softmax probabilities (Liu et al., CVPR 2023).

    >>> import torch
    >>> logits = torch.tensor([[9.0, 0.0], [1.0, 1.0]])
    >>> GEN()(torch.empty(2, 0), logits)  # small probabilities count more than in the entropy
    tensor([-0.8131, -1.7411])
    """

    function = staticmethod(gen)

    def __init__(self, *, gamma: float = 0.1, top: int = 100) -> None:
        super().__init__(gamma=gamma, top=top)


class JointEnergy(ScoreDetector):
    """Sum of the energies of all classes, for multi-label models (Wang et al., NeurIPS 2021).

    >>> import torch
    >>> logits = torch.tensor([[5.0, -9.0], [5.0, 5.0]])
    >>> JointEnergy()(torch.empty(2, 0), logits)  # two likely classes count twice
    tensor([ 5.0068, 10.0134])
    """

    function = staticmethod(joint_energy)

    def __init__(self) -> None:
        super().__init__()


class DOCTOR(ScoreDetector):
    """Minus the odds that two draws from the softmax differ (Granese et al., NeurIPS 2021).

    >>> import torch
    >>> logits = torch.tensor([[0.0, 0.0], [9.0, 0.0]])
    >>> DOCTOR()(torch.empty(2, 0), logits).round(decimals=3)  # even odds, and almost none
    tensor([-1., -0.])
    """

    function = staticmethod(doctor)

    def __init__(self, *, temperature: float = 1.0) -> None:
        super().__init__(temperature=temperature)
