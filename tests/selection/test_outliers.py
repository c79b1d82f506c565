"""Synthetic outliers: what each kind looks like, the paper's noise, and their features."""

import math
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.networks import Net, one_thread, pictures, seeded, spread  # noqa: F401
from torch import Tensor, nn

from oodles.errors import ArgumentError, DataError
from oodles.features import Features, Head
from oodles.network.extraction import extract
from oodles.selection import outliers
from oodles.selection.outliers import (
    KINDS,
    NOISE,
    NoiseImages,
    mixed_features,
    noise_features,
    outlier_features,
    synthetic_outliers,
)
from oodles.testing import example_features


def pixels(count: int = 6, channels: int = 3, height: int = 32, width: int = 32) -> Tensor:
    return torch.rand(count, channels, height, width, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 31, 17), (1, 8, 8)])
def test_outliers_have_the_shape_and_range_of_images_and_are_reproducible(
    kind: str, shape: tuple[int, int, int]
) -> None:
    images = pixels(6, *shape)
    before = images.clone()
    made = synthetic_outliers(images, kind, seed=3)
    assert made.shape == images.shape
    assert float(made.min()) >= 0
    assert float(made.max()) <= 1
    assert torch.equal(made, synthetic_outliers(images, kind, seed=3))
    assert torch.equal(images, before), "the images themselves are unchanged"
    if kind != "ghosted" or shape[0] > 1:
        assert not torch.equal(made, images)


def test_means_are_of_two_images_of_two_classes() -> None:
    images = torch.zeros(8, 3, 4, 4)
    images[4:] = 1
    labels = torch.arange(8) // 4
    assert (synthetic_outliers(images, "arithmetic_mean", labels=labels) == 0.5).all()
    assert (synthetic_outliers(images, "geometric_mean", labels=labels) == 0).all()
    alike = synthetic_outliers(images[:4], "arithmetic_mean", labels=labels[:4])
    assert (alike == 0).all(), "with a single class, any other image is used"
    different = torch.eye(9)[:, None, :, None].expand(-1, 3, -1, 9)
    assert float(synthetic_outliers(different, "arithmetic_mean").amax()) == 0.5, "never the image itself"


def test_the_jigsaw_is_the_published_permutation() -> None:
    image = np.arange(16.0).reshape(4, 4) / 16
    made = synthetic_outliers(torch.tensor(image)[None, None].repeat(2, 3, 1, 1), "jigsaw")[0, 0].numpy()
    # top: top left with rows swapped, bottom left; bottom: bottom right, top right with columns swapped
    expected = np.block([[image[[1, 0], :2], image[2:, :2]], [image[2:, 2:], image[:2, [3, 2]]]])
    np.testing.assert_allclose(made, expected)


def test_inverted_and_ghosted_channels() -> None:
    images = pixels(2)
    inverted = synthetic_outliers(images, "inverted")
    assert torch.equal(inverted[:, 0], images[:, 0])
    assert torch.equal(inverted[:, 1:], 1 - images[:, 1:])
    ghost = synthetic_outliers(images, "ghosted")
    assert torch.equal(ghost[:, 0], images[:, 1].flip(2))
    assert torch.equal(ghost[:, 1], images[:, 2])
    assert torch.equal(ghost[:, 2], images[:, 0])


def test_speckle_leaves_black_black() -> None:
    images = torch.zeros(2, 3, 8, 8)
    images[:, :, 4:] = 0.5
    made = synthetic_outliers(images, "speckle")
    assert (made[:, :, :4] == 0).all()
    assert float(made[:, :, 4:].std()) > 0.1


# Noise ------------------------------------------------------------------------------------------


def test_noise_images_are_the_same_in_every_iteration() -> None:
    images = NoiseImages((3, 5, 4), 630, seed=4)
    before = torch.random.get_rng_state()
    once, again = list(images), list(images)
    assert torch.equal(torch.random.get_rng_state(), before), "the global random state is not touched"
    assert len(images) == 3
    assert [tuple(batch.shape) for batch in once] == [(250, 3, 5, 4), (250, 3, 5, 4), (130, 3, 5, 4)]
    assert torch.equal(torch.cat(once), torch.cat(again))
    assert not torch.equal(torch.cat(once), torch.cat(list(NoiseImages((3, 5, 4), 630, seed=5))))


def test_every_pixel_is_standard_normal() -> None:
    values = torch.cat(list(NoiseImages((3, 32, 32), 100))).double().flatten()
    assert abs(float(values.mean())) < 5 / math.sqrt(len(values))
    assert abs(float(values.var()) - 1) < 5 * math.sqrt(2 / len(values))
    fractions = [float((values < bound).double().mean()) for bound in (-1.0, 0.0, 1.0)]
    assert fractions == pytest.approx([0.1587, 0.5, 0.8413], abs=0.004)


@pytest.mark.parametrize("count", [0, -2])
def test_noise_needs_a_count(count: int) -> None:
    with pytest.raises(ArgumentError, match="were requested; at least one is needed"):
        NoiseImages((3, 4, 4), count)


def test_features_of_noise_take_their_shape_from_a_batch_or_a_loader() -> None:
    network = spread(seeded(Net))
    expected = extract(network, NoiseImages((3, 8, 8), 40, seed=2), labels=False)
    batch = pictures(5)
    for images in (batch, [batch], [(batch, torch.zeros(5, dtype=torch.long))], iter([{"image": batch}])):
        got = noise_features(network, images, count=40, seed=2)
        assert (len(got), got.labels, got.width) == (40, None, 8)
        assert torch.equal(got.logits, expected.logits)
    assert not torch.equal(noise_features(network, batch, count=40, seed=3).logits, expected.logits)
    with pytest.raises(DataError, match="gave no batch"):
        noise_features(network, [])


def test_options_are_passed_to_extract(tmp_path: Path) -> None:
    network = spread(seeded(Net))
    got = noise_features(network, pictures(2), count=9, store=tmp_path / "noise", layers=["body"])
    assert set(got.layers) == {"body"}
    assert len(Features.load(tmp_path / "noise")) == 9


# Features ---------------------------------------------------------------------------------------


def test_the_pixels_of_outliers_are_normalised_like_the_images() -> None:
    class Flat(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.flatten(1)

    raw, labels = pixels(12, 3, 8, 8), torch.arange(12) % 3
    more = torch.cat([raw, pixels(8, 3, 8, 8)])  # of which the first 12 are used
    loader = list(zip(((more - 0.5) / 0.25).split(7), (torch.arange(20) % 3).split(7), strict=True))
    found = outlier_features(Flat(), loader, mean=(0.5,) * 3, std=(0.25,) * 3, head=False, count=12)
    assert list(found) == [NOISE, *KINDS]
    for kind in KINDS:
        expected = (synthetic_outliers(raw, kind, labels=labels) - 0.5) / 0.25
        torch.testing.assert_close(found[kind].logits, expected.flatten(1), rtol=1e-4, atol=1e-5)
    assert abs(float(found[NOISE].logits.mean())) < 0.15
    # without mean and std, the range of each channel is mapped to 0 to 1
    low, high = raw.amin(dim=(0, 2, 3), keepdim=True), raw.amax(dim=(0, 2, 3), keepdim=True)
    expected = synthetic_outliers((raw - low) / (high - low), "inverted", labels=labels) * (high - low) + low
    found = outlier_features(Flat(), [(raw, labels)], head=False)
    torch.testing.assert_close(found["inverted"].logits, expected.flatten(1), rtol=1e-4, atol=1e-5)


def test_one_kind_of_outliers_is_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    alive: list[weakref.ref[Tensor]] = []

    def made(*arguments: Any, **options: Any) -> Tensor:
        order.append("make")
        assert all(kind() is None for kind in alive)
        return synthetic_outliers(*arguments, **options)

    def extracted(model: nn.Module, batches: list[Tensor], **options: Any) -> Features:
        order.append("extract")
        alive.append(weakref.ref(batches[0]))
        return extract(model, batches, **options)

    monkeypatch.setattr(outliers, "synthetic_outliers", made)
    monkeypatch.setattr(outliers, "extract", extracted)
    outlier_features(nn.Flatten(), [pixels(12, 3, 8, 8)], head=False)
    assert order == ["extract", *["make", "extract"] * len(KINDS)]


def test_mixed_embeddings() -> None:
    held_out = example_features(400)[250:]
    mixed = mixed_features(held_out)
    assert set(mixed) == {"mixed", "shuffled"}
    torch.testing.assert_close(mixed["shuffled"].embedding.mean(dim=0), held_out.embedding.mean(dim=0))
    with pytest.raises(DataError, match="mixing embeddings needs the head"):
        mixed_features(Features(held_out.embedding, logits=held_out.logits))
    same_class = torch.tensor([[9.0, 0.0, 0.0]]).expand(6, -1)
    with pytest.raises(DataError, match="predicted to be of the same class"):
        mixed_features(Features(same_class, head=Head(torch.eye(3))))
