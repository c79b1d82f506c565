"""What runs in Ray's workers: batches of rows in, features, statistics or verdicts out."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from oodles.columns import LAYER, Columns, rows_not_finite
from oodles.data.inputs import Inputs
from oodles.data.loaders import normalise
from oodles.data.readers import open_bytes, open_image
from oodles.data.transforms import Transform
from oodles.deploy.export import noise_images
from oodles.deploy.opening import OpenGuard
from oodles.deploy.results.rows import Row
from oodles.deploy.results.writing import parquet_table
from oodles.deploy.saved import SavedGuard
from oodles.deploy.scoring import NOT_FINITE, decode_ahead, score_batches
from oodles.deploy.sources import FeatureBatch, ImageBatch, Opener
from oodles.detectors import Detector
from oodles.errors import ArgumentError, DataError
from oodles.features import Features
from oodles.head import Classifier
from oodles.network.extraction import extract
from oodles.network.forward import ForwardPass, HeadName
from oodles.network.taps import unwrap

if TYPE_CHECKING:
    import pyarrow as pa

FEATURES = ("embedding", "logits")


def check_path(columns: Sequence[str] | None) -> None:
    """Raise if the columns are known and ``path`` is not among them."""
    if columns is not None and "path" not in columns:
        raise DataError(
            "the Dataset has no column path, by which results are matched with inputs (its columns: "
            f"{', '.join(columns)}); use read_binary_files(..., include_paths=True), or rename_columns"
        )


def are_features(columns: Sequence[str] | None) -> bool:
    """Whether rows of these columns are features; False if the columns are not known."""
    return columns is not None and any(name in columns for name in FEATURES)


class Extractor:
    """The worker of :func:`oodles.distributed.ray.extract`."""

    def __init__(
        self,
        load: Callable[[], nn.Module],
        transform: Transform,
        head: HeadName,
        layers: Sequence[str],
        batch_size: int,
        half: bool,
    ) -> None:
        model = load().eval()
        self._transform, self._batch_size = transform, batch_size
        self._dtype = torch.float16 if half else torch.float32
        self._device = next(model.parameters(), torch.empty(0)).device
        self._forward = ForwardPass(unwrap(model), head, layers)
        # finds the head, so that a model without one is refused before anything is read
        self._none = {name: column[:0] for name, column in self._run(noise_images(transform, 2)).items()}

    def __call__(self, rows: "pa.Table") -> "pa.Table":
        """Return features as columns of lists, null in the rows that have an error."""
        import pyarrow as pa

        if are_features(rows.column_names):
            return rows
        parts, good = [self._none], []
        errors: list[str | None] = [None] * len(rows)
        done = 0
        for batch, images in decode_ahead(_image_batches(rows, self._batch_size), self._transform, _threads()):
            readable = [done + place for place, image in enumerate(images) if not isinstance(image, str)]
            errors[done : done + len(images)] = [image if isinstance(image, str) else None for image in images]
            done += len(batch.names)
            if not readable:
                continue
            pixels = torch.from_numpy(np.stack([image for image in images if not isinstance(image, str)]))
            columns = self._run(Inputs((normalise(self._transform, pixels.to(self._device)),)))
            bad = set(rows_not_finite(columns))
            for place in bad:
                errors[readable[place]] = NOT_FINITE
            finite = [place for place in range(len(readable)) if place not in bad]
            good += [readable[place] for place in finite]
            parts.append({name: column[finite] for name, column in columns.items()})
        lists = {name: _as_lists(torch.cat([part[name] for part in parts]), good, len(rows)) for name in self._none}
        labels = {"labels": rows["labels"]} if "labels" in rows.column_names else {}
        return pa.table({"path": rows["path"], **lists, **labels, "error": pa.array(errors, pa.string())})

    @torch.no_grad()
    def _run(self, images: Inputs) -> Columns:
        (piece,) = self._forward.pieces(images.to(self._device), len(images))
        return {name: column.to("cpu", self._dtype) for name, column in self._forward.run(piece).columns.items()}


def describe(load: Callable[[], nn.Module], transform: Transform, head: HeadName) -> Classifier:
    """Return the head of a model, and whether an input may have several classes, from noise instead of images."""
    features = extract(load(), [noise_images(transform, 2)], head=head, progress=False)
    return Classifier(features.head, multilabel=features.multilabel)


class Part(NamedTuple):
    """What some rows add to a fit: a detector that has observed those without an error, if there are any."""

    detector: Detector | None
    rows: int
    bad: int
    problem: str


def observe(rows: "pa.Table", detector: Detector, classifier: Classifier) -> dict[str, Any]:
    """Features in; one row out, whose only cell is a :class:`Part`."""
    good, features = _read_features(rows, classifier, labels="labels" in rows.column_names)
    named = zip(rows["path"].to_pylist(), _errors(rows), strict=True)
    problems = (f"{path}: {error}" for path, error in named if error)
    observed = None if features is None else copy.deepcopy(detector).partial_fit(features)
    cell = np.empty(1, dtype=object)
    cell[0] = Part(observed, len(rows), len(rows) - len(good), next(problems, ""))
    return {"part": cell}


def merge(parts: Iterable[Part]) -> Part:
    """Merge all parts into one."""
    detector, rows, bad, problem = Part(None, 0, 0, "")
    for part in parts:
        if detector is None:
            detector = part.detector
        elif part.detector is not None:
            detector.merge(part.detector)
        rows, bad, problem = rows + part.rows, bad + part.bad, problem or part.problem
    return Part(detector, rows, bad, problem)


class Scorer:
    """The worker of :func:`oodles.distributed.ray.score`."""

    def __init__(self, load: Callable[[], OpenGuard], batch_size: int) -> None:
        self._guard, self._batch_size = load(), batch_size
        self._guard.check_images()
        self._classifier: Classifier | None = None

    def __call__(self, rows: "pa.Table") -> "pa.Table":
        """Return verdicts; what an input does not have is null."""
        if are_features(rows.column_names):
            return parquet_table(self._score_features(rows))
        images = _image_batches(rows, self._batch_size)
        return parquet_table(chain.from_iterable(score_batches(self._guard, images, _threads())))

    def _score_features(self, rows: "pa.Table") -> list[Row]:
        if not isinstance(self._guard, SavedGuard):
            raise ArgumentError(f"{self._guard.path} is exported and takes images; use the saved guard for features")
        if self._classifier is None:  # the features' logits are compared with those of the model's head
            guard, transform = self._guard.check_images()
            if not isinstance(transform, Transform):
                raise ArgumentError(f"{self._guard.path} takes the bytes of files, which Ray workers do not read")
            self._classifier = describe(lambda: guard.model, transform, guard.head)
        paths = rows["path"].to_pylist()
        found = [Row(path, error=error or NOT_FINITE) for path, error in zip(paths, _errors(rows), strict=True)]
        good, features = _read_features(rows, self._classifier)
        if features is not None:
            batch = FeatureBatch([paths[row] for row in good], features)
            for row, scored in zip(good, chain.from_iterable(score_batches(self._guard, [batch])), strict=True):
                found[row] = scored
        return found


def _threads() -> int:
    return max(2, torch.get_num_threads())  # Ray sets the latter to the CPUs of the worker


def _image_batches(rows: "pa.Table", size: int) -> Iterator[ImageBatch]:
    check_path(rows.column_names)
    paths = rows["path"].to_pylist()
    contents = rows["bytes"].to_pylist() if "bytes" in rows.column_names else None
    openers: list[Opener] = (
        [partial(open_image, Path(path)) for path in paths]
        if contents is None
        else [partial(open_bytes, content or b"") for content in contents]
    )
    for start in range(0, len(paths), size):
        yield ImageBatch(paths[start : start + size], openers[start : start + size])


def _errors(rows: "pa.Table") -> list[str | None]:
    return rows["error"].to_pylist() if "error" in rows.column_names else [None] * len(rows)


def _read_features(rows: "pa.Table", classifier: Classifier, labels: bool = False) -> tuple[list[int], Features | None]:
    """Return the numbers of the rows that have features, and these features, if there are any."""
    names = [name for name in rows.column_names if name in FEATURES or name.startswith(LAYER)]
    good = np.flatnonzero(rows[names[0]].is_valid().to_numpy()).tolist()
    if not good:
        return good, None
    columns = {}
    for name in names:
        values = rows[name].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        columns[name] = torch.tensor(values.reshape(len(good), -1)).float()
    return good, Features(
        columns.get("embedding"),
        logits=columns.get("logits"),
        labels=torch.tensor(rows["labels"].to_numpy()[good]) if labels else None,
        head=classifier.head,
        layers={name.removeprefix(LAYER): column for name, column in columns.items() if name.startswith(LAYER)},
        multilabel=classifier.multilabel,
    )


def _as_lists(column: Tensor, good: Sequence[int], rows: int) -> "pa.Array":
    """Return a column of lists, null in the rows that have no features."""
    import pyarrow as pa

    missing = np.ones(rows, dtype=bool)
    missing[list(good)] = False
    ends = np.concatenate([[0], np.where(missing, 0, column.shape[1]).cumsum()]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(column.flatten().numpy()), mask=pa.array(missing))
