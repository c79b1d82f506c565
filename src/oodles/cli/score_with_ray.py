"""``oodles score --ray``: the same verdicts from the workers of a Ray cluster, as a folder of Parquet files."""

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from oodles.cli.common import notice, notices
from oodles.cli.guards import open_for
from oodles.cli.options import GuardOptions
from oodles.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from ray.data import Dataset

    from oodles.deploy.opening import OpenGuard

OURS = "oodles.errors."


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    """The cluster and its workers."""

    ray_address: Annotated[
        str | None, Option(help="Address of a Ray cluster. Default: RAY_ADDRESS, or Ray is started on this machine.")
    ] = None
    ray_workers: Annotated[
        int | None,
        Option(help="Default: as many as there is room for beside one CPU, which is needed for reading.", min=1),
    ] = None
    ray_cpus: Annotated[
        float, Option(help="CPUs of each worker. With --device cuda it also has one GPU.", min=1e-3)
    ] = 1.0


def score_with_ray(
    cluster: RayOptions,
    guard: Path | None,
    inputs: Sequence[Path],
    out: Path,
    given: GuardOptions,
    batch_size: int,
    device: str | None,
) -> None:
    """Score image files or Parquet files and write a folder of Parquet files, which appears when it is complete."""
    if os.path.lexists(out):
        raise ArgumentError(f"--out {out} exists already; give a new folder")
    parquet = [_is_parquet(path) for path in inputs]
    if any(parquet) and not all(parquet):
        raise ArgumentError("some inputs are Parquet files and some are images; score them one after another")
    files = [str(path.resolve()) for path in inputs] if any(parquet) else _image_files(inputs)

    from oodles.distributed import ray as distributed

    checked = open_for(guard, given, images=True)  # before any worker starts
    checked.check_images()
    own, secret, weights = (None if path is None else path.resolve() for path in (guard, given.key, given.checkpoint))
    load = partial(_load_in_worker, str(Path.cwd()), own, replace(given, key=secret, checkpoint=weights), device)
    gpus = float(device is not None and device.startswith("cuda"))
    workers = distributed.Workers(cluster.ray_workers, cluster.ray_cpus, gpus, batch_size)
    with _connected(cluster.ray_address), _one_line_errors():
        rows = distributed.import_ray().data.read_parquet(files) if any(parquet) else distributed.from_paths(files)
        verdicts = distributed.score(rows, load, workers=workers)
        accepted, unread, total = _write(verdicts, out, rows.count())
    share = f"{accepted} of {total - unread} in-distribution ({checked.detector} >= {checked.threshold.value:.7g})"
    notice(f"{share}{f', {unread} with an error' if unread else ''}; written to {out}")


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() == ".parquet" or (path.is_dir() and any(path.glob("*.parquet")))


def _image_files(inputs: Sequence[Path]) -> list[str]:
    """Return the absolute paths of all images, which workers open themselves."""
    from oodles.deploy.sources import InputSequence

    sequence = InputSequence(inputs, notice)
    if sequence.stores:
        raise ArgumentError(f"{sequence.stores[0]} holds features, which need no cluster; score them without --ray")
    packed = next((name for name in sequence.image_names if not Path(name).is_file()), None)
    if packed is not None:
        raise ArgumentError(f"{packed} is not a file of its own; --ray reads image files and Parquet, so unpack it")
    return [str(Path(name).resolve()) for name in sequence.image_names]


def _load_in_worker(folder: str, guard: Path | None, given: GuardOptions, device: str | None) -> "OpenGuard":
    """Open the guard with its model, whose module may be in the ``folder`` that the command was started in."""
    sys.path.insert(0, folder)
    return open_for(guard, given, images=True, device=device)


@contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """Connected to the cluster, or to one that is started here and ends with the command."""
    from oodles.distributed.ray import import_ray

    ray = import_ray()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    begun = not ray.is_initialized()
    if begun:
        ray.init(
            address, include_dashboard=None if address else False, log_to_driver=False, logging_level=logging.ERROR
        )
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = notices.is_terminal
    try:
        yield
    finally:
        if begun:
            ray.shutdown()


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """What a worker could not do, in one line: the error itself is the last of many lines of Ray's."""
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        ours = [line.partition(": ")[2] for line in lines if line.startswith(OURS)]
        raise DataError(f"a Ray worker failed: {[*lines, *ours][-1]}") from error


def _write(verdicts: "Dataset", out: Path, inputs: int) -> tuple[int, int, int]:
    """Write Parquet files, and return how many inputs were accepted, have an error, and were scored or tried in all."""
    from pyarrow import compute, dataset

    from oodles.records.files import replacing

    with replacing(out) as temporary:
        temporary.mkdir()
        verdicts.write_parquet(str(temporary.resolve()))
        accepted = unread = total = 0
        for batch in dataset.dataset(temporary).to_batches(columns=["is_id", "error"]):
            accepted += compute.sum(batch["is_id"]).as_py() or 0
            unread += len(batch) - batch["error"].null_count
            total += len(batch)
        if total != inputs:
            raise DataError(f"{total} results came back for {inputs} inputs, so none are kept; run it again")
    return accepted, unread, total
