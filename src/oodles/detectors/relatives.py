"""Relatives of Mahalanobis on embeddings: relative, normalised, and as a mixture of Gaussians."""

import torch
from torch import Tensor
from torch.nn import functional as F

from oodles.detectors.base import Detector, Statistics
from oodles.detectors.gaussian import TiedGaussian
from oodles.detectors.statistics import ClassMoments, Statistic
from oodles.features import Features, Head


class _OnEmbeddings(Detector):
    learns_from = ("embedding", "labels")
    scores_from = ("embedding",)

    def __init__(self) -> None:
        super().__init__()
        self.gaussian = TiedGaussian()

    def begin(self) -> dict[str, Statistic]:
        """Class means and the covariance about them."""
        return {"moments": ClassMoments()}

    def observe(self, batch: Features, statistics: Statistics) -> None:
        """Add one batch."""
        statistics["moments"].add(self.prepare(batch.embedding), batch.column("labels"), batch.classes)

    def learn(self, statistics: Statistics, head: Head | None) -> None:
        """Whiten."""
        self.remarks = tuple(self.gaussian.learn(statistics["moments"], "embedding"))

    def prepare(self, embedding: Tensor) -> Tensor:
        """What distances are measured between."""
        return embedding


class MahalanobisPP(_OnEmbeddings):
    """Mahalanobis on embeddings of length 1 (Mahalanobis++; Mueller & Hein, ICML 2025)."""

    def prepare(self, embedding: Tensor) -> Tensor:
        """The direction of the embedding."""
        return F.normalize(embedding, dim=1)

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """Minus the squared distance to the nearest class."""
        distance: Tensor = self.gaussian(self.prepare(embedding))
        return -distance


class RMDS(_OnEmbeddings):
    """Mahalanobis distance to the nearest class less that to all data (relative Mahalanobis; Ren et al., 2021).

    Both distances agree outside the directions that tell classes apart, so their difference is taken there alone: with
    ``theta`` the between-class variances after whitening and ``g``, ``u_c`` the coordinates there, it is
    ``sum (g - u_c)^2 - g^2 / (1 + theta)``. Two huge numbers are never subtracted.
    """

    shrink_: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shrink_", None)

    def learn(self, statistics: Statistics, head: Head | None) -> None:
        """Turn the whitened space so that its axes tell classes apart, and drop those that do not."""
        super().learn(statistics, head)
        moments: ClassMoments = statistics["moments"]
        counts = moments.counts[moments.counts > 0]
        centres = self.gaussian.centres_.double()
        between = (centres * (counts / counts.sum())[:, None]).T @ centres
        theta, axes = torch.linalg.eigh(between)
        kept = theta > 1e-10 * theta[-1].clamp(min=1e-300)
        self.gaussian.whitening_ = (self.gaussian.whitening_.double() @ axes[:, kept]).float()
        self.gaussian.centres_ = (centres @ axes[:, kept]).float()
        self.shrink_ = (1 / (1 + theta[kept])).float()

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """Minus the difference of the two distances."""
        g = self.gaussian.whiten(embedding)
        return (self.shrink_ * g.square()).sum(dim=1) - self.gaussian.nearest(g)


class GaussianMixture(_OnEmbeddings):
    """Logarithm of the density of a mixture of one Gaussian a class, with one covariance (up to a constant).

    ``logsumexp_c (log(n_c / N) - d_c / 2)``: Mahalanobis with every class counted, not the nearest alone.
    """

    prior_: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("prior_", None)

    def learn(self, statistics: Statistics, head: Head | None) -> None:
        """Whiten, and count."""
        super().learn(statistics, head)
        counts = statistics["moments"].counts
        self.prior_ = (counts[counts > 0] / counts.sum()).log().float()

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """The logarithm of the density."""
        g = self.gaussian.whiten(embedding)
        beside = self.gaussian.beside(g)
        closer = beside - beside.amin(dim=1, keepdim=True)
        return torch.logsumexp(self.prior_ - closer / 2, dim=1) - self.gaussian.nearest(g) / 2
