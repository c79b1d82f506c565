"""Measure time and memory beside other packages, as ratios within one run: ``docs/performance.md``.

Every benchmark is a module with a function ``run`` that gives rows. Name some of them, or run all, which takes an hour
on two quiet cores and writes the page.
"""

import inspect
import sys
import time
import traceback
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated

from typer import Argument, BadParameter, Option

from studies.bench.page import NAMES, Report
from studies.bench.results import Row


def main(
    names: Annotated[list[str] | None, Argument(help=f"{', '.join(NAMES)}; all if none is named")] = None,
    quick: Annotated[bool, Option("--quick", help="A short subset of each; never written to the page.")] = False,
    write: Annotated[bool, Option("--write", help="Also replace the results of those named in the page.")] = False,
    only: Annotated[
        str | None, Option(help="Detectors whose name contains this; with --write, other rows stay.")
    ] = None,
    rows: Annotated[int | None, Option(help="larger_than_memory: rows of the store; 1281167 as in ImageNet.")] = None,
    folder: Annotated[Path | None, Option(help="larger_than_memory: where to write the store, then removed.")] = None,
) -> None:
    """Run the benchmarks that are named, or all; a run of all writes ``docs/performance.md``."""
    unknown = [name for name in names or () if name not in NAMES]
    if unknown:
        raise BadParameter(f"{unknown[0]!r} must be one of {', '.join(NAMES)}")
    if write and quick:
        raise BadParameter("--quick measures too little for the page; leave out --write")
    if only and not names:
        raise BadParameter("--only is for detectors and larger_than_memory; name one of them")
    report = Report()
    failed = []
    for name in names or NAMES:
        began = time.monotonic()
        print(f"\n{name}", flush=True)
        try:
            found = list(_printed(run(name, quick=quick, only=only, rows=rows, folder=folder)))
        except Exception:  # the others run all the same, since all of them take a while
            traceback.print_exc()
            failed.append(name)
            continue
        minutes = (time.monotonic() - began) / 60
        print(f"{minutes:.1f} minutes", flush=True)
        if write and only:
            report.update(name, found)
        elif write or not (names or quick):
            report.replace(name, found, minutes)
        else:
            continue
        report.write()
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def run(name: str, **options: object) -> Iterator[Row]:
    """Yield the rows of one benchmark as they are measured; options that it does not have are left out."""
    function = import_module(f"studies.bench.{name}").run
    known = inspect.signature(function).parameters
    rows: Iterator[Row] = function(**{key: value for key, value in options.items() if key in known})
    return rows


def _printed(rows: Iterator[Row]) -> Iterator[Row]:
    for row in rows:
        print(f"  {row.line()}", flush=True)
        yield row
