"""Mahalanobis distance to class means under one shared covariance, on embeddings or over several layers."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from oodles.columns import LAYER, Columns, fingerprint
from oodles.detectors.arguments import Learned
from oodles.detectors.base import Statistics
from oodles.detectors.network_detector import SteppedDetector
from oodles.detectors.statistics import ClassMoments, Statistic
from oodles.errors import ArgumentError, DataError, FitWarning, ShapeError
from oodles.extras import needed_by
from oodles.features import Features, Head
from oodles.metrics import evaluate
from oodles.steps import Step

FLOOR = 1e-10  # directions whose variance within classes is below this fraction of the largest are left out
TUNING_ROWS = 500


class TiedGaussian(Learned):
    """Class means after whitening with the covariance that all classes share; scoring is one product with each.

    With ``A`` the whitening, ``g = A (h - mean)`` and ``u_c = A (mu_c - mean)``, the squared distance to the
    nearest class is ``|g|^2 + min_c (|u_c|^2 - 2 g . u_c)``.
    """

    mean_: Tensor
    whitening_: Tensor
    centres_: Tensor

    def learn(self, moments: ClassMoments, name: str, floor: float = FLOOR) -> None:
        """Compute the whitening; directions whose variance is at most ``floor`` times the largest are left out.

        Warns about empty classes, classes of one row and directions that are left out.
        """
        means = moments.means()
        variances, directions = torch.linalg.eigh(moments.within())
        # rows that are all equal vary only by rounding
        rounding = (torch.finfo(torch.float64).eps * means.abs().max()).square() * 16
        kept = variances > torch.maximum(floor * variances[-1], rounding.clamp(min=torch.finfo(torch.float64).tiny))
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


class Mahalanobis(SteppedDetector):
    """Minus the squared Mahalanobis distance to the nearest class mean (Lee et al., NeurIPS 2018).

    Class means and one covariance (divided by the number of rows) of the embeddings, learned from labels.
    Directions in which classes do not vary are left out, so few rows, dead units and small classes work; classes
    without a row are ignored. A warning says what was left out.

    With ``layers``, the paper's full method: the same distance in each of these inner layers, averaged over space,
    and in the embedding, combined by a logistic regression that separates 500 held-out ID images from adversarial
    copies of them (:func:`oodles.selection.tune`; needs scikit-learn). With ``epsilon`` above 0 each layer's distance
    is computed after an input step that lowers it; with None the step is the one of the authors' grid with the lowest
    FPR95 on 500 further images against their adversarial copies. The DICE paper's steps: 0 on CIFAR, 0.001 on
    ImageNet.

    >>> corners = torch.tensor([[0.0, 0.0], [0.0, 2.0], [2.0, 0.0], [2.0, 2.0]])
    >>> rows, labels = torch.cat([corners, corners + torch.tensor([8.0, 0.0])]), torch.tensor([0] * 4 + [1] * 4)
    >>> test = Features(torch.tensor([[1.0, 2.0], [1.0, 9.0]]), logits=torch.zeros(2, 2))
    >>> Mahalanobis().fit(Features(rows, logits=torch.eye(2)[labels], labels=labels)).score(test)  # 1 and 8 from a mean
    tensor([ -1., -64.])
    """

    grid = (0.0, 0.0005, 0.001, 0.0014, 0.002, 0.005, 0.01)
    learns_against = True
    tunes = ("choice_", "coefficients_", "intercept_")
    coefficients_: Tensor | None
    intercept_: Tensor | None

    def __init__(self, *, layers: Sequence[str] = (), epsilon: float | None = 0.0, std: tuple[float, ...] = ()) -> None:
        super().__init__(epsilon, std)
        if isinstance(layers, str):
            raise ArgumentError(f"layers={layers!r} must be a list of names")
        self.layers = tuple(layers)
        self.columns = (*(LAYER + name for name in self.layers), "embedding")
        self.learns_from = (*self.columns, "labels")
        self.gaussians = nn.ModuleList(TiedGaussian() for _ in self.columns)

    @override
    def layer_widths(self) -> dict[str, int]:
        pairs = zip(self.columns, self._gaussians(), strict=True)
        return {column: len(gaussian.mean_) for column, gaussian in pairs if column != "embedding"}

    @override
    def begin(self) -> dict[str, Statistic]:
        return {column: ClassMoments() for column in self.columns}

    @override
    def observe(self, batch: Features, statistics: Statistics) -> None:
        for column, moments in statistics.items():
            moments.add(batch.column(column), batch.labels, batch.classes)

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        self.choice_ = self.coefficients_ = self.intercept_ = None
        for column, gaussian in zip(self.columns, self._gaussians(), strict=True):
            gaussian.learn(statistics[column], column)

    @property
    @override
    def tuned(self) -> bool:
        combined = not self.layers or not (self.coefficients_ is None or self.intercept_ is None)
        return self.step_size is not None and combined

    @property
    @override
    def scores_from(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._columns_at(self.step_size or 0.0)

    @override
    def steps(self) -> tuple[Step, ...]:
        return self._steps_at([self.step_size]) if self.step_size and self.shape_ is not None else ()

    @override
    def trials(self) -> tuple[Step, ...]:
        return self._steps_at(self._sizes())

    @override
    def tune(self, held_out: Features, adversarial: Features | None = None) -> None:
        """Combine the layers by logistic regression, and choose the step if it is not given.

        The first half of the rows, at most 500, trains the regression; as many further ones choose the step.
        """
        if adversarial is None:
            raise ArgumentError(f"{self} is tuned on held-out rows and adversarial copies of them; both are needed")
        half = min(TUNING_ROWS, len(held_out) // 2)
        if half < 5:
            raise DataError(f"{self} needs at least 10 rows for tuning, got {len(held_out)}")
        first, second = slice(0, half), slice(half, 2 * half)
        trials = {}
        for place, epsilon in enumerate(self._sizes()):
            closeness = [self._closeness(rows, epsilon) for rows in (held_out, adversarial)]
            combined = combine_layers(*(part[first] for part in closeness)) if self.layers else None
            values = [part[second] @ combined[0] if combined is not None else part[second, 0] for part in closeness]
            trials[place] = evaluate(*values).fpr95, combined
        best = min(trials, key=lambda place: trials[place][0])
        combined = trials[best][1]
        if combined is not None:
            self.coefficients_, self.intercept_ = (part.to(self._gaussians()[0].mean_) for part in combined)
        if self.epsilon is None:
            self.choice_ = torch.tensor(best)
        self.to(self._gaussians()[0].mean_.device)

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        # after steps every layer has a column of its own; without, the embedding is the last
        rows = others if len(others) == len(self.gaussians) else (*others, embedding)
        closeness: list[Tensor] = [-gaussian(part) for gaussian, part in zip(self.gaussians, rows, strict=True)]
        if self.coefficients_ is None or self.intercept_ is None:
            return closeness[-1]
        return torch.stack(closeness, dim=1) @ self.coefficients_ + self.intercept_

    def _sizes(self) -> Sequence[float]:
        return self.grid if self.epsilon is None else [self.epsilon]

    def _closeness(self, rows: Features, epsilon: float) -> Tensor:
        """Minus the distance in each layer, ``(n, layers)``, in float64 on the CPU."""
        pairs = zip(self._gaussians(), self._columns_at(epsilon), strict=True)
        with torch.no_grad():
            distances = [gaussian(rows.column(column).to(gaussian.mean_)) for gaussian, column in pairs]
        return -torch.stack(distances, dim=1).cpu().double()

    def _columns_at(self, epsilon: float) -> tuple[str, ...]:
        return tuple(LAYER + self._name(column, epsilon) for column in self.columns) if epsilon else self.columns

    def _name(self, column: str, size: float) -> str:
        return f"mahalanobis {column} {size!r}" + (f" std={self.std}" if self.std else "")

    def _steps_at(self, sizes: Sequence[float]) -> tuple[Step, ...]:
        distances = [Distance(*pair) for pair in zip(self.columns, self._gaussians(), strict=True)]
        return tuple(
            Step(self._name(each.column, size), each, size, each.column, self.std, identity=each.digest())
            for size in sizes
            if size
            for each in distances
        )

    def _gaussians(self) -> list[TiedGaussian]:
        return [gaussian for gaussian in self.gaussians if isinstance(gaussian, TiedGaussian)]


@dataclass(frozen=True, eq=False)
class Distance:
    """The squared distance to the nearest class in one layer: what Mahalanobis' input step lowers."""

    column: str
    gaussian: TiedGaussian

    def __call__(self, columns: Columns) -> Tensor:
        """One number per row."""
        distance: Tensor = self.gaussian(columns[self.column].to(self.gaussian.mean_))
        return distance

    def digest(self) -> str:
        """Identifies this fit: the result of a step depends on what was learned."""
        return fingerprint(self.gaussian.state_dict())[:12]


def combine_layers(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficients and intercept of the logistic regression that separates ``inside`` from ``outside`` rows.

    Both are ``(n, layers)``. It is scikit-learn's cross-validated regression with its default settings, on standardised
    columns, because their scales differ a thousandfold.
    """
    with needed_by("combining layers"):
        from sklearn.linear_model import LogisticRegressionCV
    rows = torch.cat([inside, outside])
    mean, spread = rows.mean(dim=0), rows.std(dim=0, correction=0).clamp(min=1e-12)
    truth = np.repeat([1, 0], [len(inside), len(outside)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # scikit-learn announces new defaults that do not matter here
        model = LogisticRegressionCV().fit(((rows - mean) / spread).numpy(), truth)
    weights = torch.from_numpy(model.coef_[0]) / spread
    return weights, torch.tensor(model.intercept_[0]) - weights @ mean
