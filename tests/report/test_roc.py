import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oodles.metrics import auroc
from oodles.report.guards import ranked, roc

SCORES = st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=40).map(np.array)


@given(ids=SCORES, oods=SCORES)
def test_the_roc_of_few_scores_has_every_corner(ids: np.ndarray, oods: np.ndarray) -> None:
    ood_rate, id_rate = roc(ids, oods)
    by_hand = {(0.0, 0.0)} | {
        (100 * float(np.mean(oods >= at)), 100 * float(np.mean(ids >= at))) for at in {*ids, *oods}
    }
    found = {*zip(ood_rate.tolist(), id_rate.tolist(), strict=True)}
    assert sorted(found) == [pytest.approx(pair) for pair in sorted(by_hand)]
    assert np.trapezoid(id_rate, ood_rate) / 1e4 == pytest.approx(auroc(ids, oods))


def test_the_roc_of_many_scores_is_thinned() -> None:
    generator = np.random.default_rng(0)
    ids, oods = generator.normal(1, 1, 50_000), generator.normal(0, 1, 50_000)
    ood_rate, id_rate = roc(ids, oods)
    assert len(ood_rate) <= 201
    assert np.trapezoid(id_rate, ood_rate) / 1e4 == pytest.approx(auroc(ids, oods), abs=1e-3)


def test_a_row_without_a_score_is_below_all_others() -> None:
    assert ranked(torch.tensor([1.0, np.nan, np.inf])).tolist() == [1.0, -np.inf, -np.inf]
