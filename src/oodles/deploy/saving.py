"""Saving and loading of detectors and guards: safetensors and JSON, never pickle.

A saved detector records its class, every argument and the package version, so a later change of defaults never changes
its scores. A file can only name built-in classes and those that this process has registered or imported itself: nothing
is imported because a file says so.
"""

import copy
import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oodles import __version__
from oodles.calibration import Threshold, restore_threshold
from oodles.columns import PRECISIONS, is_finite
from oodles.deploy.artefact import ID_SCORES, TEST
from oodles.deploy.artefact import RECORD as GUARD_RECORD
from oodles.deploy.artefact import SAVED_KIND as GUARD_KIND
from oodles.detectors import Detector
from oodles.detectors.arguments import Described, class_key
from oodles.detectors.base import INPUTS, check_fitted, extra_columns
from oodles.detectors.ensemble import RankEnsemble
from oodles.detectors.logit import SCORES, Score
from oodles.detectors.network_detector import NetworkDetector, is_tuned, steps_of
from oodles.detectors.registry import find_class
from oodles.errors import ArgumentError, FileError
from oodles.network.self_test import SAME, SelfTest
from oodles.records.fields import Finite, PreprocessingFields, ThresholdFields
from oodles.records.files import (
    Digest,
    Fields,
    Key,
    Record,
    TensorFile,
    check_output,
    checked,
    locked,
    read_key,
    read_record,
    record_kind,
    remove_others,
    write_record,
)
from oodles.records.tensors import read_saved, read_tensors, write_tensors

KIND, SCHEMA, RECORD = "detector", 1, "detector.json"
GUARD_SCHEMA = 1
PATIENCE = 60.0  # seconds that a writer waits for another one
INTEGERS = ("shape_", "choice_")  # the learned tensors of our own detectors that are not floating-point
MAX_COLUMNS = 1 << 24  # of an embedding or of logits
MIN_PROBES, FAR = 12, 5.0  # rows whose scores are kept, and by how much some of them are multiplied


class _DetectorFields(Fields):
    """``probe_scores`` are those of :func:`_probe_scores`, which loading repeats."""

    oodles: str
    detector: dict[str, Any]
    tensors: TensorFile
    probe_scores: list[Finite | None]


class _GuardFields(_DetectorFields):
    model: str | None
    head: str | bool | None
    preprocessing: PreprocessingFields | None
    class_names: list[str]
    multilabel: bool | None
    threshold: ThresholdFields
    id_scores: Digest | None
    self_test: SelfTest | None = None
    signature: str | None = None


def save_detector(detector: Detector, path: str | Path) -> None:
    """Write a fitted detector to the folder ``path``; replacing an earlier one is a single atomic step.

    >>> import tempfile
    >>> from oodles.detectors import KNN
    >>> from oodles.testing import example_features
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_detector(KNN(k=5).fit(example_features()), folder)
    ...     load_detector(folder)
    <KNN(k=5, bank=10000), fitted on (width, classes) (24, 5)>
    """
    _save(Path(path) / RECORD, detector, {"kind": KIND, "schema": SCHEMA}, _DetectorFields)


def load_detector(path: str | Path) -> Detector:
    """Read a detector that :func:`save_detector` wrote; anything altered, newer or unexpected is refused.

    >>> load_detector("home")
    Traceback (most recent call last):
    oodles.errors.FileError: home/detector.json does not exist, so home does not hold a saved detector; give its folder
    """
    detector, _, _ = _load(Path(path) / RECORD, None)
    return detector


def save_guard(
    folder: Path,
    detector: Detector,
    threshold: Threshold,
    model: str | None = None,
    head: str | bool | None = None,
    preprocessing: Record | None = None,
    class_names: Sequence[str] = (),
    multilabel: bool | None = None,
    self_test: Record | None = None,
    key: Key | None = None,
) -> None:
    """Write a guard without its model; replacing an earlier one is a single atomic step.

    ``model`` is the fingerprint of the model that the features came from, ``preprocessing`` how its images were resized
    and normalised; None if unknown. ``class_names`` are those of the model's classes, in order; () if unknown.
    ``multilabel`` is what the guard was told; None if nothing. ``self_test`` is what loading compares with. With a
    ``key`` the record is signed, and since it names the SHA-256 of the tensors, so are they.
    """
    about = {
        "kind": GUARD_KIND,
        "schema": GUARD_SCHEMA,
        "model": model,
        "head": head,
        "preprocessing": preprocessing,
        "class_names": list(class_names),
        "multilabel": multilabel,
        "threshold": threshold.as_record(),
        "id_scores": threshold.digest(),
        "self_test": self_test,
    }
    _save(Path(folder) / GUARD_RECORD, detector, about, _GuardFields, read_key(key), threshold)


def load_guard(folder: Path, key: Key | None = None) -> tuple[Detector, Threshold, Record]:
    """The detector, the threshold and the rest of what :func:`save_guard` wrote; with a key only if signed with it."""
    path = Path(folder) / GUARD_RECORD
    detector, record, scores = _load(path, read_key(key))
    if scores is not None and scores.dtype not in (torch.float32, torch.float64):  # NumPy does not have all others
        scores = torch.empty(0)  # which is refused
    threshold = restore_threshold(record["threshold"], None if scores is None else scores.numpy(), path)
    if threshold.digest() != record["id_scores"]:
        raise FileError(f"{path} has other scores of its calibration set than it was saved with; save the guard again")
    return detector, threshold, record


def save_threshold(folder: Path, threshold: Threshold, key: Key | None = None) -> None:
    """Give a saved guard another threshold, in one atomic step; everything else in its record stays as it is."""
    path, secret = folder / GUARD_RECORD, read_key(key)
    _read(path, secret)  # before the folder of something else is locked
    with locked(folder, PATIENCE):
        record = _read(path, secret)
        if record["signature"] is not None and secret is None:
            raise FileError(f"{path} is signed; give its key, since a new threshold needs a new signature")
        tensors = read_tensors(folder, record["tensors"])
        tensors.pop(ID_SCORES, None)
        entry = write_tensors(folder, path.stem, tensors | _score_tensors(threshold))
        changes = {"threshold": threshold.as_record(), "id_scores": threshold.digest(), "tensors": entry}
        write_record(path, {**record, **changes}, secret)
        remove_others(folder, path.stem, entry["file"])


def _score_tensors(threshold: Threshold | None) -> dict[str, Tensor]:
    """The scores that a threshold keeps, as a guard's tensor file has them."""
    scores = None if threshold is None else threshold.id_scores
    return {} if scores is None else {ID_SCORES: torch.from_numpy(scores)}


def _save(
    path: Path,
    detector: Detector,
    about: Record,
    fields: type[Fields],
    key: bytes | None = None,
    threshold: Threshold | None = None,
) -> None:
    """Write the tensors, then the record that names them, then remove the tensors of earlier saves."""
    check_fitted(detector)
    described = {"oodles": __version__, "detector": describe_detector(detector)}
    blank = {"file": "", "sha256": "0" * 64}
    try:  # what could not be read again is not written
        _check_tensors(detector)
        described["probe_scores"] = _probe_scores(detector)
        checked({**about, **described, "tensors": blank}, fields, path)
    except Exception as error:  # the class may be a user's
        raise ArgumentError(f"{detector} cannot be saved: {_line(error)}") from None
    check_output(path, record_kind(about["kind"]))
    with locked(path.parent, PATIENCE):
        rows = {TEST + name: column for name, column in detector._examples.items()}
        entry = write_tensors(path.parent, path.stem, detector.state_dict() | rows | _score_tensors(threshold))
        write_record(path, {**about, **described, "tensors": entry}, key)
        remove_others(path.parent, path.stem, entry["file"])


def _read(path: Path, key: bytes | None) -> Record:
    if path.name == RECORD:
        return read_record(path, kind=KIND, schema=SCHEMA, fields=_DetectorFields)
    return read_record(path, kind=GUARD_KIND, schema=GUARD_SCHEMA, fields=_GuardFields, key=key)


def _load(path: Path, key: bytes | None) -> tuple[Detector, Record, Tensor | None]:
    """The detector that a record describes, with the tensors it names, the record, and a guard's ID scores."""
    record, state = read_saved(path.parent, lambda: _read(path, key))
    scores = state.pop(ID_SCORES, None) if path.name == GUARD_RECORD else None
    examples = {name.removeprefix(TEST): state.pop(name) for name in list(state) if name.startswith(TEST)}
    try:
        detector = _decode(record["detector"])
    except FileError:
        raise
    except Exception as error:  # whatever a constructor makes of values that it was never given
        raise FileError(f"{path} does not describe a detector of this version: {_line(error)}") from None
    if not isinstance(detector, Detector):
        raise FileError(f"{path} describes a {type(detector).__name__}, not a detector")
    tensors = path.parent / record["tensors"]["file"]
    try:
        detector.load_state_dict(state)
        _check_tensors(detector)
        detector._examples = examples
        _compare(_probe_scores(detector), record["probe_scores"])
    except Exception as error:  # any tensor may be of any shape, and the class may be a user's
        described = " ".join(str(detector).split())  # an argument may be text of several lines
        raise FileError(f"{tensors} does not hold a fitted {described}: {_line(error)}") from None
    return detector, record, scores


def _line(error: Exception) -> str:
    """An error in one line; the detail of those of ``load_state_dict`` is the last one."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1 if lines[0].startswith("Error(s) in loading") else 0].strip()


def _check_tensors(detector: Detector) -> None:
    """Raise unless every tensor is there, finite, and of a type that the class learns."""
    missing = _missing(detector)
    if missing:
        raise ValueError(f"{', '.join(missing)} missing")
    state: dict[str, Tensor] = detector.state_dict()
    ours = all(type(part).__module__.partition(".")[0] in ("oodles", "torch") for part in detector.modules())
    precisions = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
    if not precisions <= {*PRECISIONS} or (ours and len(precisions) > 1):
        raise ValueError(f"its tensors are of the types {', '.join(sorted(map(str, precisions)))}")
    for name, tensor in state.items():
        leaf = name.rpartition(".")[2]
        whole = tensor.dtype == torch.int64
        if (leaf in INTEGERS and not whole) or (ours and leaf not in INTEGERS and not tensor.is_floating_point()):
            raise ValueError(f"{name} is of type {tensor.dtype}")
        if leaf == "shape_" and not (tensor.shape == (2,) and tensor.min() >= 0 and tensor.max() <= MAX_COLUMNS):
            raise ValueError(f"{name} is not a width and a number of classes")
        if leaf == "probe_" and not (tensor.ndim == 1 and len(tensor)):
            raise ValueError(f"{name} is not a row of logits")
        if leaf == "choice_" and not (tensor.ndim == 0 and tensor >= 0):
            raise ValueError(f"{name} is not the number of a choice")
        if tensor.is_floating_point() and not is_finite(tensor):
            raise ValueError(f"{name} contains NaN or infinite values")


@torch.no_grad()
def _probe_scores(detector: Detector) -> list[float | None]:
    """Return the scores of the training rows that the detector keeps, or of noise; None where one is not finite.

    They are the same on every machine up to rounding, so other scores mean other tensors or arguments. The list is
    empty if only the network knows how wide an inner layer is.
    """
    check_fitted(detector)
    state, known = detector.state_dict(), detector._examples
    width, classes = (16, 16) if detector.shape_ is None else detector.shape_.tolist()
    widths = {"embedding": width, "logits": classes}
    for part in detector.modules():
        widths |= part.layer_widths() if isinstance(part, NetworkDetector) else {}
    steps = {step.column: step.keep for step in steps_of([detector])}
    names = [steps.get(name, name) for name in (*INPUTS, *extra_columns(detector))]
    if not {*widths, *known} >= {*names}:
        return []
    if detector.shape_ is not None and any(known[name].shape[1] != widths[name] for name in INPUTS if name in known):
        raise ValueError("its test rows are not as wide as what it was fitted on")
    like = next((tensor for tensor in state.values() if tensor.is_floating_point()), torch.empty(0))
    if like.dtype in (torch.float16, torch.bfloat16):  # in which a CPU cannot compute everything
        detector, like = copy.deepcopy(detector).float(), like.float()
    sizes = {size for tensor in state.values() for size in tensor.shape}
    rows = next(count for count in range(MIN_PROBES, len(sizes) + MIN_PROBES + 1) if count not in sizes)
    generator = torch.Generator().manual_seed(0)  # and no tensor fits that number of rows by accident

    def column(name: str) -> Tensor:
        if name in known:
            far = torch.where(torch.arange(rows) % 3 == 2, FAR, 1)[:, None]  # where only a check counts
            return (known[name][torch.arange(rows) % len(known[name])] * far).to(like)
        return torch.rand(rows, widths[name], generator=generator).to(like)

    scores = detector(*map(column, names))
    if scores.shape != (rows,) or not scores.is_floating_point():
        raise ValueError(f"the scores of {rows} rows are {scores.dtype} of shape {tuple(scores.shape)}")
    return [score if math.isfinite(score) else None for score in scores.double().tolist()]


def _compare(found: Sequence[float | None], known: Sequence[float | None]) -> None:
    """Raise unless scores are those that were saved, up to rounding: relative to each, or to the usual one if larger.

    Scores of one detector may be as different as 1 and 1e9, so the largest says nothing of the others.
    """
    usual = statistics.median_low([abs(score) for score in known if score is not None] or [0.0])
    same = len(found) == len(known) and all(
        (now is None) == (then is None) and abs((now or 0.0) - (then or 0.0)) <= SAME * max(abs(then or 0.0), usual)
        for now, then in zip(found, known, strict=True)
    )
    if not same:
        raise ValueError("the scores for its test rows differ from those it was saved with; save it again")


def learned_tensors(detector: Detector) -> dict[str, Tensor]:
    """Return the tensors of a detector in types that NumPy has."""
    state: dict[str, Tensor] = detector.state_dict()
    return {name: tensor.float() if tensor.dtype == torch.bfloat16 else tensor for name, tensor in state.items()}


def describe_detector(value: Any) -> Any:
    """The class and every argument of a detector, recursively, as JSON; what could not be read back is refused."""
    if isinstance(value, Score):
        if value.function not in SCORES:
            raise ArgumentError(
                f"the score {value.name_of_function()} has no name to be saved under; register it as a ScoreDetector, "
                f"or use one of {', '.join(SCORES.values())}"
            )
        return {"class": "Score", "arguments": {"function": SCORES[value.function], **_encode_all(value.settings)}}
    if isinstance(value, Described):
        _require_loadable(class_key(type(value)))
        return {"class": class_key(type(value)), "arguments": _encode_all(value.arguments())}
    if isinstance(value, list | tuple):
        return [describe_detector(each) for each in value]
    plain = value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value
    if plain is None or isinstance(plain, bool | int | float | str):
        return plain
    raise ArgumentError(f"an argument of type {type(value).__name__} cannot be saved; use numbers, text and lists")


def _encode_all(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: describe_detector(value) for name, value in arguments.items()}


def _require_loadable(key: str) -> None:
    """A built-in class, or a user's that is found again under its own path; not one from a script or a function."""
    module, colon, name = key.partition(":")
    if colon and (module == "__main__" or "<locals>" in name or find_class(key) is None):
        raise ArgumentError(
            f"{key} could not be loaded again: define the class at the top level of an importable module"
        )


def _decode(value: Any) -> Any:
    """The object that :func:`describe_detector` described."""
    if isinstance(value, list):
        return tuple(_decode(each) for each in value)
    if not isinstance(value, dict):
        return value
    arguments = {str(name): _decode(each) for name, each in value["arguments"].items()}
    if value["class"] == "Score":
        functions = {name: function for function, name in SCORES.items()}
        return partial(functions[arguments.pop("function")], **arguments)
    kind = find_class(value["class"])
    if kind is None:
        raise FileError(
            f"the class {' '.join(str(value['class']).split())} is unknown; import the module that defines it first "
            "(--plugin on the command line), or install the package that announces it"
        )
    if issubclass(kind, RankEnsemble) and any(
        isinstance(each, str) for some in arguments.values() if isinstance(some, tuple) for each in some
    ):
        raise ValueError("members of an ensemble are given as text, which could name a module to import")
    return kind(**arguments)


def _missing(detector: Detector) -> list[str]:
    """Buffers that nothing has filled; a state dict does not list them, so loading it cannot miss them."""
    missing = []
    owners: dict[str, Detector] = {}
    used = detector.scoring_members() if isinstance(detector, RankEnsemble) else []
    unused = {part for each in getattr(detector, "members", ()) if each not in used for part in each.modules()}
    for name, module in detector.named_modules():
        owner = module if isinstance(module, Detector) else owners[name.rpartition(".")[0]]
        owners[name] = owner
        if owner in unused:
            continue
        tunes = owner.tunes if isinstance(owner, NetworkDetector) else ()
        for buffer, value in module._buffers.items():
            needed = not is_tuned(owner) if buffer in tunes else bool(owner.learns_from)
            if value is None and needed and buffer != "probe_":  # there is none without a head
                missing.append(f"{name}.{buffer}" if name else buffer)
    return missing
