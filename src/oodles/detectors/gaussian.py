"""Distances to class centres under one shared covariance: Mahalanobis, on embeddings or over several layers."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from oodles.detectors.base import Detector, Statistics, adopt_buffers
from oodles.detectors.gradient import check_step
from oodles.detectors.statistics import ClassMoments, Statistic
from oodles.errors import ArgumentError, DataError, ShapeError
from oodles.features import LAYER, Features, Head, fingerprint
from oodles.metrics import evaluate
from oodles.perturbation import Step
from oodles.store import Columns

FLOOR = 1e-10
"""Directions whose variance within classes is below this share of the largest are left out (a pseudo-inverse)."""
STEP_GRID = (0.0, 0.0005, 0.001, 0.0014, 0.002, 0.005, 0.01)
"""The input steps of the method's authors."""
TUNING_ROWS = 500


class TiedGaussian(nn.Module):
    """Class centres after whitening by the covariance all classes share; scoring is one product with each.

    With ``A`` the whitening, ``g = A (h - mean)`` and ``u_c = A (mu_c - mean)``, the squared distance to the
    nearest class is ``|g|^2 + min_c (|u_c|^2 - 2 g . u_c)``.
    """

    mean_: Tensor
    whitening_: Tensor
    centres_: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("mean_", "whitening_", "centres_"):
            self.register_buffer(name, None)

    def learn(self, moments: ClassMoments, name: str) -> list[str]:
        """Whiten; gives what a user should know: classes without rows, directions left out."""
        variances, directions = torch.linalg.eigh(moments.within())
        # rows that are all alike vary by their rounding alone
        rounding = (torch.finfo(torch.float64).eps * moments.means.abs().max()).square() * 16
        kept = variances > torch.maximum(FLOOR * variances[-1], rounding.clamp(min=torch.finfo(torch.float64).tiny))
        if not kept.any():
            raise DataError(
                f"{name} does not vary within any class, so distances have no measure; give more rows, or take trio"
            )
        whitening = directions[:, kept] / variances[kept].sqrt()
        present = moments.counts > 0
        mean = moments.means[present].mul(moments.counts[present, None]).sum(dim=0) / moments.counts.sum()
        self.mean_ = mean.float()
        self.whitening_ = whitening.float()
        self.centres_ = ((moments.means[present] - mean) @ whitening).float()
        return _remarks(name, moments, int(kept.sum()))

    def forward(self, rows: Tensor) -> Tensor:
        """The squared distance to the nearest class centre, ``(n,)``."""
        return self.nearest(self.whiten(rows))

    def whiten(self, rows: Tensor) -> Tensor:
        """Coordinates in which the classes' covariance is the identity."""
        if rows.shape[1] != self.mean_.shape[0]:
            raise ShapeError(f"a layer of width {rows.shape[1]} where one of {self.mean_.shape[0]} was learned")
        return (rows - self.mean_) @ self.whitening_

    def nearest(self, g: Tensor) -> Tensor:
        """The squared distance of whitened rows to the nearest centre, subtracted before it is squared."""
        place = self.beside(g).argmin(dim=1)
        return (g - self.centres_[place]).square().sum(dim=1)

    def beside(self, g: Tensor) -> Tensor:
        """Squared distances to every centre less what they share, ``|u_c|^2 - 2 g . u_c``: ``(n, C)``."""
        return self.centres_.square().sum(dim=1) - 2 * (g @ self.centres_.T)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: object) -> None:
        adopt_buffers(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *rest)


class Mahalanobis(Detector):
    """Minus the squared Mahalanobis distance to the nearest class centre (Lee et al., NeurIPS 2018).

    Class means and one covariance (divided by the number of rows) of the embeddings, learned from labels.
    Directions in which classes do not vary are left out, so few rows, dead units and small classes work; classes
    without a row are none. :attr:`remarks` says what was left out.

    With ``layers``, the paper's full method: the same distance in each of these inner layers, averaged over
    space, and in the embedding, joined by a logistic regression that tells 500 held-out ID images from
    adversarial copies of them (:func:`oodles.tune`; needs scikit-learn). With ``epsilon`` above 0 each layer's
    distance is taken after an input step that lowers it; with None the step is the one of the authors' grid with
    the lowest FPR95 on 500 further images against their adversarial copies. The DICE paper's steps: 0 on CIFAR, 0.001
    on ImageNet.
    """

    learns_against = True
    tunes = ("choice_", "coefficients_", "intercept_")
    choice_: Tensor | None
    coefficients_: Tensor | None
    intercept_: Tensor | None

    def __init__(self, *, layers: Sequence[str] = (), epsilon: float | None = 0.0, std: tuple[float, ...] = ()) -> None:
        super().__init__()
        if isinstance(layers, str):
            raise ArgumentError(f"layers={layers!r} must be a list of names")
        self.epsilon, self.std = check_step(epsilon, std)
        self.layers = tuple(layers)
        self.columns = (*(LAYER + name for name in self.layers), "embedding")
        self.learns_from = (*self.columns, "labels")
        self.gaussians = nn.ModuleList(TiedGaussian() for _ in self.columns)
        for name in self.tunes:
            self.register_buffer(name, None)

    # Learning ---------------------------------------------------------------------------------

    def begin(self) -> dict[str, Statistic]:
        """Class moments of every layer."""
        return {column: ClassMoments() for column in self.columns}

    def observe(self, batch: Features, statistics: Statistics) -> None:
        """Add one batch."""
        for column, moments in statistics.items():
            moments.add(batch.column(column), batch.labels, batch.classes)

    def learn(self, statistics: Statistics, head: Head | None) -> None:
        """Whiten each layer; what was tuned before is forgotten."""
        self.choice_ = self.coefficients_ = self.intercept_ = None
        remarks = []
        for column, gaussian in zip(self.columns, self._gaussians(), strict=True):
            remarks += gaussian.learn(statistics[column], column)
        self.remarks = tuple(dict.fromkeys(remarks))

    # The network asked again ------------------------------------------------------------------------

    @property
    def chosen(self) -> float | None:
        """The size of the step, given or chosen; None while it is open."""
        return self.epsilon if self.choice_ is None else STEP_GRID[int(self.choice_)]

    @property
    def tuned(self) -> bool:
        """Whether the size of the step is known, and how to join the layers."""
        return self.chosen is not None and (
            not self.layers or not (self.coefficients_ is None or self.intercept_ is None)
        )

    @property
    def scores_from(self) -> tuple[str, ...]:  # type: ignore[override]
        """Every layer's column, after its step where there is one."""
        return self._columns_at(self.chosen or 0.0)

    def steps(self) -> tuple[Step, ...]:
        """A step for each layer, against the distance in that layer."""
        return self._steps_at([self.chosen]) if self.chosen and self.shape_ is not None else ()

    def trials(self) -> tuple[Step, ...]:
        """Every step of the grid, or the one that was given."""
        return self._steps_at(STEP_GRID if self.epsilon is None else [self.epsilon])

    def tune(self, held_out: Features, adversarial: Features | None = None) -> None:
        """Join the layers by logistic regression, and choose the step where it is open.

        The first half of the rows, at most 500, trains the regression; as many further ones choose the step.
        """
        if adversarial is None:
            raise ArgumentError(f"{self} is tuned on held-out rows and adversarial copies of them; both are needed")
        half = min(TUNING_ROWS, len(held_out) // 2)
        if half < 5:
            raise DataError(f"{self} is tuned on 10 rows or more, got {len(held_out)}")
        first, second = slice(0, half), slice(half, 2 * half)
        trials = {}
        for place, epsilon in enumerate(STEP_GRID if self.epsilon is None else [self.epsilon]):
            closeness = [self._closeness(rows, epsilon) for rows in (held_out, adversarial)]
            joined = join_layers(*(part[first] for part in closeness)) if self.layers else None
            values = [part[second] @ joined[0] if joined is not None else part[second, 0] for part in closeness]
            trials[place] = evaluate(*values).fpr95, joined
        best = min(trials, key=lambda place: trials[place][0])
        joined = trials[best][1]
        if joined is not None:
            self.coefficients_, self.intercept_ = (part.to(self._gaussians()[0].mean_) for part in joined)
        if self.epsilon is None:
            self.choice_ = torch.tensor(best)

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """Minus the distance, or the layers' distances joined."""
        # after steps every layer is a column of its own; without, the embedding is the last
        rows = others if len(others) == len(self.gaussians) else (*others, embedding)
        closeness: list[Tensor] = [-gaussian(part) for gaussian, part in zip(self.gaussians, rows, strict=True)]
        if self.coefficients_ is None or self.intercept_ is None:
            return closeness[-1]
        return torch.stack(closeness, dim=1) @ self.coefficients_ + self.intercept_

    def _closeness(self, rows: Features, epsilon: float) -> Tensor:
        """Minus the distance in each layer, ``(n, layers)``, in float64."""
        pairs = zip(self.gaussians, self._columns_at(epsilon), strict=True)
        with torch.no_grad():
            return -torch.stack([gaussian(rows.column(column).float()) for gaussian, column in pairs], dim=1).double()

    def _columns_at(self, epsilon: float) -> tuple[str, ...]:
        return tuple(LAYER + self._name(column, epsilon) for column in self.columns) if epsilon else self.columns

    def _name(self, column: str, size: float) -> str:
        return f"mahalanobis {column} {size!r}" + (f" std={self.std}" if self.std else "")

    def _steps_at(self, sizes: Sequence[float]) -> tuple[Step, ...]:
        distances = [Distance(*pair) for pair in zip(self.columns, self._gaussians(), strict=True)]
        return tuple(
            Step(
                self._name(distance.column, size),
                distance,
                size,
                keep=distance.column,
                std=self.std,
                identity=distance.digest(),
            )
            for size in sizes
            if size
            for distance in distances
        )

    def _gaussians(self) -> list[TiedGaussian]:
        return [gaussian for gaussian in self.gaussians if isinstance(gaussian, TiedGaussian)]


@dataclass(frozen=True, eq=False)
class Distance:
    """The squared distance to the nearest class in one layer: what Mahalanobis' input step lowers."""

    column: str
    gaussian: TiedGaussian

    def __call__(self, columns: Columns) -> Tensor:
        """One number a row."""
        distance: Tensor = self.gaussian(columns[self.column].to(self.gaussian.mean_))
        return distance

    def digest(self) -> str:
        """Tells this fit from any other: what a step gives depends on what was learned."""
        return fingerprint(self.gaussian.state_dict())[:12]


def join_layers(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and offset of the logistic regression that tells ``inside`` from ``outside`` rows, both ``(n, layers)``.

    scikit-learn's cross-validated one at its defaults, on standardised columns: their sizes differ a thousandfold.
    """
    try:
        from sklearn.linear_model import LogisticRegressionCV
    except ImportError:
        raise ArgumentError("joining layers is scikit-learn's work; pip install 'oodles[layers]'") from None
    rows = torch.cat([inside, outside])
    mean, spread = rows.mean(dim=0), rows.std(dim=0, correction=0).clamp(min=1e-12)
    truth = np.repeat([1, 0], [len(inside), len(outside)])
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", FutureWarning
        )  # scikit-learn announces other defaults, which change nothing here
        model = LogisticRegressionCV().fit(((rows - mean) / spread).numpy(), truth)
    weights = torch.from_numpy(model.coef_[0]) / spread
    return weights, torch.tensor(model.intercept_[0]) - weights @ mean


def _remarks(name: str, moments: ClassMoments, rank: int) -> list[str]:
    """What a user should know of a fit: empty classes, classes of one row, directions left out."""
    remarks = []
    empty, single = (int((moments.counts == count).sum()) for count in (0, 1))
    if empty:
        remarks.append(f"{empty} of {len(moments.counts)} classes have no training row and are left out")
    if single:
        remarks.append(
            f"{single} of {len(moments.counts)} classes have one training row, which tells nothing of spread"
        )
    width = moments.means.shape[1]
    if rank < width:
        remarks.append(f"{name}: {width - rank} of {width} directions do not vary within classes and are left out")
    return remarks
