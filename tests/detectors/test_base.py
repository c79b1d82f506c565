"""What every detector shares: one fitting state, merging, the checks of its input, and the conformance suite."""

import copy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from support.detector_data import awkward, every_detector, without_bias

from oodles.deploy.saving import load_detector, save_detector
from oodles.detectors import (
    DICE,
    KNN,
    MSP,
    Detector,
    Energy,
    LogitDetector,
    Mahalanobis,
    ReAct,
    Residual,
    detector_list,
    fit_together,
    parse,
)
from oodles.detectors.registry import BUILT_IN
from oodles.errors import ArgumentError, DataError, FileError, NotFittedError, ShapeError
from oodles.features import Features, Head
from oodles.functional import energy
from oodles.testing import check_detector, example_features, fit_and_tune, with_passes

# what is left out of a fit is the subject of the methods' own tests
pytestmark = pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")

# One fitting state ------------------------------------------------------------------------------

LEARNERS = [
    DICE(p=0.6, shape=ReAct(percentile=80)),
    KNN(k=3, bank=50),
    parse("vim"),
    parse("she"),
    parse("mahalanobis"),
    parse("kl_matching"),
]


def test_a_loaded_detector_takes_no_further_rows(features: Features, tmp_path: Path) -> None:
    save_detector(KNN().partial_fit(features).finish(), tmp_path)
    loaded = load_detector(tmp_path)
    for action in (lambda: loaded.partial_fit(features), lambda: loaded.merge(KNN().partial_fit(features))):
        with pytest.raises(ArgumentError, match="kept no statistics"):
            action()


@pytest.mark.parametrize("detector", LEARNERS, ids=lambda each: type(each).__name__)
def test_after_finish_further_rows_continue_the_same_fit(detector: Detector, features: Features) -> None:
    whole = copy.deepcopy(detector).fit(features).score(features)
    first, second, third = features[:40], features[40:70], features[70:]
    grown = copy.deepcopy(detector).partial_fit(first).finish()
    early = copy.deepcopy(detector).fit(first).score(features)
    torch.testing.assert_close(grown.score(features), early)
    grown.partial_fit(second)
    torch.testing.assert_close(grown.score(features), early)  # until finish is called again
    grown.merge(copy.deepcopy(detector).partial_fit(third)).finish()
    torch.testing.assert_close(grown.score(features), whole)
    assert not torch.allclose(early, whole), "the further rows make a difference"


def test_merging_leaves_the_other_as_it_was(features: Features) -> None:
    first, second = (KNN(k=3).partial_fit(part) for part in (features[:50], features[50:]))
    fresh = KNN(k=3).merge(first).merge(second).finish()
    assert torch.equal(fresh.score(features), KNN(k=3).fit(features).score(features))
    assert torch.equal(first.finish().score(features), KNN(k=3).fit(features[:50]).score(features))
    assert torch.equal(second.finish().score(features), KNN(k=3).fit(features[50:]).score(features))


def test_a_fit_starts_again_whatever_came_before(features: Features) -> None:
    detector = DICE(p=0.6).partial_fit(features[:10])
    assert torch.equal(detector.fit(features).score(features), DICE(p=0.6).fit(features).score(features))


def test_a_detector_with_nothing_to_learn_takes_any_sequence_of_calls(features: Features, tmp_path: Path) -> None:
    want = Energy().score(features)
    detector = Energy().fit(features).partial_fit(features).merge(Energy().partial_fit(features)).finish()
    assert torch.equal(detector.score(features), want)
    save_detector(detector, tmp_path)
    assert torch.equal(load_detector(tmp_path).partial_fit(features).finish().score(features), want)


def test_a_detector_with_nothing_to_learn_reads_nothing(features: Features, tmp_path: Path) -> None:
    features.save(tmp_path / "s")
    shard = tmp_path / "s" / "shard-00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    MSP().fit(Features.load(tmp_path / "s"))
    with pytest.raises(FileError, match="altered"):
        DICE().fit(Features.load(tmp_path / "s"))


# A fit that fails -------------------------------------------------------------------------------


@pytest.mark.parametrize("detector", LEARNERS, ids=lambda each: type(each).__name__)
def test_a_first_batch_that_is_refused_leaves_the_earlier_fit_usable(detector: Detector, features: Features) -> None:
    fitted = copy.deepcopy(detector).fit(features)
    scores = fitted.score(features)
    wrong = Features(features.embedding) if "logits" in detector.learns_from else Features(logits=features.logits)
    with pytest.raises(ShapeError, match="learns from the"):
        fitted.fit(wrong)
    assert torch.equal(fitted.score(features), scores)
    with pytest.raises(ArgumentError, match="kept no statistics"):
        fitted.partial_fit(features)


def test_a_refused_batch_leaves_what_was_observed(features: Features) -> None:
    detector = DICE(p=0.6).partial_fit(features[:50])
    with pytest.raises(ShapeError, match="learns from the embedding"):
        detector.partial_fit(Features(logits=features.logits))
    with pytest.raises(ShapeError, match="another head"):
        detector.partial_fit(example_features(rows=50, width=12, classes=4, seed=99))
    with pytest.raises(ShapeError, match=r"observed \(width, classes\) \(12, 4\), .* has \(7, 4\)"):
        detector.partial_fit(example_features(rows=50, width=7, classes=4))
    detector.partial_fit(features[50:]).finish()
    torch.testing.assert_close(detector.score(features), DICE(p=0.6).fit(features).score(features))


def test_nothing_is_left_to_score_with_if_learning_fails(features: Features) -> None:
    detector = Mahalanobis().fit(features)
    constant = Features(torch.zeros_like(features.embedding), labels=features.labels, head=features.head)
    with pytest.raises(DataError, match="does not vary"):
        detector.fit(constant)
    with pytest.raises(NotFittedError, match=r"has not been fitted; call \.fit"):
        detector.score(features)
    assert torch.equal(detector.fit(features).score(features), Mahalanobis().fit(features).score(features))


def test_detectors_of_a_failed_common_fit_share_nothing_afterwards(features: Features) -> None:
    """Detectors fitted together share statistics; a detector fitted by itself must not see the others' rows."""
    one, other = ReAct(percentile=80), ReAct(percentile=60)
    with pytest.raises(ArgumentError, match="must be smaller than the width"):
        fit_together([Residual(dimension=12), one, other], features)
    one.partial_fit(features[:30]).finish()
    other.partial_fit(features[30:]).finish()
    assert torch.equal(one.threshold_, ReAct(percentile=80).fit(features[:30]).threshold_)
    assert torch.equal(other.threshold_, ReAct(percentile=60).fit(features[30:]).threshold_)


# Text -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_numpy_numbers_are_shown_as_numbers(kind: type, features: Features) -> None:
    """As in a sweep over ``numpy.linspace``; errors show the detector too."""
    detector = DICE(p=kind(0.5))
    assert repr(detector) == repr(DICE(p=0.5)) == "DICE(p=0.5, score=energy)"
    with pytest.raises(NotFittedError, match=r"DICE\(p=0\.5, score=energy\) has not been fitted"):
        detector.score(features)


# Merging ----------------------------------------------------------------------------------------


class Subclass(DICE):
    """The same method under another class."""


# another class with the name, arguments and text of the built-in one
Namesake = type("KNN", (KNN,), {"__module__": __name__, "__init__": KNN.__init__})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (DICE(p=0.5), DICE(p=0.7)),
        (KNN(k=5), KNN(k=5, bank=2000)),
        (DICE(), Subclass()),
        (Subclass(), DICE()),
        (KNN(), Namesake()),
        (Mahalanobis(epsilon=None), Mahalanobis(epsilon=None, std=(1.0,))),
        (DICE(p=0.5), LogitDetector(sparsify=DICE(p=0.5))),
        (DICE(shape=ReAct(percentile=90)), DICE(shape=ReAct(percentile=95))),
        (DICE(score=lambda logits: logits.sum(dim=1)), DICE(score=lambda logits: logits.amax(dim=1))),
        (DICE(score=partial(energy, temperature=2.0)), DICE()),
        (Energy(), MSP()),
    ],
    ids=lambda each: repr(each)[:40],
)
def test_only_detectors_of_the_same_class_and_arguments_merge(one, other, features):
    one, other = (copy.deepcopy(each).partial_fit(features) for each in (one, other))
    with pytest.raises(ArgumentError, match="type and arguments must be the same"):
        one.merge(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (KNN(), KNN(k=10)),
        (DICE(p=0.5), DICE(p=np.float64(0.5))),
        (DICE(score=partial(energy, temperature=2.0)), DICE(score=partial(energy, temperature=2.0))),
        (DICE(shape=ReAct()), DICE(shape=[ReAct(percentile=90)])),
        (Mahalanobis(std=(1.0, 2.0)), Mahalanobis(std=[1, 2])),  # type: ignore[arg-type]
    ],
    ids=["defaults", "numpy", "score", "list", "numbers"],
)
def test_equal_arguments_merge_however_they_were_given(one: Detector, other: Detector, features: Features) -> None:
    first, second = copy.deepcopy(one).partial_fit(features[:50]), copy.deepcopy(other).partial_fit(features[50:])
    merged = first.merge(second).finish()
    torch.testing.assert_close(merged.score(features), copy.deepcopy(one).fit(features).score(features))


# Every detector ---------------------------------------------------------------------------------


# chains, ensembles, settings that are not defaults, and what needs more of the network than embeddings
OTHERS = [
    *("react(97)+scale(65)+dice(0.05)", "vra(50, 90)+ash_s(80)+msp", "lts(90)+dice(0.5)+gen"),
    *("rank_ensemble(('dice(0.9)', 'knn'))", "rank_ensemble(('energy', 'mahalanobis'), 'min')"),
    "weiper(repeats=2, bins=16, smooth=16, smooth_logits=1, confidence=0.0, delta=0.0)",
    *("odin(epsilon=0)", "odin(epsilon=0.004)", "odin", "iodin", "iodin(epsilon=0.002, std=(0.5, 0.5, 0.5))"),
    *("godin", "godin(0.02)", "adascale", "adascale(60, 90, scaled='logits', shift=1.0)", "rankfeat('a')"),
    *("gram(('a', 'b'), 1)", "gram(('bn1:relu',))", "mahalanobis(epsilon=0.01)", "mahalanobis(epsilon=None)"),
    *("mahalanobis(layers=('a', 'b'))", "mahalanobis(layers=('a',), epsilon=None)"),
]


@pytest.mark.parametrize("detector", [*every_detector(), *map(parse, OTHERS)], ids=lambda each: each.spec)
def test_every_detector_conforms(detector: Detector, monkeypatch: pytest.MonkeyPatch) -> None:
    # one regression for each step of the grid and each check is slow; two steps are enough
    monkeypatch.setattr(Mahalanobis, "grid", (0.0, 0.01))
    check_detector(detector)
    assert detector._statistics is None  # the suite works on copies
    assert detector.shape_ is None


@pytest.mark.parametrize("spec", ["energy", "react(90)+dice(0.7)+msp", "optfs", "adascale", "weiper(repeats=4)"])
def test_detectors_conform_on_signed_rows_without_a_bias(spec: str) -> None:
    plain = without_bias(example_features(rows=90, width=120, classes=3, seed=8))
    signed = Features(plain.embedding - 1, labels=plain.labels, head=plain.head)
    check_detector(parse(spec), with_passes(parse(spec), signed))


@pytest.mark.parametrize("detector", detector_list(), ids=lambda each: each.spec)
def test_a_head_without_bias_is_one_with_zeros(detector: Detector, features: Features) -> None:
    bare = without_bias(features)
    zeros = Features(bare.embedding, labels=bare.labels, head=Head(bare.head.weight, torch.zeros(bare.classes)))
    scores = detector.fit(bare).score(bare)
    assert torch.isfinite(scores).all()
    np.testing.assert_allclose(scores, detector.fit(zeros).score(zeros), rtol=1e-5, atol=1e-6)


EVERY_NAME = [
    *(entry.name for entry in BUILT_IN if entry.name != "rank_ensemble"),
    "rank_ensemble(('dice(0.9)', 'knn'))",
    "rank_ensemble(('odin', 'mahalanobis'))",
    "react(97)+scale(65)+dice(0.05)",
]
REFUSED = {(name, "equal logits"): "one of them is not positive" for name in ("vim", "mme")} | {
    ("mcm", case): "for cosine heads" for case, rows in awkward().items() if len(set(rows.embedding.norm(dim=1))) > 1
}


@pytest.mark.parametrize("case", awkward())
@pytest.mark.parametrize("text", EVERY_NAME)
def test_awkward_rows_give_finite_scores_or_a_named_error(text: str, case: str) -> None:
    detector = parse(text)
    features = with_passes(detector, awkward()[case])
    if (text, case) in REFUSED:
        with pytest.raises(DataError, match=REFUSED[text, case]):
            fit_and_tune(detector, features)
        return
    scores = fit_and_tune(detector, features).score(features)
    assert scores.shape == (60,)
    assert torch.isfinite(scores).all()


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_float32_agrees_with_float64_on_the_papers_networks(data: Path, name: str) -> None:
    from oodles.bench.suites import SUITES
    from oodles.data.loaders import ImageLoader
    from oodles.models import build_model, load_checkpoint
    from oodles.network.extraction import extract

    suite = SUITES[name]
    model = build_model(suite.model)
    load_checkpoint(model, data / "checkpoints" / f"densenet101-{name}.pth.tar")
    train, test = (
        extract(model, ImageLoader(part.sample(rows), suite.transform))
        for part, rows in zip(suite.open_sets(data).values(), (700, 100), strict=False)
    )
    for detector in detector_list():
        detector.fit(train)
        narrow = detector.score(test).double()
        wide = copy.deepcopy(detector).double().score(test.to(dtype=torch.float64))
        gap = float((narrow - wide).abs().max()) / max(1.0, float(wide.abs().max()))
        assert gap <= 1e-4, f"{detector.spec}: off by {gap:.1e}"


# Features of another model ----------------------------------------------------------------------


def other_head(features: Features) -> Features:
    """The same embeddings with another head of the same shape, as after a second training run."""
    generator = torch.Generator().manual_seed(1)
    weight = features.head.weight + torch.randn(features.head.weight.shape, generator=generator)
    return Features(features.embedding, labels=features.labels, head=Head(weight, features.head.bias))


@pytest.mark.parametrize("text", ["dice(0.5)", "knn(5)", "mahalanobis", "vim", "fdbd", "kl_matching", "default"])
def test_features_of_another_head_of_the_same_shape_are_refused(text: str, features: Features) -> None:
    detector = parse(text).fit(features)
    with pytest.raises(ShapeError, match="was fitted on features of another head"):
        detector.score(other_head(features))
    assert len(detector.score(features[:7])) == 7


def test_a_head_in_half_precision_is_the_same_head(features: Features) -> None:
    detector = DICE(p=0.5).fit(features)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        head = features.head.to(dtype=dtype).to(dtype=torch.float32)
        assert len(detector.score(Features(features.embedding, head=head))) == len(features)


def test_a_detector_without_a_head_accepts_any(features: Features) -> None:
    bare = parse("knn(5)").fit(Features(features.embedding))
    assert len(bare.score(other_head(features))) == len(features)
    assert len(Energy().score(other_head(features))) == len(features)


def test_the_head_is_still_known_after_loading(features: Features, tmp_path: Path) -> None:
    save_detector(parse("knn(5)").fit(features), tmp_path / "knn")
    with pytest.raises(ShapeError, match="was fitted on features of another head"):
        load_detector(tmp_path / "knn").score(other_head(features))
