"""Rank ensembles: ranks and their reductions, held-out rows, members of every kind, text and files."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import ensemble as slow
from support.ensembles import extracted, fit_in_parts, with_predicted_labels

from oodles.deploy.saving import load_detector, save_detector
from oodles.detectors import DICE, KNN, MSP, ODIN, SCALE, LogitDetector, RankEnsemble, ReAct, combine, parse
from oodles.detectors.arguments import describe
from oodles.detectors.base import Detector
from oodles.detectors.ensemble import MIN_ROWS, REDUCTIONS, centre_and_spread, reference_quantiles
from oodles.errors import ArgumentError, DataError, FitWarning
from oodles.features import Features
from oodles.functional import energy, msp
from oodles.testing import with_passes

# one unit of the example features is constant, which Mahalanobis reports at every fit
pytestmark = pytest.mark.filterwarnings("ignore:.*directions do not vary:oodles.errors.FitWarning")

PAIR = ("msp", "knn(3)")
WHOLE = extracted()

# Ranks ----------------------------------------------------------------------------------------------


@given(
    st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=30),
    st.lists(st.floats(-200, 200, width=32), min_size=1, max_size=10),
)
@settings(deadline=None)
def test_deviations_agree_with_the_reference(values: list[float], scores: list[float]) -> None:
    centre, spread = centre_and_spread(torch.tensor(values, dtype=torch.float64))
    got = (torch.tensor(scores, dtype=torch.float64) - centre) / spread
    np.testing.assert_allclose(got, [slow.deviation(score, values) for score in scores], rtol=1e-9, atol=1e-9)


def test_a_median_that_most_scores_share_still_has_a_spread() -> None:
    many = torch.tensor([1.0] * 96 + [0.5] + [2.0] * 3)
    assert centre_and_spread(many)[1] == pytest.approx(0.5 / 1.644854, rel=1e-5), "to the lowest score"
    constant = centre_and_spread(torch.full((50,), 3.0))
    assert torch.isfinite(constant).all()
    assert constant[1] > 0


def test_nan_and_infinite_scores() -> None:
    held_out = torch.linspace(0, 1, 50)[:, None].expand(-1, 2)
    test = Features(logits=torch.tensor([[0.5, 0.5]]))
    for reduction in REDUCTIONS:
        ensemble = ensemble_of_columns(reduction, held_out)
        embedding = torch.empty(3, 0)
        scores = ensemble(embedding, torch.tensor([[torch.nan, 0.5], [torch.inf, 0.5], [-torch.inf, 0.5]]))
        usual = float(ensemble.score(test))
        assert torch.isnan(scores[:2]).all(), "an infinite score is an overflow"
        assert scores[2] < usual


@pytest.mark.parametrize("rows", [2, 7, 8, 11, 40, 403, 404, 1000])
def test_reference_quantiles_agree_with_the_reference(rows: int) -> None:
    scores = torch.randn(rows, dtype=torch.float64, generator=torch.Generator().manual_seed(rows))
    np.testing.assert_allclose(reference_quantiles(scores), slow.reference_quantiles(scores.tolist()), atol=1e-12)


# Reductions -----------------------------------------------------------------------------------------


class LogitColumn(Detector):
    """Scores that a test chooses: one column of the logits, cubed or not, times a factor, plus an offset."""

    scores_from = ("logits",)

    def __init__(self, *, column: int = 0, factor: float = 1, offset: float = 0, power: int = 1) -> None:
        super().__init__()
        self.column, self.factor, self.offset, self.power = column, factor, offset, power

    def forward(self, embedding: torch.Tensor, logits: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return logits[:, self.column] ** self.power * self.factor + self.offset


def ensemble_of_columns(reduction: str, held_out: torch.Tensor, first: Detector | None = None) -> RankEnsemble:
    """An ensemble of the first two logits, ranked among those of ``held_out``."""
    members = [LogitColumn(column=0) if first is None else first, LogitColumn(column=1)]
    ensemble = RankEnsemble(detectors=members, reduction=reduction, holdout=0)
    ensemble.tune(Features(logits=held_out))
    return ensemble


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_reductions_agree_with_the_reference(reduction: str) -> None:
    generator = torch.Generator().manual_seed(4)
    held_out = torch.randn(500, 2, dtype=torch.float64, generator=generator)
    test = torch.randn(200, 2, dtype=torch.float64, generator=generator) * 4
    references = [held_out[:, column].tolist() for column in (0, 1)]
    deviations = [[slow.deviation(a, references[0]), slow.deviation(b, references[1])] for a, b in test.tolist()]
    want = [slow.reduce(pair, reduction) for pair in deviations]
    got = ensemble_of_columns(reduction, held_out).double().score(Features(logits=test))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@given(st.floats(-60, 60), st.floats(-60, 60), st.floats(0, 20))
@settings(deadline=None)
def test_a_higher_score_of_one_member_never_lowers_the_ensembles(first: float, second: float, more: float) -> None:
    held_out = torch.linspace(-3, 3, 200, dtype=torch.float64)[:, None].expand(-1, 2)
    pairs = torch.tensor([[first, second], [first + more, second], [first, second + more]], dtype=torch.float64)
    for reduction in REDUCTIONS:
        here, one, other = ensemble_of_columns(reduction, held_out).double().score(Features(logits=pairs)).tolist()
        assert one >= here - 1e-9
        assert other >= here - 1e-9


def test_with_fisher_one_confident_member_outweighs_two_doubtful_ones() -> None:
    held_out = torch.linspace(0, 1, 401)[:, None].expand(-1, 2)
    test = Features(logits=torch.tensor([[0.001, 0.8], [0.4, 0.4]]))
    confident, doubtful = ensemble_of_columns("fisher", held_out).score(test)
    assert confident < doubtful
    confident, doubtful = ensemble_of_columns("mean", held_out).score(test)
    assert confident > doubtful, "the mean ranks the two the other way"
    # beyond the held-out scores the ensemble's score keeps falling with the distance
    far = Features(logits=torch.tensor([[-float(i), 0.5] for i in range(30)]))
    falling = ensemble_of_columns("fisher", held_out).score(far)
    assert (falling.diff() < 0).all()
    assert torch.isfinite(falling).all()


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("factor", "offset"), [(1e4, 0.0), (1e-3, 0.0), (2.5, -300.0)])
def test_the_scale_of_a_members_scores_does_not_matter(reduction: str, factor: float, offset: float) -> None:
    generator = torch.Generator().manual_seed(0)
    held_out = torch.randn(300, 2, dtype=torch.float64, generator=generator)
    test = Features(logits=3 * torch.randn(100, 2, dtype=torch.float64, generator=generator))
    plain = ensemble_of_columns(reduction, held_out).double()
    rescaled = ensemble_of_columns(reduction, held_out, LogitColumn(factor=factor, offset=offset)).double()
    members = torch.stack([member.score(test) for member in rescaled.members])
    assert not torch.allclose(members[0], plain.members[0].score(test), rtol=0.1), "the member's scores do change"
    torch.testing.assert_close(rescaled.score(test), plain.score(test), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_combine_ranks_on_the_given_rows(reduction: str) -> None:
    features = extracted(200)
    train, held_out, test = features[:100], features[100:160], features[160:]
    members = [parse(text).fit(train) for text in PAIR]
    got = combine(list(PAIR), train=train, held_out=held_out, reduction=reduction)
    assert got.holdout == 0
    np.testing.assert_allclose(got.score(test), slow.scores(members, held_out, test, reduction), rtol=1e-4, atol=1e-4)


# Held-out rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_members_do_not_learn_from_held_out_rows(reduction: str) -> None:
    texts = ("dice(0.9)", "knn(3)", "mahalanobis")
    got = RankEnsemble(detectors=texts, reduction=reduction).fit(WHOLE)
    rest, held_out = slow.split(WHOLE)
    assert MIN_ROWS <= len(held_out) < len(WHOLE) // 3
    members = [parse(text).fit(rest) for text in texts]
    for mine, alone in zip(got.members, members, strict=True):
        assert mine.state_dict().keys() == alone.state_dict().keys()
        for name, value in alone.state_dict().items():
            assert torch.equal(mine.state_dict()[name], value), f"{alone}: {name}"
    want = slow.scores(members, held_out, WHOLE, reduction)
    np.testing.assert_allclose(got.score(WHOLE), want, rtol=1e-4, atol=1e-4)


def test_logits_alone_are_enough_for_members_that_score_from_logits() -> None:
    bare = Features(logits=WHOLE.logits)
    got = RankEnsemble(detectors=["energy", "msp"], reduction="fisher").fit(bare)
    held_out = slow.split(bare)[1]
    assert MIN_ROWS <= len(held_out) < len(bare) // 3
    want = slow.scores([parse("energy"), parse("msp")], held_out, bare, "fisher")
    np.testing.assert_allclose(got.score(bare), want, rtol=1e-4, atol=1e-4)


def test_batches_of_one_row() -> None:
    # some batches then have no row for the members, others none to rank against
    def make() -> RankEnsemble:
        return RankEnsemble(detectors=["temp_scale", "vim", "kl_matching", "nnguide"], reduction="fisher")

    want = make().fit(WHOLE).score(WHOLE)
    torch.testing.assert_close(fit_in_parts(make(), WHOLE.batches(1)).score(WHOLE), want, rtol=1e-4, atol=1e-5)
    first, *rest = (make().partial_fit(row) for row in WHOLE.batches(1))
    for other in rest:
        first.merge(other)
    torch.testing.assert_close(first.finish().score(WHOLE), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("holdout", [0.999, 0.9999])
@pytest.mark.parametrize("pair", [PAIR, ("kl_matching", "temp_scale"), ("react_scale_dice", "vim")])
def test_a_holdout_that_leaves_no_row_to_learn_from_is_refused(holdout: float, pair: tuple[str, str]) -> None:
    with pytest.raises(DataError, match="held out all 60 rows") as raised:
        RankEnsemble(detectors=pair, holdout=holdout).fit(extracted(60))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("pair", [PAIR, ("temp_scale", "openmax"), ("kl_matching", "she"), ("vim", "weiper")])
def test_equal_rows_are_all_held_out_or_all_learned_from(pair: tuple[str, ...]) -> None:
    features = extracted(100)
    is_held_out = slow.is_held_out(features)
    learned, held_out = (int((is_held_out == which).nonzero()[0, 0]) for which in (False, True))
    detector = RankEnsemble(detectors=pair, reduction="fisher")
    with pytest.raises(DataError, match="held out all 100 rows") as raised:
        detector.fit(with_predicted_labels(features[[held_out] * 100]))
    assert "\n" not in str(raised.value)
    none, equal = "held out only 0 rows", "held-out rows are all equal"
    with pytest.warns(FitWarning, match=none), pytest.raises(DataError, match=equal):
        detector.fit(with_predicted_labels(features[[learned] * 100]))


def test_with_few_held_out_rows_training_rows_are_ranked_against_too() -> None:
    features = extracted(30)
    rest, held_out = slow.split(features)
    assert 0 < len(held_out) < MIN_ROWS
    detector = RankEnsemble(detectors=PAIR)
    with pytest.warns(FitWarning, match=f"held out only {len(held_out)} rows"):
        detector.fit(features)
    members = [parse(text).fit(rest) for text in PAIR]
    keys = slow.keys_of(rest)
    chosen = sorted(range(len(rest)), key=lambda place: keys[place])[:MIN_ROWS]
    ranked = Features(torch.cat([held_out.embedding, rest[chosen].embedding]), head=features.head)
    want = slow.scores(members, ranked, features, "mean")
    np.testing.assert_allclose(detector.score(features), want, rtol=1e-4, atol=1e-4)


# What an ensemble is made of ------------------------------------------------------------------------


@pytest.mark.parametrize("inner", ["default", "rank_ensemble(('msp', 'energy'))"])
def test_an_ensemble_cannot_contain_another(inner: str) -> None:
    for first in (inner, parse(inner)):
        with pytest.raises(ArgumentError, match="an ensemble cannot contain another"):
            RankEnsemble(detectors=[first, "knn(3)"])


# As text and on disk --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "detector",
    [
        RankEnsemble(detectors=PAIR, reduction="fisher"),
        RankEnsemble(detectors=PAIR, reduction="min", holdout=0.5),
        RankEnsemble(detectors=["react(90)+dice(0.7)", "vim"]),
        RankEnsemble(detectors=["odin(epsilon=0.004)", "mahalanobis"], reduction="fisher", holdout=0),
        RankEnsemble(detectors=[LogitDetector(shape=ReAct(percentile=90), sparsify=DICE(p=0.7)), KNN(k=7, bank=50)]),
    ],
    ids=lambda detector: detector.spec,
)
def test_read_back_from_text(detector: RankEnsemble) -> None:
    again = parse(detector.spec)
    assert again.spec == detector.spec
    assert repr(again) == repr(detector)
    assert (again.reduction, again.holdout) == (detector.reduction, detector.holdout)
    assert [member.spec for member in again.members] == [member.spec for member in detector.members]
    assert (again.learns_from, again.scores_from) == (detector.learns_from, detector.scores_from)


def unusual_members() -> list[Detector]:
    """Members whose arguments differ from the defaults."""
    return [
        DICE(p=0.35, shape=ReAct(percentile=88, per="unit"), score=partial(energy, temperature=2)),
        LogitDetector(shape=[ReAct(percentile=88), SCALE(percentile=70)], score=partial(msp, temperature=5)),
        MSP(temperature=3.0),
        KNN(k=7, bank=50),
        ODIN(temperature=10, epsilon=0.002, std=(0.2, 0.3, 0.4)),
    ]


def test_every_argument_of_every_member_survives_saving(tmp_path: Path) -> None:
    ensemble = RankEnsemble(detectors=unusual_members(), reduction="min", holdout=0.3)
    assert ensemble.arguments() == {
        "detectors": tuple(ensemble.members),
        "reduction": "min",
        "holdout": 0.3,
        "checks": (),
    }
    features = with_passes(ensemble, WHOLE)
    ensemble.fit(features).tune(features)
    save_detector(ensemble, tmp_path / "saved")
    arguments = json.loads((tmp_path / "saved" / "detector.json").read_text())["detector"]["arguments"]
    assert (arguments["reduction"], arguments["holdout"]) == ("min", 0.3)
    assert [member["class"] for member in arguments["detectors"]] == ["DICE", "LogitDetector", "MSP", "KNN", "ODIN"]
    assert arguments["detectors"][3]["arguments"] == {"k": 7, "bank": 50}
    loaded = load_detector(tmp_path / "saved")
    assert describe(loaded) == describe(ensemble)
    for mine, other in zip(loaded.members, unusual_members(), strict=True):
        assert type(mine) is type(other)
        assert describe(mine) == describe(other)
    assert torch.equal(loaded.score(features), ensemble.score(features))
