"""Features, detectors and guards on another device than the CPU, and in half precision: nothing is mixed."""

import copy
from functools import cache

import numpy as np
import pytest
import torch
from support.ensembles import extracted
from support.networks import Net, batched, one_thread, pictures, seeded, spread  # noqa: F401
from support.other_device import OTHER, other_device

from oodles.bench.run import benchmark
from oodles.calibration import Threshold, calibrate, p_values
from oodles.deploy.saving import load_detector, save_detector
from oodles.detectors import AdaSCALE, Detector, Mahalanobis, combine, fit_together, parse
from oodles.detectors.network_detector import is_tuned
from oodles.detectors.registry import BUILT_IN
from oodles.detectors.statistics import Mean
from oodles.errors import ArgumentError
from oodles.explanation.explaining import explain
from oodles.features import Features, Head
from oodles.guard import Guard
from oodles.metrics import evaluate
from oodles.network.extraction import extract
from oodles.selection import select, select_p
from oodles.testing import with_passes

CPU = torch.device("cpu")
NOT_LISTED = {
    "joint_energy": ("joint_energy",),
    "mcm": ("mcm",),
    "adascale": ("adascale", "adascale(scaled='logits')"),
    "odin": ("odin", "odin(epsilon=0.001)"),
    "iodin": ("iodin", "iodin(epsilon=0.001)"),
    "godin": ("godin",),
    "rankfeat": ("rankfeat",),
    "gram": ("gram",),
    "support": ("support", "support(of='max', column='logits')"),
    "supported": ("supported('knn(5)')",),
    "rank_ensemble": (
        "rank_ensemble(detectors=('energy', 'ash_s(90)', 'vim'))",
        "rank_ensemble(detectors=('msp', 'gen'), holdout=0)",
        "rank_ensemble(detectors=('dice(0.9)', 'mahalanobis(epsilon=None)'), reduction='min')",
    ),
}
OTHER_SETTINGS = (
    *("react(90, per='unit')", "vra(60, per='all')", "react(threshold=1.0)", "dice(0)"),
    *("unit_pruning(0.5, by='activation')", "react(97)+lts(90)+dice(0.3)+msp(3)"),
    *("mahalanobis(epsilon=0.001)", "mahalanobis(layers=('a', 'b'))"),
)
TEXTS = [
    *(text for entry in BUILT_IN for text in entry.settings() or NOT_LISTED[entry.name]),
    *OTHER_SETTINGS,
]

pytestmark = [pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")]


@pytest.fixture(autouse=True)
def second_device():
    with other_device():
        yield


@cache
def rows_for(text):
    """ID features with every column that the detector needs, on the CPU."""
    plain = extracted(200, 12, 4)
    if text == "mcm":  # its embeddings and weights have length 1
        embedding, weight = (torch.nn.functional.normalize(part) for part in (plain.embedding, plain.head.weight))
        plain = Features(embedding, labels=plain.labels, head=Head(weight, torch.zeros(len(weight))))
    if text == "rankfeat":  # the mean of its map is the embedding
        layers = {"layer4": plain.embedding, "layer4:rankfeat": plain.embedding.flip(1) / 2}
        return Features(plain.embedding, labels=plain.labels, head=plain.head, layers=layers)
    return with_passes(parse(text), plain)


@cache
def usual_scores(text):
    """The scores of the same rows by the same detector, with everything on the CPU."""
    return tuned(parse(text).fit(rows_for(text)), rows_for(text)).score(rows_for(text))


def tuned(detector, held_out):
    """The detector with its choices made: against the held-out rows with their columns in reverse."""
    if not is_tuned(detector):
        layers = {name: column.flip(1) for name, column in held_out.layers.items()}
        detector.tune(held_out, Features(held_out.embedding.flip(1), head=held_out.head, layers=layers))
    return detector


def agree(got, want, tolerance=1e-6):
    assert got.device == CPU
    scale = max(1.0, float(want.abs().max()))
    torch.testing.assert_close(got.double() / scale, want.double() / scale, rtol=0, atol=tolerance)


def places(module):
    return {buffer.device for buffer in module.buffers()}


# The device itself --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mix",
    [
        lambda there: there + torch.ones(3),
        lambda there: there @ torch.ones(3),
        lambda there: torch.cat([there, torch.ones(3)]),
        lambda there: torch.stack([there.sum(), torch.ones(())]),
        lambda there: torch.ones(3)[there.long()],
        lambda there: there.gather(0, torch.tensor([0])),
        lambda there: torch.ones(()).add_(there.sum()),
        lambda there: torch.equal(there, torch.ones(3)),
        lambda there: torch.nn.Linear(3, 2)(there),
        lambda there: torch.rand(3, device=there.device, generator=torch.Generator()),
    ],
)
def test_two_devices_do_not_mix(mix):
    with pytest.raises(RuntimeError, match=r"Expected all tensors to be on the same device|Expected a 'mps' device"):
        mix(torch.ones(3).to(OTHER))


# Every detector -----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS)
def test_a_detector_is_fitted_and_scores_where_its_features_are(text, tmp_path):
    here, want = rows_for(text), usual_scores(text)
    there = here.to(OTHER)
    detector = tuned(parse(text).fit(there), there)
    assert places(detector) <= {OTHER}
    agree(detector.score(there), want)
    agree(detector.score(here), want)
    save_detector(detector, tmp_path / "detector")
    loaded = load_detector(tmp_path / "detector")
    assert places(loaded) <= {CPU}
    agree(loaded.score(there), want)
    fresh = parse(text)
    fresh.load_state_dict(detector.state_dict())
    agree(fresh.score(there), want)
    detector.to("cpu")
    assert places(detector) <= {CPU}
    agree(detector.score(there), want)


@pytest.mark.parametrize("text", [text for text in TEXTS if parse(text).learns_from])
def test_parts_on_two_devices_are_merged_and_finished_on_that_of_the_first(text):
    here, want = rows_for(text), usual_scores(text)
    first, second = parse(text).partial_fit(here[:70].to(OTHER)), parse(text).partial_fit(here[70:])
    for start in (copy.deepcopy(first), parse(text).merge(first)):
        merged = tuned(start.merge(second).finish(), here)
        assert places(merged) == {OTHER}
        agree(merged.score(here), want, 1e-5)
    other_way = tuned(second.merge(first).finish(), here.to(OTHER))
    assert places(other_way) == {CPU}
    agree(other_way.score(here), want, 1e-5)


def test_detectors_fitted_together_are_where_the_features_are():
    texts = [text for text in TEXTS if rows_for(text).layers.keys() == rows_for("msp").layers.keys() and text != "mcm"]
    detectors = [parse(text) for text in texts]
    there = rows_for("msp").to(OTHER)
    fit_together(detectors, there)
    for text, detector in zip(texts, detectors, strict=True):
        assert places(tuned(detector, there)) <= {OTHER}, text
        agree(detector.score(there), usual_scores(text))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("text", TEXTS)
def test_features_of_another_precision_give_the_scores_of_their_values(text, dtype):
    narrow = rows_for(text).to(dtype=dtype)
    same_values = narrow.to(dtype=torch.float32)
    want = tuned(parse(text).fit(same_values), same_values).score(same_values)
    detector = tuned(parse(text).fit(narrow), narrow)
    assert {buffer.dtype for buffer in detector.buffers()} <= {torch.float32, torch.int64}
    scores = detector.score(narrow)
    assert scores.dtype in (torch.float32, torch.float64)
    agree(scores, want, 1e-5)


class Contributions(Detector):
    """One of a user's own, which multiplies the head by a statistic and keeps what is constant."""

    learns_from = ("embedding", "head")
    scores_from = ("embedding",)
    mean_: torch.Tensor
    ones_: torch.Tensor

    def begin(self):
        return {"mean": Mean()}

    def learn(self, statistics, head):
        self.mean_ = (head.weight * statistics["mean"].value()).mean(dim=0).float()
        self.ones_ = torch.ones(len(self.mean_))

    def forward(self, embedding, logits, *others):
        return embedding @ (self.mean_ * self.ones_)


def test_a_detector_of_ones_own_need_not_know_of_devices():
    here = rows_for("msp")
    detector = Contributions().fit(here.to(OTHER))
    assert places(detector) == {OTHER}
    agree(detector.score(here.to(OTHER)), Contributions().fit(here).score(here))


# Tuned on rows that are elsewhere -----------------------------------------------------------------


@pytest.mark.parametrize("detector", [Mahalanobis(epsilon=None), Mahalanobis(layers=("a",)), AdaSCALE()])
@pytest.mark.parametrize(("fitted_on", "tuned_on"), [(OTHER, CPU), (CPU, OTHER)])
def test_tuning_keeps_a_detector_where_it_was_fitted(detector, fitted_on, tuned_on):
    here = with_passes(detector, extracted(200, 12, 4))
    want = tuned(copy.deepcopy(detector).fit(here), here).score(here)
    got = tuned(copy.deepcopy(detector).fit(here.to(fitted_on)), here.to(tuned_on))
    assert places(got) == {fitted_on}
    agree(got.score(here), want)


@pytest.mark.parametrize(("fitted_on", "ranked_on"), [(OTHER, CPU), (CPU, OTHER), (OTHER, OTHER)])
def test_members_combined_by_ranks_on_another_device(fitted_on, ranked_on):
    train, held_out = extracted(200, 12, 4).split(0.3)
    members = ["dice(0.9)", "knn", "fdbd"]
    want = combine(members, train=train, held_out=held_out)
    got = combine(members, train=train.to(fitted_on), held_out=held_out.to(ranked_on))
    assert places(got) == {fitted_on}
    agree(got.score(held_out.to(OTHER)), want.score(held_out))


# Features -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["dice(0.9)", "react(90, per='unit')", "mcm", "vim", "she", "nnguide", "default"])
@pytest.mark.parametrize(("place", "rest"), [(OTHER, CPU), (CPU, OTHER)])
def test_everything_follows_the_embedding(text, place, rest):
    plain = rows_for(text)
    features = Features(
        plain.embedding.to(place),
        logits=plain.logits.to(rest),
        labels=plain.labels.to(rest),
        head=plain.head.to(rest),
        layers={"a": plain.embedding.to(rest)},
    )
    columns = [features.column(name) for name in ("embedding", "logits", "labels", "layer.a")]
    assert {each.device for each in (*columns, features.head.weight, features.head.bias)} == {place}
    assert features.device == place
    detector = parse(text).fit(features)
    assert places(detector) == {place}
    agree(detector.score(features), usual_scores(text))


def test_logits_and_biases_are_where_the_embeddings_and_weights_are():
    plain = rows_for("msp")
    for place, head in ((OTHER, plain.head), (CPU, plain.head.to(OTHER))):
        features = Features(plain.embedding.to(place), head=head)
        assert features.logits.device == place
        torch.testing.assert_close(features.logits.cpu(), plain.logits)
    assert Features(logits=plain.logits.to(OTHER), labels=plain.labels).labels.device == OTHER
    head = Head(torch.eye(3).to(OTHER), np.ones(3, dtype=np.float32))
    assert head.bias.device == OTHER
    assert head(torch.ones(1, 3).to(OTHER)).tolist() == [[2, 2, 2]]


def test_rows_on_another_device_are_split_sliced_and_joined(tmp_path):
    here = rows_for("msp")
    there = here.to(OTHER)
    mask = here.labels == 1

    def same(one, other):
        assert one.device == OTHER
        assert one.embedding.device == one.logits.device == one.labels.device == OTHER
        for name in ("embedding", "logits", "labels"):
            assert torch.equal(one.column(name).cpu(), other.column(name))

    for one, other in zip(there.split(0.3), here.split(0.3), strict=True):
        same(one, other)
    for index in (slice(3, 90), slice(0, 90, 7), [4, 2], mask, torch.tensor([5, 1])):
        same(there[index], here[index])
    same(there[mask.to(OTHER)], here[mask])
    assert torch.equal(here[mask.to(OTHER)].embedding, here[mask].embedding), "by an index that is elsewhere"
    same(Features.concat([there[:50], there[50:]]), here)
    same(Features.concat(list(there.batches(33))), here)
    there.save(tmp_path / "store")
    assert torch.equal(Features.load(tmp_path / "store").embedding, here.embedding)
    assert torch.equal(there.to("cpu").logits, here.logits)


def test_parts_on_different_devices_are_not_joined():
    here = rows_for("msp")
    with pytest.raises(ArgumentError, match=r"is on mps:0, .* on cpu; move one of them with \.to"):
        Features.concat([here[:50], here[50:].to(OTHER)])


# Scores, metrics, explanations, selection ----------------------------------------------------------


def test_scores_on_another_device_are_calibrated_and_compared():
    scores = torch.linspace(-1, 2, 100)
    there, lower = scores.to(OTHER), (scores - 0.5).to(OTHER)
    assert calibrate(there) == calibrate(scores)
    assert evaluate(there, lower) == evaluate(scores, scores - 0.5)
    np.testing.assert_array_equal(p_values(lower, there), p_values(scores - 0.5, scores))
    decided = Threshold(0.0, 0.95, 100).is_id(there)
    assert decided.device == OTHER
    assert decided.tolist() == (scores >= 0).tolist()


def test_rows_on_another_device_are_explained():
    here = extracted(200, 12, 4)
    threshold = Threshold(-1.0, 0.95, 100)
    want, got = (
        explain(parse("default").fit(train), train[:5], threshold, train=train) for train in (here, here.to(OTHER))
    )
    assert list(map(str, got)) == list(map(str, want))
    assert "nearest training rows" in str(want[0])


def test_benchmark_and_selection_on_another_device():
    train, test = extracted(200, 12, 4).split(0.3)
    ood = {"noise": Features(torch.rand(40, 12, generator=torch.Generator().manual_seed(1)), head=train.head)}
    moved = {"noise": ood["noise"].to(OTHER)}
    texts = ["default", "dice(0.9)", "react(90)", "mahalanobis"]
    want = benchmark(texts, train=train, test=test, ood=ood)
    assert benchmark(texts, train=train.to(OTHER), test=test.to(OTHER), ood=moved) == want
    assert benchmark(texts, train=train.to(OTHER), test=test, ood=ood) == want
    choice = select(train=train, held_out=test, outliers=ood, candidates=texts)
    again = select(train=train.to(OTHER), held_out=test.to(OTHER), outliers=moved, candidates=texts)
    assert again.candidates == choice.candidates
    one, other = (
        select_p(parse("dice"), train=rows, held_out=test, outliers=ood["noise"]) for rows in (train, train.to(OTHER))
    )
    assert one.curve == other.curve


# Guards -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["default", "dice(0.5)", "knn(k=3)", "msp", "odin(epsilon=0.01)"])
@pytest.mark.parametrize(("model_on", "fitted_on"), [(OTHER, OTHER), (OTHER, CPU), (CPU, OTHER)])
def test_a_guard_whose_model_and_detector_are_anywhere(text, model_on, fitted_on):
    model = seeded(lambda: spread(Net()))
    features = extract(model, batched(120, 40))
    threshold = Threshold(0.0, 0.95, 100)
    images = pictures(9, seed=5)
    want = Guard(copy.deepcopy(model), parse(text).fit(features), threshold)(images)
    guard = Guard(model.to(model_on), parse(text).fit(features.to(fitted_on)), threshold)
    verdict = guard(images.to(model_on))
    assert {part.device for part in verdict[:-1]} == {model_on}
    agree(verdict.score.cpu(), want.score, 1e-5)
    assert torch.equal(verdict.label.cpu(), want.label)
    assert torch.equal(verdict.is_id.cpu(), want.is_id)
    back = guard.to("cpu")(images)
    agree(back.score, want.score, 1e-5)


def test_a_guard_is_fitted_on_another_device():
    model = seeded(lambda: spread(Net())).to(OTHER)
    guard = Guard.fit(model, batched(240, 40), detector="dice(0.5)")
    assert guard(pictures(9).to(OTHER)).score.device == OTHER
