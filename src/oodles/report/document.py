"""What a report consists of: plain data, from which both the page and its JSON are made.

Numbers stay numbers: a cell holds the value, and :meth:`Cell.text` is how it is shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oodles.records.text import printable

Interval = tuple[float, float]
Value = float | int | str | None

SHORT = 28  # letters of a name in a figure
NOTHING, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Cell:
    """A value in a table, with what qualifies it, and whether it is the best of its column.

    ``interval`` is a 95 % confidence interval, ``deviation`` a standard deviation over runs or seeds, and ``paper`` the
    number that the DICE paper has for the same.
    """

    value: Value
    interval: Interval | None = None
    deviation: float | None = None
    paper: float | None = None
    best: bool = False

    def text(self, spec: str) -> str:
        """The value in a format such as ``.1f``; text as it is."""
        if self.value is None:
            return NOTHING
        if isinstance(self.value, str):
            return self.value
        return shown(self.value, spec) + ("" if self.deviation is None else f" ± {shown(self.deviation, spec)}")

    def notes(self, spec: str) -> list[str]:
        """The interval and the paper's number, each a line below the value."""
        lines = [] if self.interval is None else [f"[{', '.join(shown(end, spec) for end in self.interval)}]"]
        return lines + ([] if self.paper is None else [f"paper {shown(self.paper, spec)}"])

    def as_json(self) -> Any:
        """The value alone if nothing qualifies it, else with what does."""
        extras = {"interval": self.interval, "deviation": self.deviation, "paper": self.paper}
        given = {name: value for name, value in extras.items() if value is not None}
        return {"value": self.value, **given} if given else self.value


def shown(value: float, spec: str) -> str:
    """A number as text, with a real minus sign."""
    return format(value, spec).replace("-", MINUS)


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading, and the format of its numbers."""

    name: str
    spec: str = ".1f"


@dataclass(frozen=True)
class Table:
    """Cells by row and column; the first cell of a row is its heading."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def is_text(self, place: int) -> bool:
        """Whether a column holds text, which is aligned to the left."""
        return any(isinstance(row[place].value, str) for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        """The rows as objects by column."""
        names = [column.name for column in self.columns]
        rows = [{name: cell.as_json() for name, cell in zip(names, row, strict=True)} for row in self.rows]
        return {"caption": self.caption, "rows": rows}


@dataclass(frozen=True)
class Drawing:
    """SVG markup, in which every id begins with ``prefix``, a text that occurs nowhere else."""

    markup: str
    prefix: str

    def numbered(self, number: int) -> str:
        """The markup with ids of its own, even if the same drawing is on the page twice."""
        return self.markup.replace(self.prefix, f"drawing-{number}")


@dataclass(frozen=True)
class Figure:
    """A drawing, what it shows in words, and the numbers that were drawn."""

    drawing: Drawing
    alternative: str
    caption: str
    data: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """All but the drawing."""
        return {"caption": self.caption, "alternative": self.alternative, "data": dict(self.data)}


@dataclass(frozen=True)
class Picture:
    """A small copy of an image as a data URI, or None if it could not be read, and what it shows in words."""

    source: str | None
    alternative: str
    width: int = 0
    height: int = 0


@dataclass(frozen=True)
class Card:
    """One input in a gallery: its picture, if there is one, its name, facts about it, and its nearest training rows."""

    name: str
    facts: tuple[str, ...]
    picture: Picture | None = None
    nearest: tuple["Card", ...] = ()

    def as_json(self) -> dict[str, Any]:
        """All but the pictures."""
        nearest = [each.as_json() for each in self.nearest]
        return {"name": self.name, "facts": list(self.facts), **({"nearest": nearest} if nearest else {})}


@dataclass(frozen=True)
class Gallery:
    """Inputs that belong together, such as the least in-distribution ones."""

    heading: str
    caption: str
    cards: tuple[Card, ...]

    def as_json(self) -> dict[str, Any]:
        """The cards by heading."""
        return {"heading": self.heading, "caption": self.caption, "inputs": [card.as_json() for card in self.cards]}


@dataclass(frozen=True)
class Section:
    """A heading and what is below it, in this order: paragraphs, figures, tables, galleries."""

    heading: str
    paragraphs: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    galleries: tuple[Gallery, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """What there is of it."""
        parts: dict[str, Sequence[Any]] = {
            "figures": self.figures,
            "tables": self.tables,
            "galleries": self.galleries,
        }
        given = {name: [each.as_json() for each in part] for name, part in parts.items() if part}
        return {"heading": self.heading, "paragraphs": list(self.paragraphs), **given}


@dataclass(frozen=True)
class Part:
    """What one source contributes to a report.

    ``recommendation`` says what to do, ``summary`` what was found and how far it can be trusted, ``facts`` are the
    numbers that matter most.
    """

    title: str
    recommendation: str
    summary: tuple[str, ...]
    facts: tuple[tuple[str, str], ...] = ()
    sections: tuple[Section, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """The whole part."""
        return {
            "title": self.title,
            "recommendation": self.recommendation,
            "summary": list(self.summary),
            "facts": dict(self.facts),
            "sections": [section.as_json() for section in self.sections],
        }


def shortened(text: str, most: int = SHORT) -> str:
    """A printable name of at most ``most`` letters, its middle left out if it is longer.

    >>> shortened("abcdefghij", 7)
    'abc…hij'
    """
    name = printable(text)
    if len(name) <= most:
        return name
    half = (most - 1) // 2
    return f"{name[: most - 1 - half]}…{name[-half:]}"


def counted(count: int, noun: str) -> str:
    """A number of things in words.

    >>> counted(1, "row"), counted(1200, "row")
    ('1 row', '1,200 rows')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
