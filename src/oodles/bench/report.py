"""Views of rows: a table for the terminal, JSON for machines."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from rich.table import Table

from oodles.bench.paper import published
from oodles.files import write_bytes
from oodles.metrics import Row

AVERAGE = "average"


def pivot(rows: Sequence[Row]) -> tuple[list[str], list[str], dict[tuple[str, str], tuple[float, float]]]:
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


def table(rows: Sequence[Row], *, title: str = "", paper: str | None = None) -> Table:
    """FPR95 and AUROC of each detector on each OOD set and on average; the best of each column is bold.

    With ``paper`` (the name of an ID set of the paper) its figures stand beside ours where it has them.
    """
    detectors, sets, cells = pivot(rows)
    columns = [*sets, AVERAGE]
    best = {
        name: (
            min(round(cells[detector, name][0], 1) for detector in detectors),
            max(round(cells[detector, name][1], 1) for detector in detectors),
        )
        for name in columns
    }
    caption = "FPR95 (lower is better) / AUROC (higher is better), in percent; best in bold"
    if paper:
        caption += "; in brackets the paper's own figures"
    view = Table(title=title, caption=caption, caption_justify="left", title_justify="left")
    view.add_column("detector", no_wrap=True)
    for name in columns:
        view.add_column(name, justify="right", no_wrap=True)
    cite: Callable[[str, str], str] = (
        (lambda detector, name: _cited(paper, detector, name)) if paper else lambda detector, name: ""
    )
    for detector in detectors:
        view.add_row(detector, *(_cell(cells[detector, name], best[name]) + cite(detector, name) for name in columns))
    return view


def write_json(rows: Sequence[Row], path: Path) -> None:
    """All rows as a JSON list."""
    write_bytes(path, (json.dumps([row.as_dict() for row in rows], indent=1) + "\n").encode())


def _cell(values: tuple[float, float], best: tuple[float, float]) -> str:
    texts = []
    for value, winner in zip(values, best, strict=True):
        text = f"{value:.1f}"
        texts.append(f"[bold]{text}[/bold]" if round(value, 1) == winner else text)
    return " / ".join(texts)


def _cited(id_set: str, detector: str, ood_set: str) -> str:
    cell = None if ood_set == AVERAGE else published(id_set, detector, ood_set)
    return f"\n[dim]({cell.fpr95:.1f} / {cell.auroc:.1f})[/dim]" if cell else ""
