"""The numbers of the DICE paper's tables, in percent, as its authors published them (Sun & Li, ECCV 2022)."""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

METHODS = {
    "msp": "MSP",
    "energy": "Energy",
    "react(90)+energy": "ReAct",
    "react(threshold=1.0)+energy": "ReAct",
    "dice(0.9)+energy": "DICE",
    "unit_dropout(0.9)+energy": "Unit-Dropout",
    "weight_dropout(0.9)+energy": "Weight-Dropout",
    "unit_pruning(0.9)+energy": "Unit-Pruning",
    "weight_pruning(0.9)+energy": "Weight-Pruning",
}
"""Our detectors that have a row of their own in the paper's CIFAR tables."""


@dataclass(frozen=True)
class Published:
    """One cell of a table: FPR95 and AUROC in percent, with standard deviations where there are any."""

    fpr95: float
    auroc: float
    fpr95_std: float | None = None
    auroc_std: float | None = None


@cache
def tables() -> dict[str, Any]:
    """Every published table by name."""
    content: dict[str, Any] = json.loads((files("oodles.bench") / "published.json").read_text())
    return content


def published(id_set: str, detector: str, ood_set: str) -> Published | None:
    """The paper's cell for a detector's spec on one pair of sets, or None where the paper has none.

    >>> published("cifar10", "msp", "svhn").fpr95
    47.24
    """
    cell = tables().get(id_set, {}).get(METHODS.get(detector, ""), {}).get(ood_set)
    if not isinstance(cell, dict) or "fpr95" not in cell:
        return None
    (fpr95, fpr95_std), (auroc, auroc_std) = _value(cell["fpr95"]), _value(cell["auroc"])
    return Published(fpr95, auroc, fpr95_std, auroc_std)


def _value(entry: Any) -> tuple[float, float | None]:
    return (entry["mean"], entry["std"]) if isinstance(entry, dict) else (float(entry), None)
