"""Variants of Mahalanobis on embeddings: relative, normalised, and as Gaussian mixtures."""

import math
import warnings

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from oodles.detectors.arguments import check_positive
from oodles.detectors.base import Detector, Statistics
from oodles.detectors.mahalanobis import FLOOR, TiedGaussian
from oodles.detectors.statistics import ClassMoments, MomentsPerClass, Statistic
from oodles.errors import ArgumentError, DataError, FitWarning
from oodles.features import Features, Head

MAX_VALUES = 1 << 28  # numbers in the covariances of all classes together: 2 GB while fitting
ROUNDING = 1e-12  # rows of length 1 whose summed variance is below this differ by no more than float32 rounding


class _OnEmbeddings(Detector):
    learns_from = ("embedding", "labels")
    scores_from = ("embedding",)

    def __init__(self) -> None:
        super().__init__()
        self.gaussian = TiedGaussian()

    @override
    def begin(self) -> dict[str, Statistic]:
        return {"moments": ClassMoments()}

    @override
    def observe(self, batch: Features, statistics: Statistics) -> None:
        # in half precision, the rounding of normalised rows would look like directions in which they vary
        wide = torch.promote_types(batch.embedding.dtype, torch.float32)
        statistics["moments"].add(self.prepare(batch.embedding.to(wide)), batch.column("labels"), batch.classes)

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        self.gaussian.learn(statistics["moments"], "embedding")

    def prepare(self, embedding: Tensor) -> Tensor:
        """The vectors that distances are measured between."""
        return embedding


class MahalanobisPP(_OnEmbeddings):
    """Mahalanobis on embeddings of length 1 (Mahalanobis++; Mueller & Hein, ICML 2025).

    Directions whose variance within classes is below ``floor`` times the largest are left out. The smallest variances
    behind a LayerNorm are rounding, which a larger floor ignores.

    >>> corners = torch.tensor([[0.0, 0.0], [0.0, 2.0], [2.0, 0.0], [2.0, 2.0]])
    >>> rows, labels = torch.cat([corners, corners + torch.tensor([8.0, 0.0])]), torch.tensor([0] * 4 + [1] * 4)
    >>> test = Features(torch.tensor([[2.0, 1.0], [20.0, 10.0]]), logits=torch.zeros(2, 2))
    >>> MahalanobisPP().fit(Features(rows, logits=torch.eye(2)[labels], labels=labels)).score(test)  # by direction
    tensor([-1.1109, -1.1109])
    """

    def __init__(self, *, floor: float = FLOOR) -> None:
        super().__init__()
        self.floor = check_positive("floor", floor, 1e-15, 1.0)

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        self.gaussian.learn(statistics["moments"], "embedding", self.floor)

    @override
    def prepare(self, embedding: Tensor) -> Tensor:
        return F.normalize(embedding, dim=1)

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        distance: Tensor = self.gaussian(self.prepare(embedding))
        return -distance


class RMDS(_OnEmbeddings):
    """Mahalanobis distance to the nearest class minus that to all data (relative Mahalanobis; Ren et al., 2021).

    Both distances agree outside the directions that separate classes, so only those are used: with ``theta`` the
    between-class variances after whitening and ``g``, ``u_c`` the coordinates there, the difference is
    ``sum (g - u_c)^2 - g^2 / (1 + theta)``. Two large numbers are never subtracted from each other.

    >>> corners = torch.tensor([[0.0, 0.0], [0.0, 2.0], [2.0, 0.0], [2.0, 2.0]])
    >>> rows, labels = torch.cat([corners, corners + torch.tensor([8.0, 0.0])]), torch.tensor([0] * 4 + [1] * 4)
    >>> test = Features(torch.tensor([[1.0, 2.0], [1.0, 9.0]]), logits=torch.zeros(2, 2))
    >>> RMDS().fit(Features(rows, logits=torch.eye(2)[labels], labels=labels)).score(test)  # y separates nothing
    tensor([0.9412, 0.9412])
    """

    shrink_: Tensor

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        super().learn(statistics, head)
        # rotate the whitened space so that its axes separate classes, and drop the axes that do not
        moments: ClassMoments = statistics["moments"]
        counts = moments.counts[moments.counts > 0]
        centres = self.gaussian.centres_.double()
        between = (centres * (counts / counts.sum())[:, None]).T @ centres
        theta, axes = torch.linalg.eigh(between)
        kept = theta > 1e-10 * theta[-1].clamp(min=1e-300)
        self.gaussian.whitening_ = (self.gaussian.whitening_.double() @ axes[:, kept]).float()
        self.gaussian.centres_ = (centres @ axes[:, kept]).float()
        self.shrink_ = (1 / (1 + theta[kept])).float()

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        g = self.gaussian.whiten(embedding)
        return (self.shrink_ * g.square()).sum(dim=1) - self.gaussian.nearest(g)


class GaussianMixture(_OnEmbeddings):
    """Log density of a mixture of one Gaussian per class with a shared covariance, up to a constant.

    ``logsumexp_c (log(n_c / N) - d_c / 2)``: Mahalanobis with every class counted, not only the nearest.

    >>> corners = torch.tensor([[0.0, 0.0], [0.0, 2.0], [2.0, 0.0], [2.0, 2.0]])
    >>> rows, labels = torch.cat([corners, corners + torch.tensor([8.0, 0.0])]), torch.tensor([0] * 4 + [1] * 4)
    >>> test = Features(torch.tensor([[1.0, 2.0], [1.0, 9.0]]), logits=torch.zeros(2, 2))
    >>> GaussianMixture().fit(Features(rows, logits=torch.eye(2)[labels], labels=labels)).score(test)
    tensor([ -1.1931, -32.6931])
    """

    prior_: Tensor

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        super().learn(statistics, head)
        counts = statistics["moments"].counts
        self.prior_ = (counts[counts > 0] / counts.sum()).log().float()

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        g = self.gaussian.whiten(embedding)
        distances = self.gaussian.relative_distances(g)
        excess = distances - distances.amin(dim=1, keepdim=True)
        return torch.logsumexp(self.prior_ - excess / 2, dim=1) - self.gaussian.nearest(g) / 2


class DDU(Detector):
    """Log density of one Gaussian per class, each with a covariance of its own, on embeddings of length 1.

    ``logsumexp_c (log(n_c / N) - log|S_c| / 2 - d_c / 2)``, as in deep deterministic uncertainty (Mukhoti et al., CVPR
    2023). ``ridge`` times the mean variance is added to each covariance. It holds a matrix per class; for many classes
    or wide embeddings use ``gaussian_mixture``, in which all classes share one.

    >>> from oodles.testing import example_features
    >>> train = example_features()
    >>> detector = DDU().fit(train)
    >>> detector.whitening_.shape  # a matrix for each class
    torch.Size([5, 24, 24])
    """

    learns_from = ("embedding", "labels")
    scores_from = ("embedding",)
    means_: Tensor
    whitening_: Tensor
    constant_: Tensor

    def __init__(self, *, ridge: float = 1e-4) -> None:
        super().__init__()
        self.ridge = check_positive("ridge", ridge, 1e-30)

    @override
    def begin(self) -> dict[str, Statistic]:
        return {"classes": MomentsPerClass()}

    @override
    def observe(self, batch: Features, statistics: Statistics) -> None:
        if batch.classes * batch.width**2 > MAX_VALUES:
            raise ArgumentError(
                f"{self} would hold {batch.classes} covariances of {batch.width} x {batch.width} numbers, more than "
                f"{MAX_VALUES:,} in all; use gaussian_mixture, in which all classes share one"
            )
        rows = F.normalize(batch.embedding.double(), dim=1)
        statistics["classes"].add(rows, batch.column("labels"))

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        classes = statistics["classes"].moments
        total = sum(moments.count for moments in classes.values())
        means, whitenings, constants = [], [], []
        for _, moments in sorted(classes.items()):
            covariance = moments.covariance()
            if not covariance.trace() > ROUNDING:
                continue
            ridge = self.ridge * covariance.diagonal().mean() * torch.eye(len(covariance), dtype=torch.float64)
            factor, failed = torch.linalg.cholesky_ex(covariance + ridge)
            if failed:
                raise DataError(f"{self}: a covariance is singular; give a larger ridge")
            means.append(moments.mean())
            whitenings.append(torch.linalg.solve_triangular(factor, torch.eye(len(factor)).double(), upper=False).T)
            constants.append(math.log(moments.count / total) - float(factor.diagonal().log().sum()))
        if not means:
            raise DataError(f"{self}: the embedding does not vary within any class; give more rows per class")
        if len(means) < len(classes):
            warnings.warn(
                f"{self}: {len(classes) - len(means)} of {len(classes)} classes have rows that are all equal and are "
                "left out",
                FitWarning,
                stacklevel=2,
            )
        self.means_, self.whitening_ = torch.stack(means).float(), torch.stack(whitenings).float()
        self.constant_ = torch.tensor(constants)

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        rows = F.normalize(embedding, dim=1)
        distances = [
            ((rows - mean) @ whitening).square().sum(dim=1)
            for mean, whitening in zip(self.means_, self.whitening_, strict=True)
        ]
        return torch.logsumexp(self.constant_ - torch.stack(distances, dim=1) / 2, dim=1)
