"""Views of rows: a table for the terminal, JSON for machines."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from oodles.bench.paper import published
from oodles.files import write_bytes
from oodles.metrics import Row

AVERAGE = "average"

Cells = dict[tuple[str, str], tuple[float, float]]


def pivot(rows: Sequence[Row]) -> tuple[list[str], list[str], Cells]:
    """Detectors and OOD sets in order of appearance, and FPR95 and AUROC in percent of each pair.

    The mean over the sets is under the set name ``average``.
    """
    detectors = list(dict.fromkeys(row.detector for row in rows))
    sets = list(dict.fromkeys(row.ood_set for row in rows))
    cells = {(row.detector, row.ood_set): (100 * row.fpr95, 100 * row.auroc) for row in rows}
    for detector in detectors:
        mine = [cells[detector, name] for name in sets if (detector, name) in cells]
        cells[detector, AVERAGE] = fmean(cell[0] for cell in mine), fmean(cell[1] for cell in mine)
    return detectors, sets, cells


def print_table(console: Console, rows: Sequence[Row], *, title: str = "", paper: str | None = None) -> None:
    """FPR95 and AUROC of each detector on each OOD set and on average; the best of each column is bold.

    With ``paper`` (the name of an ID set of the paper) its figures stand beside ours where it has them.
    What is too wide for the terminal is printed in several parts, so that no number is ever cut off.
    """
    detectors, sets, cells = pivot(rows)
    columns = [*sets, AVERAGE]
    while columns:
        views = [_table(detectors, columns[:count], cells, title, paper) for count in range(len(columns), 0, -1)]
        view = next((view for view in views if _width(console, view) <= console.width), views[-1])
        console.print(view)
        columns, title = columns[len(view.columns) - 1 :], ""
    caption = "FPR95 / AUROC in percent: lower / higher is better, the best in bold"
    console.print(caption + (", the paper's own figures in brackets" if paper else ""), style="italic")


def _width(console: Console, view: Table) -> int:
    return Measurement.get(console, console.options.update(max_width=1000), view).maximum


def _table(detectors: Sequence[str], columns: Sequence[str], cells: Cells, title: str, paper: str | None) -> Table:
    view = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    view.add_column("detector", no_wrap=True)
    for name in columns:
        view.add_column(name, justify="right", no_wrap=True)
    best = {
        name: (
            min(f"{cells[detector, name][0]:5.1f}" for detector in detectors).strip(),
            max(f"{cells[detector, name][1]:5.1f}" for detector in detectors).strip(),
        )
        for name in columns
    }
    for detector in detectors:
        shown = [_cell(cells[detector, name], best[name]) + _cited(paper, detector, name) for name in columns]
        view.add_row(detector.removesuffix("+energy"), *shown)
    return view


def write_json(rows: Sequence[Row], path: Path) -> None:
    """All rows as a JSON list."""
    write_bytes(path, (json.dumps([row.as_dict() for row in rows], indent=1) + "\n").encode())


def _cell(values: tuple[float, float], best: tuple[str, str]) -> str:
    texts = [f"{value:.1f}" for value in values]
    marked = [f"[bold]{text}[/bold]" if text == winner else text for text, winner in zip(texts, best, strict=True)]
    return "/".join(marked)


def _cited(id_set: str | None, detector: str, ood_set: str) -> str:
    cell = None if id_set is None or ood_set == AVERAGE else published(id_set, detector, ood_set)
    return f"\n[dim]({cell.fpr95:.1f}/{cell.auroc:.1f})[/dim]" if cell else ""
