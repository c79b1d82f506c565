"""``ExportedGuard``: runs an exported guard with onnxruntime and NumPy alone."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from oodles.calibration import Threshold, check_id_rate, restore_threshold
from oodles.data.transforms import FileBytes, Preprocessing, Transform, file_bytes, image_transform
from oodles.deploy.artefact import (
    GRAPH,
    ID_SCORES,
    TEST,
    Arrays,
    Artefact,
    digest_of,
    identity_of,
    read_artefact,
    replace_threshold,
    rows_of,
)
from oodles.deploy.explaining import findings_of, output_names, read_ranks
from oodles.deploy.inputs import bytes_of, fitting, pixels_of, uncropped
from oodles.deploy.verdict import ArrayVerdict, Verdict
from oodles.errors import ArgumentError, DataError, FileError
from oodles.explanation.findings import Explanation, explanations_of
from oodles.network.sessions import run_options, start_session
from oodles.records.files import Record, checksum
from oodles.records.text import one_line

if TYPE_CHECKING:
    import onnxruntime

NETWORK, DECISION = ("logits", "label", "probability", "score"), ("p_value", "is_id")
OUTPUTS = (*NETWORK, *DECISION)
INPUT, THRESHOLD = "pixels", "threshold"
BATCH = 64  # rows that the graph is given at a time
BINS = 50  # of the histogram of the calibration scores
SAME = 1e-3  # relative difference between machines in the answers to the test inputs
TYPES = {"tensor(float)": "float32", "tensor(double)": "float64"}  # as onnxruntime calls them; others by their names
FLOATS = ("tensor(float)", "tensor(double)", "tensor(float16)")
KINDS = {"label": ("tensor(int64)",), "is_id": ("tensor(bool)",)}  # of outputs; the others are floats
Array = npt.NDArray[Any]


class ExportedGuard:
    """A guard that :meth:`oodles.Guard.export` wrote: network, detector and threshold in one ONNX graph.

    ``guard(image)`` takes what an image can be: a path, the bytes of a file, a Pillow image, a uint8 array
    ``(height, width, channels)``, a list of these, or a uint8 array ``(n, height, width, channels)``. Images of any
    size are resized as they were for the training features. A guard of files takes paths and bytes too. A guard of a
    model that takes no images is called with that model's inputs as arrays, by position, by name or as one mapping.
    Several threads may call one guard.
    """

    def __init__(self, artefact: Artefact, *, device: str = "cpu", threads: int | None = None) -> None:
        self.path = artefact.path
        self.version = artefact.version
        self.record: Record = artefact.record
        self.class_names: tuple[str, ...] = tuple(artefact.record["class_names"])
        self.detector: str = artefact.record["spec"]
        self.threshold = restore_threshold(artefact.record["threshold"], artefact.arrays.get(ID_SCORES), self.path)
        if self.threshold.digest() != self.record["id_scores"]:
            raise FileError(
                f"{self.path} has other scores of its calibration set than it was exported with; export it again"
            )
        self._learned = digest_of(artefact.arrays)
        self.identity = identity_of(self.record, self._learned, self.threshold)
        self.calibration = _summary(self.threshold.id_scores)
        known = artefact.record["preprocessing"]
        self.transform: Transform | None = image_transform(known)
        self.reads: Preprocessing | None = self.transform or file_bytes(known)
        self._session = start_session(self.path, artefact.contents[GRAPH], device, threads)
        self._run_options = run_options()
        self._inputs: dict[str, Record] = {each["name"]: each for each in artefact.record["inputs"]}
        self._limit = self._limit_of(self.threshold)
        self._ranks = read_ranks(artefact)
        self._every_output = (*OUTPUTS, *output_names(self.record["explanation"]))
        self._check_graph()
        self._test(artefact.arrays)

    @classmethod
    def open(cls, path: str | Path, *, device: str = "cpu", threads: int | None = None) -> "ExportedGuard":
        """Read the .zip that ``export`` wrote, check every part of it, and try it on its test inputs.

        ``device`` is ``cpu``, or ``cuda`` with onnxruntime-gpu; ``threads`` is the number for one call, by default
        one per core.
        """
        return cls(read_artefact(Path(path)), device=device, threads=threads)

    def __call__(self, *inputs: Any, **named: Any) -> ArrayVerdict:
        """Return label, probability, score, p-value and decision for each input."""
        return self.judge(self.arrays(*inputs, **named))

    def explain(self, *inputs: Any, **named: Any) -> list[Explanation]:
        """Say why each input is accepted or rejected: the same as :meth:`oodles.Guard.explain`, up to rounding.

        The arguments are those of a call. ``neighbours`` is empty, so that an exported guard does not give away
        training data.
        """
        return [*self.judge(self.arrays(*inputs, **named), explain=True).explanations]

    def judge(self, batch: Arrays, *, explain: bool = False) -> ArrayVerdict:
        """Run the graph on what :meth:`arrays` or :meth:`batch` gives; with ``explain`` the verdict has explanations.

        Both come from one run. P-values and decisions are computed here, from the scores: the graph's own are compared
        with them when a guard is opened, but only for its test inputs.
        """
        others = [name for name in self._every_output if explain and name not in OUTPUTS]
        answers = self._answers(batch, (*NETWORK, *others))
        score = answers["score"]
        answers["p_value"] = self.threshold.p_values(score).astype(np.float32)
        answers["is_id"] = self.threshold.is_id(score)
        explanations = self._explanations(answers) if explain else ()
        return Verdict(**{name: answers[name] for name in OUTPUTS}, explanations=explanations)

    def batch(self, pixels: npt.NDArray[Any]) -> Any:
        """Return images that ``transform`` has resized and cropped, uint8 ``(n, c, size, size)``, for :meth:`judge`."""
        self.check_images()
        return (
            {next(iter(self._inputs)): pixels} if self.transform is None else {INPUT: uncropped(pixels, self.transform)}
        )

    def check_images(self) -> None:
        """Raise if the model takes neither images nor the bytes of files."""
        if self.reads is None:
            raise ArgumentError(f"{self.path} guards a model whose inputs are not images; call it from Python")

    def check_features(self, folder: Path) -> NoReturn:
        """Raise: an exported guard begins with the network, so it takes no features."""
        raise ArgumentError(
            f"{self.path} is exported and takes images, not the features in {folder}; use the saved guard"
        )

    score_features = compare_with = check_features

    def save_threshold(self, threshold: Threshold) -> None:
        """Give the files another threshold, in one atomic step; raises if they hold another guard by now."""
        replace_threshold(self.path, threshold.as_record(), self.version)

    def with_threshold(self, threshold: Threshold) -> "ExportedGuard":
        """The same guard with another threshold; the two share the graph, and neither changes the other.

        P-values are still those among the scores of the calibration set that the guard was exported with. To change
        the files too, see :meth:`save_threshold`.
        """
        check_id_rate(threshold.id_rate)
        other = copy.copy(self)
        other.threshold = dataclasses.replace(threshold, id_scores=self.threshold.id_scores)
        other._limit = self._limit_of(other.threshold)
        if not np.isfinite(other._limit[THRESHOLD]):
            raise ArgumentError(f"{threshold} cannot be the threshold of {self.path}, whose scores are float32")
        other.record = {**self.record, "threshold": threshold.as_record()}
        other.version = checksum(other.record)
        other.identity = identity_of(other.record, self._learned, other.threshold)
        return other

    @property
    def members(self) -> tuple[str, ...]:
        """The members of an ensemble as text; () if the detector is none."""
        return tuple(self.record["explanation"]["members"])

    def __repr__(self) -> str:
        takes = "images" if self.transform else "files" if self.reads else ", ".join(self._inputs)
        return f"ExportedGuard({self.detector}, {takes}, score >= {self.threshold.value:.7g})"

    def _explanations(self, answers: Arrays) -> list[Explanation]:
        return explanations_of(
            answers["score"],
            answers["is_id"].tolist(),
            answers["label"],
            findings_of(self.record, self._ranks, answers),
            class_names=self.class_names,
            threshold=self.threshold,
            reduction=self.record["explanation"]["reduction"],
        )

    def _answers(self, given: Arrays, names: Sequence[str]) -> Arrays:
        """The outputs of these names, for all rows."""
        rows = rows_of(given)
        batches = [
            {name: part[start : start + BATCH] for name, part in given.items()} for start in range(0, rows, BATCH)
        ]
        parts = zip(*(self._batch(batch, names) for batch in batches), strict=True)
        return {name: np.concatenate(part) for name, part in zip(names, parts, strict=True)}

    def _batch(self, given: Arrays, names: Sequence[str]) -> list[Array]:
        try:
            answers: list[Array] = self._session.run(names, given | self._limit, self._run_options)
        except Exception as error:  # of onnxruntime, whose errors have no common class
            raise DataError(f"the guard {self.path} cannot be run on these inputs: {one_line(error)}") from None
        rows = rows_of(given)
        if any(answer.shape[:1] != (rows,) for answer in answers):
            raise DataError(
                f"the guard {self.path} does not give one answer for each of {rows} inputs; export it again"
            )
        return answers

    def _limit_of(self, threshold: Threshold) -> Arrays:
        """The threshold as the graph takes it."""
        types = {each.name: each.type for each in self._session.get_overridable_initializers()}
        with np.errstate(over="ignore"):
            precise = types.get(THRESHOLD) == "tensor(double)"
            return {THRESHOLD: np.asarray(threshold.value, np.float64 if precise else np.float32)}

    # Inputs -------------------------------------------------------------------------------------

    def arrays(self, *inputs: Any, **named: Any) -> Arrays:
        """The arguments of a call as the graph takes them, checked; rows of equal shapes can be stacked."""
        if len(inputs) == 1 and isinstance(inputs[0], Mapping):
            return self.arrays(**inputs[0], **named)
        if self.transform is None:
            if isinstance(self.reads, FileBytes) and len(inputs) == 1 and not isinstance(inputs[0], np.ndarray):
                return self._named([bytes_of(inputs[0], self.reads)], named)
            return self._named(inputs, named)
        if not inputs and named.keys() == {INPUT}:
            return {INPUT: pixels_of(named[INPUT], self.transform)}
        if len(inputs) != 1 or named:
            raise ArgumentError("a guard of images is called with one argument: an image, several, or a uint8 array")
        return {INPUT: pixels_of(inputs[0], self.transform)}

    def _named(self, inputs: Sequence[Any], named: dict[str, Any]) -> Arrays:
        """The model's inputs by name, with the types and shapes that the graph takes."""
        wanted = list(self._inputs)
        if len(inputs) > len(wanted):
            raise ArgumentError(f"the guard takes {len(wanted)} inputs ({', '.join(wanted)}), got {len(inputs)}")
        given = dict(zip(wanted, inputs, strict=False))
        repeated = given.keys() & named.keys()
        given |= named
        if repeated or given.keys() != self._inputs.keys():
            raise ArgumentError(f"the guard takes {', '.join(wanted)}, each once; got {', '.join(given) or 'nothing'}")
        arrays = {name: fitting(np.asarray(value), self._inputs[name]) for name, value in given.items()}
        counts = {name: len(value) for name, value in arrays.items()}
        if len({*counts.values()}) != 1 or 0 in counts.values():
            raise DataError(f"the guard's inputs need the same number of rows, at least one; got {counts}")
        return arrays

    # Checks at the beginning --------------------------------------------------------------------

    def _check_graph(self) -> None:
        """Raise unless the graph takes and gives what the record says."""
        default = {each.name for each in self._session.get_overridable_initializers()}
        shapes = {each.name: each.shape for each in self._session.get_outputs()}
        logits = next(iter(shapes.values()))
        consistent = (
            describe_inputs(self._session) == self.record["inputs"],
            THRESHOLD in default and bool(np.isfinite(self._limit[THRESHOLD])),
            tuple(shapes) == self._every_output,
            all(each.type in KINDS.get(each.name, FLOATS) for each in self._session.get_outputs()),
            len(logits) == 2,
        )
        if not all(consistent):
            raise FileError(f"{self.path} does not hold the graph that its record describes; export the guard again")
        models = 2 if logits[1] == 1 else logits[1]
        if self.class_names and len(self.class_names) != models:
            raise FileError(f"{self.path} names {len(self.class_names)} classes, but its graph has {models}")

    def _test(self, arrays: Arrays) -> None:
        """Raise unless the answers to the test inputs are those of the machine that exported the guard."""
        given = {name: arrays.get(TEST + name) for name in self._inputs}
        tested = ("logits", "score", *output_names(self.record["explanation"]))
        expected = {name: arrays.get(f"{TEST}output.{name}") for name in tested}
        if any(part is None for part in (*given.values(), *expected.values())):
            raise FileError(f"{self.path} has no test inputs; export the guard again")
        try:
            inputs = {name: np.asarray(value) for name, value in given.items()}
            runs = [self._answers(inputs, self._every_output)]
            for explanation in self._explanations(runs[0]):
                explanation.as_record()
            if self.transform is not None:
                runs.append(self(list(inputs[INPUT]))._asdict())
            for answers in runs:
                self._compare(answers, {name: np.asarray(value) for name, value in expected.items()})
        except FileError:
            raise
        except Exception as error:  # of arrays that are not what they should be
            raise FileError(f"{self.path} cannot run its test inputs: {one_line(error)}") from None

    def _compare(self, answers: Arrays, expected: Arrays) -> None:
        """Raise unless all answers are the expected ones, and p-values and decisions follow from the scores."""
        gaps = {name: relative_gap(answers[name], other) for name, other in expected.items() if name in answers}
        if self.threshold.id_scores is not None:
            gaps["p_value"] = relative_gap(answers["p_value"], self.threshold.p_values(answers["score"]))
        gaps["is_id"] = relative_gap(answers["is_id"], answers["score"] >= self._limit[THRESHOLD])
        for name, gap in gaps.items():
            if not gap <= SAME:
                raise FileError(
                    f"{self.path} gives other answers than when it was exported (relative difference {gap:.2g} in "
                    f"its test inputs' {name}); export the guard again"
                )


def describe_inputs(session: "onnxruntime.InferenceSession") -> list[Record]:
    """Names, types and shapes of a graph's inputs; None is a size that may differ from call to call."""
    return [
        {
            "name": each.name,
            "dtype": TYPES.get(each.type, each.type.removeprefix("tensor(").removesuffix(")")),
            "shape": [size if isinstance(size, int) else None for size in each.shape],
        }
        for each in session.get_inputs()
    ]


def _summary(scores: Array | None) -> Record | None:
    """Return 101 quantiles and a histogram of the scores of the calibration set."""
    if scores is None:
        return None
    exact = scores.astype(np.float64)
    low, high = float(exact[0]), float(exact[-1])
    counts, edges = np.histogram(exact, BINS, (low, high if high > low else low + max(1e-6, abs(low) * 1e-6)))
    quantiles = np.maximum.accumulate(np.quantile(exact, np.linspace(0, 1, 101)))
    return {"quantiles": quantiles.tolist(), "edges": edges.tolist(), "counts": counts.tolist()}


def relative_gap(found: Array, expected: Array) -> float:
    """The largest difference, relative to the largest finite number expected; inf if others than these are not finite.

    A member of an ensemble may score -inf, and what cannot be scored is NaN.
    """
    if found.shape != expected.shape:
        return np.inf
    other = expected.astype(np.float64)
    same = (found == other) | (np.isnan(found) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, np.nan_to_num(np.abs(found - other), nan=np.inf, posinf=np.inf))
        return float(difference.max(initial=0.0) / np.abs(other[np.isfinite(other)]).max(initial=1e-2))
