"""Run some or all of the benchmarks: ``python -m benchmarks [NAME ...] [--quick] [--write]``."""

import argparse
import inspect
import sys
import time
import traceback
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from benchmarks.page import NAMES, Report
from benchmarks.results import Row


def main() -> None:
    """Run those that are named, or all; a run of all writes ``docs/performance.md``."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Time and memory beside the peers, as ratios within one run."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)}; all if none is named")
    parser.add_argument("--quick", action="store_true", help="a short subset of each; never written to the page")
    parser.add_argument("--write", action="store_true", help="also replace the results of those named in the page")
    parser.add_argument(
        "--only", metavar="TEXT", help="those detectors whose name contains this; with --write, other rows stay"
    )
    parser.add_argument(
        "--rows", type=int, help="larger_than_memory: rows of the store, 1281167 as in ImageNet if not given"
    )
    parser.add_argument("--folder", type=Path, help="larger_than_memory: where to write the store, removed afterwards")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in NAMES]
    if unknown:
        parser.error(f"{unknown[0]!r} must be one of {', '.join(NAMES)}")
    if arguments.write and arguments.quick:
        parser.error("--quick measures too little for the page; leave out --write")
    report = Report()
    failed = []
    if arguments.only and not arguments.names:
        parser.error("--only is for detectors and larger_than_memory; name one of them")
    options = {"only": arguments.only, "rows": arguments.rows, "folder": arguments.folder}
    for name in arguments.names or NAMES:
        began = time.monotonic()
        print(f"\n{name}", flush=True)
        try:
            rows = list(_printed(run(name, quick=arguments.quick, **options)))
        except Exception:  # the others run all the same, since all of them take a while
            traceback.print_exc()
            failed.append(name)
            continue
        minutes = (time.monotonic() - began) / 60
        print(f"{minutes:.1f} minutes", flush=True)
        if arguments.write and arguments.only:
            report.update(name, rows)
        elif arguments.write or not (arguments.names or arguments.quick):
            report.replace(name, rows, minutes)
        else:
            continue
        report.write()
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def run(name: str, **options: object) -> Iterator[Row]:
    """The rows of one benchmark, as they are measured; options that it does not have are left out."""
    function = import_module(f"benchmarks.{name}").run
    known = inspect.signature(function).parameters
    rows: Iterator[Row] = function(**{key: value for key, value in options.items() if key in known})
    return rows


def _printed(rows: Iterator[Row]) -> Iterator[Row]:
    for row in rows:
        print(f"  {row.line()}", flush=True)
        yield row


if __name__ == "__main__":
    main()
