"""Saved detectors: what a record holds, that files cause no imports, and that anything unexpected is refused."""

import copy
import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import oodles
from oodles.data.transforms import CIFAR
from oodles.deploy.saving import load_detector, load_guard, save_detector, save_guard, save_threshold
from oodles.detectors import (
    DICE,
    KNN,
    ODIN,
    DefaultEnsemble,
    Detector,
    LogitDetector,
    RankEnsemble,
    ReAct,
    detector_list,
    parse,
)
from oodles.detectors.arguments import describe
from oodles.errors import ArgumentError, FileError, NotFittedError
from oodles.features import Features
from oodles.functional import energy, msp
from oodles.records.files import LOCK, write_record
from oodles.records.tensors import write_tensors
from oodles.testing import example_features, fit_and_tune, with_passes

pytestmark = pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")


@pytest.fixture
def saved(features: Features, tmp_path: Path) -> Path:
    folder = tmp_path / "saved"
    save_detector(DICE(p=0.7, shape=ReAct(percentile=90)).fit(features), folder)
    return folder


def record_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "detector.json").read_text())


def reseal(folder: Path, **changes: Any) -> None:
    """Rewrite the record with a valid seal, as an attacker would and an accident would not."""
    record = {name: value for name, value in record_of(folder).items() if name != "seal"}
    write_record(folder / "detector.json", {**record, **changes})


def rename(folder: Path, name: str, **arguments: Any) -> None:
    """Let the record name another class."""
    reseal(folder, detector={"class": name, "arguments": arguments})


def tensors_of(folder: Path) -> Path:
    return folder / record_of(folder)["tensors"]["file"]


def refused(folder: Path, *words: str) -> None:
    with pytest.raises(FileError) as caught:
        load_detector(folder)
    for word in words:
        assert word in str(caught.value)


def reloaded(detector: Detector, folder: Path) -> Detector:
    save_detector(detector, folder)
    return load_detector(folder)


# What a record holds ----------------------------------------------------------------------------


def test_a_record_holds_class_arguments_and_version(saved: Path) -> None:
    record = record_of(saved)
    score = {"class": "Score", "arguments": {"function": "energy", "temperature": 1.0}}
    shape = {"percentile": 90, "threshold": None, "per": "all"}  # in a chain a stage has no score of its own
    arguments = {"p": 0.7, "shape": [{"class": "ReAct", "arguments": shape}], "score": score}
    assert record["detector"] == {"class": "DICE", "arguments": arguments}
    assert (record["kind"], record["schema"], record["oodles"]) == ("detector", 1, oodles.__version__)
    assert "spec" not in record, "which could contradict the detector"


@pytest.mark.parametrize("detector", detector_list(), ids=lambda each: each.spec)
def test_defaults_are_recorded_too(detector: Detector, features: Features, tmp_path: Path) -> None:
    save_detector(detector.fit(features), tmp_path)
    described = record_of(tmp_path)["detector"]
    assert described["class"] == type(detector).__name__
    assert list(described["arguments"]) == list(inspect.signature(type(detector)).parameters)


def test_a_later_default_does_not_change_a_saved_detector(
    features: Features, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {}
    for name, detector in {"knn": KNN(), "default": DefaultEnsemble()}.items():
        save_detector(detector.fit(features), tmp_path / name)
        scores[name] = detector.score(features)
    monkeypatch.setitem(KNN.__init__.__kwdefaults__, "k", 1)
    monkeypatch.setitem(DefaultEnsemble.__init__.__kwdefaults__, "detectors", ("energy", "msp"))
    assert not torch.equal(KNN().fit(features).score(features), scores["knn"])
    assert not torch.equal(DefaultEnsemble().fit(features).score(features), scores["default"])
    loaded = {name: load_detector(tmp_path / name) for name in scores}
    assert loaded["knn"].k == 10
    for name, detector in loaded.items():
        assert torch.equal(detector.score(features), scores[name]), name


@pytest.mark.parametrize("make", [DICE, partial(DICE, shape=ReAct())], ids=["stage", "chain"])
def test_nor_does_a_later_default_of_its_score(
    make: Any, features: Features, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detector = make().fit(features)
    scores = detector.score(features)
    save_detector(detector, tmp_path)
    monkeypatch.setattr(energy, "__defaults__", (50.0,))
    assert not torch.equal(DICE().fit(features).score(features), scores)
    assert torch.equal(load_detector(tmp_path).score(features), scores)


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_numpy_numbers_are_saved_as_numbers(kind: Any, features: Features, tmp_path: Path) -> None:
    """A sweep over ``numpy.linspace`` gives NumPy scalars; what is made with them can be saved and loaded."""
    detector = DICE(p=kind(0.5), shape=ReAct(threshold=kind(1.5))).fit(features)
    loaded = reloaded(detector, tmp_path)
    assert loaded.p == 0.5
    assert torch.equal(loaded.score(features), detector.score(features))


def test_a_score_keeps_its_settings(features: Features, tmp_path: Path) -> None:
    detector = LogitDetector(shape=ReAct(), score=partial(msp, temperature=3.0)).fit(features)
    loaded = reloaded(detector, tmp_path)
    assert loaded.spec == "react(90)+msp(3.0)"
    assert torch.equal(loaded.score(features), detector.score(features))


def test_saving_before_fitting_or_tuning(tmp_path: Path) -> None:
    for detector in (DICE(p=0.5), ODIN()):
        with pytest.raises(NotFittedError):
            save_detector(detector, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_replacing_leaves_one_tensor_file(saved: Path, features: Features) -> None:
    first = tensors_of(saved)
    detector = ReAct(percentile=80).fit(features)
    for _ in range(2):
        save_detector(detector, saved)
        assert {path.name for path in saved.iterdir()} == {"detector.json", tensors_of(saved).name, LOCK}
    assert not first.exists()
    assert torch.equal(load_detector(saved).score(features), detector.score(features))


# What cannot be saved ---------------------------------------------------------------------------


class Constant(Detector):
    """A detector with one argument of any type."""

    scores_from = ("logits",)

    def __init__(self, *, value: Any = None) -> None:
        super().__init__()
        self.value = value

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        return logits[:, 0]


@pytest.mark.parametrize("value", [None, True, 3, 0.1, "text", (1, 2), (1, ("a", None)), float("inf")], ids=repr)
def test_plain_arguments_are_read_back(value: Any, tmp_path: Path) -> None:
    loaded = reloaded(Constant(value=value), tmp_path)
    assert isinstance(loaded, Constant)
    assert loaded.value == value
    assert type(loaded.value) is type(value)


def test_a_detector_can_be_an_argument(features: Features, tmp_path: Path) -> None:
    loaded = reloaded(Constant(value=[DICE(p=0.3), Constant(value=1)]), tmp_path)
    assert describe(loaded) == describe(Constant(value=(DICE(p=0.3), Constant(value=1))))


@pytest.mark.parametrize(
    "value",
    [b"bytes", {1, 2}, 1j, Path("somewhere"), {"a": 1}, torch.ones(2), np.ones(2), energy, len],
    ids=lambda value: type(value).__name__,
)
def test_an_argument_that_could_not_be_read_back_is_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError) as caught:
        save_detector(Constant(value=value), tmp_path / "saved")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "saved").exists()


def test_a_score_without_a_name_is_refused(features: Features, tmp_path: Path) -> None:
    detector = DICE(p=0.5, score=lambda logits: logits.mean(dim=-1)).fit(features)
    with pytest.raises(ArgumentError, match="or use one of msp, max_logit, energy, entropy"):
        save_detector(detector, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_a_class_defined_in_a_function_is_refused(tmp_path: Path) -> None:
    class Local(Constant):
        pass

    with pytest.raises(ArgumentError, match="Local could not be loaded again"):
        save_detector(Local(), tmp_path / "saved")
    nested = type("Inner", (Constant,), {"__module__": __name__, "__qualname__": "Constant.Inner"})
    with pytest.raises(ArgumentError, match=r"Constant\.Inner could not be loaded again"):
        save_detector(nested(), tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


SCRIPT = """
import sys
from oodles.detectors import Detector, register
from oodles.errors import ArgumentError
from oodles.deploy.saving import save_detector


@register("scripted")
class Scripted(Detector):
    scores_from = ("logits",)

    def forward(self, embedding, logits, *others):
        return logits[:, 0]


try:
    save_detector(Scripted(), sys.argv[1])
except ArgumentError as error:
    print(error)
"""


def test_a_class_defined_in_a_script_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    run = subprocess.run([sys.executable, script, tmp_path / "saved"], capture_output=True, text=True, check=True)
    (line,) = run.stdout.splitlines()
    assert line.startswith("__main__:Scripted could not be loaded again: define the class at the top level of")
    assert not (tmp_path / "saved").exists()


# Classes of one's own ---------------------------------------------------------------------------

NAMESAKE = """
from oodles import detectors


class KNN(detectors.KNN):
    def forward(self, embedding, logits, *others):
        return -super().forward(embedding, logits)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A user's module with a class that has the name of a built-in one."""
    (tmp_path / "own_module.py").write_text(NAMESAKE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_module", raising=False)
    module = importlib.import_module("own_module")
    monkeypatch.setitem(sys.modules, "own_module", module)  # so that it is removed afterwards
    return module


def test_a_class_with_a_built_in_name_is_not_mistaken_for_it(
    own: ModuleType, features: Features, tmp_path: Path
) -> None:
    mine, built_in = own.KNN(k=3).fit(features), KNN(k=3).fit(features)
    save_detector(mine, tmp_path / "mine")
    save_detector(built_in, tmp_path / "built_in")
    assert record_of(tmp_path / "mine")["detector"]["class"] == "own_module:KNN"
    assert record_of(tmp_path / "built_in")["detector"]["class"] == "KNN"
    loaded, other = load_detector(tmp_path / "mine"), load_detector(tmp_path / "built_in")
    assert type(loaded) is own.KNN
    assert type(other) is KNN
    assert torch.equal(loaded.score(features), mine.score(features))
    assert torch.equal(other.score(features), -mine.score(features))


def test_a_class_whose_module_is_not_imported_is_refused(
    own: ModuleType, features: Features, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_detector(own.KNN().fit(features), tmp_path / "mine")
    monkeypatch.delitem(sys.modules, "own_module")
    refused(tmp_path / "mine", "own_module:KNN", "import the module that defines it first")
    assert "own_module" not in sys.modules


# A file never causes an import ------------------------------------------------------------------


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that could be imported and leaves a file behind if it is."""
    trace = tmp_path / "trace"
    source = f"from pathlib import Path\nfrom oodles.detectors import KNN as X\nPath({str(trace)!r}).touch()\n"
    (tmp_path / "planted.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield trace
    sys.modules.pop("planted", None)


NAMED = ["antigravity:X", "planted:X", "planted", "planted.X", "this:X", "planted:X:Y"]
# an ensemble reads its members from text, which may name any module when the user writes it
IN_TEXT = ["planted:X", "planted:X(k=3)", "energy+planted:X", "planted:X+energy"]


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        *((name, {}, (name, "is unknown; import the module that defines it first")) for name in NAMED),
        *(("RankEnsemble", {"detectors": [name, "energy"]}, ()) for name in IN_TEXT),
        *(("DefaultEnsemble", {"detectors": [name, "energy"]}, ()) for name in IN_TEXT),
        *(
            ("LogitDetector", {where: {"class": "planted:X", "arguments": {}}}, ("planted:X",))
            for where in ("shape", "sparsify", "score")
        ),
    ],
    ids=str,
)
def test_a_record_that_names_a_module_does_not_import_it(
    name: str, arguments: dict[str, Any], words: tuple[str, ...], saved: Path, planted: Path
) -> None:
    rename(saved, name, **arguments)
    refused(saved, *words)
    assert not {"antigravity", "planted", "this"} & set(sys.modules)
    assert not planted.exists()


@pytest.mark.parametrize(
    "name",
    ["os:system", "builtins:eval", "oodles.detectors:KNN", "oodles.detectors.neighbours:KNN", "Features", ":", ""],
)
def test_only_detectors_are_made(name: str, saved: Path) -> None:
    """Also if the module is already imported; a built-in class has one name only."""
    rename(saved, name)
    refused(saved, f"the class {name} is unknown")


# Records that were altered ----------------------------------------------------------------------


def test_any_flipped_bit_of_the_tensors_is_found(saved: Path) -> None:
    file = tensors_of(saved)
    whole = file.read_bytes()
    for position in range(0, len(whole), 37):
        broken = bytearray(whole)
        broken[position] ^= 1 << position % 8
        file.write_bytes(broken)
        refused(saved, str(file), "SHA-256")
    file.write_bytes(whole[:-1])
    refused(saved, str(file), "truncated")
    file.write_bytes(whole)
    load_detector(saved)


def with_score(**arguments: Any) -> dict[str, Any]:
    return {"class": "DICE", "arguments": {"p": 0.7, "score": {"class": "Score", "arguments": arguments}}}


@pytest.mark.parametrize(
    "described",
    [
        "DICE",
        None,
        5,
        [],
        {},
        {"class": "DICE"},
        {"arguments": {}},
        {"class": ["DICE"], "arguments": {}},
        {"class": "DICE", "arguments": []},
        {"class": "Score", "arguments": {"function": "energy"}},
        with_score(function="energy", heat=2.0),
        with_score(function="energy", temperature=-1),
        with_score(function="system"),
        with_score(function=["energy"]),
        with_score(),
    ],
    ids=str,
)
def test_what_does_not_describe_a_detector_is_refused(saved: Path, described: Any) -> None:
    reseal(saved, detector=described)
    refused(saved, str(saved / "detector.json"))


@pytest.mark.parametrize(
    ("name", "arguments", "word"),
    [
        ("DICE", {"p": 0.7, "q": 1}, "'q'"),
        ("KNN", {"neighbours": 3}, "'neighbours'"),
        ("DICE", {"p": 90}, "p=90"),
        ("DICE", {"p": "0.7"}, "str"),
        ("DICE", {"p": None}, "NoneType"),
        ("DICE", {"shape": "react"}, "not a Shape"),
        ("DICE", {"shape": [{"class": "KNN", "arguments": {}}]}, "not a Shape"),
        ("LogitDetector", {"sparsify": {"class": "ReAct", "arguments": {}}}, "not a Sparsifier"),
        ("RankEnsemble", {}, "detectors"),
        ("ReAct", {"threshold": 10**400}, "threshold|too large"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_arguments_that_the_class_does_not_take_are_refused(
    saved: Path, name: str, arguments: dict[str, Any], word: str
) -> None:
    rename(saved, name, **arguments)
    with pytest.raises(FileError, match=word) as caught:
        load_detector(saved)
    assert str(saved / "detector.json") in str(caught.value)


@pytest.mark.parametrize("field", ["oodles", "detector", "tensors"])
@pytest.mark.parametrize("value", [None, 5, [], True], ids=str)
def test_every_field_has_its_type(saved: Path, field: str, value: Any) -> None:
    reseal(saved, **{field: value})
    refused(saved, str(saved / "detector.json"), f"`$.{field}`")


# Tensors that do not belong ---------------------------------------------------------------------


def change(folder: Path, name: str, tensor: Tensor | None) -> None:
    """Replace, add or remove a tensor and update all checksums."""
    state = {**load_file(tensors_of(folder)), name: tensor}
    kept = {name: value for name, value in state.items() if value is not None}
    reseal(folder, tensors=write_tensors(folder, "detector", kept))


def test_an_extra_tensor_is_refused(saved: Path) -> None:
    """The checksum matches, so only the detector itself can say that it has no such tensor."""
    change(saved, "intruder", torch.ones(3))
    refused(saved, str(tensors_of(saved)), "intruder")


@pytest.mark.parametrize("missing", ["weight_", "bias_", "shape_", "shapes.0.threshold_"])
def test_a_missing_tensor_is_refused(saved: Path, missing: str) -> None:
    change(saved, missing, None)
    refused(saved, str(tensors_of(saved)), missing)


@pytest.mark.parametrize("missing", ["members.0.weight_", "members.1.bank_"])
def test_a_tensor_missing_from_a_member_is_refused(missing: str, features: Features, tmp_path: Path) -> None:
    save_detector(RankEnsemble(detectors=["dice", "knn"]).fit(features), tmp_path)
    change(tmp_path, missing, None)
    refused(tmp_path, str(tensors_of(tmp_path)), missing.rpartition(".")[2], "missing")


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("bias_", torch.tensor([0.0, 1.0, 2.0, torch.inf])),
        ("bias_", torch.tensor([0.0, 1.0, 2.0, torch.nan])),
        ("bias_", torch.zeros(3)),
        ("bias_", torch.zeros(4, dtype=torch.float64)),
        ("bias_", torch.zeros(4, dtype=torch.int64)),
        ("bias_", torch.zeros(4, dtype=torch.complex64)),
        ("weight_", torch.zeros(12, 4)),
        ("weight_", torch.zeros(4, 12, 1)),
        ("shape_", torch.tensor([13, 4])),
        ("shape_", torch.tensor([-12, 4])),
        ("shape_", torch.tensor([10**15, 4])),
        ("shape_", torch.tensor([12.0, 4.0])),
        ("shape_", torch.tensor(12)),
        ("shapes.0.threshold_", torch.zeros(7)),
    ],
    ids=lambda value: f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else value,
)
def test_a_tensor_of_another_shape_or_type_or_not_finite_is_refused(saved: Path, name: str, tensor: Tensor) -> None:
    change(saved, name, tensor)
    with pytest.raises(FileError, match=r"does not hold a fitted DICE.*: .+") as caught:
        load_detector(saved)
    assert "\n" not in str(caught.value)


def test_tuning_must_have_chosen_one_of_the_choices(tmp_path: Path) -> None:
    detector = ODIN()
    save_detector(fit_and_tune(detector, with_passes(detector, example_features(60))), tmp_path)
    for choice in (torch.tensor(99), torch.tensor(-1), torch.tensor([1, 2]), torch.tensor(0.0)):
        change(tmp_path, "choice_", choice)
        refused(tmp_path, "does not hold a fitted ODIN")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_detector_in_another_precision_is_loaded(dtype: torch.dtype, features: Features, tmp_path: Path) -> None:
    loaded = reloaded(RankEnsemble(detectors=["dice", "knn"]).fit(features).to(dtype), tmp_path)
    kept = dtype if dtype == torch.float64 else torch.float32  # half precision is for networks
    assert {buffer.dtype for buffer in loaded.buffers()} == {kept, torch.int64}


def test_what_could_not_be_loaded_again_is_not_saved(saved: Path, features: Features) -> None:
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    detector = DICE(p=0.7).fit(features)
    detector.bias_[1] = torch.inf
    with pytest.raises(ArgumentError, match=r"cannot be saved: bias_ contains NaN or infinite values"):
        save_detector(detector, saved)
    threshold = oodles.Threshold(value=0.5, id_rate=0.9, calibration_size=50)
    with pytest.raises(ArgumentError, match=r"cannot be saved: .*images need size, resize, mean and std"):
        save_guard(saved, DICE(p=0.7).fit(features), threshold, preprocessing={"size": 8})
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before


def test_tensors_of_another_detector_are_refused(saved: Path) -> None:
    rename(saved, "Energy", temperature=1.0)
    refused(saved, str(tensors_of(saved)), "Energy")
    rename(saved, "KNN", k=10, bank=1000)
    refused(saved, str(tensors_of(saved)), "KNN")


OTHERWISE = {
    "optfs": {"bins": 50},
    "knn(5)": {"k": 6},
    "gen": {"gamma": 0.2},
    "rank_ensemble(['msp', 'knn'])": {"reduction": "min"},
}


@pytest.mark.parametrize("spec", OTHERWISE)
def test_other_arguments_give_other_scores_and_are_refused(spec: str, features: Features, tmp_path: Path) -> None:
    save_detector(parse(spec).fit(features), tmp_path)
    described = record_of(tmp_path)["detector"]
    reseal(tmp_path, detector={**described, "arguments": described["arguments"] | OTHERWISE[spec]})
    refused(tmp_path, "the scores for its test rows differ")


@pytest.mark.parametrize("detector", [each for each in detector_list() if each.begin()], ids=lambda each: each.spec)
def test_tensors_of_the_same_detector_for_other_data_are_refused(detector: Detector, tmp_path: Path) -> None:
    """They fit, and every checksum is right."""
    for seed in (0, 1):
        folder, features = tmp_path / str(seed), with_passes(detector, example_features(80, seed=seed))
        save_detector(fit_and_tune(copy.deepcopy(detector), features), folder)
    mine, other = (load_file(tensors_of(tmp_path / seed)) for seed in "01")
    mixed = {name: mine[name] if name.startswith("self_test.") else other[name] for name in mine}
    reseal(tmp_path / "0", tensors=write_tensors(tmp_path / "0", "detector", mixed))
    refused(tmp_path / "0", "does not hold a fitted")


def test_a_loaded_detector_is_saved_with_its_test_rows(saved: Path, tmp_path: Path) -> None:
    save_detector(load_detector(saved), tmp_path / "again")
    assert record_of(tmp_path / "again")["probe_scores"] == record_of(saved)["probe_scores"]
    assert load_file(tensors_of(tmp_path / "again")).keys() == load_file(tensors_of(saved)).keys()


@pytest.mark.parametrize("name", ["../{name}", "{folder}/{name}", "inner/{name}", "..", ".", ""])
def test_a_path_that_leads_outside_is_refused(saved: Path, name: str) -> None:
    """Even if there is a valid file: a saved detector is one folder."""
    entry, file = record_of(saved)["tensors"], tensors_of(saved)
    for place in (saved.parent, saved / "inner"):
        place.mkdir(exist_ok=True)
        (place / file.name).write_bytes(file.read_bytes())
    outside = name.format(name=file.name, folder=saved.parent)
    reseal(saved, tensors={**entry, "file": outside})
    refused(saved, repr(outside), str(saved))


@pytest.mark.parametrize("damage", ["cut", "altered", "newer"])
def test_a_damaged_detector_can_be_written_again(saved: Path, features: Features, damage: str) -> None:
    """The errors advise it, so it has to work."""
    file = saved / "detector.json"
    if damage == "newer":
        reseal(saved, schema=3)
    else:
        file.write_bytes(file.read_bytes()[:-9] if damage == "cut" else file.read_bytes().replace(b"0.7", b"0.6"))
    refused(saved, "again")
    detector = DICE(p=0.5).fit(features)
    assert torch.equal(reloaded(detector, saved).score(features), detector.score(features))


def test_a_new_threshold_leaves_the_rest_of_a_guard_as_it_is(features: Features, tmp_path: Path) -> None:
    old, new = (oodles.Threshold(value=value, id_rate=0.9, calibration_size=50) for value in (0.25, 0.5))
    about = {"model": "f00d", "head": "fc", "preprocessing": CIFAR.as_record(), "class_names": ["a", "b"]}
    save_guard(tmp_path, DICE(p=0.7).fit(features), old, **about)
    before, (_, _, record) = set(tmp_path.iterdir()), load_guard(tmp_path)
    save_threshold(tmp_path, new)
    detector, threshold, again = load_guard(tmp_path)
    assert threshold == new
    assert detector.spec == "dice(0.7)+energy"
    assert {**again, "threshold": record["threshold"]} == record
    assert set(tmp_path.iterdir()) == before


def test_a_threshold_is_not_added_to_what_is_not_a_guard(saved: Path) -> None:
    with pytest.raises(FileError, match=r"guard\.json does not exist"):
        save_threshold(saved, oodles.Threshold(value=0.5, id_rate=0.9, calibration_size=50))
