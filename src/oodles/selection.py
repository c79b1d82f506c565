"""``select_p``: choosing DICE's sparsity for a network from ID data and noise, as the paper does."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from oodles.bench.sweep import PAPER_GRID
from oodles.detectors import LogitDetector, fit_together
from oodles.errors import ArgumentError, DataError
from oodles.extraction import extract, split_batch
from oodles.features import Features
from oodles.metrics import Row, evaluate

FINE_GRID = (0.01, 0.02, 0.05, *(round(0.1 * step, 1) for step in range(1, 10)), 0.95, 0.99)
"""The paper's grid and values between and below; some networks want p as small as 0.05."""


@dataclass(frozen=True)
class Selection:
    """The chosen ``p``, the detector with it (not fitted), and the whole curve: a row for each p tried.

    The choice is by AUROC of held-out ID rows against the outliers. Values within one standard error of the
    best are ties, and ties go to the larger p.
    """

    p: float
    detector: LogitDetector
    best: float
    standard_error: float
    curve: dict[float, Row]


class NoiseImages:
    """Batches of images whose every pixel is N(0, 1) after normalisation; the same each time they are read."""

    def __init__(self, shape: Sequence[int], count: int, *, seed: int = 0, batch: int = 250) -> None:
        if count < 1 or len(shape) < 1:
            raise ArgumentError(f"{count} noise images of shape {tuple(shape)} are none; ask for at least one")
        self.shape, self.count, self.seed, self.batch = tuple(shape), count, seed, batch

    def __len__(self) -> int:
        return -(-self.count // self.batch)

    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        for start in range(0, self.count, self.batch):
            yield torch.randn(min(self.batch, self.count - start), *self.shape, generator=generator)


def select_p(
    detector: LogitDetector,
    *,
    train: Features,
    held_out: Features,
    outliers: Features,
    grid: Sequence[float] = PAPER_GRID,
) -> Selection:
    """Choose the sparsity of ``detector`` (:class:`DICE`, or any with a sparsifier) for this network.

    ``train`` ranks the weights, ``held_out`` ID rows are told from ``outliers``: features of stand-ins for
    what the network was never taught. The paper's are noise images, see :func:`noise_features`.
    """
    if not grid:
        raise ArgumentError("the grid is empty; give at least one p")
    candidates = {p: detector.with_p(p) for p in sorted(set(grid))}
    fit_together(list(candidates.values()), train)
    curve = {
        p: evaluate(candidate.score(held_out), candidate.score(outliers), detector=candidate.spec, ood_set="outliers")
        for p, candidate in candidates.items()
    }
    best = max(curve, key=lambda p: (curve[p].auroc, p))
    error = auroc_standard_error(curve[best].auroc, len(held_out), len(outliers))
    chosen = max(p for p, row in curve.items() if row.auroc >= curve[best].auroc - error)
    return Selection(chosen, detector.with_p(chosen), best, error, curve)


def noise_features(model: nn.Module, images: Any, *, count: int = 1000, seed: int = 0, **options: Any) -> Features:
    """Features of ``count`` noise images of the shape of ``images``: a batch, or a loader to take one from."""
    first = images if isinstance(images, Tensor) else next(iter(images), None)
    if first is None:
        raise DataError("the loader gave no batch to take the images' shape from")
    shape = split_batch(first)[0].shape[1:]
    return extract(model, NoiseImages(shape, count, seed=seed), labels=False, **options)


def auroc_standard_error(auroc: float, n_id: int, n_ood: int) -> float:
    """Hanley and McNeil's standard error of an AUROC, from the counts alone.

    >>> round(auroc_standard_error(0.9, 100, 100), 4)
    0.0226
    """
    q1, q2 = auroc / (2 - auroc), 2 * auroc**2 / (1 + auroc)
    variance = auroc * (1 - auroc) + (n_id - 1) * (q1 - auroc**2) + (n_ood - 1) * (q2 - auroc**2)
    return math.sqrt(max(variance, 0.0) / (n_id * n_ood))
