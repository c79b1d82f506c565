"""The tables of the DICE paper (Sun & Li, ECCV 2022): their numbers, in percent, and the detectors they compare."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from oodles.errors import ArgumentError

if TYPE_CHECKING:  # the names of tables do not need torch
    from oodles.detectors import Detector

AVERAGE = "average"

_CIFAR = {
    "msp": "MSP",
    "odin(epsilon=0.004, std=(0.2023, 0.1994, 0.201))": "ODIN",
    "mahalanobis(layers=('conv1', 'trans1', 'trans2'))": "Mahalanobis",
    "godin": "GODIN",
    "energy": "Energy",
    "react(90)+energy": "ReAct",
    "react(threshold=1.0)+energy": "ReAct",
    "dice(0.9)+energy": "DICE",
    "unit_dropout(0.9)+energy": "Unit-Dropout",
    "weight_dropout(0.9)+energy": "Weight-Dropout",
    "unit_pruning(0.9)+energy": "Unit-Pruning",
    "weight_pruning(0.9)+energy": "Weight-Pruning",
}
METHODS = {
    "cifar10": _CIFAR,
    "cifar100": _CIFAR,
    "imagenet": {
        "msp": "MSP",
        "odin(epsilon=0.0)": "ODIN",
        "mahalanobis(layers=('maxpool', 'layer1', 'layer2', 'layer3'), epsilon=0.001)": "Mahalanobis",
        "energy": "Energy",
        "react(threshold=1.0)+energy": "ReAct",
        "dice(0.7)+energy": "DICE",
        "react(threshold=1.0)+dice(0.1)+energy": "DICE + ReAct",
    },
}
"""For each ID set, the detectors in the paper's main table and their names there."""

SELECTIONS = {
    "bottom_k(0.9)+energy": "Bottom-k",
    "top_bottom_k(0.9)+energy": "(Top+Bottom)-k",
    "random_k(0.9)+energy": "Random-k",
}
SPARSIFICATIONS = {
    "weight_dropout(0.7)+energy": "Weight-Dropout",
    "unit_dropout(0.7)+energy": "Unit-Dropout",
    "weight_pruning(0.7)+energy": "Weight-Pruning",
    "unit_pruning(0.7)+energy": "Unit-Pruning",
}


@dataclass(frozen=True)
class Published:
    """One cell of a table: FPR95, and AUROC and standard deviations if the paper gives them; in percent."""

    fpr95: float
    auroc: float | None = None
    fpr95_std: float | None = None
    auroc_std: float | None = None


@cache
def tables() -> dict[str, Any]:
    """Every published table, by name."""
    content: dict[str, Any] = json.loads((files("oodles.paper") / "published.json").read_text())
    return content


def without_seed(spec: str) -> str:
    """A detector's spec without its seed, which is the same for all seeds.

    >>> without_seed("random_k(0.9, seed=3)+energy")
    'random_k(0.9)+energy'
    """
    return re.sub(r",? ?seed=\d+", "", spec)


def published(id_set: str, detector: str, ood_set: str) -> Published | None:
    """The paper's cell for a detector's spec on one pair of sets, or None if the paper has none.

    >>> published("cifar10", "msp", "svhn").fpr95
    47.24
    """
    spec = without_seed(detector)
    cell = tables().get(id_set, {}).get(METHODS.get(id_set, {}).get(spec, ""), {}).get(ood_set)
    if isinstance(cell, dict) and "fpr95" in cell:
        (fpr95, fpr95_std), (auroc, auroc_std) = _value(cell["fpr95"]), _value(cell["auroc"])
        return Published(fpr95, auroc, fpr95_std, auroc_std)
    if spec == "dice(0.9)+msp" and id_set == "cifar10":
        value = tables()["msp_with_dice_cifar10_fpr95"]["DICE+MSP"].get(ood_set)
        return None if value is None else Published(value)
    if ood_set == AVERAGE and spec in SELECTIONS:
        value = tables()["unit_selection_fpr95"][SELECTIONS[spec]].get(id_set)
        return None if value is None else Published(value)
    if ood_set == AVERAGE and spec in SPARSIFICATIONS and id_set == "imagenet":
        average = tables()["imagenet_sparsification_p0.7"][SPARSIFICATIONS[spec]][AVERAGE]
        return Published(average["fpr95"], average["auroc"])
    return None


def published_sets(id_set: str) -> set[str]:
    """The OOD sets that the paper's average is taken over."""
    return set(tables().get(id_set, {}).get("MSP", {})) - {AVERAGE}


def published_sweep(id_set: str, p: float) -> dict[str, float]:
    """Table 6: FPR95, AUROC and accuracy at one sparsity; empty if the paper has none."""
    cell: dict[str, float] = tables()["sparsity_sweep"].get(f"p={p:g}", {}).get(id_set, {})
    return cell


def published_gap(id_set: str, p: float) -> float | None:
    """Table 5: the difference of the mean largest logits, ID minus OOD; the paper gives it for CIFAR-100 only."""
    value: float | None = tables()["mean_gap_cifar100"].get(f"{p:g}") if id_set == "cifar100" else None
    return value


def _value(entry: Any) -> tuple[float, float | None]:
    return (entry["mean"], entry["std"]) if isinstance(entry, dict) else (float(entry), None)


# The detectors that each table compares --------------------------------------------------------------

SEEDS = range(5)

TABLES = {
    "main": "every detector on every set (tables 1, 2, 8, 9)",
    "sparsification": "other ways to sparsify the same layer (table 3, lower halves of 8 and 9)",
    "selection": "which contributions to keep (table 4)",
    "sweep": "FPR95, AUROC, accuracy, spread and mean gap at each sparsity p (tables 5 and 6, figure 3)",
    "msp": "DICE with the softmax score (table 7)",
}


def detectors_of(table: str, main: Sequence["str | Detector"], p: float) -> "list[str | Detector]":
    """Return the detectors of a table, at sparsity ``p``; random ones with each of five seeds."""
    random = ("unit_dropout", "weight_dropout", "random_k")
    units, weights, contributions = ([f"{name}({p}, seed={seed})" for seed in SEEDS] for name in random)
    match table:
        case "main":
            return list(main)
        case "sparsification":
            return [*units, *weights, f"unit_pruning({p})", f"weight_pruning({p})", f"dice({p})"]
        case "selection":
            return [f"bottom_k({p})", f"top_bottom_k({p})", *contributions, f"dice({p})"]
        case "msp":
            return ["msp", f"dice({p})+msp"]
        case "sweep":
            return []
    raise ArgumentError(f"table {table!r} must be one of {', '.join(TABLES)}")
