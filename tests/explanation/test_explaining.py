"""Explanations: contributions, p-values and neighbours next to slow versions of them, and what the text says."""

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import ensemble as slow
from reference.detectors import ratio
from reference.sparsity import MASKS
from support.detector_data import Pair, every_detector, numpy_parts, train_and_test
from support.ensembles import extracted

from oodles.bench.demo import load_pack
from oodles.calibration import Threshold, calibrate
from oodles.detectors import KNN, Detector, NNGuide, RankEnsemble, combine, default_detector, parse
from oodles.errors import ArgumentError, NotFittedError, ShapeError
from oodles.explanation.explaining import Explanation, explain
from oodles.explanation.findings import Contributions, Finding
from oodles.features import Features, Head
from oodles.testing import example_features, fit_and_tune, with_passes

Array = np.ndarray
LEVEL = 1.1  # an activation to clip at

SHAPES: dict[str, list[tuple[Callable[[Array], Array], Callable[[Array], float]]]] = {
    "": [],
    f"react(threshold={LEVEL})+": [(lambda h: np.minimum(h, LEVEL), lambda h: 1.0)],
    "scale(70)+": [(lambda h: h * math.exp(ratio(h, 70)), lambda h: 1.0)],
    "lts(80)+": [(lambda h: h, lambda h: ratio(h, 80) ** 2)],
    f"lts(80)+react(threshold={LEVEL})+lts(60)+": [
        (lambda h: h, lambda h: ratio(h, 80) ** 2),
        (lambda h: np.minimum(h, LEVEL), lambda h: 1.0),
        (lambda h: h, lambda h: ratio(h, 60) ** 2),
    ],
}
"""Chains of shapes in text, and what each shape does to one embedding and to its logits."""


def only(explanation: Explanation) -> Finding:
    (finding,) = explanation.findings
    return finding


def contributions_of(explanation: Explanation) -> Contributions:
    found = only(explanation).contributions
    assert found is not None
    return found


@pytest.fixture(scope="module")
def demo() -> tuple[Detector, Threshold, Features, Features, Features]:
    """The default detector on real features, its threshold, and training, ID and OOD features."""
    train, test, ood, _ = load_pack()
    detector = default_detector().fit(train)
    return detector, calibrate(detector.score(test[::2])), train, test[1::2], ood["svhn"]


# Contributions ------------------------------------------------------------------------------------


def slow_shaped(h: Array, chain: str) -> tuple[Array, float]:
    """One embedding after the shapes, and the product of what they multiply its logits by."""
    factor = 1.0
    for transform, of_logits in SHAPES[chain]:
        factor *= of_logits(h)
        h = transform(h)
    return h, factor


def slow_contributions(h: Array, weight: Array, mask: Array, chain: str, label: int) -> tuple[list[float], list[float]]:
    """Kept and dropped contributions to one class, unit by unit."""
    shaped, factor = slow_shaped(h, chain)
    kept, dropped = [0.0] * len(h), [0.0] * len(h)
    for unit, activation in enumerate(shaped):
        (kept if mask[label, unit] else dropped)[unit] = factor * weight[label, unit] * activation
    return kept, dropped


@settings(deadline=None, max_examples=60)
@given(
    train_and_test(), st.sampled_from(sorted(MASKS)), st.sampled_from(sorted(SHAPES)), st.sampled_from([0, 0.3, 0.9])
)
def test_contributions_add_up_to_the_logits(pair: Pair, sparsifier: str, chain: str, p: float) -> None:
    train, test = pair
    detector = parse(f"{chain}{sparsifier}({p})+energy").fit(train)
    rows, weight, bias = numpy_parts(test)
    mask = MASKS[sparsifier](weight, numpy_parts(train)[0].mean(axis=0), p)
    computed = detector.shaped_logits(test.embedding, test.logits)
    for row, explanation in enumerate(explain(detector, test)):
        label = int(test.logits[row].argmax())
        assert explanation.label == label
        found = contributions_of(explanation)
        kept, dropped = slow_contributions(rows[row], weight, mask, chain, label)
        scale = 1e-5 * max(map(abs, (*kept, *dropped, 1.0)))
        np.testing.assert_allclose(found.kept, kept, rtol=1e-5, atol=scale)
        np.testing.assert_allclose(found.dropped, dropped, rtol=1e-5, atol=scale)
        shaped, factor = slow_shaped(rows[row], chain)
        assert found.factor == pytest.approx(factor, rel=1e-5)
        assert found.bias == pytest.approx(factor * bias[label], rel=1e-5)
        dense = factor * (float(weight[label] @ shaped) + bias[label])
        total = float(found.kept.sum() + found.dropped.sum()) + found.bias
        assert total == pytest.approx(dense, abs=20 * scale)
        assert found.dense_logit == pytest.approx(total, abs=1e-9 * abs(total))
        assert float(found.kept.sum()) + found.bias == found.logit
        assert found.logit == pytest.approx(float(computed[row, label]), abs=20 * scale), "the logit that is scored"


def test_without_a_sparsifier_or_a_head_there_are_no_contributions(features):
    for spec in ("react(90)", "energy", "fdbd"):
        assert only(explain(parse(spec).fit(features), features[:1])[0]).contributions is None
    headless = Features(features.embedding[:2], logits=features.logits[:2])
    dice = parse("dice(0.5)").fit(features)
    assert only(explain(dice, headless)[0]).contributions is None
    assert explain(dice, headless)[0].score == explain(dice, features[:2])[0].score


@pytest.mark.parametrize("chain", sorted(SHAPES))
def test_usual_contributions_are_means_over_training_rows_of_the_same_prediction(chain):
    train, test = example_features(90, 10, 4), example_features(4, 10, 4, seed=5)
    test = Features(test.embedding, head=train.head)
    detector = parse(f"{chain}dice(0.4)+energy").fit(train)
    rows, weight, bias = numpy_parts(train)
    mask = MASKS["dice"](weight, rows.mean(axis=0), 0.4)
    predicted = train.logits.argmax(dim=1).tolist()
    for explanation in explain(detector, test, train=train):
        label = explanation.label
        same = [row for row in range(90) if predicted[row] == label]
        parts = [slow_contributions(rows[row], weight, mask, chain, label) for row in same]
        factors = [slow_shaped(rows[row], chain)[1] for row in same]
        usual = contributions_of(explanation).usual
        np.testing.assert_allclose(usual.kept, np.mean([kept for kept, _ in parts], axis=0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(usual.dropped, np.mean([rest for _, rest in parts], axis=0), rtol=1e-4, atol=1e-5)
        assert usual.bias == pytest.approx(bias[label] * np.mean(factors), rel=1e-5)


def test_a_class_without_training_rows_has_no_usual_contributions():
    head = Head(torch.eye(3), torch.tensor([0.0, 0.0, -100.0]))
    train = Features(torch.rand(40, 3, generator=torch.Generator().manual_seed(0)), head=head)
    test = Features(torch.tensor([[0.0, 1.0, 200.0], [0.0, 1.0, 0.0]]), head=head)
    never, known = explain(parse("dice(0.5)").fit(train), test, train=train)
    assert contributions_of(never).usual is None
    assert contributions_of(known).usual is not None
    assert "usually" not in str(never)
    assert "usually" in str(known)


def test_the_units_named_are_those_with_the_largest_contributions():
    values = [0.0, -3.0, 0.5, 2.0, -0.1, 1.0, 0.0, 0.7]
    kept = np.array([0.0 if unit % 2 else value for unit, value in enumerate(values)])
    dropped = np.array(values) - kept
    alone = Contributions(kept, dropped, 0.0, 1.0)
    assert [unit.unit for unit in alone.units()["largest_kept"]] == [2, 4], "no unit that adds nothing"
    assert [unit.unit for unit in alone.units()["largest_dropped"]] == [1, 3, 5, 7]
    usual = Contributions(kept.copy(), np.zeros(8), 0.0, 1.0)
    usual.kept[6] = 9.0
    both = Contributions(kept, dropped, 0.0, 1.0, usual)
    assert [unit.unit for unit in both.units()["least_usual"]] == [6, 1, 3, 5, 7]
    assert both.units()["least_usual"][0].usual == 9.0
    many = Contributions(np.arange(1.0, 10.0), np.zeros(9), 0.0, 1.0)
    assert [unit.unit for unit in many.units()["largest_kept"]] == [8, 7, 6, 5, 4]


# Ensembles ----------------------------------------------------------------------------------------


def slow_p_value(score: float, quantiles: list[float]) -> float:
    """The fraction of scores at most as large, linear between evenly spaced quantiles, at least one of their number."""
    count = len(quantiles)
    last = max((place for place, value in enumerate(quantiles) if value <= score), default=None)
    if last is None:
        fraction = 0.0
    elif last == count - 1:
        fraction = 1.0
    else:
        fraction = (last + (score - quantiles[last]) / (quantiles[last + 1] - quantiles[last])) / (count - 1)
    return max(fraction, 1 / count)


halves = st.integers(-8, 8).map(lambda value: value / 2)


@given(st.lists(halves, min_size=2, max_size=9), st.lists(halves, min_size=1, max_size=6))
def test_p_values_are_interpolated_between_quantiles_and_never_zero(
    quantiles: list[float], values: list[float]
) -> None:
    reference = torch.tensor(sorted(quantiles))
    ensemble = RankEnsemble(detectors=["max_logit", "energy"], holdout=0)
    ensemble.reference_ = torch.stack([reference, reference])
    ensemble.centre_, ensemble.spread_ = torch.zeros(2), torch.ones(2)
    features = Features(logits=torch.tensor([[value, -50.0] for value in values]))
    for value, explanation in zip(values, explain(ensemble, features), strict=True):
        for finding in explanation.findings:  # the energy of such logits is their maximum, too
            assert finding.score == value
            assert finding.p_value == pytest.approx(slow_p_value(value, reference.tolist()), abs=1e-12)
            assert finding.p_value >= 1 / len(quantiles) > 0
            assert (finding.id_lowest, finding.id_median) == (reference[0], np.median(reference.numpy()))


@pytest.mark.parametrize("reduction", ["mean", "min", "fisher"])
def test_findings_of_an_ensemble_give_its_score_and_begin_with_the_most_sceptical(reduction):
    rows = extracted(480)
    parts = {"train": rows[:240], "held_out": rows[240:360]}
    ensemble = combine(["dice(0.4)", "knn", "fdbd", "msp"], reduction=reduction, **parts)
    held_out = [member.score(parts["held_out"]).double().tolist() for member in ensemble.members]
    members = dict(zip(ensemble.detectors, held_out, strict=True))
    firsts = set()
    for explanation in explain(ensemble, rows[360:]):
        deviations = [slow.deviation(found.score, members[found.spec]) for found in explanation.findings]
        order = [(found.p_value, deviation) for found, deviation in zip(explanation.findings, deviations, strict=True)]
        assert order == sorted(order), "the lowest p first, as it says"
        assert {found.spec for found in explanation.findings} == set(members)
        assert explanation.score == pytest.approx(slow.reduce(deviations, reduction), abs=1e-4)
        firsts.add(explanation.findings[0].spec)
    assert len(firsts) > 1, "the order is that of each row"


def test_each_member_explains_itself_as_it_would_alone():
    train, test = extracted(seed=0), extracted(seed=1)[:3]
    test = Features(test.embedding, head=train.head)
    ensemble = combine(["dice(0.4)", "knn"], train=train, held_out=train)
    alone = {spec: explain(parse(spec).fit(train), test, train=train) for spec in ensemble.detectors}
    for row, explanation in enumerate(explain(ensemble, test, train=train)):
        for finding in explanation.findings:
            single = only(alone[finding.spec][row])
            assert single.p_value is single.id_lowest is single.id_median is None
            assert finding.score == single.score
            assert finding.neighbours == single.neighbours
            if finding.contributions is not None:
                assert np.array_equal(finding.contributions.kept, single.contributions.kept)


# Neighbours ---------------------------------------------------------------------------------------


def test_neighbours_are_the_training_rows_with_the_largest_cosines():
    train, test = example_features(60, 8, 4), example_features(5, 8, 4, seed=1)
    test = Features(test.embedding, head=train.head)
    detector = KNN(k=7, bank=40).fit(train)
    names = ["a", "b", "c", "d"]
    every = [(row / np.linalg.norm(row)).tolist() for row in train.embedding.double().numpy()]
    for row, explanation in enumerate(explain(detector, test, classes=names, train=train)):
        own = test.embedding[row].double().numpy()
        cosines = [float(own @ kept / np.linalg.norm(own)) for kept in detector.kept_rows().numpy()]
        order = sorted(range(40), key=lambda place: -cosines[place])[:7]
        found = only(explanation).neighbours
        assert [each.index for each in found] == order
        assert [each.similarity for each in found] == pytest.approx([cosines[place] for place in order], abs=1e-6)
        assert found[-1].similarity == pytest.approx(1 + explanation.score, abs=1e-6), (
            "KNN's score is its k-th cosine - 1"
        )
        for each in found:
            np.testing.assert_allclose(every[each.train_row], detector.kept_rows()[each.index], atol=1e-6)
            assert each.label == int(train.labels[each.train_row])
            assert each.class_name == names[each.label]


def test_training_rows_are_recognised_across_batches_precisions_and_among_nearly_equal_ones(tmp_path, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    base = torch.rand(1, 16, generator=generator) + 0.5
    near = base + 1e-3 * torch.rand(500, 16, generator=generator)  # cosines with each other above 0.9999999
    train = Features(near, labels=torch.arange(500) % 3, head=Head(torch.rand(3, 16, generator=generator)))
    detector = KNN(k=4).fit(train)
    monkeypatch.setattr("oodles.features.CHUNK_ELEMENTS", 1)
    assert len(list(train.batches())) > 1
    for finding in map(only, explain(detector, train[::50], train=train)):
        for each in finding.neighbours:
            distances = torch.nn.functional.normalize(near.double(), dim=1) - detector.kept_rows()[each.index]
            assert int(distances.norm(dim=1).argmin()) == each.train_row, "the very row, and none that is nearly equal"
    spread = example_features(80, 16, 3)
    spread.save(tmp_path / "half", dtype=torch.float16)
    detector, half = KNN(k=4).fit(spread), Features.load(tmp_path / "half")
    for whole, stored in zip(
        explain(detector, spread, train=spread), explain(detector, spread, train=half), strict=True
    ):
        assert only(whole).neighbours == only(stored).neighbours
        assert only(whole).neighbours[0].train_row is not None


def test_rows_that_are_not_in_the_training_features_stay_unknown():
    train = example_features(60, 8, 4)
    detector = KNN(k=30, bank=60).fit(train)
    (explanation,) = explain(detector, train[:1], train=train[:20])
    rows = {each.train_row for each in only(explanation).neighbours}
    assert None in rows
    assert {0} < rows <= {None, *range(20)}
    (without,) = explain(detector, train[:1])
    assert all(each.train_row is each.label is each.class_name is None for each in only(without).neighbours)
    assert f"kept row {only(without).neighbours[0].index}" in str(without)
    unlabelled = Features(train.embedding, head=train.head)
    assert only(explain(detector, train[:1], train=unlabelled)[0]).neighbours[0].train_row == 0
    assert only(explain(detector, train[:1], train=unlabelled)[0]).neighbours[0].label is None


def test_neighbours_of_nnguide_are_weighted_by_their_energy():
    train = example_features(60, 8, 4)
    detector = NNGuide(k=5).fit(train)
    for row, explanation in enumerate(explain(detector, train[:6], train=train)):
        found = only(explanation).neighbours
        energy = float(torch.logsumexp(train.logits[row], 0) + detector.shift_)
        assert explanation.score == pytest.approx(energy * np.mean([each.similarity for each in found]), rel=1e-5)
        one = found[0]
        cosine = torch.cosine_similarity(train.embedding[row], train.embedding[one.train_row], dim=0)
        guided = float(cosine * (torch.logsumexp(train.logits[one.train_row], 0) + detector.shift_))
        assert one.similarity == pytest.approx(guided, rel=1e-5)


# Decisions ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")
@pytest.mark.parametrize("detector", every_detector(), ids=lambda detector: detector.spec)
def test_every_detector_is_explained(detector):
    features = with_passes(detector, example_features(60, 12, 4))
    fit_and_tune(detector, features)
    scores = detector.score(features)
    threshold = Threshold(float(scores[7]), 0.9, 60)
    names = ["ant", "bee", "cat", "dog"]
    explanations = explain(detector, features, threshold, classes=names, train=features)
    torch.testing.assert_close(torch.tensor([each.score for each in explanations]), scores)
    assert [each.is_id for each in explanations] == threshold.is_id(scores).tolist()
    assert [each.class_name for each in explanations] == [names[label] for label in features.logits.argmax(dim=1)]
    members = detector.scoring_members() if isinstance(detector, RankEnsemble) else [detector]
    for each in explanations[:9]:
        assert each.threshold == threshold.value
        record = json.loads(json.dumps(each.as_record(), allow_nan=False))
        assert record["is_id"] is each.is_id
        assert record["score"] == each.score
        assert len(record["findings"]) == len(each.findings)
        assert [part.spec for part in members if not part.spec.startswith("support")] == sorted(
            (found.spec for found in each.findings), key=[part.spec for part in members].index
        ), "checks say nothing of ordinary inputs"
        decision = "Accepted as in-distribution" if each.is_id else "Rejected as out-of-distribution"
        assert str(each).startswith(decision)
        assert f"\nPredicted: {each.class_name}" in str(each)


@pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")
@pytest.mark.parametrize("detector", every_detector(), ids=lambda detector: detector.spec)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_that_is_not_finite_is_rejected_and_the_others_are_not_affected(detector, value):
    features = with_passes(detector, example_features(60, 12, 4))
    fit_and_tune(detector, features)
    threshold = Threshold(-1e9, 0.9, 60)
    plain = explain(detector, features[:4], threshold, train=features)
    broken = Features(
        features.embedding[:4].clone(),
        logits=features.logits[:4].clone(),
        head=features.head,
        layers={name: column[:4].clone() for name, column in features.layers.items()},
    )
    broken.embedding[1, 3] = value
    broken.logits[2, 1] = value
    for before, after in zip(plain, explain(detector, broken, threshold, train=features), strict=True):
        if after.findings:
            assert after.score == pytest.approx(before.score, rel=1e-5)
            continue
        assert math.isnan(after.score)
        assert (after.is_id, after.label, after.findings) == (False, None, ())
        assert str(after) == (
            "Rejected as out-of-distribution: it cannot be scored, because its embedding, logits or score are not "
            "finite"
        )
        assert json.loads(json.dumps(after.as_record(), allow_nan=False))["score"] is None
    assert [bool(each.findings) for each in explain(detector, broken)] == [True, False, False, True]


def test_logits_alone_are_enough_for_a_detector_of_logits():
    logits = torch.tensor([[3.0, -1.0], [0.0, 0.2]])
    explanations = explain(
        parse("max_logit"), Features(logits=logits), Threshold(1.0, 0.95, 100), train=Features(logits=logits)
    )
    assert [str(each) for each in explanations] == [
        "Accepted as in-distribution: the score 3 is at least the threshold 1, which accepts 95 % of ID inputs\n"
        "Predicted: class 0",
        "Rejected as out-of-distribution: the score 0.2 is below the threshold 1, which accepts 95 % of ID inputs\n"
        "Predicted: class 1",
    ]
    assert explanations[1].as_record() == {
        "label": 1,
        "class_name": None,
        "score": pytest.approx(0.2),
        "threshold": 1.0,
        "id_rate": 0.95,
        "is_id": False,
        "reduction": None,
        "findings": [
            {
                "spec": "max_logit",
                "score": pytest.approx(0.2),
                "p_value": None,
                "id_lowest": None,
                "id_median": None,
                "neighbours": [],
                "contributions": None,
            }
        ],
    }


def test_embeddings_alone_are_enough_for_a_detector_of_embeddings(features):
    embeddings = Features(features.embedding)
    (explanation,) = explain(KNN(k=3).fit(embeddings), embeddings[:1], train=embeddings)
    assert explanation.label is explanation.is_id is None
    assert only(explanation).neighbours[0].train_row == 0
    assert str(explanation).startswith("Not decided: the score is -0.")
    assert "Predicted" not in str(explanation)


def test_the_score_and_a_threshold_close_to_it_are_shown_with_enough_digits():
    near = Explanation(0, None, 0.97312, 0.97314, 0.95, False, None, ())
    assert "the score 0.97312 is below the threshold 0.97314," in str(near)
    equal = Explanation(0, None, 0.5, 0.5, 0.95, True, None, ())
    assert "the score 0.5 is at least the threshold 0.5," in str(equal)


def test_class_names_come_with_the_features_unless_they_are_given():
    features = example_features(40, 8, 2)
    named = Features(features.embedding, head=features.head, class_names=("cat", "dog"))
    label = int(named.logits[0].argmax())
    assert explain(parse("energy"), named[:1])[0].class_name == ("cat", "dog")[label]
    assert explain(parse("energy"), named[:1], classes=["x", "y"])[0].class_name == "xy"[label]


def test_arguments_that_do_not_belong_together_are_refused(features):
    detector = parse("dice(0.5)").fit(features)
    with pytest.raises(ArgumentError, match=r"classes has 3 names, but .* has 4 classes"):
        explain(detector, features, classes=["a", "b", "c"])
    with pytest.raises(ShapeError, match=r"\(11, 4\), the features have \(12, 4\)"):
        explain(detector, features, train=example_features(20, 11, 4))
    with pytest.raises(ShapeError, match=r"\(12, 5\), the features have \(12, 4\)"):
        explain(detector, features, train=example_features(20, 12, 5))
    with pytest.raises(ShapeError, match="fitted on features of another head"):
        explain(detector, features, train=example_features(20, 12, 4, seed=9))
    with pytest.raises(NotFittedError, match="has not been fitted"):
        explain(parse("dice(0.5)"), features)


# Real features, and large ones ----------------------------------------------------------------------


def test_the_default_detectors_explanations_of_real_inputs_make_sense(demo):
    detector, threshold, train, test, svhn = demo
    inside = explain(detector, test[:60], threshold, train=train)
    outside = explain(detector, svhn[:60], threshold, train=train)
    assert sum(each.is_id for each in inside) > 50
    assert sum(each.is_id for each in outside) < 20
    lowest = [np.median([each.findings[0].p_value for each in part]) for part in (inside, outside)]
    assert lowest[0] > 5 * lowest[1]

    def found(explanations, spec):
        return [next(each for each in e.findings if each.spec.startswith(spec)) for e in explanations]

    # an ID input's nearest training images are of the predicted class, and all of them are real training images
    pairs = [(e, near) for e, f in zip(inside, found(inside, "knn"), strict=True) for near in f.neighbours]
    assert all(near.train_row is not None for _, near in pairs)
    assert np.mean([near.label == e.label for e, near in pairs]) > 0.9
    # OOD inputs lack some of what units usually add to the predicted class
    for part, low, high in ((inside, 0.8, 1.2), (outside, 0.0, 0.8)):
        parts = [each.contributions for each in found(part, "react")]
        assert low < np.median([each.logit / each.usual.logit for each in parts]) < high


def test_the_text_of_a_rejected_input_names_detectors_units_and_training_rows(demo):
    detector, threshold, train, _, svhn = demo
    names = [f"kind{place}" for place in range(10)]
    scores = detector.score(svhn[:60])
    (explanation,) = explain(detector, svhn[[int(scores.argmin())]], threshold, classes=names, train=train)
    lines = str(explanation).splitlines()
    name = names[explanation.label]
    assert lines[0].startswith("Rejected as out-of-distribution: the score -")
    assert lines[1] == f"Predicted: {name}"
    assert lines[2].startswith("It is far from all training inputs")
    assert "mean logarithm of the ranks" in lines[3]
    checks = [line for line in lines if line.startswith("  p < 0.01  support")]
    assert checks
    members = [line for line in lines if line.startswith("  p ")]
    assert len(members) == len({*detector.detectors}) + len(checks)
    assert members[0].startswith(f"  p < 0.01  {explanation.findings[0].spec}: score ")
    near = next(line for line in lines if "nearest training rows" in line)
    assert near.count(", row ") == 5
    logit = next(line for line in lines if "logit of" in line)
    assert f"logit of {name}: kept weights +" in logit
    assert f"training rows predicted as {name}" in logit
    for group in ("largest kept", "largest dropped", "least usual"):
        (line,) = [line for line in lines if line.strip().startswith(f"{group}: unit ")]
        assert "(usually " in line


def test_the_logit_factor_is_mentioned_only_where_there_is_one(features):
    for spec, mentioned in (("lts(80)+dice(0.5)+energy", True), ("scale(80)+dice(0.5)+energy", False)):
        (explanation,) = explain(parse(spec).fit(features), features[:1])
        assert ("including the logit factor" in str(explanation)) is mentioned
