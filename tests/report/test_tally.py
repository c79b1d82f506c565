from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from oodles.deploy.results.rows import Row
from oodles.report import scored as module
from oodles.report.document import Rate
from oodles.report.scored import Tally

SCORES = st.lists(st.integers(-5, 5).map(float), max_size=60)


def rows_of(scores: list[float]) -> list[Row]:
    return [Row(f"{place}.png", 0, "cat", 0.5, score, None, score >= 0, None) for place, score in enumerate(scores)]


@given(scores=SCORES, batch=st.integers(1, 8))
def test_extremes_are_those_of_sorting_everything(scores: list[float], batch: int) -> None:
    with mock.patch.object(module, "BATCH", batch):
        tally = Tally(rows_of(scores))
    by_hand = sorted(rows_of(scores), key=lambda row: row.score or 0.0)  # stable: the first of equal ones
    assert tally.lowest == by_hand[:16]
    assert tally.just_accepted == [row for row in by_hand if row.is_id][:8]
    downwards = sorted(rows_of(scores), key=lambda row: row.score or 0.0, reverse=True)
    assert tally.highest == downwards[:12]
    assert tally.just_rejected == [row for row in downwards if not row.is_id][:8]


@given(scores=SCORES)
def test_counts_add_up(scores: list[float]) -> None:
    tally = Tally([*rows_of(scores), Row("bad.png", error="empty file"), Row("none.png")])
    assert len(tally.accepted) == sum(score >= 0 for score in scores)
    assert tally.scored == len(scores) == tally.by_class["cat"]
    assert tally.errors == {"empty file": 1, "it has no score": 1}
    assert tally.total == len(scores) + 2
    accepted = [score for score in scores if score >= 0]
    assert tally.threshold() == (min(accepted) if accepted else None)


def test_scores_that_overlap_have_no_threshold() -> None:
    rows = [Row("a", 0, None, 0.5, 1.0, None, True), Row("b", 0, None, 0.5, 2.0, None, False)]
    assert Tally(rows).threshold() is None


def test_very_many_names_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_NAMES", 3)
    tally = Tally(Row("x", place, f"class{place}", 0.5, 1.0, None, True) for place in range(10))
    assert len(tally.by_class) == 4
    assert tally.by_class["others"] == 7


def test_scores_that_are_not_finite_are_no_scores() -> None:
    tally = Tally(Row("x", 0, "cat", 0.5, score, float("nan"), True) for score in (np.nan, np.inf, -np.inf, 1.0))
    assert tally.scored == 1
    assert tally.p_values.total == 0


@given(total=st.integers(1, 3000), share=st.floats(0, 1))
def test_the_interval_is_wilsons(total: int, share: float) -> None:
    rate = Rate(round(share * total), total)
    known = binomtest(rate.count, total).proportion_ci(0.95, "wilson")
    assert rate.interval == pytest.approx((100 * known.low, 100 * known.high), abs=1e-9)
    assert rate.interval[0] <= rate.percent <= rate.interval[1]


def test_a_rate_of_nothing_and_a_rate_in_words() -> None:
    nothing = Rate(0, 0)
    assert (nothing.percent, nothing.interval, nothing.cell.value) == (0, (0, 100), None)
    assert str(Rate(95, 100)) == "95.0 % [88.8, 97.8]"
