import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Net
from sklearn.metrics import roc_auc_score

from oodles.choice import _choose, candidate_list, mixture_features, outlier_features, select, weighted_auroc, worths
from oodles.detectors import default_detector, parse
from oodles.errors import ArgumentError, DataError
from oodles.features import Features
from oodles.outliers import KINDS, NOISE
from oodles.testing import example_features

CANDIDATES = ["energy", "msp", "max_logit", "knn(3)", "mahalanobis", "react(90)", "dice(0.5)"]


def far(features: Features, step: float = 6.0, seed: int = 0) -> Features:
    noise = torch.rand(features.embedding.shape, generator=torch.Generator().manual_seed(seed))
    return Features((features.embedding + step * noise).relu(), head=features.head)


@pytest.fixture(scope="module")
def parts() -> tuple[Features, Features]:
    whole = example_features(400)
    return whole[:250], whole[250:]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=2, max_size=20), st.lists(st.integers(0, 6), min_size=2, max_size=20))
def test_weighted_auroc_is_that_of_repeated_rows(inside: list[int], outside: list[int]) -> None:
    chance = np.random.default_rng(len(inside))
    id_weights, ood_weights = (chance.integers(1, 4, size=(3, len(part))).astype(float) for part in (inside, outside))
    got = weighted_auroc(np.array(inside, float), np.array(outside, float), id_weights, ood_weights)
    for row, value in enumerate(got):
        scores = np.concatenate(
            [np.repeat(inside, id_weights[row].astype(int)), np.repeat(outside, ood_weights[row].astype(int))]
        )
        truth = np.repeat([1, 0], [int(id_weights[row].sum()), int(ood_weights[row].sum())])
        assert value == pytest.approx(roc_auc_score(truth, scores))


def test_worth_is_half_the_mean_and_half_the_weakest_kind() -> None:
    cube = np.array([[0.9, 0.5], [0.8, 0.8], [0.5, 0.9]])
    np.testing.assert_allclose(worths(cube), [0.25, 0.5, 0.25])


def test_the_default_stays_unless_another_is_clearly_better(parts) -> None:
    train, held_out = parts
    found = select(
        train=train,
        held_out=held_out,
        outliers={"far": far(held_out), "near": far(held_out, 1.0)},
        candidates=CANDIDATES,
    )
    specs = [row.spec for row in found.candidates]
    assert default_detector().spec in specs
    assert "msp" in specs
    assert [row.worth for row in found.candidates] == sorted((row.worth for row in found.candidates), reverse=True)
    usual = next(row for row in found.candidates if row.spec == default_detector().spec)
    lead = found.candidates[0].worth - usual.worth
    assert (found.detector.spec == default_detector().spec) == (lead <= found.standard_error)
    assert 0 <= found.certainty <= 1
    assert set(found.without) == {"far", "near"}
    assert found.detector.spec in found.verdict


def test_a_detector_that_sees_what_others_do_not_is_chosen(parts) -> None:
    train, held_out = parts
    # smaller in the same direction: most members of the default look at directions alone
    faint = Features(held_out.embedding * 0.7, head=train.head)
    found = select(train=train, held_out=held_out, outliers={"faint": faint}, candidates=["energy", "mahalanobis"])
    assert found.detector.spec == "energy"
    assert found.certainty > 0.8
    assert found.without == {}


def test_the_default_sees_what_logits_do_not(parts) -> None:
    train, held_out = parts
    # moved along what the head does not look at: logits stay, distances grow
    assert train.head is not None
    null = torch.linalg.svd(train.head.weight)[2][-1]
    hidden = Features(held_out.embedding + 4 * null, head=train.head)
    found = select(train=train, held_out=held_out, outliers={"hidden": hidden}, candidates=["energy", "mahalanobis"])
    assert found.detector.spec == default_detector().spec
    assert [row.spec for row in found.candidates][:2] == [default_detector().spec, "mahalanobis"]


def test_the_default_stays_where_resamples_are_split_over_others() -> None:
    generator = np.random.default_rng(0)
    worth = np.concatenate([np.full((1, 41), 0.2), 0.9 + 0.01 * generator.normal(size=(4, 41))])
    place, certainty, error = _choose(worth)
    assert place == 0
    assert certainty == 0
    assert error < 0.1
    worth[2] += 0.5
    assert _choose(worth)[:2] == (2, 1.0)


def test_plain_msp_is_praised_where_it_is_due(parts) -> None:
    train, held_out = parts
    same = Features(held_out.embedding, head=held_out.head)
    found = select(train=train, held_out=held_out, outliers={"same": same}, candidates=["energy"])
    assert "msp is as good as anything" in found.verdict


def test_choosing_twice_is_choosing_once(parts) -> None:
    train, held_out = parts
    outliers = {"far": far(held_out), "mixed": mixture_features(held_out)["mixed"]}
    first, second = (select(train=train, held_out=held_out, outliers=outliers, candidates=CANDIDATES) for _ in range(2))
    assert first.verdict == second.verdict
    assert first.candidates == second.candidates


def test_candidates_learn_from_labels_only_where_there_are_any(parts) -> None:
    train, _ = parts
    bare = Features(train.embedding, head=train.head)
    assert "mahalanobis" in candidate_list(train)
    assert not any("labels" in parse(text).learns_from for text in candidate_list(bare))
    assert len(candidate_list(train)) > 150
    assert len(set(candidate_list(train))) == len(candidate_list(train))


def test_stand_ins_of_every_kind_from_a_loader() -> None:
    torch.manual_seed(0)
    model = Net().eval()
    shape = (30, 3, 16, 16)
    images = (torch.rand(shape) - 0.5) / 0.25
    loader = [(images[:16], torch.arange(16) % 3), (images[16:], torch.arange(14) % 3)]
    found = outlier_features(model, loader, mean=(0.5,) * 3, std=(0.25,) * 3, count=20)
    assert set(found) == {NOISE, *KINDS}
    assert all(len(part) == 20 for part in found.values())
    without = outlier_features(model, loader, count=20)
    assert set(without) == set(found)


def test_mixtures_without_images(parts) -> None:
    _, held_out = parts
    mixed = mixture_features(held_out)
    assert set(mixed) == {"mixed", "shuffled"}
    torch.testing.assert_close(mixed["shuffled"].embedding.mean(dim=0), held_out.embedding.mean(dim=0))
    with pytest.raises(DataError, match="need the head"):
        mixture_features(Features(held_out.embedding, logits=held_out.logits))
    with pytest.raises(ArgumentError, match="no stand-ins"):
        select(train=held_out, held_out=held_out, outliers={})
