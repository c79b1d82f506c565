"""Guards on disk: the fields of their record, signatures, and saving and loading at the same time."""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import oodles
from oodles.calibration import Threshold, calibrate
from oodles.data.transforms import CIFAR
from oodles.deploy.saving import load_guard, save_guard, save_threshold
from oodles.detectors import KNN, Energy, parse
from oodles.errors import ArgumentError, FileError
from oodles.features import Features
from oodles.guard import Guard
from oodles.models.shipped import GUARD, load, shipped_folder
from oodles.records.files import LOCK, TEMPORARY, write_record
from oodles.records.tensors import write_tensors
from oodles.testing import example_features, fit_and_tune, with_passes

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
LIMIT = Threshold(value=0.25, id_rate=0.9, calibration_size=50)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_guard(tmp_path / "g", Energy(), LIMIT, "f00d", "fc", CIFAR.as_record(), ["a", "b"])
    return tmp_path / "g"


def record_of(folder: Path) -> dict[str, Any]:
    return {name: value for name, value in json.loads((folder / "guard.json").read_text()).items() if name != "seal"}


def test_scores_of_another_calibration_set_are_refused(features: Features, tmp_path: Path) -> None:
    scores = KNN().fit(features).score(features)
    save_guard(tmp_path, KNN().fit(features), calibrate(scores, 0.9))
    record = record_of(tmp_path)
    tensors = load_file(tmp_path / record["tensors"]["file"])
    kept = tensors["id_scores"]
    for other, words in (
        (kept + 0.01, "other scores of its calibration set than it was saved with"),
        (kept.to(torch.float8_e4m3fn), "no usable scores of its calibration set"),
    ):
        written = write_tensors(tmp_path, "guard", tensors | {"id_scores": other})
        write_record(tmp_path / "guard.json", {**record, "tensors": written})
        with pytest.raises(FileError, match=words):
            load_guard(tmp_path)


# Fields -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("model", 5),
        ("head", 3),
        ("preprocessing", []),
        ("preprocessing.size", 0),
        ("preprocessing.size", 8.0),
        ("preprocessing.mean", []),
        ("preprocessing.std", [0.5, 0.0, 0.5]),
        ("preprocessing.std", [0.5, float("inf"), 0.5]),
        ("class_names", "ab"),
        ("class_names", [1]),
        ("multilabel", "no"),
        ("threshold", 0.5),
        ("threshold.value", float("nan")),
        ("threshold.value", float("-inf")),
        ("threshold.value", None),
        ("threshold.id_rate", 95),
        ("threshold.calibration_size", -1),
        ("threshold.calibration_size", 50.5),
        ("self_test", []),
        ("tensors.sha256", "0"),
    ],
    ids=str,
)
def test_every_field_has_its_type_and_range(saved: Path, place: str, value: Any) -> None:
    record = record_of(saved)
    *outer, last = place.split(".")
    (record[outer[0]] if outer else record)[last] = value
    write_record(saved / "guard.json", record)
    with pytest.raises(FileError) as caught:
        load_guard(saved)
    assert "guard.json is not as this version writes it: Expected " in str(caught.value)
    assert f"at `$.{place}" in str(caught.value)


def test_the_shipped_guard_is_one_record_and_its_tensors() -> None:
    folder = shipped_folder("cifar10-small") / GUARD
    assert {path.name for path in folder.iterdir()} == {"guard.json", record_of(folder)["tensors"]["file"]}
    assert Guard.load(folder, load("cifar10-small")).detector.spec == "default"


@pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")
@pytest.mark.parametrize(
    ("spec", "name", "shape"),
    [
        ("gram(['a', 'b'])", "high_", (5, 47)),
        ("gram(['a', 'b'])", "low_", (1, 48)),
        ("rankfeat", "bias_", (7,)),
        ("rankfeat", "weight_", (24,)),
        ("adascale", "bias_", (3,)),
        ("rank_ensemble(['odin', 'knn'])", "members.1.bank_", (60, 25)),
        ("rank_ensemble(['msp', 'energy'])", "centre_", (3,)),
    ],
)
def test_wrong_shapes_are_found_for_detectors_of_inner_layers_too(
    spec: str, name: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    detector = parse(spec)
    fit_and_tune(detector, with_passes(detector, example_features(60)))
    save_guard(tmp_path, detector, LIMIT)
    load_guard(tmp_path)
    state = {**detector.state_dict(), name: torch.zeros(shape)}
    write_record(tmp_path / "guard.json", {**record_of(tmp_path), "tensors": write_tensors(tmp_path, "guard", state)})
    with pytest.raises(FileError, match=r"guard-\w+\.safetensors does not hold a fitted \w+\(.*\): .+"):
        load_guard(tmp_path)


# Signatures -------------------------------------------------------------------------------------


def test_a_signed_guard_is_loaded_with_its_key_only(tmp_path: Path) -> None:
    guard = Guard(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3)), Energy(), LIMIT)
    guard.save(tmp_path / "signed", key=KEY)
    guard.save(tmp_path / "plain")
    (tmp_path / "key").write_bytes(KEY)
    for key in (KEY, tmp_path / "key", str(tmp_path / "key"), None):
        assert Guard.load(tmp_path / "signed", guard.model, key=key).threshold == LIMIT
    with pytest.raises(FileError, match="signed with another key or altered"):
        Guard.load(tmp_path / "signed", guard.model, key=OTHER_KEY)
    with pytest.raises(FileError, match=r"guard\.json is not signed; save it again with the key"):
        Guard.load(tmp_path / "plain", guard.model, key=KEY)
    with pytest.raises(ArgumentError, match="a key of 5 bytes can be guessed"):
        guard.save(tmp_path / "weak", key=b"12345")
    assert not (tmp_path / "weak").exists()


def test_whoever_alters_a_signed_guard_needs_the_key(saved: Path, features: Features) -> None:
    save_guard(saved, KNN(k=3).fit(features), LIMIT, key=KEY)
    before = record_of(saved)
    with pytest.raises(FileError, match="is signed; give its key"):
        save_threshold(saved, LIMIT)
    changes: list[dict[str, Any]] = [
        {"threshold": {**before["threshold"], "value": -1e9}},
        {"class_names": ["x"]},
        {"detector": {"class": "Energy", "arguments": {"temperature": 1.0}}},
        {"tensors": {**before["tensors"], "sha256": "0" * 64}},
    ]
    for change in changes:
        text = json.dumps({**before, **change})
        write_record(saved / "guard.json", json.loads(text), OTHER_KEY)
        with pytest.raises(FileError, match="signed with another key or altered"):
            load_guard(saved, KEY)
    write_record(saved / "guard.json", before, KEY)
    new = Threshold(value=0.75, id_rate=0.9, calibration_size=50)
    save_threshold(saved, new, KEY)
    assert load_guard(saved, KEY)[1] == new


# Writers, readers and kills ---------------------------------------------------------------------


def versions(features: Features) -> dict[float, oodles.Detector]:
    """Two detectors by the threshold that is saved with them."""
    return {0.0: KNN(k=3).fit(features), 1.0: parse("dice(0.5)").fit(features)}


def limit(value: float) -> Threshold:
    return Threshold(value=value, id_rate=0.9, calibration_size=50)


def test_readers_always_find_one_whole_guard(features: Features, tmp_path: Path) -> None:
    known = versions(features)
    scores = {value: detector.score(features) for value, detector in known.items()}
    save_guard(tmp_path, known[0.0], limit(0.0))
    done = threading.Event()

    def write(value: float) -> None:
        while not done.is_set():
            save_guard(tmp_path, known[value], limit(value))

    writers = [threading.Thread(target=write, args=(value,)) for value in known]
    for writer in writers:
        writer.start()
    try:
        for _ in range(60):
            detector, threshold, _ = load_guard(tmp_path)
            assert torch.equal(detector.score(features), scores[threshold.value])
    finally:
        done.set()
        for writer in writers:
            writer.join()
    assert {path.name for path in tmp_path.iterdir()} == {LOCK, "guard.json", record_of(tmp_path)["tensors"]["file"]}


STEPS = ("os.rename", "os.remove")
"""What changes a folder. A save creates, renames and deletes the temporary file of its tensors and then that of its
record, and then deletes the old tensors."""


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # of later versions of Python, if there are threads
@pytest.mark.parametrize("step", range(8))
def test_a_save_that_is_killed_leaves_the_old_guard_or_the_new_one(
    step: int, features: Features, tmp_path: Path
) -> None:
    known = versions(features)
    save_guard(tmp_path, known[0.0], limit(0.0))
    child = os.fork()
    if child == 0:
        seen = 0

        def watch(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal seen
            if event in STEPS or (event == "open" and TEMPORARY in str(arguments[0]) and arguments[2] & os.O_EXCL):
                seen += 1
                if seen > step:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        save_guard(tmp_path, known[1.0], limit(1.0))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) == (step < 7), "killed before each step"
    detector, threshold, _ = load_guard(tmp_path)
    assert threshold.value == (step > 4), "replacing the record is what counts"
    assert torch.equal(detector.score(features), known[threshold.value].score(features))
    save_guard(tmp_path, known[1.0], limit(1.0))
    assert load_guard(tmp_path)[1].value == 1.0
    assert len(list(tmp_path.iterdir())) == 3, "what the killed writer left is gone"
