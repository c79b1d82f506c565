"""Results that are appended to a file as they are made, and continued after their writer was killed.

CSV and JSON lines are appended to the file itself. Parquet cannot be appended to: its rows go to lines of JSON in
``results.parquet.rows``, which becomes ``results.parquet`` when all are there. Each batch is one write, and only whole
batches are kept when a job is resumed, so that the network is given the batches of an uninterrupted run and every bit
of the results is the same. What results were made with is in a small record beside them, ``results.csv.job``, followed
by a stamp for each batch, which shows whether its inputs have changed.
"""

import hashlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from filelock import FileLock, Timeout

from oodles import __version__
from oodles.deploy.results.reading import ROW_GROUP, read_rows, require_pyarrow, whole_rows
from oodles.deploy.results.rows import COLUMNS, FORMATS, JSON, Row, lines_of
from oodles.deploy.sources import Batch
from oodles.errors import ArgumentError, FileError
from oodles.records.files import (
    Fields,
    Kind,
    check_output,
    marked,
    parse_record,
    read_regular,
    record_kind,
    write_bytes,
    write_record,
    write_with,
    writing,
)
from oodles.records.text import printable

if TYPE_CHECKING:
    import pyarrow as pa


KIND, SCHEMA = "results", 1
SHORT = 40  # characters of a value in a message
STAMP = 17  # bytes of the line that stands for the inputs of a batch
MAX_JOB_BYTES = 1 << 32
PARQUET = b"results of oodles score"  # in the metadata of the file


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that the rows depend on besides the inputs.

    ``guard`` is the SHA-256 of the guard's record, ``identity`` that of what decides, which its export shares. The
    batch size is part of it, because sums of another number of rows may be rounded differently.
    """

    detector: str
    threshold: float
    id_rate: float
    guard: str
    identity: str
    preprocessing: dict[str, Any] | None
    batch_size: int


class _Fields(Fields):
    oodles: str
    job: Job


def check_results(path: Path, *, resume: bool = False, force: bool = False, inputs: Iterable[str | Path] = ()) -> None:
    """Raise unless results can be written to ``path``, be it new, to be continued, or to be replaced."""
    lines_of(path)
    if path.suffix.lower() == ".parquet":
        require_pyarrow(path)
    existing = next((each for each in (path, rows_path(path)) if os.path.lexists(each)), None)
    check_output(path, _kind(path), inputs)
    check_output(rows_path(path), _kind(rows_path(path)))
    check_output(job_path(path), record_kind(KIND))
    if existing is None:
        return
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
    return _read_job(path)[0]


def _read_job(path: Path) -> tuple[Job, bytes]:
    """Return the job, and after it in the same file the stamps of the batches, a line each."""
    content = read_regular(job_path(path), MAX_JOB_BYTES)
    record, end, stamps = content.partition(b"\n}\n")
    checked = parse_record(record + end, job_path(path), kind=KIND, schema=SCHEMA, fields=_Fields)
    return Job(**checked["job"]), stamps


def _kind(path: Path) -> Kind:
    """Return how results are recognised: by their columns, as far as the first line is there."""
    if path.suffix.lower() == ".parquet":
        return marked("results", PARQUET)
    lines = FORMATS.get(path.suffix.lower(), JSON)
    begin = lines.header or b'{"path": '
    columns = [] if lines.header else [f'"{name}": '.encode() for name in COLUMNS]
    return Kind(
        "results",
        lambda content: (
            begin.startswith(content[: len(begin)])
            and (b"\n" not in content or all(name in content for name in columns))
        ),
    )


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
                write_with(rows, lambda temporary: _write_lines(temporary, read_rows(path)), _kind(rows))
        else:
            for each in (path, rows):
                each.unlink(missing_ok=True)
            about = {"kind": KIND, "schema": SCHEMA, "oodles": __version__}
            write_record(job_path(path), {**about, "job": msgspec.to_builtins(job)})
        if not rows.is_file():
            write_bytes(rows, lines_of(path).header, _kind(rows))


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
        self._stamps = _read_job(path)[1]
        self._job = job_path(path).open("r+b", buffering=0)
        self._pending: deque[bytes] = deque()  # the stamps of batches whose rows are not there yet

    def remaining(self, batches: Iterable[Batch], seen: Callable[[Sequence[Row]], None]) -> Iterator[Batch]:
        """The batches that are not there yet; ``seen`` is given the rows of the others.

        The inputs must be those of the rows that are there, and unchanged. Rows of a batch that is not complete, and
        half a line, are cut off. To be called once, before anything is appended.
        """
        coming, known = iter(batches), whole_rows(rows_path(self.path), self._lines)
        end, stamps = len(self._lines.header), 0
        for batch in coming:
            found = list(islice(known, len(batch.names)))
            rows = [row for row, _ in found]
            self._check_names(rows, batch.names)
            stamp = self._stamps[stamps : stamps + STAMP]
            if len(found) < len(batch.names) or len(stamp) < STAMP:
                coming = chain([batch], coming)
                break
            if stamp != _stamp(batch.names):
                raise self._other_inputs(f"has rows of {batch.names[0]} to {batch.names[-1]}, one of which has changed")
            stamps += STAMP
            end = found[-1][1]
            self.rows += len(rows)
            seen(rows)
        else:
            beyond = next(known, None)
            if beyond is not None:
                raise self._other_inputs(f"has row {self.rows + 1}, {beyond[0].path}, beyond the {self.rows} inputs")
        with writing(self.path):
            self._file.truncate(end)  # the header may be torn too
            self._file.write(self._lines.header)
            self._file.seek(end)
            self._job.seek(stamps - len(self._stamps), os.SEEK_END)
            self._job.truncate()
        for batch in coming:
            self._pending.append(_stamp(batch.names))  # before they are read
            yield batch

    def append(self, rows: Sequence[Row]) -> None:
        """Add the rows of a batch; when this returns, they survive whatever happens to this process."""
        with writing(self.path):
            # the stamp first: rows without one are scored again
            written = {self._job: self._pending.popleft(), self._file: b"".join(map(self._lines.encode, rows))}
            for file, content in written.items():
                left = memoryview(content)
                while left:  # a disk that is almost full takes a part
                    left = left[file.write(left) :]
        self.rows += len(rows)

    def finish(self) -> None:
        """Say that all rows are there; a Parquet file appears under its name."""
        with writing(self.path):
            for file in (self._job, self._file):
                os.fsync(file.fileno())
            self.close()
            rows = rows_path(self.path)
            if rows != self.path:
                write_with(self.path, lambda temporary: _write_parquet(temporary, rows), _kind(self.path))
                rows.unlink()

    def close(self) -> None:
        """Let go of the file; what is there can be resumed."""
        self._file.close()
        self._job.close()

    def _check_names(self, rows: Sequence[Row], names: Sequence[str]) -> None:
        for place, (row, name) in enumerate(zip(rows, names, strict=False), start=self.rows + 1):
            if printable(row.path) != printable(name):  # a format may have escaped it
                raise self._other_inputs(f"has {row.path} as row {place}, where {name} is now")

    def _other_inputs(self, fact: str) -> ArgumentError:
        return ArgumentError(f"{self.path} {fact}; resume it with the same inputs, or start again with --force")


def _stamp(names: Sequence[str]) -> bytes:
    """Return a line that is another one if the size or the time of the file of an input has changed."""
    digest = hashlib.sha256()
    for name in names:
        path = Path(re.sub(r"\[\d+\]$", "", name))  # a row of an array or a store
        path = next((part for part in path.parents if part.suffix.lower() == ".zip" and part.is_file()), path)
        with suppress(OSError, ValueError):
            found = path.stat()
            digest.update(b"%d %d" % (found.st_size, found.st_mtime_ns))
        digest.update(b"\n")
    return f"{digest.hexdigest()[: STAMP - 1]}\n".encode()


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
    columns = list(zip(COLUMNS, kinds, strict=True))
    return pa.Table.from_pylist(records, pa.schema(columns, metadata={PARQUET: __version__}))


def _valid(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
