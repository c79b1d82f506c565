"""``export_guard``: a guard as files that run without it, written only if they give the guard's own answers."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from oodles import __version__
from oodles.calibration import Threshold
from oodles.data.inputs import Inputs
from oodles.data.loaders import images_of, normalise
from oodles.data.transforms import Transform, image_transform
from oodles.deploy.artefact import (
    EXPORTED,
    GRAPH,
    ID_SCORES,
    TENSORS,
    TEST,
    Arrays,
    check_free,
    pack_artefact,
    parse_artefact,
)
from oodles.deploy.explaining import CONTRIBUTIONS
from oodles.deploy.exported import (
    INPUT,
    OUTPUTS,
    ExportedGuard,
    describe_inputs,
    relative_gap,
)
from oodles.deploy.inputs import uncropped
from oodles.deploy.saving import describe_detector, learned_tensors
from oodles.detectors import Detector
from oodles.detectors.network_detector import steps_of
from oodles.errors import ArgumentError, DataError
from oodles.explanation.findings import CHECK, Explanation
from oodles.extras import needed_by
from oodles.network.forward import ForwardPass
from oodles.network.self_test import probe_like
from oodles.network.sessions import start_session
from oodles.records.files import Record, write_bytes
from oodles.records.tensors import serialise
from oodles.records.text import one_line

ROWS = (1, 2, 7, 64)  # numbers of inputs for which the graph is compared with the guard
TOLERANCE = 1e-4  # largest relative difference of logits and scores
RANK_TOLERANCE = 0.01  # of scores that differ more, the largest difference of their ranks among calibration scores
TEST_SHAPE = (2, 40, 56)  # of the images that a guard is tried on when it is opened


class Exportable(NamedTuple):
    """The parts of a guard that an export needs; ``answer`` calls the guard, ``explain`` its method of that name."""

    answer: Callable[[Inputs], Any]
    explain: Callable[[Inputs], list[Explanation]]
    forward: ForwardPass
    detector: Detector
    threshold: Threshold
    preprocessing: Record | None
    class_names: Sequence[str]
    multilabel: bool
    fingerprint: str


def export_guard(guard: Exportable, path: Path, inputs: Inputs, origin: str, *, overwrite: bool) -> ExportedGuard:
    """Write the guard to ``path``, a .zip; returns what was written, as it is opened.

    ``inputs`` are up to 64 rows for which torch and onnxruntime are compared, ``origin`` says what they are. A
    difference beyond the tolerance, or one other decision, and nothing is written.
    """
    with needed_by("an export"):
        from oodles.deploy import graph

    check_free(path, overwrite)
    transform = image_transform(guard.preprocessing)
    rows = _Rows.of(inputs, transform)
    model = graph.build(
        guard.forward,
        rows.network.take([0, min(1, len(rows.network) - 1)]),
        guard.detector,
        guard.threshold,
        transform=transform,
        multilabel=guard.multilabel,
    )
    tests = rows.test_inputs()
    content = model.SerializeToString()
    session = start_session(path, content)
    record = {
        "oodles": __version__,
        "class_names": list(guard.class_names),
        "multilabel": guard.multilabel,
        "preprocessing": guard.preprocessing,
        "inputs": describe_inputs(session),
        "explanation": graph.described_explanation(guard.detector, guard.forward),
        "spec": guard.detector.spec,
        "detector": describe_detector(guard.detector),
        "threshold": guard.threshold.as_record(),
        "id_scores": guard.threshold.digest(),
        "model": guard.fingerprint,
        "agreement": {
            "rows": len(rows.network),
            "inputs": origin,
            "tolerance": TOLERANCE,
            **_compare(guard, rows, session),
        },
    }
    tensors = serialise(_tensors(guard, tests, session))
    packed = pack_artefact(path, record, {GRAPH: content, TENSORS: tensors})
    exported = ExportedGuard(parse_artefact(path, BytesIO(packed)))  # tries it before it takes its place
    _compare_explanations(guard, rows, exported)
    write_bytes(path, packed, EXPORTED)
    return exported


def refuse_steps(detector: Detector) -> None:
    """Raise if the detector needs gradients of the network, which ONNX does not have."""
    steps = steps_of([detector])
    if steps:
        raise ArgumentError(
            f"{detector.spec} moves its inputs along a gradient of the network ({steps[0].name}), which cannot be "
            "exported to ONNX; use a detector without input steps"
        )


def noise_images(transform: Transform, rows: int) -> Inputs:
    """Made-up images as the network takes them."""
    pixels = torch.from_numpy(_noise((rows, *transform.shape)))
    return Inputs((normalise(transform, pixels),))


def _noise(shape: tuple[int, ...]) -> Any:
    """uint8 values that look random and are the same everywhere."""
    places = np.arange(np.prod(shape), dtype=np.uint64)
    return (places * np.uint64(2654435761) >> np.uint64(13)).astype(np.uint8).reshape(shape)


class _Rows(NamedTuple):
    """The same inputs as the network takes them and as the graph does."""

    network: Inputs
    graph: Arrays
    images: bool

    @classmethod
    def of(cls, inputs: Inputs, transform: Transform | None) -> "_Rows":
        network = inputs.map(lambda value: value.cpu())
        if transform is None:
            return cls(network, _arrays(network), images=False)
        pixels = _pixels_of(network, transform)
        prepared = {INPUT: uncropped(pixels.numpy(), transform)}
        return cls(Inputs((normalise(transform, pixels),)), prepared, images=True)

    def test_inputs(self) -> Arrays:
        """Two made-up inputs of the same kind: what a user's inputs contain is not kept."""
        if self.images:
            return {INPUT: _noise((*TEST_SHAPE, self.graph[INPUT].shape[3]))}
        probe = probe_like(self.network)
        if probe is None:
            raise ArgumentError("the model's inputs are too large or too unusual for the test that an export keeps")
        return _arrays(probe.inputs(torch.device("cpu")))


def _pixels_of(inputs: Inputs, transform: Transform) -> Tensor:
    """The uint8 pixels that normalised images were made from."""
    images = images_of(inputs, transform)
    mean, std = (torch.tensor(each, dtype=torch.float64).view(1, -1, 1, 1) for each in (transform.mean, transform.std))
    values = (images.double() * std + mean) * 255
    if float(values.min()) < -1 or float(values.max()) > 256:
        raise DataError(
            "the images do not have the guard's preprocessing: undoing it gives pixels from "
            f"{float(values.min()):.0f} to {float(values.max()):.0f}; give images that were prepared by it"
        )
    return values.round().clamp(0, 255).to(torch.uint8)


def _compare(guard: Exportable, rows: _Rows, session: Any) -> dict[str, float]:
    """The largest relative differences between the guard and its graph; raises if they are not the same."""
    worst = {"logits": 0.0, "score": 0.0}
    for count in sorted({min(count, len(rows.network)) for count in ROWS}):
        ours = guard.answer(rows.network.take(range(count)))
        try:
            answers = session.run(OUTPUTS, {name: part[:count] for name, part in rows.graph.items()})
        except Exception as error:  # of onnxruntime, as for a graph that takes a single number of rows
            raise ArgumentError(f"the graph cannot be run on {count} inputs ({one_line(error)})") from None
        theirs = dict(zip(OUTPUTS, answers, strict=True))
        score = _array(ours.score)
        same_ranks = _rank_gap(guard.threshold, score, theirs["score"]) <= RANK_TOLERANCE
        for name, known in worst.items():
            gap = relative_gap(theirs[name], _array(getattr(ours, name)))
            worst[name] = max(known, gap)
            if not gap <= TOLERANCE and not (name == "score" and same_ranks):
                raise ArgumentError(
                    f"the graph of {guard.detector.spec} does not give the guard's answers for {count} inputs, so "
                    f"nothing was written (relative difference {gap:.2g} of the {name}, at most {TOLERANCE:g}); "
                    "fit the guard with another detector, for example energy"
                )
        # the threshold is one of the calibration scores, on whose other side rounding may put the same input
        finite = np.isfinite(score) & np.isfinite(theirs["score"])
        rounding = TOLERANCE / 10 * np.abs(score[finite]).max(initial=0)
        if gap > TOLERANCE:
            rounding = np.abs(score - theirs["score"])[finite].max(initial=0)
        decided = ~(np.abs(score - guard.threshold.value) <= rounding)
        differs = (_array(ours.is_id) != theirs["is_id"]) & decided
        other = int(differs.sum() + (_array(ours.label) != theirs["label"]).sum())
        if other:
            raise ArgumentError(
                f"the graph of {guard.detector.spec} decides otherwise than the guard for {other} of {count} inputs, "
                "so nothing was written"
            )
    return worst


def _rank_gap(threshold: Threshold, ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> float:
    """The largest difference between the ranks of two scores among the calibration scores; inf if they are unknown.

    The embeddings of a network that is certain of everything vary by little more than rounding. Scores of such rows
    differ in more digits than others, but not in what they mean.
    """
    if threshold.id_scores is None or not np.array_equal(np.isnan(ours), np.isnan(theirs)):
        return np.inf
    ranks = [np.searchsorted(np.sort(threshold.id_scores), each) for each in (ours, theirs)]
    return float(np.abs(ranks[0] - ranks[1]).max(initial=0) / len(threshold.id_scores))


def _compare_explanations(guard: Exportable, rows: _Rows, exported: ExportedGuard) -> None:
    """Raise unless the exported guard explains each input by the guard's own numbers."""
    ours = _numbers(guard.explain(rows.network))
    images = exported.transform is not None
    theirs = _numbers(exported.explain(rows.graph[INPUT]) if images else exported.explain(**rows.graph))
    for name in ours.keys() | theirs.keys():
        gap = relative_gap(theirs[name], ours[name]) if name in ours and name in theirs else np.inf
        if not gap <= TOLERANCE:
            raise ArgumentError(
                f"the graph of {guard.detector.spec} does not explain as the guard does, so nothing was written "
                f"(relative difference {gap:.2g} of the {name}, at most {TOLERANCE:g})"
            )


def _numbers(explanations: Sequence[Explanation]) -> Arrays:
    """The numbers that explanations consist of, whatever the order of their findings."""
    found: dict[str, list[Any]] = defaultdict(list)
    for each in explanations:
        # a check has a finding only below its limit, on whose other side rounding may put the same input
        always = (finding for finding in each.findings if not finding.spec.startswith(CHECK))
        for finding in sorted(always, key=lambda finding: finding.spec):
            found[f"score of {finding.spec}"].append(finding.score)
            for part in () if finding.contributions is None else CONTRIBUTIONS:
                found[f"{part} of {finding.spec}"].append(getattr(finding.contributions, part))
    return {name: np.array(values) for name, values in found.items()}


def _tensors(guard: Exportable, tests: Arrays, session: Any) -> dict[str, Tensor]:
    """The detector's tensors, the scores of the calibration set, and the test inputs with their answers."""
    names = [
        each.name for each in session.get_outputs() if each.name in ("logits", "score") or each.name not in OUTPUTS
    ]
    answers = dict(zip(names, session.run(names, tests), strict=True))
    if not all(np.isfinite(answers[name]).all() for name in ("logits", "score")):
        raise ArgumentError(f"{guard.detector.spec} gives no finite score for noise, on which an export is tried")
    kept = learned_tensors(guard.detector)
    if guard.threshold.id_scores is not None:
        kept[ID_SCORES] = torch.from_numpy(guard.threshold.id_scores)
    kept |= {TEST + name: torch.from_numpy(value) for name, value in tests.items()}
    return kept | {f"{TEST}output.{name}": torch.from_numpy(value) for name, value in answers.items()}


def _arrays(inputs: Inputs) -> Arrays:
    from oodles.deploy.graph import tensor_inputs

    names, values = tensor_inputs(inputs)
    return {name: _array(value) for name, value in zip(names, values, strict=True)}


def _array(value: Tensor) -> Any:
    return np.ascontiguousarray(value.detach().cpu().numpy())
