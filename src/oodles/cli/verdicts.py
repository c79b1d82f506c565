"""Results on standard output, as text, CSV or JSON, each batch as soon as it is scored."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import typer

from oodles.deploy.results.rows import COLUMNS, Row, to_csv
from oodles.records.text import printable


def print_text(batches: Iterable[Sequence[Row]]) -> None:
    """One line per input."""
    for batch in batches:
        typer.echo("\n".join(map(_line, batch)))


def _line(row: Row) -> str:
    if row.error is not None:
        return printable(f"error  {row.path}: {row.error}")
    name = f"class {row.label}" if row.class_name is None else row.class_name
    return printable(f"{'ID ' if row.is_id else 'OOD'}  {row.score:12.7g}  {name:<11} {row.path}")


def print_csv(batches: Iterable[Sequence[Row]]) -> None:
    """A header and one row per input, as in a file of results."""
    header: list[Sequence[Any]] = [COLUMNS]
    for batch in batches:
        typer.echo(to_csv([*header, *batch]), nl=False)
        header = []


def print_json(
    batches: Iterable[Sequence[dict[str, Any]]], about: dict[str, Any], name: str, after: dict[str, Any] | None = None
) -> None:
    """One JSON document, written piece by piece: ``about``, the records under ``name``, and what is known ``after``."""
    before = json.dumps(about).removesuffix("}") + f', "{name}": ['
    for batch in batches:
        if batch:
            typer.echo(before + ",\n".join(map(json.dumps, batch)), nl=False)
            before = ",\n"
    last = "".join(f', "{key}": {json.dumps(value)}' for key, value in (after or {}).items())
    typer.echo(("" if before == ",\n" else before) + f"]{last}}}")
