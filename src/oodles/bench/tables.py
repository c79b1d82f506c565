"""Tables: cells by row and column, and how they look on a terminal, in HTML, Markdown and LaTeX; rows as CSV and JSON.

Numbers stay numbers: a cell holds the value, and the format of its column says how it is shown.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from oodles.metrics import Interval, Row

NOTHING = "-"
LATEX = {letter: "\\" + letter for letter in "_%&#${}"} | {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
}


@dataclass(frozen=True)
class Cell:
    """A value in a table, with what qualifies it, and whether it is the best of its column.

    ``interval`` is a 95 % confidence interval, ``deviation`` a standard deviation over runs or seeds, and ``published``
    the number that a paper or a leaderboard has for the same.
    """

    value: float | int | str | None
    interval: Interval | None = None
    deviation: float | None = None
    published: float | None = None
    best: bool = False

    def text(self, spec: str) -> str:
        """Return the value in a format such as ``.1f``; text as it is."""
        if self.value is None or isinstance(self.value, str):
            return self.value or NOTHING
        return format(self.value, spec) + ("" if self.deviation is None else f"±{self.deviation:{spec}}")

    def as_json(self) -> Any:
        """Return the value alone if nothing qualifies it, else with what does."""
        extras = {"interval": self.interval, "deviation": self.deviation, "published": self.published}
        given = {name: value for name, value in extras.items() if value is not None}
        return {"value": self.value, **given} if given else self.value


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading, the format of its numbers, and whether to show differences from published ones.

    Neighbours with the same heading are shown as one column, as in ``10.0/95.0``.
    """

    name: str
    spec: str = ".1f"
    differences: bool = False


@dataclass(frozen=True)
class Table:
    """Cells by row and column; the first cell of a row is its heading.

    >>> columns = Column(""), Column("noise"), Column("noise")
    >>> print(markdown(Table("FPR95 / AUROC", columns, ((Cell("msp"), Cell(50.0), Cell(75.0, best=True)),))))
    | | noise |
    |---|---|
    | msp | 50.0 / **75.0** |
    <BLANKLINE>
    *FPR95 / AUROC.*
    <BLANKLINE>
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""

    def pick(self, places: Sequence[int]) -> "Table":
        """Return the table with the headings of the rows and the columns at ``places``."""
        kept = (0, *places)
        rows = tuple(tuple(row[place] for place in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[place] for place in kept), rows=rows)

    def groups(self) -> list[tuple[str, list[int]]]:
        """Return the columns as they are shown: their headings, and the places of the columns below each."""
        places = range(1, len(self.columns))
        return [(name, list(group)) for name, group in groupby(places, key=lambda place: self.columns[place].name)]

    def lines(self) -> Iterator[tuple[str, list["Shown"]]]:
        """Give each row as its heading and what is shown in each column."""
        for row in self.rows:
            yield row[0].text(""), [self._shown(row, places) for _, places in self.groups()]

    def as_json(self) -> dict[str, Any]:
        """Return the rows as objects by column."""
        names = [column.name for column in self.columns]
        rows = [{name: cell.as_json() for name, cell in zip(names, row, strict=True)} for row in self.rows]
        return {"caption": self.caption, "rows": rows}

    def _shown(self, row: Sequence[Cell], places: Sequence[int]) -> "Shown":
        cells = [(row[place], self.columns[place].spec) for place in places]
        numbers = [(cell.text(spec), cell.best) for cell, spec in cells]
        ends = [(cell.interval, spec) for cell, spec in cells if cell.interval is not None]
        cited = [(cell.value, cell.published, spec) for cell, spec in cells if cell.published is not None]
        notes = ["/".join(f"[{low:{spec}}, {high:{spec}}]" for (low, high), spec in ends)]
        notes.append("(" + "/".join(f"{theirs:{spec}}" for _, theirs, spec in cited) + ")" if cited else "")
        if self.columns[places[0]].differences:
            notes.append("/".join(f"{float(ours or 0) - theirs:+{spec}}" for ours, theirs, spec in cited))
        only = numbers[:1] if all(cell.value is None for cell, _ in cells) else numbers
        return Shown(only, [note for note in notes if note])


class Shown(NamedTuple):
    """What a table shows in one place: numbers, each with whether it is the best, and lines of notes."""

    numbers: list[tuple[str, bool]]
    notes: list[str]

    def join(self, separator: str, bold: Callable[[str], str]) -> str:
        """Return the numbers in one line, the best of them bold."""
        return separator.join(bold(text) if best else text for text, best in self.numbers)


def print_table(console: Console, table: Table) -> None:
    """Print a table, split by columns if it is too wide for the terminal, so that no number is cut off."""
    start, count = 0, len(table.groups())
    if table.title:
        console.print(Text(table.title, style="bold"))
    while start < count:
        parts = [(stop, _rich(table, start, stop)) for stop in range(count, start, -1)]
        start, part = next((pair for pair in parts if _width(console, pair[1]) <= console.width), parts[-1])
        part.width = _width(console, part)  # even if a single column is wider than the terminal
        console.print(part, crop=False)
    console.print(table.caption, style="italic")


def _rich(table: Table, start: int, stop: int) -> RichTable:
    drawn = RichTable(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    drawn.add_column("", no_wrap=True)
    for name, _ in table.groups()[start:stop]:
        drawn.add_column(Text(name), justify="right", no_wrap=True)
    for label, shown in table.lines():
        parts = [[each.join("/", "[bold]{}[/bold]".format), *map(_dim, each.notes)] for each in shown[start:stop]]
        drawn.add_row(Text(label), *map("\n".join, parts))
    return drawn


def _dim(note: str) -> str:
    return "[dim]" + note.replace("[", r"\[") + "[/dim]"


def _width(console: Console, table: RichTable) -> int:
    return Measurement.get(console, console.options.update(max_width=1000), table).maximum


def markdown(table: Table) -> str:
    """Return the table in Markdown."""
    columns = [_escape_bars(name) for name, _ in table.groups()]
    lines = [f"| | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    for label, shown in table.lines():
        texts = ["<br>".join([each.join(" / ", "**{}**".format), *each.notes]) for each in shown]
        lines.append(f"| {_escape_bars(label)} | {' | '.join(texts)} |")
    return "\n".join([*lines, "", f"*{table.caption}.*", ""])


def _escape_bars(text: str) -> str:
    return text.replace("|", r"\|")


def html(table: Table) -> str:
    """Return the table in HTML, without a style of its own, so that it looks as tables do where it is shown."""
    is_text = [any(isinstance(row[places[0]].value, str) for row in table.rows) for _, places in table.groups()]
    kinds = ["" if text else ' class="number"' for text in is_text]
    names = [(name, kind) for (name, _), kind in zip(table.groups(), kinds, strict=True)]
    head = [f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in [(table.columns[0].name, ""), *names]]
    body = []
    for label, shown in table.lines():
        cells = [f"<td{kind}>{_html_cell(each)}</td>" for each, kind in zip(shown, kinds, strict=True)]
        body.append("\n".join(["<tr>", f'<th scope="row">{escape(label)}</th>', *cells, "</tr>"]))
    caption = f"<caption><span>{escape(table.caption)}</span></caption>"
    return "\n".join(
        ["<table>", caption, "<thead>", "<tr>", *head, "</tr>", "</thead>", "<tbody>", *body, "</tbody>", "</table>"]
    )


def _html_cell(shown: Shown) -> str:
    escaped = shown._replace(numbers=[(escape(text), best) for text, best in shown.numbers])
    notes = [f"<small>{escape(note)}</small>" for note in shown.notes]
    return "".join([escaped.join(" / ", "<strong>{}</strong>".format), *notes])


def latex(table: Table) -> str:
    """Return the table in LaTeX, for the booktabs package."""
    names = [_escape_latex(name) for name, _ in table.groups()]
    lines, bold = [], r"\textbf{{{}}}".format
    for label, shown in table.lines():
        texts = [" ".join([each.join(" / ", bold), *map(_escape_latex, each.notes)]) for each in shown]
        lines.append(" & ".join([_escape_latex(label), *(text.replace("±", r"$\pm$") for text in texts)]) + r" \\")
    head = " & ".join(["", *names]) + r" \\"
    body = "\n".join(["\\toprule", head, "\\midrule", *lines, "\\bottomrule"])
    return f"% {table.caption}\n\\begin{{tabular}}{{l{'r' * len(names)}}}\n{body}\n\\end{{tabular}}\n"


def _escape_latex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)


def records(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return rows as plain values; intervals, if there are any, as ``fpr95_low`` and ``fpr95_high``."""
    found = []
    for row in rows:
        record = row.as_dict()
        for name, ends in record.pop("intervals").items():
            record |= {f"{name}_low": ends[0], f"{name}_high": ends[1]}
        found.append(record)
    return found


def rows_csv(rows: Sequence[Row]) -> str:
    """Return rows as CSV, one line each."""
    found = records(rows)
    text = io.StringIO()
    names = dict.fromkeys(name for record in found for name in record)
    writer = csv.DictWriter(text, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue()


def rows_json(rows: Sequence[Row]) -> str:
    """Return rows as a JSON list."""
    return json.dumps([row.as_dict() for row in rows], indent=1) + "\n"
