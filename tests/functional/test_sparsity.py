"""Masks of the last layer against the reference, and the masks of the paper's networks."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference import sparsity as slow

from oodles import functional as fast
from oodles.detectors import DICE, Sparsifier, TopBottomK, UnitDropout, UnitPruning
from oodles.detectors.registry import BUILT_IN

PAPER_P = (0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
SPARSIFIERS = [entry.kind for entry in BUILT_IN if issubclass(entry.kind, Sparsifier)]
LEARNED = [kind for kind in SPARSIFIERS if kind.name in slow.MASKS]
SEEDED = [kind for kind in SPARSIFIERS if kind not in LEARNED]


def random_head(classes: int, width: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights in float32 and mean activations in float64, as in a fitted detector."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(classes, width, generator=generator)
    mean = torch.rand(width, generator=generator, dtype=torch.float64)
    mean[:: max(2, width // 3)] = 0  # units that are always zero: their contributions are tied
    return weight, mean


@pytest.mark.parametrize("p", PAPER_P)
@pytest.mark.parametrize("kind", LEARNED)
@settings(max_examples=15, deadline=None)
@given(classes=st.integers(1, 8), width=st.integers(1, 30), seed=st.integers(0, 10**6))
def test_masks_equal_the_reference(kind: type[Sparsifier], p: float, classes: int, width: int, seed: int) -> None:
    weight, mean = random_head(classes, width, seed)
    mask = kind(p=p).mask(weight, mean)
    assert mask.dtype == torch.bool
    assert mask.shape == weight.shape
    np.testing.assert_array_equal(mask, slow.MASKS[kind.name](weight.numpy(), mean.numpy(), p))


@pytest.mark.parametrize("p", PAPER_P)
@settings(max_examples=40, deadline=None)
@given(grid=st.lists(st.integers(-2, 2), min_size=1, max_size=30))
@example(grid=[1, 1, 1, 2])
@example(grid=[1] * 7)
def test_keep_largest_drops_ties_like_the_reference(p: float, grid: list[int]) -> None:
    values = np.array(grid, dtype=np.float64)
    np.testing.assert_array_equal(fast.keep_largest(torch.tensor(values), p), slow.above_percentile(values, p))


def test_neighbouring_floats_are_distinguished() -> None:
    """The comparison is in float64: a quantile rounded to float32 would drop the upper neighbour too."""
    one = np.float32(1)
    values = torch.tensor([one, np.nextafter(one, np.float32(2))])
    assert fast.keep_largest(values, 0.5).tolist() == [False, True]


def test_contribution_is_float64() -> None:
    weight, mean = random_head(3, 5, seed=0)
    got = fast.contribution(weight, mean)
    assert got.dtype == torch.float64
    np.testing.assert_array_equal(got, slow.contribution(weight.numpy(), mean.numpy()))


@pytest.mark.parametrize("kind", SPARSIFIERS)
def test_p_zero_keeps_everything(kind: type[Sparsifier]) -> None:
    weight, mean = random_head(4, 9, seed=1)
    assert kind(p=0).mask(weight, mean).all()
    assert fast.keep_largest(torch.ones(3), 0).all()


@pytest.mark.parametrize("p", [0.0, *PAPER_P])
@pytest.mark.parametrize("shape", [(10, 100), (1, 7), (3, 5), (100, 342)])
def test_random_masks_keep_the_right_count(shape: tuple[int, int], p: float) -> None:
    mask = fast.keep_random(shape, p, seed=0)
    assert mask.shape == shape
    # half an entry may be rounded either way, and one entry is always kept
    want = max(Fraction(1, 2), (1 - Fraction(str(p))) * mask.numel())
    assert abs(int(mask.sum()) - want) <= Fraction(1, 2)


@pytest.mark.parametrize("kind", SEEDED)
def test_random_masks_depend_on_their_seed_alone(kind: type[Sparsifier]) -> None:
    weight, mean = random_head(10, 50, seed=2)
    torch.manual_seed(0)
    first = kind(p=0.5, seed=7).mask(weight, mean)
    torch.manual_seed(1)
    assert torch.equal(first, kind(p=0.5, seed=7).mask(-weight, mean + 1))
    assert not torch.equal(first, kind(p=0.5, seed=8).mask(weight, mean))


def test_drawing_masks_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    want = torch.rand(3)
    torch.manual_seed(5)
    fast.keep_random((4, 4), 0.5, seed=0)
    assert torch.equal(torch.rand(3), want)


def test_random_masks_are_uniform() -> None:
    """Over many seeds every entry is kept about equally often."""
    kept = torch.stack([fast.keep_random((4, 5), 0.7, seed) for seed in range(2000)]).double().mean(dim=0)
    # five standard errors of 0.010
    assert float((kept - 0.3).abs().max()) < 0.05


@pytest.mark.parametrize("p", PAPER_P)
@pytest.mark.parametrize("unit", [UnitPruning(p=0.5), UnitPruning(p=0.5, by="activation"), UnitDropout(p=0.5)])
def test_unit_masks_are_whole_columns(unit: Sparsifier, p: float) -> None:
    weight, mean = random_head(6, 200, seed=4)
    arguments = {**unit.arguments(), "p": p}
    mask = type(unit)(**arguments).mask(weight, mean)
    assert mask.shape == weight.shape
    assert torch.equal(mask, mask[:1].expand_as(mask))
    assert 0 < int(mask[0].sum()) < 200


def test_unit_pruning_by_activation_ranks_means() -> None:
    weight, mean = random_head(3, 20, seed=6)
    mask = UnitPruning(p=0.7, by="activation").mask(weight, mean)
    np.testing.assert_array_equal(mask[0], slow.above_percentile(mean.numpy(), 0.7))


@pytest.mark.realdata
@pytest.mark.parametrize("p", PAPER_P)
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_masks_of_the_papers_networks(data: Path, name: str, p: float) -> None:
    """Entry for entry the masks of the authors' code, for the networks and means they published."""
    file = data / "checkpoints" / f"densenet101-{name}.pth.tar"
    checkpoint = torch.load(file, map_location="cpu", weights_only=True)
    weight = checkpoint["state_dict"]["fc.weight"]
    mean = np.load(data / "checkpoints" / f"mean-activation-{name}.npy")
    assert weight.shape == ({"cifar10": 10, "cifar100": 100}[name], 342)
    contributions = weight.numpy() * mean
    want = contributions > np.percentile(contributions, p * 100)
    mask = DICE(p=p).mask(weight, torch.from_numpy(mean))
    np.testing.assert_array_equal(mask, want)
    assert 0 < int(mask.sum()) <= (1 - p) * mask.numel() + 1


def test_negative_mean_activations_count_with_their_sign() -> None:
    """A negative weight of a unit that is negative on ID data raises the logit, so DICE keeps it."""
    weight, mean = torch.tensor([[2.0, -3.0], [-2.0, 3.0]]), torch.tensor([1.0, -4.0], dtype=torch.float64)
    assert fast.contribution(weight, mean).tolist() == [[2, 12], [-2, -12]]
    assert DICE(p=0.75).mask(weight, mean).tolist() == [[False, True], [False, False]]
    assert TopBottomK(p=0.5).mask(weight, mean).tolist() == [[False, True], [False, True]]
