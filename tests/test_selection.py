"""Choosing p from ID rows and noise: the best AUROC, ties within a standard error to the larger p."""

import math

import pytest
import torch
from networks import Net, one_thread, pictures, seeded, spread  # noqa: F401

from oodles.bench.datasets import CIFAR, ImageLoader, open_images
from oodles.bench.sweep import PAPER_GRID
from oodles.detectors import DICE, MSP, Clip, LogitDetector, WeightPruning
from oodles.errors import ArgumentError, DataError
from oodles.extraction import extract
from oodles.features import Features, Head
from oodles.functional import max_logit
from oodles.models import densenet101, load_checkpoint
from oodles.selection import FINE_GRID, NoiseImages, auroc_standard_error, noise_features, select_p
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
    """All that tells the two apart is the unit kept longest, so that every p up to 0.9 scores alike."""
    signal, noise = torch.zeros(600, 10), torch.zeros(150, 10)
    signal[:, 0] = 5 + draws(600, seed=1)
    noise[:, 0] = 4 + draws(150, seed=2)
    signal[:, 1:], noise[:, 1:] = 0.01, 0.01
    return parts(signal, noise, torch.ones(1, 10))


@pytest.fixture
def peaked():
    """Ten units of one class: three are silenced by noise of their own, six more carry the signal, one misleads."""
    signal, noise = 1 + 0.1 * draws(900, 10, seed=3), 0.8 + 0.1 * draws(300, 10, seed=4)
    # the least contribution first: units 0 to 4 are loud on outliers, unit 9 is larger on outliers than on ID
    signal[:, :5] = 0.2 + 0.1 * draws(900, 5, seed=5)
    noise[:, :5] = 0.6 + 0.1 * draws(300, 5, seed=6)
    signal[:, 9] = 2 + draws(900, seed=7)
    noise[:, 9] = 2.5 + draws(300, seed=8)
    return parts(signal, noise, torch.ones(1, 10))


# The choice -------------------------------------------------------------------------------------


def test_on_a_flat_curve_the_largest_p_wins(flat):
    grid = (0.1, 0.3, 0.5, 0.7, 0.8)
    found = select_p(DICE(), **flat, grid=grid)
    values = [row.auroc for row in found.curve.values()]
    assert max(values) - min(values) < found.standard_error
    assert found.p == 0.8
    assert found.detector.spec == "dice(0.8)+energy"
    assert not found.detector.fitted


def test_a_p_that_clearly_wins_is_chosen_wherever_it_stands(peaked):
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


def test_the_other_stages_stay_and_the_detector_given_is_untouched(flat):
    detector = DICE(p=0.5, shape=Clip(percentile=95), score=max_logit).fit(flat["train"])
    before = detector.score(flat["held_out"])
    found = select_p(detector, **flat, grid=(0.2, 0.6))
    assert found.detector.spec in ("react(95)+dice(0.2)+max_logit", "react(95)+dice(0.6)+max_logit")
    assert torch.equal(detector.score(flat["held_out"]), before)
    pruned = select_p(LogitDetector(sparsify=WeightPruning()), **flat, grid=(0.0, 0.2, 0.2))
    assert list(pruned.curve) == [0.0, 0.2]
    assert pruned.curve[0.2].detector == "weight_pruning(0.2)+energy"


def test_what_cannot_be_selected(flat):
    with pytest.raises(ArgumentError, match="the grid is empty"):
        select_p(DICE(), **flat, grid=())
    with pytest.raises(ArgumentError, match="has no sparsifier"):
        select_p(MSP(), **flat)
    with pytest.raises(ArgumentError, match="p is a fraction"):
        select_p(DICE(), **flat, grid=(0.5, 90))


def test_the_fine_grid_holds_the_papers():
    assert set(PAPER_GRID) <= set(FINE_GRID)
    assert list(FINE_GRID) == sorted(set(FINE_GRID))
    assert min(FINE_GRID) <= 0.05


# Noise ------------------------------------------------------------------------------------------


def test_noise_images_are_the_same_each_time_they_are_read():
    images = NoiseImages((3, 5, 4), 130, seed=4, batch=50)
    once, again = list(images), list(images)
    assert len(images) == 3
    assert [tuple(batch.shape) for batch in once] == [(50, 3, 5, 4), (50, 3, 5, 4), (30, 3, 5, 4)]
    assert torch.equal(torch.cat(once), torch.cat(again))
    assert torch.equal(torch.cat(once), torch.cat(list(NoiseImages((3, 5, 4), 130, seed=4, batch=50))))
    assert not torch.equal(torch.cat(once), torch.cat(list(NoiseImages((3, 5, 4), 130, seed=5, batch=50))))


def test_noise_does_not_disturb_the_random_state_of_others():
    before = torch.random.get_rng_state()
    list(NoiseImages((3, 4, 4), 10))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_every_pixel_is_standard_normal():
    pixels = torch.cat(list(NoiseImages((3, 32, 32), 100))).double().flatten()
    rows = len(pixels)
    assert abs(float(pixels.mean())) < 5 / math.sqrt(rows)
    assert abs(float(pixels.var()) - 1) < 5 * math.sqrt(2 / rows)
    shares = [float((pixels < cut).double().mean()) for cut in (-1.0, 0.0, 1.0)]
    assert shares == pytest.approx([0.1587, 0.5, 0.8413], abs=0.004)


@pytest.mark.parametrize(("shape", "count"), [((3, 4, 4), 0), ((3, 4, 4), -2), ((), 5)])
def test_no_noise_at_all_is_refused(shape, count):
    with pytest.raises(ArgumentError, match="ask for at least one"):
        NoiseImages(shape, count)


def test_features_of_noise_take_their_shape_from_a_batch_or_a_loader():
    network = spread(seeded(Net))
    wanted = extract(network, NoiseImages((3, 8, 8), 40, seed=2), labels=False)
    batch = pictures(5)
    for images in (batch, [batch], [(batch, torch.zeros(5, dtype=torch.long))], iter([{"image": batch}])):
        got = noise_features(network, images, count=40, seed=2)
        assert (len(got), got.labels, got.width) == (40, None, 8)
        assert torch.equal(got.logits, wanted.logits)
    assert not torch.equal(noise_features(network, batch, count=40, seed=3).logits, wanted.logits)
    with pytest.raises(DataError, match="gave no batch"):
        noise_features(network, [])


def test_options_of_extract_pass_through(tmp_path):
    network = spread(seeded(Net))
    got = noise_features(network, pictures(2), count=9, store=tmp_path / "noise", layers=["body"])
    assert set(got.layers) == {"body"}
    assert len(Features.load(tmp_path / "noise")) == 9


# The standard error -----------------------------------------------------------------------------


@pytest.mark.parametrize(("area", "n_id", "n_ood"), [(0.9, 100, 100), (0.5, 10, 30), (0.75, 400, 20), (0.97, 7, 900)])
def test_hanley_and_mcneil_by_hand(area, n_id, n_ood):
    two_id_beat_one_ood = area / (2 - area)
    one_id_beats_two_ood = 2 * area * area / (1 + area)
    total = area * (1 - area)
    total += (n_id - 1) * (two_id_beat_one_ood - area * area)
    total += (n_ood - 1) * (one_id_beats_two_ood - area * area)
    assert auroc_standard_error(area, n_id, n_ood) == pytest.approx(math.sqrt(total / (n_id * n_ood)), rel=1e-12)


@pytest.mark.parametrize("area", [0.0, 1.0])
def test_no_error_at_the_ends(area):
    assert auroc_standard_error(area, 20, 30) == 0.0


def test_the_error_is_about_that_of_repeated_samples():
    found = []
    for seed in range(400):
        ids, oods = 1 + draws(60, seed=seed), draws(40, seed=1000 + seed)
        found.append(float((ids[:, None] > oods).double().mean()))
    measured = torch.tensor(found).std().item()
    assert auroc_standard_error(sum(found) / len(found), 60, 40) == pytest.approx(measured, rel=0.15)


# Real networks ----------------------------------------------------------------------------------


@pytest.mark.realdata
def test_the_authors_cifar100_network_wants_the_papers_p(data):
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
