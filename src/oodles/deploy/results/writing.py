"""Results that are appended to a file as they are made, and continued after their writer was killed.

CSV and JSON lines are appended to the file itself. Parquet cannot be appended to: its rows go to lines of JSON in
``results.parquet.rows``, which becomes ``results.parquet`` when all are there. Each batch is one write, and only whole
batches are kept when a job is resumed, so that the network is given the batches of an uninterrupted run and every bit
of the results is the same. What results were made with is in a small record beside them, ``results.csv.job``.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from filelock import FileLock, Timeout

from oodles import __version__
from oodles.deploy.results.reading import ROW_GROUP, check_regular, read_rows, require_pyarrow, whole_rows
from oodles.deploy.results.rows import COLUMNS, JSON, Row, lines_of
from oodles.deploy.sources import Batch
from oodles.errors import ArgumentError, FileError
from oodles.records.files import Fields, read_record, write_bytes, write_record, write_with, writing
from oodles.records.text import printable

if TYPE_CHECKING:
    import pyarrow as pa


KIND, SCHEMA = "results", 1
SHORT = 40  # characters of a value in a message


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that the rows depend on besides the inputs.

    ``guard`` is the SHA-256 of the guard's record. The batch size is part of it, because sums of another number of rows
    may be rounded differently.
    """

    detector: str
    threshold: float
    id_rate: float
    guard: str
    preprocessing: dict[str, Any] | None
    batch_size: int


class _Fields(Fields):
    oodles: str
    job: Job


def check_results(path: Path, *, resume: bool = False, force: bool = False) -> None:
    """Raise unless results can be written to ``path``, be it new, to be continued, or to be replaced."""
    lines_of(path)
    if path.suffix.lower() == ".parquet":
        require_pyarrow(path)
    existing = next((each for each in (path, rows_path(path)) if os.path.lexists(each)), None)
    if existing is None:
        return
    check_regular(existing)
    if resume and not job_path(path).is_file():
        raise FileError(
            f"{existing} cannot be resumed: {job_path(path)}, which says what it was made with, is missing; "
            "start again with --force"
        )
    if not resume and not force:
        raise ArgumentError(f"{existing} exists already; --resume continues it, --force replaces it")


def job_path(path: Path) -> Path:
    """Return where the job of results is recorded."""
    return path.with_name(f"{path.name}.job")


def read_job(path: Path) -> Job:
    """Return the job of the results in ``path``."""
    return Job(**read_record(job_path(path), kind=KIND, schema=SCHEMA, fields=_Fields)["job"])


def rows_path(path: Path) -> Path:
    """The file that rows are appended to."""
    return path.with_name(f"{path.name}.rows") if path.suffix.lower() == ".parquet" else path


@contextmanager
def open_results(path: Path, job: Job, *, resume: bool = False, force: bool = False) -> Iterator["ResultFile"]:
    """Results in ``path``, which nobody else writes meanwhile: new ones, or with ``resume`` those of the same job."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise FileError(f"{path} is being written by another process; wait until it has finished") from None
    try:
        check_results(path, resume=resume, force=force)
        _prepare(path, job, resume)
        results = ResultFile(path)
        try:
            yield results
        finally:
            results.close()
    finally:
        with suppress(OSError):
            Path(lock.lock_file).unlink()
        lock.release()


def _prepare(path: Path, job: Job, resume: bool) -> None:
    """Leave rows of the same job, or none; killed at any moment, what is there belongs to the recorded job."""
    rows = rows_path(path)
    with writing(path):
        if resume and job_path(path).is_file():
            _check_same(path, read_job(path), job)
            if path.is_file() and not rows.is_file():  # a complete Parquet file
                write_with(rows, lambda temporary: _write_lines(temporary, read_rows(path)))
        else:
            for each in (path, rows):
                each.unlink(missing_ok=True)
            about = {"kind": KIND, "schema": SCHEMA, "oodles": __version__}
            write_record(job_path(path), {**about, "job": msgspec.to_builtins(job)})
        if not rows.is_file():
            write_bytes(rows, lines_of(path).header)


def _check_same(path: Path, stored: Job, asked: Job) -> None:
    """Raise if results that were begun with one job would be continued with another."""
    for name in Job.__struct_fields__:
        before, now = getattr(stored, name), getattr(asked, name)
        if before != now:
            values = f"{name.replace('_', ' ')} {str(before)[:SHORT]}, not {str(now)[:SHORT]}"
            raise ArgumentError(f"{path} was begun with {values}; resume it with the same, or start again with --force")


class ResultFile:
    """Results that are being written; made by :func:`open_results`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self._lines = lines_of(path)
        self._file = rows_path(path).open("r+b", buffering=0)

    def remaining(self, batches: Iterable[Batch], seen: Callable[[Sequence[Row]], None]) -> Iterator[Batch]:
        """The batches that are not there yet; ``seen`` is given the rows of the others.

        The inputs must be those of the rows that are there. Rows of a batch that is not complete, and half a line, are
        cut off. To be called once, before anything is appended.
        """
        coming, known = iter(batches), whole_rows(rows_path(self.path), self._lines)
        end = len(self._lines.header)
        for batch in coming:
            found = list(islice(known, len(batch.names)))
            rows = [row for row, _ in found]
            self._check_names(rows, batch.names)
            if len(found) < len(batch.names):
                self._continue_at(end)
                yield batch
                break
            end = found[-1][1]
            self.rows += len(rows)
            seen(rows)
        else:
            beyond = next(known, None)
            if beyond is not None:
                raise self._other_inputs(f"has row {self.rows + 1}, {beyond[0].path}, beyond the {self.rows} inputs")
            self._continue_at(end)
        yield from coming

    def append(self, rows: Sequence[Row]) -> None:
        """Add the rows of a batch; when this returns, they survive whatever happens to this process."""
        with writing(self.path):
            left = memoryview(b"".join(map(self._lines.encode, rows)))
            while left:  # a disk that is almost full takes a part
                left = left[self._file.write(left) :]
        self.rows += len(rows)

    def finish(self) -> None:
        """Say that all rows are there; a Parquet file appears under its name."""
        with writing(self.path):
            os.fsync(self._file.fileno())
            self.close()
            rows = rows_path(self.path)
            if rows != self.path:
                write_with(self.path, lambda temporary: _write_parquet(temporary, rows))
                rows.unlink()

    def close(self) -> None:
        """Let go of the file; what is there can be resumed."""
        self._file.close()

    def _check_names(self, rows: Sequence[Row], names: Sequence[str]) -> None:
        for place, (row, name) in enumerate(zip(rows, names, strict=False), start=self.rows + 1):
            if printable(row.path) != printable(name):  # a format may have escaped it
                raise self._other_inputs(f"has {row.path} as row {place}, where {name} is now")

    def _other_inputs(self, fact: str) -> ArgumentError:
        return ArgumentError(f"{self.path} {fact}; resume it with the same inputs, or start again with --force")

    def _continue_at(self, end: int) -> None:
        with writing(self.path):
            self._file.truncate(end)  # the header may be torn too
            self._file.write(self._lines.header)
            self._file.seek(end)


def _write_lines(path: Path, rows: Iterable[Row]) -> None:
    with path.open("wb") as file:
        file.writelines(map(JSON.encode, rows))


def _write_parquet(path: Path, lines: Path) -> None:
    """Write the rows of a file of JSON lines as Parquet."""
    from pyarrow.parquet import ParquetWriter

    rows = (row for row, _ in whole_rows(lines, JSON))
    with ParquetWriter(path, parquet_table([]).schema) as writer:
        while group := list(islice(rows, ROW_GROUP)):
            writer.write_table(parquet_table(group))
            os.utime(path)  # shows that the temporary file is in use


def parquet_table(rows: Iterable[Row]) -> "pa.Table":
    """Return rows as a table of Arrow, in which names that are not valid text are escaped."""
    import pyarrow as pa

    text, number = pa.string(), pa.float64()
    kinds = text, pa.int64(), text, number, number, number, pa.bool_(), text
    records = [
        {name: _valid(value) if isinstance(value, str) else value for name, value in row._asdict().items()}
        for row in rows
    ]
    return pa.Table.from_pylist(records, pa.schema(list(zip(COLUMNS, kinds, strict=True))))


def _valid(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
