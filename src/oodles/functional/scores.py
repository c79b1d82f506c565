"""Scores of logits, ``(n, C) -> (n,)``; larger is more in-distribution."""

import torch
from torch import Tensor


def energy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    r"""Negative free energy, ``T log sum_c exp(z_c / T)`` (Liu et al., NeurIPS 2020).

    >>> energy(torch.zeros(1, 4)).exp()
    tensor([4.])
    """
    if temperature == 1:
        return torch.logsumexp(logits, dim=-1)
    return temperature * torch.logsumexp(logits / temperature, dim=-1)


def msp(logits: Tensor, temperature: float = 1.0) -> Tensor:
    r"""Logarithm of the largest softmax probability (Hendrycks & Gimpel, ICLR 2017).

    The logarithm gives the same ranking and does not saturate: in float32 the probability itself is exactly 1 for
    every gap above 17 or so, and such ties change FPR95. The sum is over the other classes alone, because adding the
    winner's 1 would round them away.

    >>> msp(torch.zeros(1, 4)).exp()
    tensor([0.2500])
    """
    return -torch.log1p(_relative_to_largest(_at(logits, temperature)).sum(dim=-1))


def max_logit(logits: Tensor) -> Tensor:
    """The largest logit (Hendrycks et al., ICML 2022).

    >>> max_logit(torch.tensor([[1.0, 3.0, 2.0]]))
    tensor([3.])
    """
    return logits.amax(dim=-1)


def entropy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    r"""Negative entropy of the softmax, ``sum_c p_c log p_c``.

    >>> entropy(torch.zeros(1, 4)).neg().exp()
    tensor([4.])
    """
    log_probability = torch.log_softmax(_at(logits, temperature), dim=-1)
    # 0 log 0 would be NaN, but the log-softmax of float32 logits is finite as long as they are below 1e38
    return (log_probability.exp() * log_probability).sum(dim=-1)


def gen(logits: Tensor, gamma: float = 0.1, top: int = 100) -> Tensor:
    r"""Generalised entropy of the ``top`` largest probabilities (GEN; Liu et al., CVPR 2023).

    :math:`-\sum_{j \le top} \pi_{(j)}^\gamma (1 - \pi_{(j)})^\gamma`, in logarithms throughout, because
    with such a small power even probabilities of 1e-12 matter.

    >>> gen(torch.zeros(1, 2), gamma=1.0)
    tensor([-0.5000])
    """
    log_probability = torch.log_softmax(logits, dim=-1)
    winner = logits.argmax(dim=-1, keepdim=True)
    # 1 - p of the winner is the sum of the others, not 1 minus a number that rounds to 1
    others = torch.logsumexp(log_probability.scatter(-1, winner, -torch.inf), dim=-1, keepdim=True)
    if top < logits.shape[-1]:
        log_probability = log_probability.topk(top, dim=-1).values
        winner = torch.zeros_like(winner)
    rest = torch.log1p(-log_probability.exp()).scatter(-1, winner, others)
    return -(gamma * (log_probability + rest)).exp().sum(dim=-1)


def doctor(logits: Tensor, temperature: float = 1.0) -> Tensor:
    r"""Negative odds that two draws from the softmax differ (DOCTOR-alpha; Granese et al., NeurIPS 2021).

    :math:`-(1 - g)/g` with :math:`g = \sum_c \pi_c^2`. With ``e_c = exp(z_c - max z)`` of the other classes it is
    ``-(2 sum e + (sum e)^2 - sum e^2) / (1 + sum e^2)``, in which nothing near 1 is subtracted from 1.

    >>> doctor(torch.zeros(1, 4))
    tensor([-3.])
    """
    others = _relative_to_largest(_at(logits, temperature))
    total, squares = others.sum(dim=-1), others.square().sum(dim=-1)
    return -(2 * total + (total.square() - squares)) / (1 + squares)


def joint_energy(logits: Tensor) -> Tensor:
    r"""Sum over classes of ``log(1 + exp(z_c))``, for one sigmoid per class (JointEnergy; Wang et al., NeurIPS 2021).

    >>> joint_energy(torch.zeros(1, 4)).exp()
    tensor([16.])
    """
    return torch.nn.functional.softplus(logits).sum(dim=-1)


def label_probability(logits: Tensor, *, multilabel: bool = False) -> Tensor:
    """The model's probability of its own label: the largest of the softmax, or the sigmoid of the largest logit.

    >>> label_probability(torch.zeros(1, 4)), label_probability(torch.zeros(1, 4), multilabel=True)
    (tensor([0.2500]), tensor([0.5000]))
    """
    return max_logit(logits).sigmoid() if multilabel else msp(logits).exp()


def _at(logits: Tensor, temperature: float) -> Tensor:
    """The logits at a temperature, without a copy at temperature 1."""
    return logits if temperature == 1 else logits / temperature


def _relative_to_largest(logits: Tensor) -> Tensor:
    """``exp(z - max z)``, with 0 for the largest logit itself."""
    largest, winner = logits.max(dim=-1, keepdim=True)
    # in place and before the exponential, which autograd would not let change afterwards
    return (logits - largest).scatter_(-1, winner, -torch.inf).exp_()
