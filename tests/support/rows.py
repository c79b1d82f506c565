"""Rows of a benchmark, and what a table shows of them."""

from typing import Any

from oodles.bench.tables import Table
from oodles.metrics import Row


def row(detector: str, ood_set: str, fpr95: float = 0.5, auroc: float = 0.8, **values: Any) -> Row:
    usual = {"id_set": "id", "n_id": 100, "n_ood": 50, "aupr_id": 0.7, "aupr_ood": 0.6, "detection_error": 0.2}
    return Row(
        detector=detector, ood_set=ood_set, **usual | {"fpr95": fpr95, "auroc": auroc, "fpr95_ood": fpr95} | values
    )


def names(table: Table) -> list[str]:
    return [name for name, _ in table.groups()]


def cell(table: Table, label: str, column: str) -> tuple[tuple[str, ...], tuple[bool, ...], list[str]]:
    """What is shown of a detector in a column: the numbers, which of them are the best, and notes."""
    numbers, notes = dict(table.lines())[label][names(table).index(column)]
    return tuple(text for text, _ in numbers), tuple(best for _, best in numbers), notes
