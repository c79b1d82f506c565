"""Norms of the last layer's gradient in closed form, without a backward pass: GradNorm and two relatives."""

import torch
from torch import Tensor
from typing_extensions import override

from oodles.detectors.arguments import check_positive
from oodles.detectors.base import Detector


class GradNorm(Detector):
    """L1 norm of the last layer's gradient towards the uniform distribution (Huang et al., NeurIPS 2021).

    ``|h|_1 / T * sum_c |softmax(z / T)_c - 1/C|``: the norm of an outer product is the product of the norms.

    >>> embedding, logits = torch.tensor([[1.0], [1.0], [3.0]]), torch.tensor([[0.0, 0.0], [9.0, 0.0], [9.0, 0.0]])
    >>> GradNorm()(embedding, logits)  # 0 for a uniform softmax, and in proportion to the embedding
    tensor([0.0000, 0.9998, 2.9993])
    """

    def __init__(self, *, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = check_positive("temperature", temperature)

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        away = (torch.softmax(logits / self.temperature, dim=1) - 1 / logits.shape[1]).abs().sum(dim=1)
        return embedding.abs().sum(dim=1) * away / self.temperature


class GradUncertainty(Detector):
    """Squared L2 norm of the last layer's gradient for a target of all ones (Lee & AlRegib, ICIP 2020).

    ``|C softmax(z) - 1|^2 |h|^2``.

    >>> embedding, logits = torch.tensor([[1.0], [2.0]]), torch.tensor([[9.0, 0.0], [9.0, 0.0]])
    >>> GradUncertainty()(embedding, logits)  # quadratic in the embedding
    tensor([1.9990, 7.9961])
    """

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        away = (logits.shape[1] * torch.softmax(logits, dim=1) - 1).square().sum(dim=1)
        return away * embedding.square().sum(dim=1)


class ExGrad(Detector):
    """Minus the expected L1 norm of the last layer's gradient under its own predictions (Igoe et al., 2022).

    ``-2 |h|_1 sum_c p_c (1 - p_c)`` with ``p = softmax(z)``.

    >>> embedding, logits = torch.tensor([[1.0], [1.0]]), torch.tensor([[0.0, 0.0], [9.0, 0.0]])
    >>> ExGrad()(embedding, logits).round(decimals=3)  # 0 if the prediction is certain
    tensor([-1., -0.])
    """

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        p = torch.softmax(logits, dim=1)
        # 1 - p of the largest class is the sum of the others: 1 minus a number near 1 would lose its digits
        winner = logits.argmax(dim=1, keepdim=True)
        rest = p.scatter(1, winner, 0.0).sum(dim=1, keepdim=True)
        complement = (1 - p).scatter(1, winner, rest)
        return -2 * embedding.abs().sum(dim=1) * (p * complement).sum(dim=1)
