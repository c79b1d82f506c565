"""``select_p``: DICE's sparsity for a network, from ID data and noise, as in the paper."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from oodles.detectors import LogitDetector, fit_together
from oodles.errors import ArgumentError
from oodles.features import Features
from oodles.metrics import Row, evaluate
from oodles.paper.sweep import PAPER_GRID
from oodles.selection.detector import HOPELESS

FINE_GRID = (0.01, 0.02, 0.05, *(round(0.1 * step, 1) for step in range(1, 10)), 0.95, 0.99)
"""The paper's grid with values between and below; for some networks p as small as 0.05 is best."""


@dataclass(frozen=True)
class Selection:
    """The chosen ``p``, the detector with it (not fitted), and the whole curve: one row for each p tried.

    The choice is by AUROC of held-out ID rows against the outliers. Values within one standard error of the
    best count as ties, and ties go to the larger p.
    """

    p: float
    detector: LogitDetector
    best: float
    standard_error: float
    curve: dict[float, Row]

    @property
    def verdict(self) -> str:
        """The choice in a sentence; says so if no p works."""
        best = self.curve[self.best].auroc
        if best < HOPELESS:
            return (
                f"nothing works here: no p separates held-out ID rows from the outliers (best AUROC {best:.1%}); are "
                "the features those of a trained network?"
            )
        close = f"within {100 * self.standard_error:.2f} points of the best AUROC (p={self.best:g})"
        return f"{self.detector.spec}: {close}"


def select_p(
    detector: LogitDetector,
    *,
    train: Features,
    held_out: Features,
    outliers: Features,
    grid: Sequence[float] = PAPER_GRID,
) -> Selection:
    """Choose the sparsity of ``detector`` (:class:`DICE`, or any with a sparsifier) for this network.

    ``train`` ranks the weights; ``held_out`` ID rows are compared with ``outliers``, features of synthetic outliers.
    The paper's are noise images, see :func:`oodles.selection.noise_features`.

    >>> from oodles.detectors import DICE
    >>> from oodles.selection import mixed_features
    >>> from oodles.testing import example_features
    >>> train, held_out = example_features(rows=600).split(0.5)
    >>> choice = select_p(DICE(), train=train, held_out=held_out, outliers=mixed_features(held_out)["shuffled"])
    >>> sorted(choice.curve), choice.detector.spec == f'dice({choice.p})+energy'
    ([0.1, 0.3, 0.5, 0.7, 0.9, 0.99], True)
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


def auroc_standard_error(auroc: float, n_id: int, n_ood: int) -> float:
    """Hanley and McNeil's standard error of an AUROC, from the counts alone.

    >>> round(auroc_standard_error(0.9, 100, 100), 4)
    0.0226
    """
    q1, q2 = auroc / (2 - auroc), 2 * auroc**2 / (1 + auroc)
    variance = auroc * (1 - auroc) + (n_id - 1) * (q1 - auroc**2) + (n_ood - 1) * (q2 - auroc**2)
    return math.sqrt(max(variance, 0.0) / (n_id * n_ood))
