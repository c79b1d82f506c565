"""Verdicts on standard output, as text, CSV or JSON, each batch as soon as it is scored."""

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import typer

from oodles.cli.common import notice, printable

COLUMNS = ("input", "label", "class", "score", "is_id")
NOT_FINITE = "the network gives NaN or infinite values for it"


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

    @property
    def is_scored(self) -> bool:
        """Whether there is a verdict with a score; without one an input is never in-distribution."""
        return not self.problem and math.isfinite(self.score)

    def as_record(self) -> dict[str, Any]:
        """The verdict by column; without a score, the reason as ``error``, since JSON has no number for it."""
        if not self.is_scored:
            values = self.input, self.label, self.class_name, None, False
            return dict(zip(COLUMNS, values, strict=True)) | {"error": NOT_FINITE}
        return dict(zip(COLUMNS, (self.input, self.label, self.class_name, self.score, self.is_id), strict=True))


def print_text(batches: Iterable[list[Outcome]]) -> None:
    """One line per input."""
    for batch in batches:
        typer.echo("\n".join(map(_line, batch)))


def _line(outcome: Outcome) -> str:
    if outcome.problem:
        return printable(f"skipped  {outcome.input}: {outcome.problem}")
    if not outcome.is_scored:
        return printable(f"OOD           nan  {'-':<11} {outcome.input}: {NOT_FINITE}")
    name = f"class {outcome.label}" if outcome.class_name is None else outcome.class_name
    return printable(f"{'ID ' if outcome.is_id else 'OOD'}  {outcome.score:12.7g}  {name:<11} {outcome.input}")


def print_csv(batches: Iterable[list[Outcome]]) -> None:
    """A header and one row per input; a skipped one has only its name, one that is not scored no score.

    Problems are on standard error. Control characters in names are escaped, so that a row is a line; JSON has the names
    as they are.
    """
    header = [COLUMNS]
    for batch in batches:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows(header)
        header = []
        for outcome in batch:
            if outcome.problem:
                writer.writerow([printable(outcome.input), *[""] * (len(COLUMNS) - 1)])
                notice(f"skipped {outcome.input}: {outcome.problem}")
                continue
            if not outcome.is_scored:
                notice(f"not scored: {outcome.input}: {NOT_FINITE}")
            writer.writerow(_cell(value) for name, value in outcome.as_record().items() if name in COLUMNS)
        typer.echo(text.getvalue(), nl=False)


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return printable(value) if isinstance(value, str) else value


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
