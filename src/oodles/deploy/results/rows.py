"""``Row``, what is known of one input after scoring, and its forms as a line of CSV and of JSON."""

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from oodles.errors import ArgumentError
from oodles.records.text import printable

MAX_BYTES = 1 << 20  # of a line


class Row(NamedTuple):
    """One input. With an ``error`` it has nothing else but its path, and is not in-distribution.

    ``p_value`` is None if the guard keeps no calibration scores, ``class_name`` if the class has no name.
    """

    path: str
    label: int | None = None
    class_name: str | None = None
    probability: float | None = None
    score: float | None = None
    p_value: float | None = None
    is_id: bool = False
    error: str | None = None


COLUMNS = Row._fields


class Lines(NamedTuple):
    """A format in which a row is a line: what the file begins with, a row as a line, and a line as a row."""

    header: bytes
    encode: Callable[[Row], bytes]
    decode: Callable[[bytes], Row]


def as_row(values: Sequence[Any], *, strict: bool = True) -> Row:
    """A row from values that were read; raises ValueError unless they have the types of the columns.

    Numbers and truth values may be text unless ``strict``.
    """
    row = msgspec.convert(tuple(values), Row, strict=strict)
    if not all(value is None or math.isfinite(value) for value in (row.probability, row.score, row.p_value)):
        raise ValueError("a number is not finite")
    return row


def to_json(row: Row) -> str:
    """One line of JSON; characters outside ASCII, line ends and bytes that are not valid text are escaped."""
    return json.dumps(row._asdict(), allow_nan=False)


def _from_json(line: bytes) -> Row:
    record = json.loads(line)
    if not isinstance(record, dict) or tuple(record) != COLUMNS:
        raise ValueError("it does not have the columns of results")
    return as_row(tuple(record.values()))


def to_csv(rows: Sequence[Sequence[Any]]) -> str:
    """Lines of CSV. Control characters in text are escaped, so that a row is a line; what is None is empty."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([map(_cell, row) for row in rows])
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return printable(value) if isinstance(value, str) else value


def _from_csv(line: bytes) -> Row:
    (cells,) = csv.reader([line.decode()], strict=True)
    if len(cells) != len(COLUMNS):
        raise ValueError(f"it has {len(cells)} columns")
    return as_row([cell or None for cell in cells], strict=False)


CSV = Lines(to_csv([COLUMNS]).encode(), lambda row: to_csv([row]).encode(), _from_csv)
JSON = Lines(b"", lambda row: f"{to_json(row)}\n".encode(), _from_json)
FORMATS = {".jsonl": JSON, ".csv": CSV, ".parquet": JSON}
"""The lines that rows are appended as; Parquet is made from lines of JSON when all are there."""
NOT_A_ROW = (ValueError, KeyError, RecursionError, csv.Error)


def lines_of(path: Path) -> Lines:
    """The lines that results in a file of this name are appended as."""
    try:
        return FORMATS[path.suffix.lower()]
    except KeyError:
        raise ArgumentError(f"{path} must end in {', '.join(FORMATS)} to hold results") from None
