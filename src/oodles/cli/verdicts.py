"""Verdicts on standard output, as text, CSV or JSON, each batch as soon as it is scored."""

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import typer

from oodles.cli.common import notice

COLUMNS = ("input", "label", "class", "score", "is_id")


class Printed(Protocol):
    """One input in a JSON document: a record, or the problem for which it was skipped."""

    @property
    def input(self) -> str: ...  # noqa: D102
    @property
    def problem(self) -> str: ...  # noqa: D102
    def as_record(self) -> dict[str, Any]: ...  # noqa: D102


class Outcome(NamedTuple):
    """What is printed of one input: a verdict, or the problem for which it was skipped."""

    input: str
    label: int = -1
    class_name: str | None = None
    score: float = math.nan
    is_id: bool = False
    problem: str = ""

    def as_record(self) -> dict[str, Any]:
        """The verdict by column; a score that is not finite becomes None, since JSON has no number for it."""
        score = self.score if math.isfinite(self.score) else None
        return dict(zip(COLUMNS, (self.input, self.label, self.class_name, score, self.is_id), strict=True))


def print_text(batches: Iterable[list[Outcome]]) -> None:
    """One line per input."""
    for batch in batches:
        typer.echo("\n".join(map(_line, batch)))


def _line(outcome: Outcome) -> str:
    if outcome.problem:
        return f"skipped  {outcome.input}: {outcome.problem}"
    name = f"class {outcome.label}" if outcome.class_name is None else outcome.class_name
    return f"{'ID ' if outcome.is_id else 'OOD'}  {outcome.score:12.7g}  {name:<11} {outcome.input}"


def print_csv(batches: Iterable[list[Outcome]]) -> None:
    """A header and one row per input; a skipped one has only its name, and its problem is on standard error."""
    header = [COLUMNS]
    for batch in batches:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows(header)
        header = []
        for outcome in batch:
            if outcome.problem:
                writer.writerow([outcome.input, *[""] * (len(COLUMNS) - 1)])
                notice(f"skipped {outcome.input}: {outcome.problem}")
            else:
                writer.writerow(map(_cell, outcome.as_record().values()))
        typer.echo(text.getvalue(), nl=False)


def _cell(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def print_json(batches: Iterable[Sequence[Printed]], about: dict[str, Any], name: str) -> None:
    """One JSON document, written piece by piece: ``about``, the records under ``name``, and what was skipped."""
    skipped = []
    before = json.dumps(about).removesuffix("}") + f', "{name}": ['
    for batch in batches:
        skipped += [{"input": each.input, "problem": each.problem} for each in batch if each.problem]
        records = [json.dumps(each.as_record()) for each in batch if not each.problem]
        if records:
            typer.echo(before + ",\n".join(records), nl=False)
            before = ",\n"
    typer.echo(f'], "skipped": {json.dumps(skipped)}}}')
