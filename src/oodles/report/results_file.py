"""Reading the results of ``oodles score`` row by row: JSON lines, CSV or Parquet. Nothing is kept in memory."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from oodles.data.limits import regular_size, unpacked_limit
from oodles.errors import DataError
from oodles.extras import needed_by

MOST_FILE, MOST_LINE = 1 << 40, 1 << 20  # bytes
ROW_GROUP = 1 << 15  # rows of a Parquet file that are read together


class Scored(NamedTuple):
    """One input after scoring. One with an ``error`` has no score and is not in-distribution."""

    path: str
    label: int | None = None
    class_name: str | None = None
    probability: float | None = None
    score: float | None = None
    p_value: float | None = None
    is_id: bool = False
    error: str | None = None


COLUMNS = Scored._fields


class _Line(msgspec.Struct):
    """The columns that a line of JSON has; others are ignored."""

    path: str
    score: float | None
    is_id: bool
    label: int | None = None
    class_name: str | None = None
    probability: float | None = None
    p_value: float | None = None
    error: str | None = None


def read_results(path: Path) -> Iterator[Scored]:
    """The rows of a file of results, each checked; the first that is none is an error that names its number."""
    readers = {".jsonl": _read_json, ".csv": _read_csv, ".parquet": _read_parquet}
    if path.suffix.lower() not in readers:
        raise DataError(f"{path} must end in {', '.join(readers)} to hold results of `oodles score`")
    regular_size(path, MOST_FILE)
    number = 0
    try:
        for row in readers[path.suffix.lower()](path):
            yield row
            number += 1
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error})") from None
    except (ValueError, KeyError, TypeError, RecursionError, csv.Error) as error:
        if isinstance(error, DataError):
            raise
        reason = str(error).partition("\n")[0]
        raise DataError(f"{path} does not hold results of `oodles score`: row {number + 1}: {reason:.300}") from None


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while line := file.readline(MOST_LINE):
            if len(line) == MOST_LINE:
                raise ValueError(f"a line of more than {MOST_LINE:,} bytes")
            yield line


def _read_json(path: Path) -> Iterator[Scored]:
    decoder = msgspec.json.Decoder(_Line)
    for line in _lines(path):
        try:
            row = decoder.decode(line)
        except msgspec.DecodeError:  # perhaps only because a name is not valid text, which msgspec refuses
            row = msgspec.convert(json.loads(line), _Line)
        yield Scored(row.path, row.label, row.class_name, row.probability, row.score, row.p_value, row.is_id, row.error)


def _read_csv(path: Path) -> Iterator[Scored]:
    cells = csv.reader((line.decode() for line in _lines(path)), strict=True)
    header = next(cells, None)
    if header is None:
        raise ValueError("there is no header")
    _check_columns(header)
    places = [header.index(name) for name in COLUMNS]
    truth = {"true": True, "false": False, "": False}
    for line in cells:
        if len(line) != len(header):
            raise ValueError(f"{len(line)} columns, where the header has {len(header)}")
        name, label, class_name, *numbers, is_id, error = (line[place] for place in places)
        if is_id.lower() not in truth:
            raise ValueError(f"is_id is {is_id!r:.40}")
        probability, score, p_value = (float(cell) if cell else None for cell in numbers)
        known = int(label) if label else None
        yield Scored(name, known, class_name or None, probability, score, p_value, truth[is_id.lower()], error or None)


def _read_parquet(path: Path) -> Iterator[Scored]:
    with needed_by(str(path)):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    try:
        with ParquetFile(path) as file:
            _check_columns(file.schema_arrow.names)
            groups = (file.metadata.row_group(place) for place in range(file.metadata.num_row_groups))
            if sum(group.total_byte_size for group in groups) > unpacked_limit(path.stat().st_size):
                raise ValueError("it would unpack to far more than its size")
            for batch in file.iter_batches(ROW_GROUP, columns=[*COLUMNS]):
                yield from (_from_record(record) for record in batch.to_pylist())
    except ArrowException as error:
        raise ValueError(str(error)) from None


def _from_record(record: dict[str, Any]) -> Scored:
    record = {**record, "is_id": bool(record["is_id"])}
    return msgspec.convert(tuple(record[name] for name in COLUMNS), Scored)


def _check_columns(names: list[str]) -> None:
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise ValueError(f"there is no column {missing[0]}")
