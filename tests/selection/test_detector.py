"""Choosing a detector on synthetic outliers: the AUROC under resampling, the utility, and the choice."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from oodles.detectors import default_detector, parse
from oodles.features import Features
from oodles.selection.detector import _choose, candidate_list, select, utilities, weighted_auroc
from oodles.selection.outliers import mixed_features
from oodles.testing import example_features

# one unit of the example features is never active, which detectors that estimate covariances report
pytestmark = pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")

CANDIDATES = ["energy", "msp", "max_logit", "knn(3)", "mahalanobis", "react(90)", "dice(0.5)"]


@pytest.fixture(scope="module")
def parts() -> tuple[Features, Features]:
    whole = example_features(400)
    return whole[:250], whole[250:]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=2, max_size=20), st.lists(st.integers(0, 6), min_size=2, max_size=20))
def test_weighted_auroc_is_that_of_repeated_rows(id_scores: list[int], ood_scores: list[int]) -> None:
    generator = np.random.default_rng(len(id_scores))
    id_weights, ood_weights = (
        generator.integers(1, 4, size=(3, len(part))).astype(float) for part in (id_scores, ood_scores)
    )
    got = weighted_auroc(np.array(id_scores, float), np.array(ood_scores, float), id_weights, ood_weights)
    for row, value in enumerate(got):
        scores = np.concatenate(
            [np.repeat(id_scores, id_weights[row].astype(int)), np.repeat(ood_scores, ood_weights[row].astype(int))]
        )
        truth = np.repeat([1, 0], [int(id_weights[row].sum()), int(ood_weights[row].sum())])
        assert value == pytest.approx(roc_auc_score(truth, scores))


def test_the_utility_is_the_mean_of_the_mean_rank_and_the_worst_rank() -> None:
    cube = np.array([[0.9, 0.5], [0.8, 0.8], [0.5, 0.9]])
    np.testing.assert_allclose(utilities(cube), [0.25, 0.5, 0.25])


def test_the_choice_is_reproducible_and_the_default_unless_another_is_clearly_better(parts) -> None:
    train, held_out = parts
    noise = torch.rand(held_out.embedding.shape, generator=torch.Generator().manual_seed(0))
    far = Features((held_out.embedding + 6 * noise).relu(), head=held_out.head)
    outliers = {"far": far, "mixed": mixed_features(held_out)["mixed"]}
    found, again = (select(train=train, held_out=held_out, outliers=outliers, candidates=CANDIDATES) for _ in range(2))
    assert (found.verdict, found.candidates) == (again.verdict, again.candidates)
    specs = [row.spec for row in found.candidates]
    assert default_detector().spec in specs
    assert "msp" in specs
    assert [row.utility for row in found.candidates] == sorted((row.utility for row in found.candidates), reverse=True)
    default = next(row for row in found.candidates if row.spec == default_detector().spec)
    lead = found.candidates[0].utility - default.utility
    assert (found.detector.spec == default_detector().spec) == (lead <= found.standard_error)
    assert 0 <= found.agreement <= 1
    assert set(found.leave_one_kind_out) == {"far", "mixed"}
    assert found.detector.spec in found.verdict


def test_a_detector_that_is_clearly_better_is_chosen(parts) -> None:
    train, held_out = parts
    # longer embeddings in the same directions, of which most members of the default are all the more certain
    strong = Features(held_out.embedding * 1.3, head=train.head)
    found = select(train=train, held_out=held_out, outliers={"strong": strong}, candidates=["energy", "mahalanobis"])
    assert found.detector.spec == "mahalanobis"
    assert found.agreement > 0.8
    assert found.leave_one_kind_out == {}


def test_signed_embeddings_are_not_offered_what_assumes_a_relu(parts) -> None:
    train, _ = parts
    signed = Features(train.embedding - train.embedding.mean(dim=0), labels=train.labels, head=train.head)
    usual, fewer = candidate_list(train), candidate_list(signed)
    assert set(fewer) < set(usual)
    assert {"scale(85)", "ash_b(90)", "dice(0.9)", "react(97)+scale(65)+dice(0.05)"} <= set(usual) - set(fewer)
    assert {"energy", "vra(60)", "mahalanobis", "nci", "knn(10)"} <= set(fewer)


def test_the_default_is_kept_for_outliers_with_the_same_logits(parts) -> None:
    train, held_out = parts
    # shifted in the null space of the head: the logits stay the same, distances grow
    assert train.head is not None
    null = torch.linalg.svd(train.head.weight)[2][-1]
    hidden = Features(held_out.embedding + 4 * null, head=train.head)
    found = select(train=train, held_out=held_out, outliers={"hidden": hidden}, candidates=["energy", "mahalanobis"])
    assert found.detector.spec == default_detector().spec
    assert [row.spec for row in found.candidates][:2] == [default_detector().spec, "mahalanobis"]


def test_the_default_is_kept_if_the_resamples_disagree_on_another() -> None:
    generator = np.random.default_rng(0)
    utility = np.concatenate([np.full((1, 41), 0.2), 0.9 + 0.01 * generator.normal(size=(4, 41))])
    place, agreement, error = _choose(utility)
    assert place == 0
    assert agreement == 0
    assert error < 0.1
    utility[2] += 0.5
    assert _choose(utility)[:2] == (2, 1.0)


def test_the_verdict_says_if_plain_msp_is_as_good(parts) -> None:
    train, held_out = parts
    faint = Features(held_out.embedding * 0.01, head=held_out.head)
    found = select(train=train, held_out=held_out, outliers={"faint": faint}, candidates=["energy"])
    assert "msp is as good as anything" in found.verdict


def test_candidates_learn_from_labels_only_if_there_are_any(parts) -> None:
    train, _ = parts
    bare = Features(train.embedding, head=train.head)
    assert "mahalanobis" in candidate_list(train)
    assert not any("labels" in parse(text).learns_from for text in candidate_list(bare))
    assert len(candidate_list(train)) > 150
    assert len(set(candidate_list(train))) == len(candidate_list(train))


def test_the_verdict_says_plainly_when_nothing_works() -> None:
    whole = example_features(rows=1200)
    train, held_out, outliers = whole[:400], whole[400:800], {"same": whole[800:1000], "again": whole[1000:]}
    found = select(train=train, held_out=held_out, outliers=outliers, candidates=["energy", "knn", "dice(0.5)"])
    assert found.verdict.startswith("nothing works here")
    assert "best mean AUROC" in found.verdict
