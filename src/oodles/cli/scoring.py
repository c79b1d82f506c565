"""From batches of inputs to rows of results, and how many were accepted."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from oodles.cli.common import notices
from oodles.cli.decoding import DecodedBatch, decode_ahead
from oodles.cli.inputs import Batch, FeatureBatch
from oodles.cli.scorers import Scored, Scorer
from oodles.deploy.results.rows import Row

if TYPE_CHECKING:
    from oodles.data.transforms import Transform

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


def score_batches(
    scorer: Scorer, batches: Iterator[Batch], transform: "Transform | None", workers: int | None = None
) -> Iterator[list[Row]]:
    """The rows of each batch, in order; images are decoded while others are scored."""
    for batch in decode_ahead(batches, transform, workers):
        if isinstance(batch, FeatureBatch):
            yield _rows(batch.names, scorer.score_features(batch.features), scorer.class_names)
        else:
            yield _image_rows(scorer, batch)


def _image_rows(scorer: Scorer, batch: DecodedBatch) -> list[Row]:
    """Rows in the order of the batch, of which only the images that could be read are scored."""
    pixels = [image.pixels for image in batch.images if image.pixels is not None]
    names = [name for name, image in zip(batch.names, batch.images, strict=True) if image.pixels is not None]
    scored = iter(_rows(names, scorer.score_images(np.stack(pixels)), scorer.class_names) if pixels else ())
    return [
        Row(name, error=image.problem) if image.pixels is None else next(scored)
        for name, image in zip(batch.names, batch.images, strict=True)
    ]


def _rows(names: Sequence[str], scored: Scored, class_names: Sequence[str]) -> list[Row]:
    known = dict(enumerate(class_names))
    values = zip(names, *(column.tolist() for column in scored), strict=True)
    return [
        Row(name, label, known.get(label), chance, score, p_value if p_value == p_value else None, is_id)
        if math.isfinite(chance) and math.isfinite(score)
        else Row(name, error=NOT_FINITE)
        for name, label, chance, score, p_value, is_id in values
    ]


@contextmanager
def progress(total: int | None, counts: Counts, shown: bool) -> Iterator[Callable[[], None]]:
    """A bar on standard error with the counts so far, which the function moves; nothing unless that is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Remaining

    text = TextColumn("{task.fields[ood]:,} OOD, {task.fields[errors]:,} errors")
    columns = (BarColumn(), MofNCompleteColumn(), text, TimeElapsedColumn(), Remaining())
    disabled = not shown or not notices.is_terminal
    with Progress(*columns, console=notices, transient=True, disable=disabled, redirect_stdout=False) as bar:
        task = bar.add_task("", total=total, ood=0, errors=0)

        def move() -> None:
            bar.update(task, completed=counts.total, ood=counts.rejected, errors=counts.errors)

        yield move
