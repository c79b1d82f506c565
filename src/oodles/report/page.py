"""A report as one HTML file that needs nothing else, and the same facts as JSON beside it."""

import json
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from oodles import __version__
from oodles.bench.tables import Table, html
from oodles.errors import ArgumentError
from oodles.records.files import write_bytes
from oodles.records.text import printable
from oodles.report.document import Part

NOT_IN_JSON = ("markup", "prefix", "picture")
MAX_BYTES = 5_000_000  # what one can mail
SCHEMA = 1


def write_report(path: str | Path, *parts: Part, title: str = "Out-of-distribution report") -> Path:
    """Write parts, in this order, to an HTML file and its JSON beside it; returns the path of the JSON.

    The parts come from :func:`oodles.report.rows_part`, :func:`oodles.report.results_part` and
    :func:`oodles.report.guard_part`. The same parts give the same bytes.
    """
    path = Path(path)
    check_name(path)
    if not parts:
        raise ArgumentError("a report needs at least one part; give rows, a guard with features, or scored inputs")
    title = printable(title)
    page = render(parts, title).encode()
    if len(page) > MAX_BYTES:
        raise ArgumentError(
            f"{path} would have {len(page):,} bytes, more than the {MAX_BYTES:,} of a report; give fewer sources"
        )
    beside = path.with_suffix(".json")
    write_bytes(beside, _json(parts, title).encode())
    write_bytes(path, page)
    return beside


def check_name(path: Path) -> None:
    """Raise unless a report can be written to a file of this name."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ArgumentError(f"{path} must end in .html; the same facts are written beside it as .json")
    if path.is_dir():
        raise ArgumentError(f"{path} is a folder; give the name of an HTML file")


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
        finalize=_with_fixed_spaces,
    ).get_template("report.html")


def _with_fixed_spaces(value: object) -> object:
    """Text in which a number is never on another line than its percent sign."""
    return value.replace(" %", "\N{NO-BREAK SPACE}%") if isinstance(value, str) else value


def _json(parts: tuple[Part, ...], title: str) -> str:
    record = {"schema": SCHEMA, "oodles": __version__, "title": title, "parts": _plain(parts)}
    return json.dumps(record, indent=1, allow_nan=False, ensure_ascii=True) + "\n"


def _plain(each: Any) -> Any:
    """Return parts of a report as values for JSON: all but drawings and pictures."""
    if isinstance(each, Table):
        return each.as_json()
    if is_dataclass(each):
        names = [field.name for field in fields(each) if field.name not in NOT_IN_JSON]
        return {name: _plain(getattr(each, name)) for name in names}
    return [_plain(part) for part in each] if isinstance(each, tuple) else each
