"""The detectors that each of the paper's tables compares."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from oodles.errors import ArgumentError

if TYPE_CHECKING:  # the names of tables do not need torch
    from oodles.detectors import Detector

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
