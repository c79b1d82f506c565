"""Metrics by trying every threshold and comparing every pair; scores at or above a threshold are ID.

Scores are Python numbers, which are compared exactly whatever their types.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

Numbers = Sequence[Any]


def numbers(scores: Any) -> list[Any]:
    return np.asarray(scores).tolist()


def thresholds(ids: Numbers, oods: Numbers) -> list[Any]:
    """Every threshold that makes a difference, from the strictest to the most lenient."""
    return sorted({*ids, *oods}, reverse=True)


def accepted(scores: Numbers, threshold: Any) -> int:
    return sum(1 for score in scores if score >= threshold)


def counts(ids: Numbers, oods: Numbers) -> Iterator[tuple[int, int]]:
    for threshold in thresholds(ids, oods):
        yield accepted(ids, threshold), accepted(oods, threshold)


def auroc(ids: Numbers, oods: Numbers) -> float:
    wins = Fraction(0)
    for one in ids:
        for other in oods:
            if one > other:
                wins += 1
            elif one == other:
                wins += Fraction(1, 2)
    return float(wins / (len(ids) * len(oods)))


def fpr_at_tpr(ids: Numbers, oods: Numbers, tpr: float = 0.95, positive: str = "id") -> float:
    """The rate is taken as a decimal, so 0.95 is exactly 19/20."""
    if positive == "ood":
        return fpr_at_tpr([-score for score in oods], [-score for score in ids], tpr)
    for true, false in counts(ids, oods):
        if true >= Fraction(str(tpr)) * len(ids):
            return float(Fraction(false, len(oods)))
    raise AssertionError("the most lenient threshold accepts everything")


def aupr(ids: Numbers, oods: Numbers, positive: str = "id") -> float:
    """Average precision: precision at each threshold, weighted by the recall it adds."""
    if positive == "ood":
        return aupr([-score for score in oods], [-score for score in ids])
    area, before = Fraction(0), 0
    for true, false in counts(ids, oods):
        area += Fraction(true - before, len(ids)) * Fraction(true, true + false)
        before = true
    return float(area)


def detection_error(ids: Numbers, oods: Numbers) -> float:
    errors = [Fraction(1, 2)]  # accepting nothing
    for true, false in counts(ids, oods):
        errors.append((1 - Fraction(true, len(ids)) + Fraction(false, len(oods))) / 2)
    return float(min(errors))


def everything(ids: Any, oods: Any) -> dict[str, float]:
    """All metrics of a row, by field name."""
    ids, oods = numbers(ids), numbers(oods)
    return {
        "fpr95": fpr_at_tpr(ids, oods),
        "auroc": auroc(ids, oods),
        "aupr_id": aupr(ids, oods),
        "aupr_ood": aupr(ids, oods, "ood"),
        "detection_error": detection_error(ids, oods),
        "fpr95_ood": fpr_at_tpr(ids, oods, positive="ood"),
    }


def bootstrap(ids: Any, oods: Any, resamples: int, seed: int) -> dict[str, tuple[float, float]]:
    """Percentile intervals: draw rows, compute the metric of each resample."""
    generator = np.random.default_rng(seed)
    ids, oods = np.asarray(ids), np.asarray(oods)
    drawn: dict[str, list[float]] = {"fpr95": [], "auroc": []}
    for _ in range(resamples):
        drawn_ids = generator.choice(ids, size=len(ids)).tolist()
        drawn_oods = generator.choice(oods, size=len(oods)).tolist()
        drawn["fpr95"].append(fpr_at_tpr(drawn_ids, drawn_oods))
        drawn["auroc"].append(auroc(drawn_ids, drawn_oods))
    return {
        name: (float(np.quantile(values, 0.025)), float(np.quantile(values, 0.975))) for name, values in drawn.items()
    }
