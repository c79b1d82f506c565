"""``oodles score``."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from oodles.cli import common
from oodles.cli.checks import MAX_WORKERS, check_checkpoints, check_number, image_options
from oodles.cli.common import CHECK_FAILED, notice, notices, print_json
from oodles.cli.guards import GuardOptions, open_for, split_paths
from oodles.cli.score_with_ray import RayOptions, score_with_ray
from oodles.deploy.results.rows import COLUMNS, Row, to_csv
from oodles.errors import ArgumentError
from oodles.records.text import printable

if TYPE_CHECKING:
    from oodles.deploy.opening import OpenGuard
    from oodles.deploy.scoring import Counts

MAX_OOD_RATE = 0.1
# torch's threads would spin while they wait for each other, and take the cores from the threads that decode
SETTINGS = {"OMP_WAIT_POLICY": "PASSIVE"}


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
    model: common.GuardedModelOption = None,
    checkpoint: common.CheckpointOption = None,
    size: common.SizeOption = None,
    resize: common.ResizeOption = None,
    mean: common.MeanOption = None,
    std: common.StdOption = None,
    batch_size: Annotated[int, Option(help="How many images the network is given at a time.")] = 32,
    workers: Annotated[int | None, Option(help="Threads that decode images. Default: one per core, 2 to 16.")] = None,
    threads: Annotated[int | None, Option(help="Threads that the network runs on. Default: one per core.")] = None,
    device: common.DeviceOption = None,
    key: common.KeyOption = None,
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
    check: Annotated[
        bool,
        Option("--check", help="Exit with code 3 if the fraction of inputs that are not ID is above --max-ood-rate."),
    ] = False,
    max_ood_rate: Annotated[
        float | None, Option(help=f"For --check, from 0 to 1; inputs with an error count. Default: {MAX_OOD_RATE}.")
    ] = None,
    use_ray: Annotated[
        bool,
        Option(
            "--ray",
            help="Score image files, or Parquet files with the columns path and bytes, by Ray workers. An image that "
            "cannot be read is a row with an error. Every machine must have the files under the same paths.",
        ),
    ] = False,
    ray_address: Annotated[
        str | None, Option(help="Address of a Ray cluster. Default: RAY_ADDRESS, or Ray is started on this machine.")
    ] = None,
    ray_workers: Annotated[
        int | None, Option(help="Default: as many as there is room for beside one CPU, which is needed for reading.")
    ] = None,
    ray_cpus: Annotated[float, Option(help="CPUs of each worker. With --device cuda it also has one GPU.")] = 1.0,
) -> None:
    """Classify and score inputs, and say which are in-distribution.

    Results are printed or written batch by batch, and memory does not grow with the number of images. An input that
    cannot be read, or for which the network's output is not finite, has an error text in place of label and scores, is
    not in-distribution, and stops nothing. p_value is empty if the guard keeps no calibration scores.

    Exit codes: 0 if all inputs were processed, errors or not; 3 if --check fails; 2 if the command is refused.

    Example: oodles score guard photos/new --model mynets:resnet18 --checkpoint r18.pt --out results.parquet --resume

    To try it without a model of your own: oodles score photo.jpg
    """
    _check_output(out, as_csv, as_json, resume, force)
    check_number("--batch-size", batch_size)
    check_number("--workers", workers, most=MAX_WORKERS)
    check_number("--threads", threads, most=MAX_WORKERS)
    check_checkpoints([checkpoint])
    limit = _check_rate(check, max_ood_rate)
    given = GuardOptions(model, checkpoint, device, key, image_options(size, resize, mean, std))
    guard, paths = split_paths("score", paths, model)
    if use_ray:
        if out is None or workers is not None or as_csv or as_json:
            raise ArgumentError("--ray writes a folder, --out FOLDER, and has --ray-workers in place of --workers")
        if resume or force or check or threads is not None:
            raise ArgumentError("--ray writes a new folder; leave out --resume, --force, --check and --threads")
        cluster = RayOptions(ray_address, ray_workers, ray_cpus, batch_size)
        score_with_ray(cluster, guard, paths, out, given)
        return
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)  # read when torch is imported

    from oodles.deploy.results.writing import check_results
    from oodles.deploy.scoring import Counts, score_files, score_inputs
    from oodles.deploy.sources import InputSequence

    if out is not None:
        check_results(out, resume=resume, force=force)
    inputs = InputSequence(paths, notice)
    opened = open_for(guard, given, images=inputs.has_images, threads=threads)
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
    if limit is not None and counts.ood_rate > limit:
        notice(f"check failed: {counts.ood_rate:.4g} of {counts.total} inputs are not ID, more than {limit:g}")
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


def _check_rate(check: bool, rate: float | None) -> float | None:
    """Return the largest rate that ``--check`` allows; None without a check."""
    if rate is not None and not check:
        raise ArgumentError(f"--max-ood-rate {rate:g} is for --check; give both")
    if rate is not None and not 0 <= rate <= 1:
        raise ArgumentError(f"--max-ood-rate {rate:g} must lie between 0 and 1; it is a fraction: 0.1, not 10")
    return (MAX_OOD_RATE if rate is None else rate) if check else None


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
