import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import scores as slow_scores
from reference import sparsity as slow_sparsity
from safetensors.torch import load_file
from torch import Tensor

from oodles.detectors import (
    DICE,
    MSP,
    BottomContribution,
    Clip,
    Detector,
    Energy,
    Entropy,
    LogitDetector,
    MaxLogit,
    RandomContribution,
    ReAct,
    Sparsifier,
    TopBottomContribution,
    TopContribution,
    UnitDropout,
    UnitPruning,
    WeightDropout,
    WeightPruning,
    detector_list,
    load_detector,
    parse,
)
from oodles.detectors.statistics import Mean
from oodles.errors import ArgumentError, FileError, NotFittedError, ShapeError
from oodles.features import Features, Head
from oodles.files import write_record, write_tensors
from oodles.functional import energy, entropy, max_logit, msp
from oodles.testing import check_detector, example_features

PAPER_P = (0.1, 0.3, 0.5, 0.7, 0.9, 0.99)


def without_bias(features: Features) -> Features:
    assert features.head is not None
    return Features(features.embedding, labels=features.labels, head=Head(features.head.weight))


def numpy_parts(features: Features) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Embeddings, weight and bias in float64."""
    head = features.head
    assert head is not None
    bias = torch.zeros(head.classes) if head.bias is None else head.bias
    return features.embedding.double().numpy(), head.weight.double().numpy(), bias.double().numpy()


# DICE -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shift", [0.0, -0.7])
def test_dice_that_drops_nothing_is_energy_bit_for_bit(shift: float, dtype: torch.dtype) -> None:
    """Also where the logits are the network's own, a rounding away from what the head computes anew."""
    plain = example_features(rows=200, seed=5)
    assert plain.head is not None
    own = plain.head(plain.embedding) * (1 + 1e-6)
    features = Features(plain.embedding + shift, logits=own, head=plain.head).to(dtype=dtype)
    assert torch.equal(DICE(p=0).fit(features).score(features), Energy().score(features))
    assert torch.equal(DICE(p=0.0, score=msp).fit(features).score(features), MSP().score(features))


@pytest.mark.parametrize("p", PAPER_P)
@pytest.mark.parametrize("biased", [True, False])
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 12), width=st.integers(2, 10), classes=st.integers(1, 5))
def test_dice_beside_its_twin(p: float, biased: bool, seed: int, rows: int, width: int, classes: int) -> None:
    features = example_features(rows, width, classes, seed)
    if not biased:
        features = without_bias(features)
    embedding, weight, bias = numpy_parts(features)
    mean = np.array([sum(column) / len(column) for column in embedding.T])
    mask = slow_sparsity.dice(weight, mean, p)
    logits = slow_sparsity.masked_logits(embedding, weight, bias, mask)
    detector = DICE(p=p).fit(features)
    np.testing.assert_array_equal(detector.weight_.numpy() != 0, mask & (weight != 0))
    np.testing.assert_allclose(detector.score(features), [slow_scores.energy(row) for row in logits], rtol=2e-5)


def lopsided() -> Features:
    """Two units where clipping at 1 turns the order of their mean contributions around."""
    embedding = torch.tensor([[10.0, 0.9], [0.0, 0.9], [0.0, 0.9], [0.0, 0.9]])
    return Features(embedding, head=Head(torch.tensor([[1.0, 1.0]]), torch.tensor([0.0])))


def test_dice_with_react_masks_by_the_unclipped_mean() -> None:
    features = lopsided()
    detector = DICE(p=0.5, shape=Clip(threshold=1.0)).fit(features)
    # unclipped means are 2.5 and 0.9, clipped ones 0.25 and 0.9
    assert detector.weight_.tolist() == [[1.0, 0.0]]
    assert detector.score(features).tolist() == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("percentile", [50, 90])
@pytest.mark.parametrize("p", [0.3, 0.9])
def test_dice_with_react_beside_its_twin(features: Features, p: float, percentile: int) -> None:
    embedding, weight, bias = numpy_parts(features)
    clip = np.percentile(embedding, percentile)
    mask = slow_sparsity.dice(weight, embedding.mean(axis=0), p)
    logits = slow_sparsity.masked_logits(embedding, weight, bias, mask, clip)
    detector = DICE(p=p, shape=Clip(percentile=percentile)).fit(features)
    np.testing.assert_allclose(detector.score(features), [slow_scores.energy(row) for row in logits], rtol=2e-5)


@pytest.mark.parametrize("percentile", [0, 1, 50, 85, 90, 95, 99.5, 100])
def test_react_clips_at_numpys_percentile(features: Features, percentile: float) -> None:
    detector = ReAct(percentile=percentile).fit(features)
    want = np.percentile(features.embedding.double().numpy(), percentile)
    assert float(detector.shapes[0].threshold_) == float(np.float32(want))


def test_a_chain_of_clips_takes_every_percentile_of_the_raw_activations(features: Features) -> None:
    chain = LogitDetector(shape=[Clip(percentile=60), Clip(percentile=80)]).fit(features)
    raw = features.embedding.double().numpy()
    got = [float(shape.threshold_) for shape in chain.shapes]
    assert got == [float(np.float32(np.percentile(raw, percentile))) for percentile in (60, 80)]
    # the lower of the two decides
    assert torch.equal(chain.score(features), ReAct(percentile=60).fit(features).score(features))


def test_the_bias_stays_whole(features: Features) -> None:
    assert features.head is not None
    assert features.head.bias is not None
    for detector in detector_list():
        if isinstance(detector, LogitDetector) and not detector.dense:
            assert torch.equal(detector.fit(features).bias_, features.head.bias)


@pytest.mark.parametrize("detector", detector_list(), ids=str)
def test_a_head_without_bias_is_one_with_zeros(detector: Detector, features: Features) -> None:
    bare = without_bias(features)
    assert bare.head is not None
    zeros = Features(bare.embedding, labels=bare.labels, head=Head(bare.head.weight, torch.zeros(bare.classes)))
    scores = detector.fit(bare).score(bare)
    assert torch.isfinite(scores).all()
    np.testing.assert_allclose(scores, detector.fit(zeros).score(zeros), rtol=1e-5, atol=1e-6)


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_dice_on_the_papers_heads(data: Path, name: str) -> None:
    """The whole detector, fed rows whose mean is the authors' mean, beside the authors' rule in NumPy."""
    file = data / "checkpoints" / f"densenet101-{name}.pth.tar"
    state = torch.load(file, map_location="cpu", weights_only=True)["state_dict"]
    mean = torch.from_numpy(np.load(data / "checkpoints" / f"mean-activation-{name}.npy"))
    noise = torch.rand(64, len(mean), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    embedding = mean * (0.5 + noise)
    features = Features(embedding, head=Head(state["fc.weight"], state["fc.bias"]))
    weight, bias = state["fc.weight"].double().numpy(), state["fc.bias"].double().numpy()
    contributions = weight * embedding.numpy().mean(axis=0)
    for p in PAPER_P:
        masked = weight * (contributions > np.percentile(contributions, 100 * p))
        logits = embedding.numpy() @ masked.T + bias
        want = [slow_scores.energy(row) for row in logits]
        np.testing.assert_allclose(DICE(p=p).fit(features).score(features), want, rtol=1e-4)


# Composition ------------------------------------------------------------------------------------

SHAPES: list[Callable[[], Any]] = [
    tuple,
    lambda: Clip(percentile=90),
    lambda: Clip(threshold=1.0),
    lambda: [Clip(percentile=95), Clip(percentile=60)],
]
SPARSIFIERS: list[type[Sparsifier] | None] = [
    None,
    TopContribution,
    BottomContribution,
    TopBottomContribution,
    RandomContribution,
    WeightPruning,
    WeightDropout,
    UnitPruning,
    UnitDropout,
]
SCORES: list[tuple[Any, Callable[..., float]]] = [
    (energy, slow_scores.energy),
    (msp, slow_scores.msp),
    (max_logit, slow_scores.max_logit),
    (entropy, slow_scores.entropy),
    (partial(energy, temperature=2.5), partial(slow_scores.energy, temperature=2.5)),
    (partial(msp, temperature=2.5), partial(slow_scores.msp, temperature=2.5)),
    (partial(entropy, temperature=2.5), partial(slow_scores.entropy, temperature=2.5)),
]


@pytest.mark.parametrize("sparsifier", SPARSIFIERS, ids=lambda kind: kind.name if kind else "dense")
@pytest.mark.parametrize("make_shape", SHAPES, ids=["unshaped", "percentile", "threshold", "chain"])
def test_any_three_stages_go_together(
    features: Features, make_shape: Callable[[], Any], sparsifier: type[Sparsifier] | None
) -> None:
    embedding, weight, bias = numpy_parts(features)
    for score, slow_score in SCORES:
        sparsify = sparsifier(p=0.4) if sparsifier else None
        detector = LogitDetector(shape=make_shape(), sparsify=sparsify, score=score)
        got = detector.fit(features).score(features)
        again = parse(detector.spec)
        assert again.spec == detector.spec
        assert repr(again) == repr(detector)
        assert torch.equal(again.fit(features).score(features), got)

        mask = np.ones(weight.shape, dtype=bool)
        if sparsifier and sparsifier.name in slow_sparsity.MASKS:
            mask = slow_sparsity.MASKS[sparsifier.name](weight, embedding.mean(axis=0), 0.4)
        elif sparsifier:
            mask = detector.weight_.numpy() != 0  # which weights a seed picks is its own business
            assert 0.5 < mask.mean() < 0.7
        clip = min((float(shape.threshold_) for shape in detector.shapes), default=np.inf)
        logits = np.minimum(embedding, clip) @ (weight * mask).T + bias
        np.testing.assert_allclose(got, [slow_score(row) for row in logits], rtol=1e-4, atol=1e-5)


# The conformance suite --------------------------------------------------------------------------

NAMED = [
    MSP(temperature=3.0),
    Energy(temperature=0.5),
    Entropy(temperature=2.0),
    MaxLogit(),
    ReAct(percentile=75),
    ReAct(threshold=1.25, score=max_logit),
    DICE(p=0),
    DICE(p=0.35, shape=Clip(threshold=1.5), score=partial(msp, temperature=2.0)),
    DICE(p=0.6, shape=[Clip(percentile=97), Clip(percentile=80)], score=entropy),
    LogitDetector(sparsify=UnitPruning(p=0.5, by="activation")),
    LogitDetector(sparsify=RandomContribution(p=0.2, seed=11), score=max_logit),
]


@pytest.mark.parametrize("detector", [*detector_list(), *NAMED], ids=str)
def test_every_detector_keeps_the_promises_of_the_house(detector: Detector) -> None:
    check_detector(detector)
    assert detector._statistics is None  # the suite works on copies


@pytest.mark.parametrize("spec", ["energy", "react(90)+dice(0.7)+msp"])
def test_promises_hold_on_other_features(spec: str) -> None:
    check_detector(parse(spec), without_bias(example_features(rows=90, width=7, classes=3, seed=8)))


class Distance(Detector):
    """Minus the distance to the mean ID embedding: a whole detector of its own, for others to break."""

    learns_from = ("embedding",)
    scores_from = ("embedding",)
    spec = "distance"
    mean_: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean_", None)

    def begin(self) -> dict[str, Any]:
        return {"mean": Mean()}

    def observe(self, batch: Features, statistics: dict[str, Any]) -> None:
        statistics["mean"].add(batch.embedding)

    def learn(self, statistics: dict[str, Any], head: Head | None) -> None:
        self.mean_ = statistics["mean"].value().float()

    def forward(self, embedding: Tensor, logits: Tensor) -> Tensor:
        return -(embedding - self.mean_).square().sum(dim=-1)


class LooksAtNeighbours(Distance):
    def forward(self, embedding: Tensor, logits: Tensor) -> Tensor:
        scores = super().forward(embedding, logits)
        return scores - scores.mean()


class LooksAtPosition(Distance):
    """Passes any batch size that sees rows in order, so only the shuffled order shows it."""

    def score(self, features: Features) -> Tensor:
        scores = super().score(features)
        return scores.sort().values if len(features) > 100 else scores


class Remembers(Distance):
    def fit(self, features: Features) -> Self:
        for batch in features.batches():
            self.partial_fit(batch)
        return self.finish()


class WritesIntoItsInput(ReAct):
    """As shaping in place does: the second time there is nothing left to change, so only the first shows it."""

    def forward(self, embedding: Tensor, logits: Tensor) -> Tensor:
        return super().forward(embedding.clamp_(max=self.shapes[0].threshold_), logits)


class ReturnsNothing(Distance):
    def fit(self, features: Features) -> None:  # type: ignore[override]
        super().fit(features)


class GivesAColumn(Distance):
    def forward(self, embedding: Tensor, logits: Tensor) -> Tensor:
        return super().forward(embedding, logits)[:, None]


class GivesDoubles(Distance):
    def forward(self, embedding: Tensor, logits: Tensor) -> Tensor:
        return super().forward(embedding, logits).double()


class GivesInfinity(Distance):
    def forward(self, embedding: Tensor, logits: Tensor) -> Tensor:
        return super().forward(embedding, logits) / embedding[:, -1]


class NeedsNoFit(Distance):
    """Scores before it has learned anything, against a mean it made up."""

    fitted = True  # type: ignore[assignment]

    def forward(self, embedding: Tensor, logits: Tensor) -> Tensor:
        if self.mean_ is None:
            return -embedding.square().sum(dim=-1)
        return super().forward(embedding, logits)


class ForgetfulMean(Mean):
    def merge(self, other: Mean) -> None:
        pass


class LosesTheOther(Distance):
    def begin(self) -> dict[str, Any]:
        return {"mean": ForgetfulMean()}


class LastBatchOnly(Distance):
    """Right when fitted at once, wrong when the same rows come in pieces."""

    def observe(self, batch: Features, statistics: dict[str, Any]) -> None:
        if len(batch) < 50:
            statistics["mean"] = Mean()
        super().observe(batch, statistics)


class RoundsFloats(Distance):
    def forward(self, embedding: Tensor, logits: Tensor) -> Tensor:
        if embedding.dtype == torch.float32:
            embedding = embedding.bfloat16().float()
        return super().forward(embedding, logits)


class KeepsItOutOfBuffers(DICE):
    """A constant that was learned but is no buffer does not come back from disk."""

    scale = 1.0

    def learn(self, statistics: dict[str, Any], head: Head | None) -> None:
        super().learn(statistics, head)
        self.scale = 2.0

    def forward(self, embedding: Tensor, logits: Tensor) -> Tensor:
        return self.scale * super().forward(embedding, logits)


class SwallowsNan(DICE):
    def forward(self, embedding: Tensor, logits: Tensor) -> Tensor:
        return super().forward(embedding, logits).nan_to_num()


class TakesAnyWidth(DICE):
    def _check_shape(self, features: Features) -> None:
        pass

    def forward(self, embedding: Tensor, logits: Tensor) -> Tensor:
        return super().forward(embedding[:, :24], logits)


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (LooksAtNeighbours(), "depend on the batch size"),
        (LooksAtPosition(), "depend on the"),
        (Remembers(), "a second fit remembers the first"),
        (WritesIntoItsInput(), "changes embeddings"),
        (ReturnsNothing(), "must return the detector itself"),
        (GivesAColumn(), r"scores of shape \(300, 1\)"),
        (GivesDoubles(), "not float32"),
        (GivesInfinity(), "not finite"),
        (NeedsNoFit(), "scoring before fit must raise NotFittedError"),
        (LosesTheOther(), "merge is not one fit"),
        (LastBatchOnly(), "partial_fit is not fit"),
        (RoundsFloats(), "float32 and float64 disagree"),
        (KeepsItOutOfBuffers(p=0.5), "loading changes scores"),
        (SwallowsNan(p=0.5), "a NaN input gets a score"),
        (TakesAnyWidth(p=0.5), "another width must raise ShapeError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Detector) else "",
)
def test_the_suite_finds_broken_promises(broken: Detector, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_detector(broken)


# Fitting ----------------------------------------------------------------------------------------


def test_scoring_before_fitting(features: Features) -> None:
    for detector in (DICE(), ReAct(), LogitDetector(sparsify=WeightPruning())):
        with pytest.raises(NotFittedError, match=r"has not been fitted; call \.fit"):
            detector.score(features)
    assert Energy().score(features).shape == (len(features),)


def test_merging_what_does_not_belong_together(features: Features) -> None:
    with pytest.raises(ArgumentError, match="not the same detector"):
        DICE(p=0.5).partial_fit(features).merge(DICE(p=0.7).partial_fit(features))
    with pytest.raises(NotFittedError, match="observed nothing"):
        DICE().partial_fit(features).merge(DICE())
    other = example_features(rows=50, width=12, classes=4, seed=99)
    with pytest.raises(ShapeError, match="another head"):
        DICE().partial_fit(features).merge(DICE().partial_fit(other))
    with pytest.raises(ShapeError, match="another head"):
        DICE().partial_fit(features).partial_fit(other)


def test_features_without_what_is_needed(features: Features) -> None:
    bare = Features(logits=features.logits)
    with pytest.raises(ShapeError, match="learns from the embedding"):
        DICE().fit(bare)
    assert torch.equal(Energy().score(bare), Energy().score(features))


def test_the_mean_is_summed_in_float64() -> None:
    """In float32 the small rows would vanish beside the large one."""
    mean = Mean()
    mean.add(torch.tensor([[2.0**25]]))
    for _ in range(8):
        mean.add(torch.ones(1, 1))
    assert mean.value().item() == (2.0**25 + 8) / 9


def test_fitting_does_not_touch_the_head(features: Features) -> None:
    assert features.head is not None
    before = features.head.weight.clone()
    detector = DICE(p=0.9).fit(features)
    detector.weight_.fill_(7)
    detector.bias_.fill_(7)
    react = ReAct().fit(features)
    react.weight_.fill_(7)
    assert torch.equal(features.head.weight, before)
    assert not (features.head.bias == 7).any()


# On disk ----------------------------------------------------------------------------------------


@pytest.fixture
def saved(features: Features, tmp_path: Path) -> Path:
    folder = tmp_path / "saved"
    DICE(p=0.7, shape=Clip(percentile=90)).fit(features).save(folder)
    return folder


def record_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "detector.json").read_text())


def reseal(folder: Path, **changes: Any) -> None:
    """Write the record anew with a seal that fits: what an attacker, not an accident, would do."""
    record = {name: value for name, value in record_of(folder).items() if name != "seal"}
    write_record(folder / "detector.json", {**record, **changes})


def tensors_of(folder: Path) -> Path:
    return folder / record_of(folder)["tensors"]["file"]


def refused(folder: Path, *words: str) -> None:
    with pytest.raises(FileError) as caught:
        load_detector(folder)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("detector", [*detector_list(), *NAMED], ids=str)
def test_loading_gives_the_same_detector(detector: Detector, features: Features, tmp_path: Path) -> None:
    detector.fit(features).save(tmp_path / "saved")
    loaded = load_detector(tmp_path / "saved")
    assert loaded.spec == detector.spec
    assert loaded.fitted
    assert torch.equal(loaded.score(features), detector.score(features))
    assert {path.suffix for path in (tmp_path / "saved").iterdir()} == {".json", ".safetensors"}


def test_saving_before_fitting(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError, match="nothing to save"):
        DICE(p=0.5).save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_replacing_leaves_one_tensors_file(saved: Path, features: Features) -> None:
    first = tensors_of(saved)
    detector = ReAct(percentile=80).fit(features)
    for _ in range(2):
        detector.save(saved)
        assert {path.name for path in saved.iterdir()} == {"detector.json", tensors_of(saved).name}
    assert not first.exists()
    assert torch.equal(load_detector(saved).score(features), detector.score(features))


def test_any_flipped_bit_of_the_tensors_is_found(saved: Path) -> None:
    file = tensors_of(saved)
    whole = file.read_bytes()
    for position in range(0, len(whole), 37):
        broken = bytearray(whole)
        broken[position] ^= 1 << position % 8
        file.write_bytes(broken)
        refused(saved, str(file), "SHA-256")
    file.write_bytes(whole[:-1])
    refused(saved, str(file), "cut short")
    file.write_bytes(whole)
    load_detector(saved)


def test_any_changed_byte_of_the_record_is_found(saved: Path) -> None:
    file = saved / "detector.json"
    whole = file.read_bytes()
    for position, byte in enumerate(whole):
        if chr(byte).isspace():
            continue  # between the words space is free
        broken = bytearray(whole)
        broken[position] = byte ^ 1
        file.write_bytes(broken)
        refused(saved, str(file))
    file.write_bytes(whole.replace(b"0.7", b"0.6"))
    refused(saved, str(file), "altered")
    file.write_bytes(b"[]")
    refused(saved, str(file))


@pytest.mark.parametrize("schema", [2, 99, "1", None])
def test_another_schema_is_refused(saved: Path, schema: Any) -> None:
    reseal(saved, schema=schema)
    refused(saved, str(saved / "detector.json"), f"schema {schema}")


def test_another_kind_is_refused(saved: Path) -> None:
    reseal(saved, kind="guard")
    refused(saved, str(saved / "detector.json"), "does not describe a detector")


def test_a_tensor_too_many_is_refused(saved: Path) -> None:
    """The checksum fits, so only the detector itself can say that it has no such thing."""
    state = load_file(tensors_of(saved))
    reseal(saved, tensors=write_tensors(saved, "detector", {**state, "intruder": torch.ones(3)}))
    refused(saved, str(tensors_of(saved)), "intruder")


@pytest.mark.parametrize("missing", ["weight_", "bias_", "shape_", "shapes.0.threshold_"])
def test_a_tensor_too_few_is_refused(saved: Path, missing: str) -> None:
    state = load_file(tensors_of(saved))
    del state[missing]
    reseal(saved, tensors=write_tensors(saved, "detector", state))
    refused(saved, str(tensors_of(saved)), missing)


def test_another_detectors_tensors_are_refused(saved: Path) -> None:
    reseal(saved, spec="energy")
    refused(saved, str(tensors_of(saved)))


def test_missing_files_are_named(saved: Path, tmp_path: Path) -> None:
    file = tensors_of(saved)
    file.rename(file.with_suffix(".away"))
    refused(saved, str(file))
    (saved / "detector.json").unlink()
    refused(saved, str(saved / "detector.json"))
    refused(tmp_path / "nowhere", str(tmp_path / "nowhere" / "detector.json"))


@pytest.mark.parametrize("name", ["../{name}", "{folder}/{name}", "inner/{name}", "..", ".", ""])
def test_a_path_that_leads_outside_is_refused(saved: Path, name: str) -> None:
    """Even where a good file lies there: a saved detector is one folder."""
    entry, file = record_of(saved)["tensors"], tensors_of(saved)
    for place in (saved.parent, saved / "inner"):
        place.mkdir(exist_ok=True)
        (place / file.name).write_bytes(file.read_bytes())
    outside = name.format(name=file.name, folder=saved.parent)
    reseal(saved, tensors={**entry, "file": outside})
    refused(saved, repr(outside), str(saved))


def test_a_symbolic_link_is_refused(saved: Path) -> None:
    file = tensors_of(saved)
    elsewhere = saved.parent / "elsewhere.safetensors"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    refused(saved, str(file), "symbolic link")


@pytest.mark.parametrize("damage", ["cut", "altered", "newer"])
def test_a_damaged_detector_can_be_written_anew(saved: Path, features: Features, damage: str) -> None:
    """The errors above advise it, so it has to work."""
    file = saved / "detector.json"
    if damage == "newer":
        reseal(saved, schema=2)
    else:
        file.write_bytes(file.read_bytes()[:-9] if damage == "cut" else file.read_bytes().replace(b"0.7", b"0.6"))
    refused(saved, "anew")
    detector = DICE(p=0.5).fit(features)
    detector.save(saved)
    assert torch.equal(load_detector(saved).score(features), detector.score(features))
