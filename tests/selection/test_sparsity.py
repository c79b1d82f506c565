"""Choosing p from ID rows and noise: the best AUROC, ties within a standard error to the larger p."""

import pytest
import torch
from support.networks import one_thread  # noqa: F401

from oodles.data.loaders import ImageLoader
from oodles.data.readers import open_images
from oodles.data.transforms import CIFAR
from oodles.detectors import DICE, MSP, LogitDetector, ReAct, WeightPruning
from oodles.errors import ArgumentError
from oodles.features import Features, Head
from oodles.functional import max_logit
from oodles.models import densenet101, load_checkpoint
from oodles.network.extraction import extract
from oodles.selection.outliers import noise_features
from oodles.selection.sparsity import FINE_GRID, auroc_standard_error, select_p
from oodles.testing import example_features


def draws(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def parts(embedding, outliers, weight):
    """Training rows, held-out rows and outliers under one head without a bias."""
    head = Head(weight)
    cut = 2 * len(embedding) // 3
    return {
        "train": Features(embedding[:cut], head=head),
        "held_out": Features(embedding[cut:], head=head),
        "outliers": Features(outliers, head=head),
    }


@pytest.fixture
def flat():
    """ID rows and outliers differ only in the unit that is kept longest, so every p up to 0.9 scores alike."""
    signal, noise = torch.zeros(600, 10), torch.zeros(150, 10)
    signal[:, 0] = 5 + draws(600, seed=1)
    noise[:, 0] = 4 + draws(150, seed=2)
    signal[:, 1:], noise[:, 1:] = 0.01, 0.01
    return parts(signal, noise, torch.ones(1, 10))


@pytest.fixture
def peaked():
    """Five units are larger on outliers, four are larger on ID rows, and the one that contributes most misleads."""
    signal, noise = 1 + 0.1 * draws(900, 10, seed=3), 0.8 + 0.1 * draws(300, 10, seed=4)
    # by contribution, the smallest first: units 0 to 4 are larger on outliers, and so is unit 9, with much noise
    signal[:, :5] = 0.2 + 0.1 * draws(900, 5, seed=5)
    noise[:, :5] = 0.6 + 0.1 * draws(300, 5, seed=6)
    signal[:, 9] = 2 + draws(900, seed=7)
    noise[:, 9] = 2.5 + draws(300, seed=8)
    return parts(signal, noise, torch.ones(1, 10))


# The choice -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.* of the weights, not p=")
def test_on_a_flat_curve_the_largest_p_wins(flat):
    grid = (0.1, 0.3, 0.5, 0.7, 0.8)
    found = select_p(DICE(), **flat, grid=grid)
    values = [row.auroc for row in found.curve.values()]
    assert max(values) - min(values) < found.standard_error
    assert found.p == 0.8
    assert found.detector.spec == "dice(0.8)+energy"
    assert not found.detector.fitted


def test_a_p_that_is_clearly_best_is_chosen_wherever_it_is(peaked):
    found = select_p(DICE(), **peaked, grid=(0.0, 0.1, 0.45, 0.85))
    ranking = sorted(found.curve, key=lambda p: found.curve[p].auroc)
    assert ranking[-1] == 0.45
    assert found.curve[0.45].auroc - found.curve[ranking[-2]].auroc > found.standard_error
    assert (found.p, found.best) == (0.45, 0.45)


@pytest.mark.parametrize("seed", range(6))
def test_the_rule_by_hand(seed):
    whole = example_features(330, 16, 5, seed=seed)
    outliers = Features(example_features(60, 16, 5, seed=seed + 50).embedding, head=whole.head)
    found = select_p(DICE(), train=whole[:300], held_out=whole[300:], outliers=outliers, grid=FINE_GRID)
    assert list(found.curve) == sorted(FINE_GRID)
    best = max(row.auroc for row in found.curve.values())
    assert found.curve[found.best].auroc == best
    assert found.standard_error == auroc_standard_error(best, 30, 60)
    tied = [p for p, row in found.curve.items() if row.auroc >= best - found.standard_error]
    assert found.p == max(tied)
    for p, row in found.curve.items():
        detector = DICE(p=p).fit(whole[:300])
        assert row.detector == detector.spec
        assert (row.n_id, row.n_ood) == (30, 60)
        scores = detector.score(whole[300:]), detector.score(outliers)
        wins = (scores[0][:, None] > scores[1]).double() + 0.5 * (scores[0][:, None] == scores[1])
        assert row.auroc == pytest.approx(float(wins.mean()), abs=1e-12)


def test_perfect_separation_is_a_tie_with_no_error():
    embedding, outliers = 3 + draws(90, 6, seed=1).abs(), torch.zeros(40, 6)
    found = select_p(DICE(), **parts(embedding, outliers, torch.ones(2, 6)), grid=(0.7, 0.1, 0.3))
    assert (found.p, found.standard_error) == (0.7, 0.0)
    assert list(found.curve) == [0.1, 0.3, 0.7]


@pytest.mark.filterwarnings("ignore:.* of the weights, not p=")
def test_the_other_stages_and_the_given_detector_are_unchanged(flat):
    detector = DICE(p=0.5, shape=ReAct(percentile=95), score=max_logit).fit(flat["train"])
    before = detector.score(flat["held_out"])
    found = select_p(detector, **flat, grid=(0.2, 0.6))
    assert found.detector.spec in ("react(95)+dice(0.2)+max_logit", "react(95)+dice(0.6)+max_logit")
    assert torch.equal(detector.score(flat["held_out"]), before)
    pruned = select_p(LogitDetector(sparsify=WeightPruning()), **flat, grid=(0.0, 0.2, 0.2))
    assert list(pruned.curve) == [0.0, 0.2]
    assert pruned.curve[0.2].detector == "weight_pruning(0.2)+energy"


def test_invalid_grids_and_detectors_are_refused(flat):
    with pytest.raises(ArgumentError, match="has no sparsifier"):
        select_p(MSP(), **flat)
    with pytest.raises(ArgumentError, match="p is a fraction"):
        select_p(DICE(), **flat, grid=(0.5, 90))


# The standard error -----------------------------------------------------------------------------


def test_the_standard_error_is_about_that_of_repeated_samples():
    found = []
    for seed in range(400):
        ids, oods = 1 + draws(60, seed=seed), draws(40, seed=1000 + seed)
        found.append(float((ids[:, None] > oods).double().mean()))
    measured = torch.tensor(found).std().item()
    assert auroc_standard_error(sum(found) / len(found), 60, 40) == pytest.approx(measured, rel=0.15)
    assert auroc_standard_error(0.0, 20, 30) == auroc_standard_error(1.0, 20, 30) == 0.0


# Real networks ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.realdata
def test_the_papers_p_is_chosen_for_the_authors_cifar100_network(data):
    network = densenet101(100)
    load_checkpoint(network, data / "checkpoints" / "densenet101-cifar100.pth.tar")
    train, held_out = (
        extract(network, ImageLoader(open_images(data / "cifar-100-python" / name).sample(200), CIFAR))
        for name in ("train", "test")
    )
    outliers = noise_features(network, torch.zeros(1, 3, 32, 32), count=150)
    found = select_p(DICE(), train=train, held_out=held_out, outliers=outliers)
    assert (found.p, found.best) == (0.9, 0.9)
    assert found.curve[0.9].auroc - found.curve[0.7].auroc > found.standard_error


def test_the_verdict_says_plainly_when_no_p_works():
    whole = example_features(rows=900)
    same = {"train": whole[:300], "held_out": whole[300:600], "outliers": whole[600:]}
    assert select_p(DICE(), **same).verdict.startswith("nothing works here")
    faint = Features(whole[600:].embedding * 0.01, head=whole.head)
    assert "points of the best AUROC" in select_p(DICE(), **{**same, "outliers": faint}).verdict
