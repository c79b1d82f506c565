"""Views of rows: one table of cells, rendered for the terminal, as HTML, Markdown, LaTeX, CSV or JSON."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from html import escape
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from oodles.metrics import Row
from oodles.paper.published import (
    AVERAGE,
    Published,
    published,
    published_gap,
    published_sets,
    published_sweep,
    without_seed,
)
from oodles.records.files import write_bytes

if TYPE_CHECKING:
    from oodles.paper.sweep import SweepPoint

LATEX = {letter: "\\" + letter for letter in "_%&#${}"} | {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
}


@dataclass(frozen=True)
class Cell:
    """One cell of a table: its numbers, which of them are the best of their column, and lines of notes."""

    numbers: tuple[str, ...]
    best: tuple[bool, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class View:
    """A table ready to be rendered; each line is a label and one cell per column."""

    title: str
    caption: str
    columns: tuple[str, ...]
    lines: tuple[tuple[str, tuple[Cell, ...]], ...]


@dataclass(frozen=True)
class Result:
    """FPR95 and AUROC in percent of one detector on one set, one value per run and seed."""

    fpr95: tuple[float, ...]
    auroc: tuple[float, ...]
    intervals: Mapping[str, tuple[float, float]]


def results(rows: Sequence[Row]) -> dict[tuple[str, str], Result]:
    """Rows grouped by detector (without its seed) and OOD set; ``average`` is the mean over the sets."""
    groups: dict[tuple[str, str], dict[tuple[str, str], Row]] = {}
    for row in rows:
        groups.setdefault((without_seed(row.detector), row.ood_set), {})[row.run, row.detector] = row
    grouped = {}
    for detector in dict.fromkeys(key[0] for key in groups):
        by_set = {key[1]: group for key, group in groups.items() if key[0] == detector}
        for ood_set, group in by_set.items():
            intervals = next(iter(group.values())).intervals if len(group) == 1 else {}
            grouped[detector, ood_set] = Result(
                tuple(100 * row.fpr95 for row in group.values()),
                tuple(100 * row.auroc for row in group.values()),
                {name: (100 * low, 100 * high) for name, (low, high) in intervals.items()},
            )
        every = list(by_set.values())
        variants = [variant for variant in every[0] if all(variant in group for group in every)]
        if variants:
            grouped[detector, AVERAGE] = Result(
                tuple(100 * fmean(group[variant].fpr95 for group in every) for variant in variants),
                tuple(100 * fmean(group[variant].auroc for group in every) for variant in variants),
                {},
            )
    return grouped


def compare(rows: Sequence[Row], *, title: str = "", paper: str | None = None) -> View:
    """FPR95 and AUROC of each detector on each OOD set and on average; the best of each column is marked.

    Detectors that differ only in their seed, and several runs, become mean and standard deviation. ``paper`` (an ID
    set of the paper) adds the paper's numbers and the differences.
    """
    grouped = results(rows)
    detectors = list(dict.fromkeys(key[0] for key in grouped))
    columns = [name for name in dict.fromkeys(key[1] for key in grouped) if name != AVERAGE] + [AVERAGE]
    same_sets = paper is not None and published_sets(paper) == set(columns) - {AVERAGE}
    lines = []
    for detector in detectors:
        cells = []
        for name in columns:
            result = grouped.get((detector, name))
            if result is None:
                cells.append(Cell(("-",), (False,)))
                continue
            column = [grouped[other, name] for other in detectors if (other, name) in grouped]
            best = (
                _shown(result.fpr95) == min(_shown(other.fpr95) for other in column),
                _shown(result.auroc) == max(_shown(other.auroc) for other in column),
            )
            notes = _interval_note(result)
            cited = published(paper, detector, name) if paper else None
            if cited is not None:
                notes += _paper_notes(cited, result, differ=name != AVERAGE or same_sets)
            cells.append(Cell((_spread(result.fpr95), _spread(result.auroc)), best, notes))
        lines.append((detector.removesuffix("+energy"), tuple(cells)))
    caption = "FPR95 / AUROC in percent: lower / higher is better, the best in bold"
    if paper:
        caption += "; in brackets the paper's numbers, then ours minus theirs"
        caption += "" if same_sets else " (its average is over other sets)"
    return View(title, caption, tuple(columns), tuple(lines))


def overview(rows: Sequence[Row], *, title: str = "") -> View:
    """One line for each detector: FPR95 and AUROC on average, then FPR95 on each set."""
    full = compare(rows, title=title)
    average = full.columns.index(AVERAGE)
    lines = []
    for label, cells in full.lines:
        alone = [replace(cell, numbers=cell.numbers[:1], best=cell.best[:1], notes=()) for cell in cells[:average]]
        lines.append((label, (replace(cells[average], notes=()), *alone)))
    caption = "average: FPR95 / AUROC; each set: FPR95. In percent, lower FPR95 and higher AUROC are better"
    return View(title, caption, (AVERAGE, *full.columns[:average]), tuple(lines))


def sweep_view(points: Sequence["SweepPoint"], *, title: str = "", paper: str | None = None) -> View:
    """For each sparsity the averages over sets and runs, the accuracy of the sparse layer, spread and gap."""
    lines = []
    for p in dict.fromkeys(point.p for point in points):
        same = [point for point in points if point.p == p]
        rows = [row for point in same for row in point.rows]
        accuracies = [point.accuracy for point in same if point.accuracy is not None]
        theirs = published_sweep(paper, p) if paper else {}
        values: list[tuple[str, float | None]] = [
            (f"{100 * fmean(row.fpr95 for row in rows):.2f}", theirs.get("fpr95")),
            (f"{100 * fmean(row.auroc for row in rows):.2f}", theirs.get("auroc")),
            (f"{100 * fmean(accuracies):.2f}" if accuracies else "-", theirs.get("accuracy")),
            (f"{fmean(value for point in same for value in point.spread.values()):.3f}", None),
            (f"{fmean(value for point in same for value in point.gap.values()):.2f}", published_gap(paper or "", p)),
        ]
        cells = [Cell((text,), (False,), () if cited is None else (f"({cited:.2f})",)) for text, cited in values]
        lines.append((f"p={p:g}", tuple(cells)))
    caption = (
        "DICE with energy, averages over the sets: FPR95, AUROC and the sparse layer's accuracy in percent; spread = "
        "std of OOD energies / mean ID energy; gap = mean largest logit, ID minus OOD"
    )
    if paper:
        caption += "; in brackets the paper's numbers, over its own sets"
    return View(title, caption, ("FPR95", "AUROC", "accuracy", "spread", "gap"), tuple(lines))


# Rendering ------------------------------------------------------------------------------------------


def print_view(console: Console, view: View) -> None:
    """Print a table, split by columns if it is too wide for the terminal, so that no number is cut off."""
    start = 0
    if view.title:
        console.print(Text(view.title, style="bold"))
    while start < len(view.columns):
        counts = range(len(view.columns) - start, 0, -1)
        parts = [(count, _rich(view, start, start + count)) for count in counts]
        count, part = next((pair for pair in parts if _width(console, pair[1]) <= console.width), parts[-1])
        _print_full_width(console, part)
        start += count
    console.print(view.caption, style="italic")


def _print_full_width(console: Console, table: Table) -> None:
    """Print a table even if a single column is wider than the terminal, which then wraps its lines."""
    actual = console.width
    console.width = max(actual, _width(console, table))
    try:
        console.print(table)
    finally:
        console.width = actual


def markdown(view: View) -> str:
    """The table in Markdown."""
    columns = [_escape_bars(column) for column in view.columns]
    lines = [f"| | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    for label, cells in view.lines:
        texts = ["<br>".join([_mark(cell, " / ", "**{}**".format), *cell.notes]) for cell in cells]
        lines.append(f"| {_escape_bars(label)} | {' | '.join(texts)} |")
    return "\n".join([*lines, "", f"*{view.caption}.*", ""])


def html(view: View) -> str:
    """The table in HTML, without a style of its own, so that it looks as tables do where it is shown."""
    head = "".join(f"<th>{escape(column)}</th>" for column in ("", *view.columns))
    lines = []
    for label, cells in view.lines:
        texts = ["<br>".join([_mark(cell, " / ", "<b>{}</b>".format), *map(escape, cell.notes)]) for cell in cells]
        lines.append(f"<tr><th>{escape(label)}</th>{''.join(f'<td>{text}</td>' for text in texts)}</tr>")
    body = "\n".join(lines)
    caption = f"<caption>{escape(view.caption)}</caption>"
    return f"<table>{caption}\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"


def latex(view: View) -> str:
    """The table in LaTeX, for the booktabs package."""
    head = " & ".join(["", *(_escape_latex(column) for column in view.columns)]) + r" \\"
    lines, bold = [], r"\textbf{{{}}}".format
    for label, cells in view.lines:
        texts = [" ".join([_mark(cell, " / ", bold), *map(_escape_latex, cell.notes)]) for cell in cells]
        lines.append(" & ".join([_escape_latex(label), *(text.replace("±", r"$\pm$") for text in texts)]) + r" \\")
    body = "\n".join(["\\toprule", head, "\\midrule", *lines, "\\bottomrule"])
    return f"% {view.caption}\n\\begin{{tabular}}{{l{'r' * len(view.columns)}}}\n{body}\n\\end{{tabular}}\n"


def rows_csv(rows: Sequence[Row]) -> str:
    """Rows as CSV, one line each; intervals take two columns if there are any."""
    names = [field.name for field in fields(Row) if field.name != "intervals"]
    bounds = sorted({name for row in rows for name in row.intervals})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, *(f"{name}_{end}" for name in bounds for end in ("low", "high"))])
    for row in rows:
        ends = [end for name in bounds for end in row.intervals.get(name, ("", ""))]
        writer.writerow([*(getattr(row, name) for name in names), *ends])
    return text.getvalue()


def rows_json(rows: Sequence[Row]) -> str:
    """Rows as a JSON list."""
    return json.dumps([row.as_dict() for row in rows], indent=1) + "\n"


def write_text(path: Path, text: str) -> None:
    """Write a rendered table atomically."""
    write_bytes(path, text.encode())


def _rich(view: View, start: int, stop: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    table.add_column("", no_wrap=True)
    for column in view.columns[start:stop]:
        table.add_column(Text(column), justify="right", no_wrap=True)
    for label, cells in view.lines:
        parts = [[_mark(cell, "/", "[bold]{}[/bold]".format), *map(_dim, cell.notes)] for cell in cells[start:stop]]
        table.add_row(Text(label), *map("\n".join, parts))
    return table


def _dim(note: str) -> str:
    return "[dim]" + note.replace("[", r"\[") + "[/dim]"


def _width(console: Console, table: Table) -> int:
    return Measurement.get(console, console.options.update(max_width=1000), table).maximum


def _mark(cell: Cell, separator: str, bold: Callable[[str], str]) -> str:
    marked = [bold(text) if best else text for text, best in zip(cell.numbers, cell.best, strict=True)]
    return separator.join(marked)


def _shown(values: Sequence[float]) -> float:
    return round(fmean(values), 1)


def _spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.1f}" + (f"±{stdev(values):.1f}" if len(values) > 1 else "")


def _interval_note(result: Result) -> tuple[str, ...]:
    if not result.intervals:
        return ()
    ends = [result.intervals[name] for name in ("fpr95", "auroc")]
    return ("/".join(f"[{low:.1f}, {high:.1f}]" for low, high in ends),)


def _paper_notes(cited: Published, result: Result, *, differ: bool) -> tuple[str, ...]:
    theirs = [cited.fpr95] + ([] if cited.auroc is None else [cited.auroc])
    ours = [fmean(result.fpr95), fmean(result.auroc)]
    note = "(" + "/".join(f"{value:.1f}" for value in theirs) + ")"
    if not differ:
        return (note,)
    return note, "/".join(f"{our - value:+.1f}" for our, value in zip(ours, theirs, strict=False))


def _escape_bars(text: str) -> str:
    return text.replace("|", r"\|")


def _escape_latex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)
