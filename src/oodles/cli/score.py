"""``oodles score``."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from oodles.cli.common import CHECK_FAILED, notice, notices, print_json
from oodles.cli.guards import open_for, split_paths
from oodles.cli.options import MAX_BATCH, DeviceOption, GuardOptions
from oodles.cli.score_with_ray import RayOptions, score_with_ray
from oodles.deploy.results.rows import COLUMNS, Row, to_csv
from oodles.errors import ArgumentError
from oodles.records.text import printable

if TYPE_CHECKING:
    from oodles.deploy.opening import OpenGuard
    from oodles.deploy.scoring import Counts

MAX_THREADS = 256


def score(
    paths: Annotated[
        list[Path],
        Argument(
            metavar="[GUARD] INPUTS",
            help="A guard made by oodles fit, or an exported one, then images, folders or .zip files of images, "
            ".npy files of uint8 (n, height, width, 3), CIFAR batches, features made by oodles extract, or - for a "
            "list on standard input, one path per line. Without a guard: a small CIFAR-10 network that comes with "
            "oodles.",
        ),
    ],
    given: GuardOptions,
    batch_size: Annotated[int, Option(help="Images that the network is given at a time.", min=1, max=MAX_BATCH)] = 32,
    workers: Annotated[
        int | None, Option(help="Threads that decode images. Default: one per core, 2 to 16.", min=1, max=MAX_THREADS)
    ] = None,
    threads: Annotated[
        int | None, Option(help="Threads that the network runs on. Default: one per core.", min=1, max=MAX_THREADS)
    ] = None,
    device: DeviceOption = None,
    out: Annotated[
        Path | None,
        Option(
            help="Write the results to this file and print nothing: .jsonl, .csv or .parquet. Lines are added batch by "
            "batch; a Parquet file appears when it is complete. With --ray: a new folder of Parquet files."
        ),
    ] = None,
    resume: Annotated[
        bool,
        Option(
            "--resume",
            help="Continue the file --out after an interruption. Guard, options and inputs must be the same, and the "
            "result is that of an uninterrupted run. If there is no such file, it is begun.",
        ),
    ] = False,
    force: Annotated[bool, Option("--force", help="Replace the file --out if it exists.")] = False,
    as_csv: Annotated[
        bool,
        Option(
            "--csv",
            help="Print CSV and nothing else, with the columns path, label, class_name, probability, score, p_value, "
            "is_id, error. Control characters in names are escaped.",
        ),
    ] = False,
    as_json: Annotated[
        bool,
        Option(
            "--json",
            help="Print one JSON document and nothing else. It is written batch by batch, so its end is missing if the "
            "command fails halfway.",
        ),
    ] = False,
    max_ood_rate: Annotated[
        float | None,
        Option(help="Exit with code 3 if more than this fraction of the inputs is not ID; those with an error count."),
    ] = None,
    use_ray: Annotated[
        bool,
        Option(
            "--ray",
            help="Score image files, or Parquet files with the columns path and bytes, by Ray workers. An image that "
            "cannot be read is a row with an error. Every machine must have the files under the same paths.",
        ),
    ] = False,
    *,
    cluster: RayOptions,
) -> None:
    """Classify and score inputs, and say which are in-distribution.

    Results are printed or written batch by batch. Of an image only its name stays in memory, and not even that if it
    is on a list. An input that cannot be read, or for which the network's output is not finite, has an error text in
    place of label and scores, is not in-distribution, and stops nothing. p_value is empty if the guard keeps no
    calibration scores.

    Exit codes: 0 if all inputs were processed, errors or not; 3 above --max-ood-rate; 2 if the command is refused.

    Example: oodles score guard photos/new --model mynets:resnet18 --checkpoint r18.pt --out results.parquet --resume

    To try it without a model of your own: oodles score photo.jpg
    """
    _check_output(out, as_csv, as_json, resume, force)
    if max_ood_rate is not None and not 0 <= max_ood_rate <= 1:
        raise ArgumentError(f"--max-ood-rate {max_ood_rate:g} must lie between 0 and 1; it is a fraction: 0.1, not 10")
    guard, paths = split_paths("score", paths, given.model)
    if use_ray:
        if out is None or workers is not None or as_csv or as_json:
            raise ArgumentError("--ray writes a folder, --out FOLDER, and has --ray-workers in place of --workers")
        if resume or force or max_ood_rate is not None or threads is not None:
            raise ArgumentError("--ray writes a new folder; leave out --resume, --force, --max-ood-rate and --threads")
        score_with_ray(cluster, guard, paths, out, given, batch_size, device)
        return
    # read when torch is imported; its threads would otherwise spin and take the cores from the threads that decode
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

    from oodles.data.transforms import FileBytes
    from oodles.deploy.results.writing import check_results
    from oodles.deploy.scoring import Counts, score_files, score_inputs
    from oodles.deploy.sources import InputSequence
    from oodles.store import is_store

    if out is not None:
        check_results(out, resume=resume, force=force)
    opened = open_for(guard, given, images=not all(map(is_store, paths)), device=device, threads=threads)
    inputs = InputSequence(paths, notice, files=isinstance(opened.reads, FileBytes))
    counts = Counts()
    # lines on a terminal show the progress themselves
    with _progress(inputs.total, shown=out is not None or not sys.stdout.isatty()) as move:

        def moved(now: Counts) -> None:
            nonlocal counts
            counts = now
            move(now)

        how: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "progress": moved}
        try:
            if out is None:
                _print(score_inputs(opened, inputs, **how), opened, as_csv, as_json)
            else:
                score_files(opened, inputs, out, resume=resume, overwrite=force, **how)
        except KeyboardInterrupt:
            if out is not None and counts.total:
                notice(f"{counts.total} results are in {out}; run the same command with --resume to continue")
            raise
    _report(counts, opened, out, quiet=as_csv or as_json)
    if max_ood_rate is not None and counts.ood_rate > max_ood_rate:
        notice(f"check failed: {counts.ood_rate:.4g} of {counts.total} inputs are not ID, more than {max_ood_rate:g}")
        raise typer.Exit(CHECK_FAILED)


def _check_output(out: Path | None, as_csv: bool, as_json: bool, resume: bool, force: bool) -> None:
    """Raise if options about the output exclude each other."""
    if as_csv and as_json:
        raise ArgumentError("--csv and --json exclude each other; give one of them")
    if resume and force:
        raise ArgumentError("--resume continues an output and --force replaces it; give one of them")
    if out is None and (resume or force):
        raise ArgumentError("--resume and --force are about a file; give its name with --out")
    if out is not None and (as_csv or as_json):
        raise ArgumentError("--out writes a file and prints no results; leave out --csv and --json")


@contextmanager
def _progress(total: int | None, *, shown: bool) -> "Iterator[Callable[[Counts], None]]":
    """Show a bar on standard error with the counts so far, which the function updates; nothing without a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Remaining

    text = TextColumn("{task.fields[ood]:,} OOD, {task.fields[errors]:,} errors")
    columns = (BarColumn(), MofNCompleteColumn(), text, TimeElapsedColumn(), Remaining())
    disabled = not shown or not notices.is_terminal
    with Progress(*columns, console=notices, transient=True, disable=disabled, redirect_stdout=False) as bar:
        task = bar.add_task("", total=total, ood=0, errors=0)
        yield lambda counts: bar.update(task, completed=counts.total, ood=counts.rejected, errors=counts.errors)


def _print(batches: "Iterator[list[Row]]", guard: "OpenGuard", as_csv: bool, as_json: bool) -> None:
    """Print each batch of results as soon as it is scored, as text, CSV or JSON."""
    if as_json:
        about = {"detector": guard.detector, "threshold": guard.threshold.value}
        print_json(([row._asdict() for row in rows] for rows in batches), about, "verdicts")
        return
    header: list[Sequence[Any]] = [COLUMNS]
    for rows in batches:
        typer.echo(to_csv([*header, *rows]) if as_csv else "".join(f"{_line(row)}\n" for row in rows), nl=False)
        header = []


def _line(row: "Row") -> str:
    if row.error is not None:
        return printable(f"error  {row.path}: {row.error}")
    name = f"class {row.label}" if row.class_name is None else row.class_name
    return printable(f"{'ID ' if row.is_id else 'OOD'}  {row.score:12.7g}  {name:<11} {row.path}")


def _report(counts: "Counts", guard: "OpenGuard", out: Path | None, *, quiet: bool) -> None:
    """Say on standard error how many inputs were accepted, and how many have an error."""
    errors = f"{counts.errors} with an error" if counts.errors else ""
    if quiet:
        if errors:
            notice(f"{errors}, of {counts.total}")
        return
    share = f"{counts.accepted} of {counts.accepted + counts.rejected} in-distribution"
    rule = f"{guard.detector} >= {guard.threshold.value:.7g}"
    where = "" if out is None else f"; written to {out}"
    notice(f"{share} ({rule}){errors and f', {errors}'}{where}")
