"""Detectors from the geometry of head and class means: fDBD, NCI, SHE, and last-layer gradients in closed form."""

import torch
from torch import Tensor

from oodles.detectors.base import Detector, Statistics
from oodles.detectors.statistics import ClassMeans, Mean, Statistic
from oodles.errors import ArgumentError
from oodles.features import Features, Head

CLOSE = 1e-8
"""Weight vectors of two classes closer than this are one and the same, and have no boundary between them."""


class _AboutTheMean(Detector):
    learns_from = ("embedding", "head")
    scores_from = ("embedding", "logits")
    mean_: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean_", None)

    def begin(self) -> dict[str, Statistic]:
        """The mean embedding."""
        return {"mean": Mean()}

    def observe(self, batch: Features, statistics: Statistics) -> None:
        """Add one batch."""
        statistics["mean"].add(batch.embedding)


class FDBD(_AboutTheMean):
    """Mean distance to the decision boundaries, over the distance to the mean embedding (Liu & Qin, ICML 2024).

    ``mean over k of (z_y - z_k) / |w_y - w_k|``, divided by ``|h - mean|``, with ``y`` the predicted class.
    """

    inverse_: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inverse_", None)

    def learn(self, statistics: Statistics, head: Head | None) -> None:
        """One over the distance between each pair of weight vectors, 0 where there is none."""
        if head is None:
            return
        weight = head.weight.double().cpu()
        distance = torch.cdist(weight, weight, compute_mode="donot_use_mm_for_euclid_dist")
        self.mean_ = statistics["mean"].value().float()
        self.inverse_ = torch.where(distance > CLOSE, 1 / distance.clamp(min=CLOSE), 0.0).float()

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """Distance to the boundaries over distance to the mean."""
        largest, winner = logits.max(dim=1, keepdim=True)
        margins = ((largest - logits) * self.inverse_[winner[:, 0]]).sum(dim=1) / max(1, logits.shape[1] - 1)
        score: Tensor = margins / torch.linalg.vector_norm(embedding - self.mean_, dim=1).clamp(min=1e-12)
        return score


class NCI(_AboutTheMean):
    """Alignment of the centred embedding with its class's weights, plus a little of its norm (Liu & Qin, CVPR 2025).

    ``w_y . (h - mean) / |h - mean| + alpha |h|_1`` with ``y`` the predicted class.
    """

    weight_: Tensor

    def __init__(self, *, alpha: float = 1e-4) -> None:
        super().__init__()
        self.alpha = alpha
        self.register_buffer("weight_", None)

    def learn(self, statistics: Statistics, head: Head | None) -> None:
        """Keep mean and weights."""
        if head is None:
            return
        self.mean_, self.weight_ = statistics["mean"].value().float(), head.weight.float().cpu().clone()

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """Alignment and norm."""
        centred = embedding - self.mean_
        aligned = (centred * self.weight_[logits.argmax(dim=1)]).sum(dim=1)
        length: Tensor = torch.linalg.vector_norm(centred, dim=1).clamp(min=1e-12)
        return aligned / length + self.alpha * embedding.abs().sum(dim=1)


class SHE(Detector):
    """Inner product with the mean embedding of the predicted class (Zhang et al., ICLR 2023).

    The mean is over training rows of the class that are labelled right; over all of the class where there is none, and
    over all rows where the class has none at all.
    """

    learns_from = ("embedding", "logits", "labels")
    scores_from = ("embedding", "logits")
    patterns_: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("patterns_", None)

    def begin(self) -> dict[str, Statistic]:
        """Class means, of the rows labelled right and of all."""
        return {"right": ClassMeans(), "all": ClassMeans()}

    def observe(self, batch: Features, statistics: Statistics) -> None:
        """Add one batch."""
        labels = batch.column("labels")
        right = (batch.logits.argmax(dim=1) == labels).nonzero().flatten()
        statistics["all"].add(batch.embedding, labels, batch.classes)
        statistics["right"].add(batch.embedding[right], labels[right], batch.classes)

    def learn(self, statistics: Statistics, head: Head | None) -> None:
        """The pattern of each class."""
        right, whole = statistics["right"], statistics["all"]
        everything = (whole.values() * whole.counts[:, None]).sum(dim=0) / whole.counts.sum()
        patterns = torch.where(whole.counts[:, None] > 0, whole.values(), everything)
        self.patterns_ = torch.where(right.counts[:, None] > 0, right.values(), patterns).float()

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """The inner product."""
        return (embedding * self.patterns_[logits.argmax(dim=1)]).sum(dim=1)


class GradNorm(Detector):
    """L1 norm of the last layer's gradient towards the uniform distribution (Huang et al., NeurIPS 2021).

    In closed form, without a backward pass: ``|h|_1 / T * sum_c |softmax(z / T)_c - 1/C|``.
    """

    def __init__(self, *, temperature: float = 1.0) -> None:
        super().__init__()
        if not temperature > 0:
            raise ArgumentError(f"temperature={temperature} must be positive")
        self.temperature = temperature

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """The norm of a product of two vectors is the product of their norms."""
        away = (torch.softmax(logits / self.temperature, dim=1) - 1 / logits.shape[1]).abs().sum(dim=1)
        return embedding.abs().sum(dim=1) * away / self.temperature


class GradUncertainty(Detector):
    """Squared L2 norm of the last layer's gradient for a target of all ones (Lee & AlRegib, ICIP 2020).

    In closed form: ``|C softmax(z) - 1|^2 |h|^2``.
    """

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """The product of the squared norms."""
        away = (logits.shape[1] * torch.softmax(logits, dim=1) - 1).square().sum(dim=1)
        return away * embedding.square().sum(dim=1)


class ExGrad(Detector):
    """Minus the expected L1 norm of the last layer's gradient under its own predictions (Igoe et al., 2022).

    In closed form: ``-2 |h|_1 sum_c p_c (1 - p_c)`` with ``p = softmax(z)``.
    """

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """What is left beside the winner is summed, since 1 minus a number near 1 has no digits."""
        p = torch.softmax(logits, dim=1)
        winner = logits.argmax(dim=1, keepdim=True)
        losers = p.scatter(1, winner, 0.0)
        beside = (1 - p).scatter(1, winner, losers.sum(dim=1, keepdim=True))
        return -2 * embedding.abs().sum(dim=1) * (p * beside).sum(dim=1)
