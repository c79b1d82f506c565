"""What results were made with, kept in a small record beside them: ``results.csv.job`` beside ``results.csv``."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from oodles import __version__
from oodles.errors import ArgumentError
from oodles.records.files import Fields, read_record, write_record

KIND, SCHEMA = "results", 1
SHORT = 40


class Job(Struct, frozen=True, forbid_unknown_fields=True):
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
    rows: Annotated[int, Meta(ge=0)] | None


def job_path(path: Path) -> Path:
    """Return where the job of results is recorded."""
    return path.with_name(f"{path.name}.job")


def write_job(path: Path, job: Job, rows: int | None) -> None:
    """Record the job of the results in ``path``; ``rows`` is their number if all are there, else None."""
    about = {"kind": KIND, "schema": SCHEMA, "oodles": __version__}
    write_record(job_path(path), {**about, "job": msgspec.to_builtins(job), "rows": rows})


def read_job(path: Path) -> tuple[Job, int | None]:
    """Return the job of the results in ``path``, and the number of rows if all are there."""
    record = read_record(job_path(path), kind=KIND, schema=SCHEMA, fields=_Fields)
    return Job(**record["job"]), record["rows"]


def check_same(path: Path, stored: Job, asked: Job) -> None:
    """Raise if results that were begun with one job would be continued with another."""
    for name in Job.__struct_fields__:
        before, now = getattr(stored, name), getattr(asked, name)
        if before != now:
            values = f"{name.replace('_', ' ')} {str(before)[:SHORT]}, not {str(now)[:SHORT]}"
            raise ArgumentError(f"{path} was begun with {values}; resume it with the same, or start again with --force")
