"""The sweep over p: one pass over the training features, then one matrix product per value of p and set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oodles.detectors.base import fit_together
from oodles.detectors.sparsifiers import DICE
from oodles.errors import DataError
from oodles.features import Features
from oodles.functional import energy
from oodles.metrics import Row, evaluate

PAPER_GRID = (0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
SWEEP_GRID = (0.0, *PAPER_GRID)


@dataclass(frozen=True)
class SweepPoint:
    """DICE at one sparsity: one row per OOD set, and the accuracy of the sparse layer if there are labels.

    For each OOD set, ``spread`` is the standard deviation of its energies divided by the mean ID energy, and ``gap``
    the mean largest logit on ID data minus that on the set.
    """

    p: float
    rows: list[Row]
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
) -> list[SweepPoint]:
    """Evaluate DICE with energy at every sparsity in ``grid`` (tables 5 and 6, figure 3)."""
    if not ood:
        raise DataError("there is no OOD set to sweep over; give at least one")
    detectors = [DICE(p=p) for p in grid]
    fit_together(detectors, train)
    points = []
    for detector in detectors:
        id_energy, id_largest, accuracy = _outputs(detector, test)
        point = SweepPoint(detector.p, [], accuracy, {}, {})
        for name, features in ood.items():
            scores, largest, _ = _outputs(detector, features)
            row = evaluate(id_energy, scores, detector=detector.spec, id_set=id_set, ood_set=name, run=run)
            point.rows.append(row)
            point.spread[name] = float(scores.double().std(correction=0) / id_energy.double().mean())
            point.gap[name] = id_largest - largest
        points.append(point)
    return points


def _outputs(detector: DICE, features: Features) -> tuple[Tensor, float, float | None]:
    """Energies, mean largest logit and, if there are labels, accuracy of the sparse layer."""
    energies, largest, correct, labelled = [], 0.0, 0, False
    for batch in features.batches():
        embedding = batch.embedding if detector.dense else batch.embedding.to(detector.weight_)
        logits = detector.shaped_logits(embedding, batch.logits).cpu().float()
        energies.append(energy(logits))
        largest += float(logits.amax(dim=1).double().sum())
        if batch.labels is not None:
            labelled = True
            correct += int(logits.argmax(dim=1).eq(batch.labels.cpu()).sum())
    return torch.cat(energies), largest / len(features), correct / len(features) if labelled else None
