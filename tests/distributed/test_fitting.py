"""``fit`` in 2 and 3 real processes equals one fit."""

import pytest
import torch
from support.processes import fit_all, fit_and_warn, launch

import oodles
from oodles.detectors import detector_list
from oodles.features import Features
from oodles.testing import example_features

SPECS = [each.spec for each in detector_list() if not any(part.startswith("layer.") for part in each.scores_from)]
EXACT = ("energy", "react(90)+energy", "vra(60)+energy", "ash_s(90)+energy", "scale(85)+energy", "knn", "nnguide")
"""Counts, percentiles and samples of rows: no sum is rounded."""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Rows in shards that no number of processes divides evenly."""
    path = tmp_path_factory.mktemp("rows") / "store"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("oodles.features.SHARD_ELEMENTS", 100 * (16 + 1))
        example_features(rows=1001, width=16, classes=5, seed=3).save(path)
    assert len(list(path.glob("shard-*"))) == 11
    return path


@pytest.mark.filterwarnings("ignore::oodles.FitWarning")  # one unit is dead
@pytest.mark.parametrize("size", [2, 3])
def test_a_fit_in_several_processes_equals_one(store, size):
    outcomes = launch(size, fit_all, store, SPECS)
    assert [outcome.error for outcome in outcomes] == [""] * size
    features = Features.load(store)
    assert len(SPECS) > 30
    assert set(EXACT) <= set(SPECS)
    for spec in SPECS:
        one = oodles.parse(spec).fit(features).score(features)
        for outcome in outcomes:
            assert torch.equal(outcome.value[spec], outcomes[0].value[spec]), "every process has the same detector"
        torch.testing.assert_close(
            outcomes[0].value[spec], one, rtol=1e-5, atol=1e-6, msg=lambda text, s=spec: s + text
        )
        if spec in EXACT:
            assert torch.equal(outcomes[0].value[spec], one), spec


def test_more_processes_than_rows(tmp_path):
    example_features(rows=2, width=4, classes=2, seed=0).save(tmp_path / "s")
    outcomes = launch(3, fit_all, tmp_path / "s", ["dice(0.5)"])
    features = Features.load(tmp_path / "s")
    for outcome in outcomes:
        assert outcome.error == ""
        torch.testing.assert_close(outcome.value["dice(0.5)"], oodles.DICE(p=0.5).fit(features).score(features))


def test_outlying_rows_are_found_in_all_shares(tmp_path):
    whole = example_features(rows=301, width=8, classes=3, seed=1)
    embedding = whole.embedding.clone()
    embedding[250] *= 1e4
    Features(embedding, head=whole.head).save(tmp_path / "store")
    outcomes = launch(2, fit_and_warn, tmp_path / "store")
    warned = [any("1 of 301 training rows" in text for text in outcome.value) for outcome in outcomes]
    assert warned == [True, False], "the first process says it once"
