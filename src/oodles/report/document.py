"""What a report consists of: plain data, of which one HTML file that needs nothing else and its JSON are made."""

import base64
import io
import json
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from PIL import Image

from oodles import __version__
from oodles.bench.tables import Cell, Table, html
from oodles.data.limits import PIXELS
from oodles.data.readers import SUFFIXES, decode, open_image
from oodles.errors import ArgumentError
from oodles.metrics import Interval
from oodles.records.files import check_output, marked, write_bytes
from oodles.records.text import printable

SCHEMA = 1
PAGE = marked("a report", b'<meta name="generator" content="oodles ')
FACTS = marked("the JSON of a report", b'\n "oodles": "', b'\n "parts": [')
MAX_PICTURES = 64
SIDE = 112  # pixels of the longer side of a picture
QUALITY = 80
NOT_IN_JSON = ("markup", "picture")

SHORT = 28  # letters of a name in a figure
QUANTILE = 1.959963984540054  # of the normal distribution, for 95 %


@dataclass(frozen=True)
class Figure:
    """SVG markup, and what it shows in words; :func:`oodles.report.svg.draw` makes it."""

    markup: str
    alternative: str
    caption: str


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


@dataclass(frozen=True)
class Gallery:
    """Inputs that belong together, such as the least in-distribution ones."""

    heading: str
    caption: str
    inputs: tuple[Card, ...]


@dataclass(frozen=True)
class Section:
    """A heading and what is below it, in this order: paragraphs, figures, tables, galleries."""

    heading: str
    paragraphs: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    galleries: tuple[Gallery, ...] = ()


@dataclass(frozen=True)
class Part:
    """What one source contributes to a report.

    ``recommendation`` says what to do, ``summary`` what was found and how far it can be trusted, ``facts`` are the
    numbers that matter most.
    """

    title: str
    recommendation: str
    summary: tuple[str, ...]
    facts: Mapping[str, str] = field(default_factory=dict)
    sections: tuple[Section, ...] = ()


@dataclass(frozen=True)
class Rate:
    """How many of ``total`` inputs; in percent with a 95 % interval, which holds for independent inputs."""

    count: int
    total: int

    @property
    def percent(self) -> float:
        """The share, 0 if there are no inputs."""
        return 100 * self.count / self.total if self.total else 0.0

    @property
    def interval(self) -> Interval:
        """Wilson's interval in percent, which is sensible for few inputs and for shares near 0 and 1 too.

        >>> low, high = Rate(0, 100).interval
        >>> low, round(high, 2)
        (0.0, 3.7)
        """
        if not self.total:
            return 0.0, 100.0
        share, spread = self.count / self.total, QUANTILE**2 / self.total
        centre = (share + spread / 2) / (1 + spread)
        half = math.sqrt(share * (1 - share) * spread + spread**2 / 4) / (1 + spread)
        low = 0.0 if self.count == 0 else centre - half
        high = 1.0 if self.count == self.total else centre + half
        return 100 * low, 100 * high

    @property
    def cell(self) -> Cell:
        """The share as a cell of a table; nothing if there are no inputs."""
        return Cell(self.percent, self.interval) if self.total else Cell(None)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.percent:.1f} % [{low:.1f}, {high:.1f}]"


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


def judgement_facts(
    is_id: bool | None, score: float | None, predicted: str | None, p_value: float | None
) -> tuple[str, ...]:
    """Return what is known of a scored input, a fact per line."""
    facts = [f"{'accepted' if is_id else 'rejected'}, score {score:.4g}"]
    facts += [] if predicted is None else [f"predicted: {predicted}"]
    facts += [] if p_value is None or not math.isfinite(p_value) else [f"p = {p_value:.3g}"]
    return tuple(facts)


class Pictures:
    """Makes small copies, at most ``MAX_PICTURES`` in all, so that a page stays small and is written soon."""

    def __init__(self) -> None:
        self.left = MAX_PICTURES

    def of_file(self, path: str) -> Picture | None:
        """A copy of an image file; None if the name is not that of an image, as for rows of features."""
        if not path.lower().endswith(SUFFIXES):
            return None
        return self.of(lambda: open_image(Path(path)), path)

    def of(self, opened: Callable[[], AbstractContextManager[Image.Image]], name: str) -> Picture | None:
        """A copy of what ``opened`` opens, without pixels if that fails; None if there are enough pictures."""
        if not self.left:
            return None
        self.left -= 1
        try:
            with opened() as image, PIXELS.take(image.width * image.height):
                image.draft("RGB", (2 * SIDE, 2 * SIDE))  # a JPEG is decoded no larger than needed
                return _copy(decode(image), name)
        except Exception:  # whatever is wrong with one image, the others are shown
            return Picture(None, "no picture: the file is gone or cannot be read")


def _copy(image: Image.Image, name: str) -> Picture:
    image = image.convert("RGB")  # as the network sees it
    image.thumbnail((SIDE, SIDE))
    content = io.BytesIO()
    image.save(content, "JPEG", quality=QUALITY, optimize=True)
    source = "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()
    return Picture(source, f"small copy of {printable(name)}", *image.size)


def write_report(path: str | Path, *parts: Part, title: str = "Out-of-distribution report") -> Path:
    """Write parts, in this order, to an HTML file and its JSON beside it; returns the path of the JSON.

    The parts come from :func:`oodles.report.rows_parts`, :func:`oodles.report.results_part` and
    :func:`oodles.report.guard_part`. The same parts give the same bytes.
    """
    path = Path(path)
    check_name(path)
    if not parts:
        raise ArgumentError("a report needs at least one part; give rows, a guard with features, or scored inputs")
    title, beside = printable(title), path.with_suffix(".json")
    page, record = render(parts, title).encode(), _json(parts, title).encode()
    write_bytes(beside, record, FACTS)
    write_bytes(path, page, PAGE)
    return beside


def check_name(path: Path) -> None:
    """Raise unless a report can be written to a file of this name."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ArgumentError(f"{path} must end in .html; the same facts are written beside it as .json")
    check_output(path, PAGE)
    check_output(path.with_suffix(".json"), FACTS)


def render(parts: tuple[Part, ...], title: str) -> str:
    """The page. Everything in it is escaped except drawings, which were made here."""
    return _template().render(parts=parts, title=title, version=__version__, html=html)


@cache
def _template() -> Template:
    loader = PackageLoader("oodles.report", "templates")
    return Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template("report.html")


def _json(parts: tuple[Part, ...], title: str) -> str:
    record = {"schema": SCHEMA, "oodles": __version__, "title": title, "parts": plain(parts)}
    return json.dumps(record, indent=1, allow_nan=False, ensure_ascii=True) + "\n"


def plain(each: Any) -> Any:
    """Return parts of a report as values for JSON: all but drawings and pictures."""
    if isinstance(each, Table):
        return each.as_json()
    if is_dataclass(each):
        names = [field.name for field in fields(each) if field.name not in NOT_IN_JSON]
        return {name: plain(getattr(each, name)) for name in names}
    return [plain(part) for part in each] if isinstance(each, tuple) else each
