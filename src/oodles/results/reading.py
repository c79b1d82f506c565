"""Reading results back, row by row, from CSV, JSON lines or Parquet."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oodles.errors import DataError, FileError
from oodles.results.rows import COLUMNS, MOST_BYTES, NOT_A_ROW, Lines, Row, as_row, lines_of

ROW_GROUP = 1 << 16
"""Rows of a Parquet file that are written and read together."""


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file of results, in order; names have the escapes of the format, see :mod:`oodles.results`.

    A file that is not complete, because it is being written or its writer was killed, ends in an error.
    """
    check_regular(path)
    lines = lines_of(path)
    if path.suffix.lower() == ".parquet":
        yield from _read_parquet(path)
        return
    number, end = 0, 0
    for number, (row, end) in enumerate(whole_rows(path, lines), start=1):  # noqa: B007
        yield row
    if max(end, len(lines.header)) != path.stat().st_size:
        raise DataError(
            f"{path} has no complete row after the first {number}; if it is being written, `oodles score --resume` "
            "completes it"
        )


def whole_rows(path: Path, lines: Lines) -> Iterator[tuple[Row, int]]:
    """The rows of a file up to the first line that is none, each with the place in the file where it ends."""
    with path.open("rb") as file:
        if file.read(len(lines.header)) != lines.header:
            return
        while (line := file.readline(MOST_BYTES)).endswith(b"\n"):
            try:
                row = lines.decode(line)
            except NOT_A_ROW:
                return
            yield row, file.tell()


def check_regular(path: Path) -> None:
    """Raise unless ``path`` is a file, and not a folder, a pipe or a device."""
    if not path.is_file():
        raise FileError(f"{path} is not a file" if path.exists() else f"{path} does not exist")


def _read_parquet(path: Path) -> Iterator[Row]:
    require_pyarrow(path)
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            missing = [name for name in COLUMNS if name not in file.schema_arrow.names]
            if missing:
                raise DataError(f"{path} has no column {missing[0]}, so it does not hold results of `oodles score`")
            for batch in file.iter_batches(ROW_GROUP, columns=[*COLUMNS]):
                yield from map(_from_record, batch.to_pylist())
    except (ArrowException, OSError, *NOT_A_ROW) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} does not hold results in Parquet ({str(error).partition(chr(10))[0]})") from None


def _from_record(record: dict[str, Any]) -> Row:
    return as_row([record[name] for name in COLUMNS])


def require_pyarrow(path: Path) -> None:
    """Raise if Parquet cannot be read and written here."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise FileError(
            f"{path} needs pyarrow, which is not installed; pip install 'oodles[parquet]', or use a .csv or .jsonl file"
        ) from None
