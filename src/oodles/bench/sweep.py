"""The sweep over p: contributions are ranked once, then each value costs one matrix product a set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from oodles.detectors.statistics import Mean
from oodles.errors import ArgumentError, DataError
from oodles.features import Features, Head
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
    heads = zip(grid, _heads(grid, train), strict=True)
    return [_point(p, head, test, ood, id_set, run, bootstrap) for p, head in heads]


def _heads(grid: Sequence[float], train: Features) -> list[Head | None]:
    """The sparse head for each p; None stands for the dense layer, whose logits are there already."""
    wrong = next((p for p in grid if not 0 <= p < 1), None)
    if wrong is not None:
        raise ArgumentError(f"p={wrong} must lie in [0, 1); p is a fraction: 0.9, not 90")
    if train.head is None:
        raise DataError(f"{train} has no head, so it has no weights to drop")
    head = train.head.to("cpu", torch.float32)
    mean = Mean()
    for batch in train.batches():
        mean.add(batch.embedding)
    values = contribution(train.head.weight.cpu(), mean.value())
    thresholds = np.quantile(values.numpy(), grid)
    return [
        None if p == 0 else Head(head.weight * (values > float(threshold)), head.bias)
        for p, threshold in zip(grid, thresholds, strict=True)
    ]


def _point(
    p: float, head: Head | None, test: Features, ood: Mapping[str, Features], id_set: str, run: str, bootstrap: int
) -> SweepPoint:
    id_energy, id_largest, accuracy = _outputs(test, head)
    rows, spread, gap = [], {}, {}
    for name, features in ood.items():
        scores, largest, _ = _outputs(features, head)
        names = Names(detector=f"dice({p})+energy", id_set=id_set, ood_set=name, run=run)
        rows.append(evaluate(id_energy, scores, **names, bootstrap=bootstrap))
        spread[name] = float(scores.double().std(correction=0) / id_energy.double().mean())
        gap[name] = id_largest - largest
    return SweepPoint(p, tuple(rows), accuracy, spread, gap)


def _outputs(features: Features, head: Head | None) -> tuple[Tensor, float, float | None]:
    """Energies, the mean largest logit and, where labels are known, the accuracy under this head."""
    energies, largest, correct, labelled = [], 0.0, 0, False
    for batch in features.batches():
        logits = (batch.logits if head is None else head(batch.embedding.cpu())).cpu().float()
        energies.append(energy(logits))
        largest += float(logits.amax(dim=1).double().sum())
        if batch.labels is not None:
            labelled = True
            correct += int(logits.argmax(dim=1).eq(batch.labels.cpu()).sum())
    return torch.cat(energies), largest / len(features), correct / len(features) if labelled else None
