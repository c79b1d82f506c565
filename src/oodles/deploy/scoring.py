"""Score many inputs with a guard, and write the results to a file that can be continued."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from oodles.data.decoding import WORKERS, Prepared, prefetch, prepare
from oodles.data.transforms import FileBytes, Preprocessing
from oodles.deploy.opening import OpenGuard
from oodles.deploy.results.rows import Row
from oodles.deploy.results.writing import Job, check_results, open_results
from oodles.deploy.sources import Batch, FeatureBatch, InputSequence
from oodles.deploy.verdict import ArrayVerdict
from oodles.errors import DataError
from oodles.explanation.findings import Explanation

Pixels = npt.NDArray[np.uint8]
Judged = TypeVar("Judged")

BATCH_SIZE = 32
NOT_FINITE = "the network gives NaN or infinite values for it"


@dataclass
class Counts:
    """How many inputs were accepted, rejected, and could not be scored."""

    accepted: int = 0
    rejected: int = 0
    errors: int = 0

    def add(self, rows: Sequence[Row]) -> None:
        """Count some rows."""
        accepted, errors = sum(row.is_id for row in rows), sum(row.error is not None for row in rows)
        self.accepted += accepted
        self.errors += errors
        self.rejected += len(rows) - accepted - errors

    @property
    def total(self) -> int:
        """All inputs."""
        return self.accepted + self.rejected + self.errors

    @property
    def ood_rate(self) -> float:
        """The fraction of inputs that were not accepted, those with an error among them."""
        return (self.rejected + self.errors) / self.total


Progress = Callable[[Counts], None]


def score_files(
    guard: OpenGuard,
    inputs: Sequence[str | Path] | InputSequence,
    out: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    batch_size: int = BATCH_SIZE,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Counts:
    """Score images and features, and write one row per input to ``out``: .jsonl, .csv or .parquet.

    Rows are appended batch by batch. With ``resume`` a file that was interrupted is continued; guard, inputs and
    ``batch_size`` must be the same, and every bit is that of an uninterrupted run. A file that cannot be read is a row
    with an error. ``workers`` threads decode images. ``progress`` is called after each batch, also for
    those that the file had already.
    """
    path, counts = Path(out), Counts()
    sequence = inputs if isinstance(inputs, InputSequence) else InputSequence(inputs)
    check_results(path, resume=resume, force=overwrite, inputs=sequence.image_names)
    batches = _batches(guard, sequence, batch_size)
    recorded = None if guard.reads is None else guard.reads.as_record()
    threshold = guard.threshold
    identity = guard.version, guard.identity
    job = Job(guard.detector, threshold.value, threshold.id_rate, *identity, recorded, batch_size)
    with open_results(path, job, resume=resume, force=overwrite) as results:
        left = results.remaining(batches, partial(_count, counts, progress))
        for rows in _counted(score_batches(guard, left, workers), counts, progress):
            results.append(rows)
        results.finish()
    return counts


def score_inputs(
    guard: OpenGuard,
    inputs: Sequence[str | Path] | InputSequence,
    *,
    batch_size: int = BATCH_SIZE,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Iterator[list[Row]]:
    """Yield the rows of each batch as soon as it is scored; the arguments are those of :func:`score_files`."""
    return _counted(score_batches(guard, _batches(guard, inputs, batch_size), workers), Counts(), progress)


def explain_inputs(
    guard: OpenGuard, inputs: Sequence[str | Path] | InputSequence
) -> Iterator[list[tuple[str, Explanation | str]]]:
    """Yield, batch by batch, the name of each image and its explanation, or why it cannot be read."""
    for batch, images in decode_ahead(_batches(guard, inputs, BATCH_SIZE), guard.reads):
        found = _of_images(images, lambda pixels: guard.explain(guard.batch(pixels)))
        yield [*zip(batch.names, found, strict=True)]


def _counted(batches: Iterator[list[Row]], counts: Counts, progress: Progress | None) -> Iterator[list[Row]]:
    """Yield the batches, and count each after it was used."""
    for rows in batches:
        yield rows
        _count(counts, progress, rows)


def _count(counts: Counts, progress: Progress | None, rows: Sequence[Row]) -> None:
    counts.add(rows)
    if progress is not None:
        progress(counts)


def _batches(guard: OpenGuard, inputs: Sequence[str | Path] | InputSequence, size: int) -> Iterator[Batch]:
    """Return batches of inputs; raise unless the guard can judge them, before any of them is read."""
    sequence = (
        inputs if isinstance(inputs, InputSequence) else InputSequence(inputs, files=isinstance(guard.reads, FileBytes))
    )
    for folder in sequence.stores:
        guard.check_features(folder)
    if sequence.has_images:
        guard.check_images()
    batches = sequence.batches(size)
    first = next(batches, None)
    if first is None:
        raise DataError("standard input lists no paths; give one per line")
    return chain([first], batches)


def score_batches(guard: OpenGuard, batches: Iterable[Batch], workers: int | None = None) -> Iterator[list[Row]]:
    """Yield the rows of each batch, in order; images are decoded while others are scored."""
    for batch, images in decode_ahead(batches, guard.reads, workers):
        if isinstance(batch, FeatureBatch):
            features: Any = batch.features  # only a saved guard takes them, see check_features
            yield verdict_rows(batch.names, guard.judge(features), guard.class_names)
        else:
            yield _image_rows(guard, batch.names, images)


def decode_ahead(
    batches: Iterable[Batch], transform: Preprocessing | None, workers: int | None = None
) -> Iterator[tuple[Batch, list[Prepared]]]:
    """Yield each batch with its images resized and cropped; ``transform`` may be None if there are only features."""
    if transform is None:
        return ((batch, []) for batch in batches)
    openers = ((batch, [] if isinstance(batch, FeatureBatch) else batch.openers) for batch in batches)
    return prefetch(openers, partial(prepare, transform=transform), workers or WORKERS)


def _image_rows(guard: OpenGuard, names: Sequence[str], images: Sequence[Prepared]) -> list[Row]:
    """Return rows in the order of the images, of which only those that could be read are scored."""
    good = [name for name, image in zip(names, images, strict=True) if not isinstance(image, str)]
    found = _of_images(images, lambda pixels: verdict_rows(good, guard.judge(guard.batch(pixels)), guard.class_names))
    return [Row(name, error=row) if isinstance(row, str) else row for name, row in zip(names, found, strict=True)]


def _of_images(images: Sequence[Prepared], judge: Callable[[Pixels], Iterable[Judged]]) -> list[Judged | str]:
    """Return what ``judge`` gives for each image that could be read, and the problems of the others, in order."""
    pixels = [image for image in images if not isinstance(image, str)]
    judged = iter(judge(np.stack(pixels)) if pixels else ())
    return [image if isinstance(image, str) else next(judged) for image in images]


def verdict_rows(names: Sequence[str], verdict: ArrayVerdict, class_names: Sequence[str]) -> list[Row]:
    """Return a row per input; one whose score or probability is not finite has an error."""
    known = dict(enumerate(class_names))
    columns = verdict.label, verdict.probability, verdict.score, verdict.p_value, verdict.is_id
    return [
        Row(name, label, known.get(label), chance, score, p_value if p_value == p_value else None, is_id)
        if math.isfinite(chance) and math.isfinite(score)
        else Row(name, error=NOT_FINITE)
        for name, label, chance, score, p_value, is_id in zip(names, *map(np.ndarray.tolist, columns), strict=True)
    ]
