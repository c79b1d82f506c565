"""What runs in Ray's workers: batches of rows in, features, statistics or verdicts out."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from oodles.columns import LAYER, Columns, rows_not_finite
from oodles.data.inputs import Inputs
from oodles.data.loaders import ImageLoader, normalise
from oodles.data.readers import ImageSet, open_bytes, open_image
from oodles.data.transforms import Transform
from oodles.deploy.exported import ArrayVerdict
from oodles.deploy.results.rows import Row
from oodles.deploy.results.writing import parquet_table
from oodles.deploy.saved import array_verdict, judge_features
from oodles.deploy.scoring import NOT_FINITE, verdict_rows
from oodles.detectors import Detector
from oodles.detectors.network_detector import layers_of
from oodles.errors import ArgumentError, DataError
from oodles.features import Features
from oodles.guard import Guard
from oodles.head import Classifier
from oodles.network.forward import ForwardPass, HeadName
from oodles.network.self_test import Noise
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


class Images:
    """The images of some rows as batches for the network; ``errors`` says which cannot be read, and why."""

    def __init__(self, rows: "pa.Table", transform: Transform, batch_size: int) -> None:
        check_path(rows.column_names)
        paths = rows["path"].to_pylist()
        contents = rows["bytes"].to_pylist() if "bytes" in rows.column_names else None
        images = ImageSet(
            "rows",
            list(map(str, range(len(paths)))),
            lambda row: open_image(Path(paths[row])) if contents is None else open_bytes(contents[row] or b""),
        )
        threads = max(2, torch.get_num_threads())  # Ray sets the latter to the CPUs of the worker
        options = {"batch_size": batch_size, "workers": threads}
        self._loader = ImageLoader(images, transform, labels=False, skip_bad=True, **options)
        self.errors: list[str | None] = [None] * len(paths)

    def batches(self, device: torch.device) -> Iterator[tuple[list[int], Tensor]]:
        """The rows of each batch and their images."""
        seen = 0
        with suppress(DataError):  # that no image can be read is said for each of them
            for pixels, _ in self._loader.pixels():
                rows = list(map(int, self._loader.names[seen:]))
                seen += len(rows)
                images = normalise(self._loader.transform, pixels.to(device))
                yield rows, images.contiguous(memory_format=torch.channels_last)
        for name, problem in self._loader.skipped:
            self.errors[int(name)] = problem


class Network:
    """A model in a worker: features of some rows, from the network or as they were stored."""

    def __init__(
        self, model: nn.Module, transform: Transform, head: HeadName, layers: Sequence[str], batch_size: int
    ) -> None:
        self._transform, self._batch_size = transform, batch_size
        self._device = _device(model)
        self._forward = ForwardPass(unwrap(model.eval()), head, layers)
        noise = Noise([2, 3, transform.size, transform.size], "float32").make()
        with torch.no_grad():  # finds the head, so that a model without one is refused before anything is read
            seen = self._forward.run(Inputs((noise.to(self._device),))).columns
        self._none = {name: column[:0].cpu() for name, column in seen.items()}

    @torch.no_grad()
    def columns(self, rows: "pa.Table", dtype: torch.dtype = torch.float32) -> "Extracted":
        """The columns of the rows that have features, the numbers of these rows, and the error of each other one."""
        if are_features(rows.column_names):
            return _stored(rows)
        images = Images(rows, self._transform, self._batch_size)
        parts: list[Columns] = [{name: column.to(dtype) for name, column in self._none.items()}]
        good: list[int] = []
        for numbers, batch in images.batches(self._device):
            seen = self._forward.run(Inputs((batch,))).columns
            columns = {name: column.to("cpu", dtype) for name, column in seen.items()}
            bad = set(rows_not_finite(columns))
            for place in bad:
                images.errors[numbers[place]] = NOT_FINITE
            places = [place for place in range(len(numbers)) if place not in bad]
            good += [numbers[place] for place in places]
            parts.append({name: column[places] for name, column in columns.items()})
        joined = {name: torch.cat([part[name] for part in parts]) for name in self._none}
        return Extracted(joined, good, images.errors)

    @property
    def classifier(self) -> Classifier:
        """What features of this model have to know of it."""
        return Classifier(self._forward.feature_head(), multilabel=self._forward.multilabel)


def describe(load: Callable[[], nn.Module], transform: Transform, head: HeadName) -> Classifier:
    """What is known of a model that this process need not keep."""
    return Network(load().cpu(), transform, head, (), 1).classifier


class Extracted(NamedTuple):
    """Columns of the rows whose numbers are ``good``, and the error of each row, None if there is none."""

    columns: Columns
    good: list[int]
    errors: list[str | None]


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
        self._network = Network(load(), transform, head, layers, batch_size)
        self._dtype = torch.float16 if half else torch.float32

    def __call__(self, rows: "pa.Table") -> "pa.Table":
        """Features as columns of lists."""
        import pyarrow as pa

        columns, good, errors = self._network.columns(rows, self._dtype)
        lists = {name: _as_lists(column, good, len(rows)) for name, column in columns.items()}
        labels = {"labels": rows["labels"]} if "labels" in rows.column_names else {}
        return pa.table({"path": rows["path"], **lists, **labels, "error": pa.array(errors, pa.string())})


class Part(NamedTuple):
    """What some rows add to a fit: a detector that has observed those without an error, if there are any."""

    detector: Detector | None
    rows: int
    bad: int
    problem: str


def observe(rows: "pa.Table", detector: Detector, classifier: Classifier) -> dict[str, Any]:
    """Features in; one row out, whose only cell is a :class:`Part`."""
    columns, good, errors = _stored(rows)
    names = (f"{path}: {error}" for path, error in zip(rows["path"].to_pylist(), errors, strict=True) if error)
    observed = None
    if good:
        known = rows["labels"].to_numpy()[good] if "labels" in rows.column_names else None
        features = _as_features(columns, classifier, None if known is None else torch.tensor(known))
        observed = copy.deepcopy(detector).partial_fit(features)
    cell = np.empty(1, dtype=object)
    cell[0] = Part(observed, len(rows), len(rows) - len(good), next(names, ""))
    return {"part": cell}


def merge(parts: Iterable[Part]) -> Part:
    """All parts together."""
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

    def __init__(self, load: Callable[[], Guard], transform: Transform | None, batch_size: int) -> None:
        self._guard, self._batch_size = load(), batch_size
        recorded = self._guard.preprocessing
        if transform is None and recorded is None:
            raise ArgumentError("the guard does not record how images are preprocessed; give score a transform")
        self._transform = Transform.from_record(recorded or {}) if transform is None else transform
        self._network: Network | None = None

    def __call__(self, rows: "pa.Table") -> "pa.Table":
        """Return one row of results per input; what an input does not have is null."""
        paths = rows["path"].to_pylist()
        found, errors = (self._stored if are_features(rows.column_names) else self._images)(rows, paths)
        results = (
            found.get(place) or Row(path, error=error or NOT_FINITE)
            for place, (path, error) in enumerate(zip(paths, errors, strict=True))
        )
        return parquet_table(results)

    def _images(self, rows: "pa.Table", paths: Sequence[str]) -> "Judged":
        found: dict[int, Row] = {}
        images = Images(rows, self._transform, self._batch_size)
        for numbers, batch in images.batches(_device(self._guard.model)):
            verdict, probability = self._guard.with_probability(batch)
            found |= self._rows(numbers, paths, array_verdict(*verdict, probability, self._guard.threshold))
        return found, images.errors

    def _stored(self, rows: "pa.Table", paths: Sequence[str]) -> "Judged":
        guard = self._guard
        if self._network is None:  # its head is compared with the one that the detector was fitted on
            layers = layers_of([guard.detector])
            self._network = Network(guard.model, self._transform, guard.head, layers, self._batch_size)
        columns, good, errors = self._network.columns(rows)
        if not good:
            return {}, errors
        features = _as_features(columns, self._network.classifier)
        return self._rows(good, paths, judge_features(guard.detector, guard.threshold, features)), errors

    def _rows(self, numbers: Sequence[int], paths: Sequence[str], verdict: ArrayVerdict) -> dict[int, Row]:
        rows = verdict_rows([paths[number] for number in numbers], verdict, self._guard.class_names)
        return dict(zip(numbers, rows, strict=True))


Judged = tuple[dict[int, Row], list[str | None]]
"""Rows by the place of their input, and why inputs cannot be read."""


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters(), torch.empty(0)).device


def are_features(columns: Sequence[str] | None) -> bool:
    """Whether rows of these columns are features; False if the columns are not known."""
    return columns is not None and any(name in columns for name in FEATURES)


def _as_features(columns: Columns, classifier: Classifier, labels: Tensor | None = None) -> Features:
    return Features(
        columns.get("embedding"),
        logits=columns.get("logits"),
        labels=labels,
        head=classifier.head,
        layers={name.removeprefix(LAYER): column for name, column in columns.items() if name.startswith(LAYER)},
        multilabel=classifier.multilabel,
    )


def _stored(rows: "pa.Table") -> Extracted:
    """Features as :func:`extract` gave them."""
    names = [name for name in rows.column_names if name in FEATURES or name.startswith(LAYER)]
    good = np.flatnonzero(rows[names[0]].is_valid().to_numpy()).tolist()
    columns = {}
    for name in names if good else ():
        values = rows[name].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        columns[name] = torch.tensor(values.reshape(len(good), -1)).float()
    return Extracted(columns, good, rows["error"].to_pylist() if "error" in rows.column_names else [None] * len(rows))


def _as_lists(column: Tensor, good: Sequence[int], rows: int) -> "pa.Array":
    """A column of lists, null in the rows that have no features."""
    import pyarrow as pa

    missing = np.ones(rows, dtype=bool)
    missing[list(good)] = False
    ends = np.concatenate([[0], np.where(missing, 0, column.shape[1]).cumsum()]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(column.flatten().numpy()), mask=pa.array(missing))
