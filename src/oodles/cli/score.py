"""``oodles score``."""

import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from oodles.cli import common
from oodles.cli.checks import MAX_WORKERS, check_checkpoints, check_number, image_options
from oodles.cli.common import CHECK_FAILED, notice
from oodles.cli.guards import ModelOptions, is_exported_guard, load_saved, split_paths
from oodles.cli.inputs import Batch, InputSequence
from oodles.cli.outputs import Output
from oodles.cli.score_with_ray import RayOptions, score_with_ray
from oodles.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from oodles.cli.scorers import Scorer
    from oodles.cli.scoring import Counts
    from oodles.deploy.results.rows import Row

MAX_OOD_RATE = 0.1
# torch's threads would spin while they wait for each other, and take the cores from the threads that decode
SETTINGS = {"OMP_WAIT_POLICY": "PASSIVE"}


def score(
    paths: Annotated[
        list[Path],
        Argument(
            metavar="[GUARD] INPUTS",
            help="A guard made by oodles fit, or an exported one, then images, folders or .zip files of images, "
            "patterns such as 'photos/**/*.jpg', .npy files of uint8 (n, height, width, 3), CIFAR batches, features "
            "made by oodles extract, or - for a list on standard input, one path per line. Without a guard: a small "
            "CIFAR-10 network that comes with oodles.",
        ),
    ],
    model: common.GuardedModelOption = None,
    checkpoint: common.CheckpointOption = None,
    size: common.KnownSizeOption = None,
    resize: common.ResizeOption = None,
    mean: common.KnownMeanOption = None,
    std: common.KnownStdOption = None,
    batch_size: Annotated[int, Option(help="How many images the network is given at a time.")] = 32,
    workers: Annotated[int | None, Option(help="Threads that decode images. Default: one per core, 2 to 16.")] = None,
    threads: Annotated[int | None, Option(help="Threads that the network runs on. Default: one per core.")] = None,
    device: common.DeviceOption = None,
    key: common.KeyOption = None,
    out: Annotated[
        Path | None,
        Option(
            help="Write the results to this file and print nothing: .jsonl, .csv, .parquet, or .npy for the scores "
            "alone. Lines are added batch by batch; Parquet and NumPy files appear when they are complete. With --ray: "
            "a new folder of Parquet files."
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
    output = Output(out, as_csv, as_json, resume, force)
    check_number("--batch-size", batch_size)
    check_number("--workers", workers, most=MAX_WORKERS)
    check_number("--threads", threads, most=MAX_WORKERS)
    check_checkpoints([checkpoint])
    limit = _check_rate(check, max_ood_rate)
    given = ModelOptions(model, checkpoint, device, key, image_options(size, resize, mean, std))
    guard, inputs = split_paths("score", paths, model)
    if use_ray:
        if out is None or workers is not None or as_csv or as_json:
            raise ArgumentError("--ray writes a folder, --out FOLDER, and has --ray-workers in place of --workers")
        if resume or force or check or threads is not None:
            raise ArgumentError("--ray writes a new folder; leave out --resume, --force, --check and --threads")
        cluster = RayOptions(ray_address, ray_workers, ray_cpus, batch_size)
        score_with_ray(cluster, guard, inputs, out, given)
        return
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)  # read when torch is imported
    output.check_file()
    sequence = InputSequence(inputs)
    scorer = _open(guard, given, threads)
    counts = _run(scorer, sequence, output, batch_size, workers)
    _report(counts, scorer, output)
    if limit is not None and counts.ood_rate > limit:
        notice(f"check failed: {counts.ood_rate:.4g} of {counts.total} inputs are not ID, more than {limit:g}")
        raise typer.Exit(CHECK_FAILED)


def _check_rate(check: bool, rate: float | None) -> float | None:
    """The largest rate that ``--check`` allows; None without a check."""
    if rate is not None and not check:
        raise ArgumentError(f"--max-ood-rate {rate:g} is for --check; give both")
    if rate is not None and not 0 <= rate <= 1:
        raise ArgumentError(f"--max-ood-rate {rate:g} must lie between 0 and 1; it is a fraction: 0.1, not 10")
    return (MAX_OOD_RATE if rate is None else rate) if check else None


def _open(guard: Path | None, given: ModelOptions, threads: int | None) -> "Scorer":
    """An exported guard, a saved one, or that of the network that comes with oodles."""
    from oodles.cli.scorers import ExportedScorer, SavedScorer

    if guard is not None and is_exported_guard(guard):
        given.refuse_for(guard)
        return ExportedScorer.open(guard, given.device or "cpu", threads)
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    return SavedScorer(load_saved(guard, given.key), given)


def _run(scorer: "Scorer", sequence: InputSequence, output: Output, batch_size: int, workers: int | None) -> "Counts":
    """Score all inputs; returns how many were accepted."""
    from oodles.cli.scoring import Counts, progress, score_batches
    from oodles.deploy.results.jobs import Job

    scorer.prepare(sequence.stores, sequence.has_images)
    transform = scorer.preprocessing() if sequence.has_images else None
    batches = sequence.batches(batch_size)
    first = next(batches, None)
    if first is None:
        raise DataError("standard input lists no paths; give one per line")
    threshold, counts = scorer.threshold, Counts()
    recorded = None if transform is None else transform.as_record()
    job = Job(scorer.detector, threshold.value, threshold.id_rate, scorer.identity, recorded, batch_size)
    with progress(sequence.total, counts, output.shows_progress) as move:

        def scored(left: Iterator[Batch]) -> Iterator[list["Row"]]:
            for rows in score_batches(scorer, left, transform, workers):
                counts.add(rows)
                move()
                yield rows

        output.deliver(job, chain([first], batches), scored, counts.add)
    return counts


def _report(counts: "Counts", scorer: "Scorer", output: Output) -> None:
    """One line on standard error: how many were accepted, and how many have an error."""
    errors = f"{counts.errors} with an error" if counts.errors else ""
    if output.as_csv or output.as_json:
        if errors:
            notice(f"{errors}, of {counts.total}")
        return
    share = f"{counts.accepted} of {counts.accepted + counts.rejected} in-distribution"
    rule = f"{scorer.detector} >= {scorer.threshold.value:.7g}"
    where = "" if output.out is None else f"; written to {output.out}"
    notice(f"{share} ({rule}){errors and f', {errors}'}{where}")
