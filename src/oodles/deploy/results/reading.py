"""Reading results back, row by row, from CSV, JSON lines or Parquet."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from oodles.data.limits import unpacked_limit
from oodles.deploy.results.rows import COLUMNS, MAX_BYTES, NOT_A_ROW, Lines, Row, as_row, lines_of
from oodles.errors import DataError, FileError
from oodles.extras import needed_by
from oodles.records.text import one_line

ROW_GROUP = 1 << 16
"""Rows of a Parquet file that are written and read together."""


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file of results, in order; names have the escapes of the format, see :mod:`oodles.deploy.results`.

    A file that is not complete, because it is being written or its writer was killed, ends in an error.
    """
    lines, number = lines_of(path), 1
    check_regular(path)
    in_lines = (row for row, _ in _line_rows(path, lines))
    try:
        for row in _parquet_rows(path) if path.suffix.lower() == ".parquet" else in_lines:
            yield row
            number += 1
    except (OSError, *NOT_A_ROW) as error:
        reason = one_line(error)
        raise DataError(f"{path} does not hold results of `oodles score`: row {number}: {reason:.300}") from None


def whole_rows(path: Path, lines: Lines) -> Iterator[tuple[Row, int]]:
    """The rows of a file up to the first line that is none, each with the place in the file where it ends."""
    with suppress(*NOT_A_ROW):
        yield from _line_rows(path, lines)


def _line_rows(path: Path, lines: Lines) -> Iterator[tuple[Row, int]]:
    """The rows of a file, each with the place where it ends; raises at the first line that is none."""
    with path.open("rb") as file:
        if file.read(len(lines.header)) != lines.header:
            raise ValueError(f"it does not begin with the line {','.join(COLUMNS)}")
        while line := file.readline(MAX_BYTES):
            if not line.endswith(b"\n"):
                raise ValueError("the line is cut off or longer than allowed; `oodles score --resume` completes it")
            yield lines.decode(line), file.tell()


def check_regular(path: Path) -> None:
    """Raise unless ``path`` is a file, and not a folder, a pipe or a device."""
    if not path.is_file():
        raise FileError(f"{path} is not a file" if path.exists() else f"{path} does not exist")


def _parquet_rows(path: Path) -> Iterator[Row]:
    require_pyarrow(path)
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            missing = [name for name in COLUMNS if name not in file.schema_arrow.names]
            if missing:
                raise ValueError(f"it has no column {missing[0]}")
            groups = (file.metadata.row_group(place) for place in range(file.metadata.num_row_groups))
            if sum(group.total_byte_size for group in groups) > unpacked_limit(path.stat().st_size):
                raise ValueError("it would unpack to far more than its size")
            for batch in file.iter_batches(ROW_GROUP, columns=[*COLUMNS]):
                yield from (as_row([record[name] for name in COLUMNS]) for record in batch.to_pylist())
    except ArrowException as error:
        raise ValueError(error) from None


def require_pyarrow(path: Path) -> None:
    """Raise if Parquet cannot be read and written here."""
    with needed_by(str(path)):
        import pyarrow.parquet  # noqa: F401
