"""DICE is the paper's rule, also after a shape and on the paper's own heads; settings are checked."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import scores as slow_scores
from reference import sparsity as slow_sparsity
from support.detector_data import numpy_parts, without_bias

from oodles.detectors import DICE, MSP, Energy, ReAct
from oodles.errors import FitWarning
from oodles.features import Features, Head
from oodles.functional import msp
from oodles.testing import example_features

PAPER_P = (0.1, 0.3, 0.5, 0.7, 0.9, 0.99)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shift", [0.0, -0.7])
def test_dice_that_drops_nothing_is_energy_bit_for_bit(shift: float, dtype: torch.dtype) -> None:
    """Also if the logits are the network's own, a rounding away from what the head computes from the embedding."""
    plain = example_features(rows=200, seed=5)
    own = plain.head(plain.embedding + shift) * (1 + 1e-6)
    features = Features(plain.embedding + shift, logits=own, head=plain.head).to(dtype=dtype)
    assert torch.equal(DICE(p=0).fit(features).score(features), Energy().score(features))
    assert torch.equal(DICE(p=0.0, score=msp).fit(features).score(features), MSP().score(features))


@pytest.mark.parametrize("p", PAPER_P)
@pytest.mark.parametrize("biased", [True, False])
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 12), width=st.integers(2, 10), classes=st.integers(1, 5))
def test_dice_matches_the_reference(p: float, biased: bool, seed: int, rows: int, width: int, classes: int) -> None:
    features = example_features(rows, width, classes, seed)
    if not biased:
        features = without_bias(features)
    embedding, weight, bias = numpy_parts(features)
    mean = np.array([sum(column) / len(column) for column in embedding.T])
    mask = slow_sparsity.dice(weight, mean, p)
    logits = embedding @ (weight * mask).T + bias
    detector = DICE(p=p).fit(features)
    np.testing.assert_array_equal(detector.weight_.numpy() != 0, mask & (weight != 0))
    np.testing.assert_allclose(detector.score(features), [slow_scores.energy(row) for row in logits], rtol=2e-5)


def test_dice_with_react_masks_by_the_unclipped_mean() -> None:
    # clipping at 1 would reverse the order of the two mean contributions: 2.5 and 0.9 become 0.25 and 0.9
    embedding = torch.tensor([[10.0, 0.9], [0.0, 0.9], [0.0, 0.9], [0.0, 0.9]])
    features = Features(embedding, head=Head(torch.tensor([[1.0, 1.0]]), torch.tensor([0.0])))
    detector = DICE(p=0.5, shape=ReAct(threshold=1.0)).fit(features)
    assert detector.weight_.tolist() == [[1.0, 0.0]]
    assert detector.score(features).tolist() == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_dice_on_the_papers_heads(data: Path, name: str) -> None:
    """The whole detector, on rows whose mean is the authors' mean, compared with the authors' rule in NumPy."""
    file = data / "checkpoints" / f"densenet101-{name}.pth.tar"
    state = torch.load(file, map_location="cpu", weights_only=True)["state_dict"]
    mean = torch.from_numpy(np.load(data / "checkpoints" / f"mean-activation-{name}.npy"))
    noise = torch.rand(64, len(mean), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    embedding = mean * (0.5 + noise)
    features = Features(embedding, head=Head(state["fc.weight"], state["fc.bias"]))
    weight, bias = state["fc.weight"].double().numpy(), state["fc.bias"].double().numpy()
    contributions = weight * embedding.numpy().mean(axis=0)
    for p in PAPER_P:
        masked = weight * (contributions > np.percentile(contributions, 100 * p))
        logits = embedding.numpy() @ masked.T + bias
        want = [slow_scores.energy(row) for row in logits]
        np.testing.assert_allclose(DICE(p=p).fit(features).score(features), want, rtol=1e-4)


def test_the_share_of_weights_really_dropped_is_reported() -> None:
    """Weights of dead units contribute 0, so a quantile of 0 drops all of them."""
    plain = example_features(width=20)
    DICE(p=0.3).fit(plain)
    embedding = plain.embedding.clone()
    embedding[:, :15] = 0
    with pytest.warns(FitWarning, match=r"dice\(0.3\)\+energy drops [7-9]\d% of the weights, not p=30%"):
        DICE(p=0.3).fit(Features(embedding, head=plain.head))
