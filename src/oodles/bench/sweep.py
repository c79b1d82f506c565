"""The sweep over p: contributions are ranked once, then each value costs one matrix product a set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from oodles.detectors.statistics import Mean
from oodles.errors import ArgumentError, DataError
from oodles.features import Features
from oodles.functional import contribution, energy
from oodles.metrics import Names, Row, evaluate

PAPER_GRID = (0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
SWEEP_GRID = (0.0, *PAPER_GRID)


@dataclass(frozen=True)
class SweepPoint:
    """DICE at one sparsity: a row a set, the sparse layer's accuracy, and how its outputs are spread.

    ``spread`` is the standard deviation of OOD energies over the mean ID energy, ``gap`` the mean over ID
    of the largest logit minus the mean over OOD; both by set.
    """

    p: float
    rows: tuple[Row, ...]
    accuracy: float | None
    spread: dict[str, float]
    gap: dict[str, float]


def sweep(
    grid: Sequence[float],
    *,
    train: Features,
    test: Features,
    ood: Mapping[str, Features],
    id_set: str = "id",
    run: str = "",
    bootstrap: int = 0,
) -> list[SweepPoint]:
    """DICE with energy at every sparsity of ``grid`` (tables 5 and 6, figure 3)."""
    if not ood:
        raise DataError("there is no OOD set to sweep over; give at least one")
    return [
        _point(p, weight, test, ood, id_set, run, bootstrap)
        for p, weight in zip(grid, _weights(grid, train), strict=True)
    ]


def _weights(grid: Sequence[float], train: Features) -> list[Tensor | None]:
    """The masked weights for each p; None stands for the dense layer."""
    wrong = next((p for p in grid if not 0 <= p < 1), None)
    if wrong is not None:
        raise ArgumentError(f"p={wrong} must lie in [0, 1); p is a fraction: 0.9, not 90")
    head = train.head
    if head is None:
        raise DataError(f"{train} has no head, so it has no weights to drop")
    mean = Mean()
    for batch in train.batches():
        mean.add(batch.embedding)
    values = contribution(head.weight, mean.value())
    thresholds = np.quantile(values.numpy(), grid)
    return [None if p == 0 else head.weight * (values > float(t)) for p, t in zip(grid, thresholds, strict=True)]


def _point(
    p: float, weight: Tensor | None, test: Features, ood: Mapping[str, Features], id_set: str, run: str, bootstrap: int
) -> SweepPoint:
    id_energy, id_largest, accuracy = _outputs(test, weight)
    rows, spread, gap = [], {}, {}
    for name, features in ood.items():
        scores, largest, _ = _outputs(features, weight)
        names = Names(detector=f"dice({p})+energy", id_set=id_set, ood_set=name, run=run)
        rows.append(evaluate(id_energy, scores, **names, bootstrap=bootstrap))
        spread[name] = float(scores.double().std(correction=0) / id_energy.double().mean())
        gap[name] = id_largest - largest
    return SweepPoint(p, tuple(rows), accuracy, spread, gap)


def _outputs(features: Features, weight: Tensor | None) -> tuple[Tensor, float, float | None]:
    """Energies, the mean largest logit and, where labels are known, the accuracy under these weights."""
    energies, largest, correct = [], 0.0, 0
    labels = features.labels
    for batch in features.batches():
        bias = None if batch.head is None else batch.head.bias
        logits = batch.logits.float() if weight is None else F.linear(batch.embedding.float(), weight, bias)
        energies.append(energy(logits))
        largest += float(logits.amax(dim=1).double().sum())
        if batch.labels is not None:
            correct += int(logits.argmax(dim=1).eq(batch.labels).sum())
    accuracy = None if labels is None else correct / len(features)
    return torch.cat(energies), largest / len(features), accuracy
