"""Class-conditional Gaussians with one shared covariance: what Mahalanobis and its variants learn."""

import warnings

import torch
from torch import Tensor

from oodles.detectors.described import Learned
from oodles.detectors.statistics import ClassMoments
from oodles.errors import DataError, FitWarning, ShapeError

FLOOR = 1e-10
"""Directions whose variance within classes is below this fraction of the largest are left out (a pseudo-inverse)."""


class TiedGaussian(Learned):
    """Class means after whitening with the covariance that all classes share; scoring is one product with each.

    With ``A`` the whitening, ``g = A (h - mean)`` and ``u_c = A (mu_c - mean)``, the squared distance to the
    nearest class is ``|g|^2 + min_c (|u_c|^2 - 2 g . u_c)``.
    """

    mean_: Tensor
    whitening_: Tensor
    centres_: Tensor

    def learn(self, moments: ClassMoments, name: str) -> None:
        """Compute the whitening; warns about empty classes, classes of one row and directions that are left out."""
        means = moments.means()
        variances, directions = torch.linalg.eigh(moments.within())
        # rows that are all equal vary only by rounding
        rounding = (torch.finfo(torch.float64).eps * means.abs().max()).square() * 16
        kept = variances > torch.maximum(FLOOR * variances[-1], rounding.clamp(min=torch.finfo(torch.float64).tiny))
        if not kept.any():
            raise DataError(
                f"{name} does not vary within any class, so no distance is defined; give more rows, or use "
                "react_scale_dice"
            )
        whitening = directions[:, kept] / variances[kept].sqrt()
        present = moments.counts > 0
        mean = means[present].mul(moments.counts[present, None]).sum(dim=0) / moments.counts.sum()
        self.mean_ = mean.float()
        self.whitening_ = whitening.float()
        self.centres_ = ((means[present] - mean) @ whitening).float()
        _warn(name, moments.counts, len(kept), int(kept.sum()))

    def forward(self, rows: Tensor) -> Tensor:
        """The squared distance to the nearest class mean, ``(n,)``."""
        return self.nearest(self.whiten(rows))

    def whiten(self, rows: Tensor) -> Tensor:
        """Coordinates in which the shared covariance is the identity."""
        if rows.shape[1] != self.mean_.shape[0]:
            raise ShapeError(f"got a layer of width {rows.shape[1]}, but width {self.mean_.shape[0]} was learned")
        return (rows - self.mean_) @ self.whitening_

    def nearest(self, g: Tensor) -> Tensor:
        """The squared distance of whitened rows to the nearest mean, subtracted before it is squared."""
        place = self.relative_distances(g).argmin(dim=1)
        return (g - self.centres_[place]).square().sum(dim=1)

    def relative_distances(self, g: Tensor) -> Tensor:
        """Squared distances to every mean without the term they share, ``|u_c|^2 - 2 g . u_c``: ``(n, C)``."""
        return self.centres_.square().sum(dim=1) - 2 * (g @ self.centres_.T)


def _warn(name: str, counts: Tensor, width: int, rank: int) -> None:
    """Say what a user should know about a fit."""
    empty, single, left_out = int((counts == 0).sum()), int((counts == 1).sum()), width - rank
    classes = f"of {len(counts)} classes have"
    facts = {
        f"{empty} {classes} no training row and are left out": empty,
        f"{single} {classes} a single training row, which says nothing about their variance": single,
        f"{name}: {left_out} of {width} directions do not vary within classes and are left out": left_out,
    }
    for fact, count in facts.items():
        if count:
            warnings.warn(fact, FitWarning, stacklevel=2)
