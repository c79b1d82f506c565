"""Verdicts on standard output, as text, CSV or JSON, or in a file, each batch as soon as it is scored."""

import csv
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import typer

from oodles.cli.common import notice, printable
from oodles.errors import ArgumentError

COLUMNS = ("input", "label", "class", "score", "is_id")
SUFFIXES = (".parquet", ".csv", ".npy")
ROW_GROUP = 1 << 16  # rows that are written to a Parquet file together
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
    for text in _csv(batches):
        typer.echo(text, nl=False)


def _csv(batches: Iterable[list[Outcome]]) -> Iterator[str]:
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
        yield text.getvalue()


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


def check_file(path: Path) -> None:
    """Raise unless verdicts can be written to a file of this name."""
    if path.suffix.lower() not in SUFFIXES:
        raise ArgumentError(f"--out {path} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if path.is_dir():
        raise ArgumentError(f"--out {path} is a folder; give the name of a file")
    if path.suffix.lower() == ".parquet":
        require_pyarrow(path)


def require_pyarrow(path: Path) -> None:
    """Raise if Parquet files cannot be written here."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise ArgumentError(
            f"--out {path} needs pyarrow, which is not installed; pip install 'oodles[parquet]', or give a .csv file"
        ) from None


def write_file(path: Path, batches: Iterable[list[Outcome]]) -> None:
    """Write a Parquet, CSV or NumPy file as the batches come; it appears under its name when it is complete."""
    from oodles.files import write_with

    writers: dict[str, Callable[[Path, Iterable[list[Outcome]]], None]] = {
        ".parquet": _write_parquet,
        ".csv": _write_csv,
        ".npy": _write_scores,
    }
    write = writers[path.suffix.lower()]
    write_with(path, lambda temporary: write(temporary, _touching(temporary, batches)))


def _touching(path: Path, batches: Iterable[list[Outcome]]) -> Iterator[list[Outcome]]:
    """The same batches; the file shows that it is in use, however rarely something is written to it."""
    for batch in batches:
        os.utime(path)
        yield batch


def _write_csv(path: Path, batches: Iterable[list[Outcome]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(_csv(batches))


def _write_scores(path: Path, batches: Iterable[list[Outcome]]) -> None:
    """A vector of float64, NaN for inputs without a score; its length is filled in at the end."""
    import numpy as np
    from numpy.lib.format import write_array_header_1_0

    about, rows = {"descr": "<f8", "fortran_order": False}, 0
    with path.open("wb") as file:
        write_array_header_1_0(file, {**about, "shape": (0,)})  # NumPy leaves room for any number
        for batch in batches:
            file.write(np.array([each.score if each.is_scored else math.nan for each in batch], "<f8").tobytes())
            rows += len(batch)
        file.seek(0)
        write_array_header_1_0(file, {**about, "shape": (rows,)})


def _write_parquet(path: Path, batches: Iterable[list[Outcome]]) -> None:
    """The columns of CSV and ``error``; what an input does not have is null."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    kinds = pa.string(), pa.int64(), pa.string(), pa.float64(), pa.bool_(), pa.string()
    schema = pa.schema(list(zip((*COLUMNS, "error"), kinds, strict=True)))
    waiting: list[dict[str, Any]] = []
    with ParquetWriter(path, schema) as writer:
        for batch in batches:
            waiting += map(_parquet_row, batch)
            if len(waiting) >= ROW_GROUP:
                writer.write_table(pa.Table.from_pylist(waiting, schema))
                waiting = []
        writer.write_table(pa.Table.from_pylist(waiting, schema))


def _parquet_row(outcome: Outcome) -> dict[str, Any]:
    name = {"input": outcome.input.encode(errors="backslashreplace").decode()}  # a name need not be valid text
    return {"is_id": False, "error": outcome.problem} | name if outcome.problem else outcome.as_record() | name
