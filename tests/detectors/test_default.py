"""The default ensemble: its members, the order and parts of the data, unusual data, files, and guards."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import ensemble as slow
from support.ensembles import extracted, fit_in_parts, with_labels, with_predicted_labels

from oodles.deploy.saving import load_detector, save_detector
from oodles.detectors import DefaultEnsemble, RankEnsemble, ReActScaleDICE, default, default_detector, parse, support
from oodles.detectors.arguments import describe
from oodles.detectors.ensemble import MIN_ROWS
from oodles.errors import ArgumentError, DataError, FitWarning, ShapeError
from oodles.features import Features, Head
from oodles.testing import example_features

# one unit of the example features is constant and small networks predict few classes, which Mahalanobis++ reports
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*directions do not vary:oodles.errors.FitWarning"),
    pytest.mark.filterwarnings("ignore:.*classes have no training row:oodles.errors.FitWarning"),
]

WHOLE = extracted()


@pytest.fixture(scope="module")
def fitted() -> DefaultEnsemble:
    """The default ensemble fitted on ``WHOLE``; tests must not change it."""
    return DefaultEnsemble().fit(WHOLE)


@pytest.fixture(scope="module")
def scores(fitted: DefaultEnsemble) -> torch.Tensor:
    return fitted.score(WHOLE)


# What it consists of --------------------------------------------------------------------------------


def test_the_default_detector_is_the_default_ensemble_of_its_members(fitted: DefaultEnsemble) -> None:
    assert type(default_detector()) is DefaultEnsemble
    assert DefaultEnsemble().spec == "default"
    assert type(parse("default")) is DefaultEnsemble
    assert DefaultEnsemble().detectors == default.MEMBERS
    members = ("react_scale_dice", "react_scale_dice", "vim", "knn(5, 2000)", "mahalanobis_pp(floor=1e-6)")
    assert tuple(parse(text).spec for text in members) == default.MEMBERS
    used = list(dict.fromkeys((*default.MEMBERS, *support.CHECKS)))
    assert [member.spec for member in fitted.scoring_members()] == used, "the first one once, although it counts twice"
    labelled = with_predicted_labels(WHOLE)
    rest, held_out = slow.split(labelled)
    assert MIN_ROWS <= len(held_out) < len(WHOLE) // 3
    parts, checks = ([parse(text).fit(rest) for text in texts] for texts in (members, support.CHECKS))
    test = Features(torch.cat([WHOLE.embedding, 3 * WHOLE.embedding]), head=WHOLE.head)
    want = slow.scores(parts, held_out, test, "fisher", checks)
    assert min(want) < -30, "checks matter"
    np.testing.assert_allclose(fitted.score(test), want, rtol=1e-3, atol=1e-3)
    by_hand = RankEnsemble(detectors=members, reduction="fisher", checks=support.CHECKS).fit(labelled)
    assert torch.equal(by_hand.score(test), fitted.score(test))


def test_its_first_member_is_react_scale_dice() -> None:
    assert ReActScaleDICE().spec == default.MEMBERS[0]
    assert type(parse("react_scale_dice")) is ReActScaleDICE
    want = parse(default.MEMBERS[0]).fit(WHOLE).score(WHOLE)
    assert torch.equal(ReActScaleDICE().fit(WHOLE).score(WHOLE), want)


def test_it_uses_no_labels(scores: torch.Tensor) -> None:
    assert "labels" not in DefaultEnsemble().learns_from
    for features in (with_labels(WHOLE, None), with_labels(WHOLE, WHOLE.labels.flip(0))):
        assert torch.equal(DefaultEnsemble().fit(features).score(features), scores)


def test_ood_rows_score_lower() -> None:
    features = extracted(600, 24, 5)
    detector = DefaultEnsemble().fit(features[:400])
    id_scores = detector.score(features[400:])
    generator = torch.Generator().manual_seed(0)
    noise = Features((0.8 + torch.randn(200, 24, generator=generator)).relu(), head=features.head)
    ood_scores = detector.score(noise)
    assert float((id_scores[:, None] > ood_scores[None]).double().mean()) > 0.9


# Orders and parts -----------------------------------------------------------------------------------


RANKS = ("centre_", "spread_", "reference_")


def test_held_out_rows_change_the_reference_scores_and_nothing_else() -> None:
    held_out = slow.is_held_out(WHOLE)
    half = held_out.clone()
    half[held_out.nonzero()[::2, 0]] = False
    fewer = WHOLE[(~held_out | half).nonzero()[:, 0]]
    assert MIN_ROWS <= int(half.sum()) < int(held_out.sum())
    first, second = DefaultEnsemble().fit(WHOLE), DefaultEnsemble().fit(fewer)
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]) == (name not in RANKS), name


def test_at_most_this_many_held_out_rows_are_ranked_against(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = slow.keys_of(WHOLE)
    held_out = sorted((place for place, key in enumerate(keys) if key % 1000 < 200), key=lambda place: keys[place])
    whole = DefaultEnsemble().fit(WHOLE)
    members = {member.spec: member for member in whole.scoring_members()}
    counted, checks = ([members[spec] for spec in specs] for specs in (whole.detectors, whole.checks))
    monkeypatch.setattr("oodles.detectors.ensemble.MAX_ROWS", 20)
    assert len(held_out) > 20
    got = fit_in_parts(DefaultEnsemble(), WHOLE.batches(9)).score(WHOLE)
    want = slow.scores(counted, WHOLE[held_out[:20]], WHOLE, "fisher", checks)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@given(st.randoms(use_true_random=False), st.lists(st.integers(1, 239), max_size=6, unique=True))
@settings(max_examples=15, deadline=None)
def test_neither_the_order_nor_the_parts_of_the_data_matter(fitted, scores, chance, cuts):
    order = list(range(len(WHOLE)))
    chance.shuffle(order)
    ends = [0, *sorted(cuts), len(WHOLE)]
    parts = [WHOLE[order[low:high]] for low, high in itertools.pairwise(ends)]
    folded = fit_in_parts(DefaultEnsemble(), parts)
    merged = [DefaultEnsemble().partial_fit(part) for part in parts]
    while len(merged) > 1:
        taken = merged.pop(chance.randrange(len(merged)))
        merged[chance.randrange(len(merged))].merge(taken)
    for detector in (folded, merged[0].finish(), DefaultEnsemble().fit(WHOLE[order])):
        torch.testing.assert_close(detector.reference_, fitted.reference_, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(detector.score(WHOLE), scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("width", [12, 64, 342])
@pytest.mark.parametrize("rows", [1, 7])
def test_logits_computed_in_parts_hold_out_the_same_rows(width: int, rows: int) -> None:
    # a matrix product of few rows may round differently from one of many, which must not decide what is held out
    features = example_features(300, width, 10)
    whole = DefaultEnsemble().fit(features)
    parts = fit_in_parts(DefaultEnsemble(), features.batches(rows))
    torch.testing.assert_close(parts.reference_, whole.reference_, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(parts.score(features), whole.score(features), rtol=1e-3, atol=1e-3)


# Unusual data ---------------------------------------------------------------------------------------


ROWS, HEAD = WHOLE.embedding, WHOLE.head
UNUSUAL = {
    "one class predicted": Features(ROWS, head=Head(HEAD.weight, torch.tensor([1e4, 0.0, 0.0, 0.0]))),
    "logits of zero": Features(ROWS, head=Head(torch.zeros(4, 12))),
    "logits of 1e20": Features(ROWS, head=Head(HEAD.weight * 1e20, HEAD.bias)),
    "no bias": Features(ROWS, head=Head(HEAD.weight)),
    "two classes": Features(ROWS, head=Head(HEAD.weight[:2])),
    "negative embeddings": Features(-ROWS - 1, head=HEAD),
    "tiny embeddings": Features(ROWS * 1e-30, head=HEAD),
    "fewer rows than units": example_features(80, 200, 5),
    "a class for every row": Features(torch.eye(200) + 0.01, head=Head(torch.eye(200))),
    "a single class": example_features(200, 12, 1),
    "30 rows": example_features(30, 12, 4),
}


@pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")
@pytest.mark.parametrize("name", UNUSUAL)
def test_scores_are_finite(name: str) -> None:
    features = UNUSUAL[name]
    detector = DefaultEnsemble().fit(features)
    scores = detector.score(features)
    assert scores.shape == (len(features),)
    assert torch.isfinite(scores).all()
    assert all(torch.isfinite(detector.score(features[row : row + 1])).all() for row in range(3))


def test_warnings_say_what_was_left_out() -> None:
    with pytest.warns(FitWarning, match="default leaves out vim: .* mean largest logit"):
        detector = DefaultEnsemble().fit(UNUSUAL["logits of zero"])
    left = [member.spec for member in detector.scoring_members()]
    assert left == [spec for spec in dict.fromkeys((*default.MEMBERS, *support.CHECKS)) if spec != "vim"]
    with pytest.warns(FitWarning, match="held out only 5 rows"):
        DefaultEnsemble().fit(example_features(30, 12, 4))


IMPOSSIBLE = {
    "3 rows": (example_features(3, 12, 4), "3 rows; it needs at least 20"),
    "one row": (example_features(1, 12, 4), "1 rows; it needs at least 20"),
    "dead embeddings": (Features(torch.zeros_like(ROWS), head=HEAD), "held out all 240 rows"),
    "embeddings too large to square": (
        Features(ROWS * 1e30, head=Head(HEAD.weight * 1e-30, HEAD.bias)),
        "not finite",
    ),
}


@pytest.mark.filterwarnings("ignore:.*held out only 0 rows:oodles.errors.FitWarning")
@pytest.mark.filterwarnings("ignore:default leaves out:oodles.errors.FitWarning")
@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_data_that_nothing_can_be_learned_from_is_refused_in_one_line(name: str) -> None:
    features, reason = IMPOSSIBLE[name]
    with pytest.raises(DataError, match=reason) as raised:
        DefaultEnsemble().fit(features)
    assert "\n" not in str(raised.value)


def test_scores_far_from_the_data_are_finite(fitted: DefaultEnsemble) -> None:
    for factor in (0.0, 1e-20, 1e6, 1e15):
        far = Features(WHOLE.embedding[:20] * factor, head=WHOLE.head)
        assert torch.isfinite(fitted.score(far)).all(), factor


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite(broken: float, fitted: DefaultEnsemble, scores: torch.Tensor) -> None:
    embedding, logits = WHOLE.embedding[:4].clone(), WHOLE.logits[:4].clone()
    embedding[1, 0] = broken
    got = fitted(embedding, WHOLE.head(embedding))
    assert not torch.isfinite(got[1]) or got[1] < scores.min()
    torch.testing.assert_close(got[[0, 2, 3]], scores[[0, 2, 3]])
    if math.isnan(broken):
        assert torch.isnan(got[1])
        logits[2, 1] = broken
        assert torch.isnan(fitted(WHOLE.embedding[:4], logits)).tolist() == [False, False, True, False]


# As text and on disk --------------------------------------------------------------------------------


def test_with_other_members_it_is_read_back_from_text() -> None:
    detector = DefaultEnsemble(detectors=("dice(0.9)", "knn(3)"))
    assert detector.spec == "default(detectors=('dice(0.9)+energy', 'knn(k=3)'))"
    again = parse(detector.spec)
    assert type(again) is DefaultEnsemble
    assert describe(again) == describe(detector)


def test_a_saved_one_keeps_its_members_if_the_default_members_change(tmp_path, monkeypatch, fitted, scores):
    before, members = describe(fitted), default.MEMBERS
    save_detector(fitted, tmp_path / "saved")
    later = ("energy", "knn(k=9)", "vim")
    monkeypatch.setattr(default, "MEMBERS", later)
    # a later version would also have them as its constructor's default
    monkeypatch.setitem(DefaultEnsemble.__init__.__kwdefaults__, "detectors", later)
    assert DefaultEnsemble().detectors == later
    assert DefaultEnsemble().spec == "default"
    loaded = load_detector(tmp_path / "saved")
    assert loaded.detectors == members
    assert describe(loaded) == before
    assert torch.equal(loaded.score(WHOLE), scores)
    assert parse(loaded.spec).detectors == members, "its text names the members now"


@pytest.mark.parametrize("name", ["reference_", "members.0.weight_", "members.1.outside_"])
def test_a_file_that_lacks_a_buffer_is_refused(name: str, tmp_path: Path) -> None:
    detector = DefaultEnsemble().fit(WHOLE)
    *path, buffer = name.split(".")
    setattr(detector.get_submodule(".".join(path)), buffer, None)
    with pytest.raises(ArgumentError, match=f"cannot be saved: .*{buffer} missing"):
        save_detector(detector, tmp_path / "saved")


# What features without a head, or of a multi-label model, are given --------------------------------


def test_the_default_depends_on_what_the_features_hold() -> None:
    logits = Features(logits=WHOLE.logits)
    several = Features(WHOLE.embedding, head=WHOLE.head, multilabel=True)
    several_logits = Features(logits=WHOLE.logits, multilabel=True)
    wanted = [
        (None, default.MEMBERS),
        (WHOLE, default.MEMBERS),
        (logits, ("energy", "gen", "max_logit")),
        (several, ("joint_energy", "max_logit", "knn(k=5, bank=2000)")),
        (several_logits, ("joint_energy", "max_logit")),
    ]
    for features, members in wanted:
        detector = default_detector(features)
        assert isinstance(detector, DefaultEnsemble)
        assert detector.detectors == tuple(parse(text).spec for text in members)
    embeddings = Features(WHOLE.embedding, logits=WHOLE.logits)
    assert default_detector(embeddings).detectors == default.LOGIT_MEMBERS, "no head, no DICE"
    assert default_detector(embeddings).checks == support.CHECKS


@pytest.mark.parametrize("multilabel", [False, True])
@pytest.mark.parametrize("head", [WHOLE.head, None], ids=["everything", "logits alone"])
def test_the_default_for_every_kind_of_features_fits_scores_and_is_saved(multilabel, head, tmp_path):
    embedding = None if head is None else WHOLE.embedding
    whole = Features(embedding, logits=WHOLE.logits, head=head, multilabel=multilabel)
    detector = default_detector(whole).fit(whole)
    scores = detector.score(whole)
    assert torch.isfinite(scores).all()
    assert scores.std() > 0
    if head is None:
        nothing = Features(logits=torch.zeros(1, whole.classes), multilabel=multilabel)
        assert detector.score(nothing) < scores.median(), "logits that say nothing"
    save_detector(detector, tmp_path / "d")
    assert torch.equal(load_detector(tmp_path / "d").score(whole), scores)
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))
    reordered = default_detector(whole).fit(whole[order])
    torch.testing.assert_close(reordered.score(whole), scores, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns", [["embedding"], ["logits"], ["embedding", "logits"]], ids=str)
def test_the_default_uses_the_arrays_that_there_are(columns):
    arrays = {name: WHOLE.column(name).numpy() for name in columns}
    features = Features(**arrays)
    far = Features(**{name: 50 * array[:1] for name, array in arrays.items()})
    fitted = default_detector(features).fit(features)
    assert fitted.score(far) < fitted.score(features).min()
    with pytest.raises(ShapeError, match=r"^default needs the (embedding|head), .*use default_detector\(features\)"):
        default_detector().fit(features)
    for call in (default_detector().fit, parse("knn").fit, parse("knn").partial_fit, parse("msp").score):
        with pytest.raises(ArgumentError, match=r"takes Features, not ndarray; wrap it"):
            call(arrays[columns[0]])


def test_logarithms_of_probabilities_are_not_scored_by_their_rounding() -> None:
    """Their energy is 0 for every input."""
    logits = example_features(1000).logits
    probabilities = Features(logits=logits.softmax(dim=1).log())
    detector = default_detector(probabilities).fit(probabilities)
    assert detector.detectors == ("gen", "max_logit")
    nudged = Features(logits=probabilities.logits + 1e-6)
    torch.testing.assert_close(detector.score(nudged), detector.score(probabilities), rtol=1e-3, atol=1e-3)
