"""Saving and loading of detectors and guards: safetensors and JSON, never pickle.

A saved detector records its class, every argument and the package version, so a later change of defaults never changes
its scores. A file can only name built-in classes and those that this process has registered or imported itself: nothing
is imported because a file says so.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from oodles import __version__
from oodles.calibration import Threshold
from oodles.detectors import Detector
from oodles.detectors.base import Described, check_fitted, class_key
from oodles.detectors.ensemble import RankEnsemble
from oodles.detectors.logit import SCORES, Score
from oodles.detectors.network_detector import NetworkDetector, is_tuned
from oodles.detectors.registry import find_class
from oodles.errors import ArgumentError, FileError, OodlesError
from oodles.files import Record, member, read_record, read_tensors, write_record, write_tensors

KIND, SCHEMA, RECORD = "detector", 2, "detector.json"
GUARD_KIND, GUARD_SCHEMA, GUARD_RECORD = "guard", 2, "guard.json"


def save_detector(detector: Detector, path: str | Path) -> None:
    """Write a fitted detector to the folder ``path``; replacing an earlier one is a single atomic step."""
    folder = Path(path)
    check_fitted(detector)
    arguments = _encode(detector)
    before = _tensor_file(folder)
    entry = write_tensors(folder, "detector", detector.state_dict())
    record = {
        "kind": KIND,
        "schema": SCHEMA,
        "oodles": __version__,
        "spec": detector.spec,
        "detector": arguments,
        "tensors": entry,
    }
    write_record(folder / RECORD, record)
    if before is not None and before.name != entry["file"]:
        before.unlink(missing_ok=True)


def load_detector(path: str | Path) -> Detector:
    """Read a detector that :func:`save_detector` wrote; anything altered, newer or unexpected is refused."""
    folder = Path(path)
    record = read_record(folder / RECORD, kind=KIND, schema=SCHEMA)
    try:
        state = read_tensors(folder, record["tensors"])
        detector = _decode(record["detector"])
    except FileError:
        raise
    except (OodlesError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise FileError(f"{folder / RECORD} does not describe a detector of this version: {error}") from None
    if not isinstance(detector, Detector):
        raise FileError(f"{folder / RECORD} describes a {type(detector).__name__}, not a detector")
    tensors = folder / record["tensors"]["file"]
    try:
        detector.load_state_dict(state)
    except RuntimeError as error:
        detail = str(error).splitlines()[-1].strip()
        raise FileError(f"{tensors} does not hold a fitted {detector}: {detail}") from None
    missing = _missing(detector)
    if missing:
        raise FileError(f"{tensors} does not hold a fitted {detector}: {', '.join(missing)} missing")
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
) -> None:
    """Write a guard without its model.

    ``model`` is the fingerprint of the model that the features came from, ``preprocessing`` how its images were resized
    and normalised; None if unknown. ``class_names`` are those of the model's classes, in order; () if unknown.
    ``multilabel`` is what the guard was told; None if nothing. The
    record names the detector's tensors, so that a threshold is never read back with another detector than the one it
    was set for.
    """
    save_detector(detector, folder)
    record = {
        "kind": GUARD_KIND,
        "schema": GUARD_SCHEMA,
        "model": model,
        "head": head,
        "preprocessing": preprocessing,
        "class_names": list(class_names),
        "multilabel": multilabel,
        "threshold": asdict(threshold),
        "detector": _detector_digest(folder),
    }
    write_record(folder / GUARD_RECORD, record)


def load_guard(folder: Path) -> tuple[Detector, Threshold, Record]:
    """The detector, the threshold and the rest of what :func:`save_guard` wrote."""
    record = read_record(folder / GUARD_RECORD, kind=GUARD_KIND, schema=GUARD_SCHEMA)
    if record["detector"] != _detector_digest(folder):
        raise FileError(f"{folder} holds another detector than its threshold was set for; fit and save the guard again")
    record.setdefault("class_names", [])
    record.setdefault("multilabel", None)
    return load_detector(folder), Threshold(**record["threshold"]), record


def save_threshold(folder: Path, threshold: Threshold) -> None:
    """Give a saved guard another threshold, in one atomic step; everything else in its record stays as it is."""
    record = read_record(folder / GUARD_RECORD, kind=GUARD_KIND, schema=GUARD_SCHEMA)
    write_record(folder / GUARD_RECORD, {**record, "threshold": asdict(threshold)})


def _detector_digest(folder: Path) -> list[str]:
    record = read_record(folder / RECORD, kind=KIND, schema=SCHEMA)
    arguments = json.dumps(record["detector"], sort_keys=True)
    return [hashlib.sha256(arguments.encode()).hexdigest(), record["tensors"]["sha256"]]


def _tensor_file(folder: Path) -> Path | None:
    try:
        return member(folder, read_record(folder / RECORD, kind=KIND, schema=SCHEMA)["tensors"]["file"])
    except FileError:
        return None


def _encode(value: Any) -> Any:
    """Class and every argument, recursively, as JSON; what could not be read back is refused."""
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
        return [_encode(each) for each in value]
    plain = value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value
    if plain is None or isinstance(plain, bool | int | float | str):
        return plain
    raise ArgumentError(f"an argument of type {type(value).__name__} cannot be saved; use numbers, text and lists")


def _encode_all(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _encode(value) for name, value in arguments.items()}


def _require_loadable(key: str) -> None:
    """A built-in class, or a user's that is found again under its own path; not one from a script or a function."""
    module, colon, name = key.partition(":")
    if colon and (module == "__main__" or "<locals>" in name or find_class(key) is None):
        raise ArgumentError(
            f"{key} could not be loaded again: define the class at the top level of an importable module"
        )


def _decode(value: Any) -> Any:
    """The object that :func:`_encode` described."""
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
            f"the class {value['class']} is unknown; import the module that defines it first (--plugin on the command "
            "line), or install the package that announces it"
        )
    if issubclass(kind, RankEnsemble) and any(isinstance(member, str) for member in arguments["detectors"]):
        raise ValueError("members of an ensemble are given as text, which could name a module to import")
    return kind(**arguments)


def _missing(detector: Detector) -> list[str]:
    """Buffers that nothing has filled; a state dict does not list them, so loading it cannot miss them."""
    missing = []
    owners: dict[str, Detector] = {}
    for name, module in detector.named_modules():
        owner = module if isinstance(module, Detector) else owners[name.rpartition(".")[0]]
        owners[name] = owner
        tunes = owner.tunes if isinstance(owner, NetworkDetector) else ()
        for buffer, value in module._buffers.items():
            needed = not is_tuned(owner) if buffer in tunes else bool(owner.learns_from)
            if value is None and needed and buffer != "probe_":  # there is none without a head
                missing.append(f"{name}.{buffer}" if name else buffer)
    return missing
