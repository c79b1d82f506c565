"""Synthetic outliers, made from ID data alone: the DICE paper's noise, and those of Hendrycks et al. (2019).

Images are made from pixels between 0 and 1, before normalisation. Use images that the network was not trained on: the
mean of two training images is nearly ID for a network that has memorised both.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from oodles.data.batches import BatchReader, first_images
from oodles.errors import ArgumentError, DataError
from oodles.features import Features
from oodles.network.extraction import extract
from oodles.network.perturbation import channel_bounds
from oodles.network.taps import unwrap

Maker = Callable[[Tensor, Tensor, torch.Generator], Tensor]
"""Makes outliers from images, the index of an image of a different class for each, and a random generator."""


def arithmetic_mean(images: Tensor, partner: Tensor, generator: torch.Generator) -> Tensor:
    """The mean of two images."""
    return images[partner].add_(images).div_(2)


def geometric_mean(images: Tensor, partner: Tensor, generator: torch.Generator) -> Tensor:
    """The square root of the product of two images."""
    return images[partner].mul_(images).sqrt_()


def jigsaw(images: Tensor, partner: Tensor, generator: torch.Generator) -> Tensor:
    """Quadrants permuted, two of them with their halves swapped: the fixed permutation of the authors' code."""
    height, width = images.shape[2] // 2, images.shape[3] // 2
    top, bottom, left, right = slice(height), slice(height, 2 * height), slice(width), slice(width, 2 * width)
    moved = images.clone()
    moved[:, :, top, left] = images[:, :, top, left].roll(-(height // 2), dims=2)
    moved[:, :, top, right] = images[:, :, bottom, left]
    moved[:, :, bottom, left] = images[:, :, bottom, right]
    moved[:, :, bottom, right] = images[:, :, top, right].roll(-(width // 2), dims=3)
    return moved


def speckle(images: Tensor, partner: Tensor, generator: torch.Generator) -> Tensor:
    """Noise in proportion to each pixel."""
    return torch.randn(images.shape, generator=generator).to(images).mul_(images).add_(images).clamp_(0, 1)


def inverted(images: Tensor, partner: Tensor, generator: torch.Generator) -> Tensor:
    """Green and blue inverted, red unchanged; a single-channel image inverted."""
    if images.shape[1] == 1:
        return 1 - images
    return torch.cat([images[:, :1], 1 - images[:, 1:]], dim=1)


def ghosted(images: Tensor, partner: Tensor, generator: torch.Generator) -> Tensor:
    """Channels rotated, the first of them mirrored."""
    moved = images.roll(-1, dims=1)
    moved[:, :1] = moved[:, :1].flip(3)
    return moved


_MAKERS = (arithmetic_mean, geometric_mean, jigsaw, speckle, inverted, ghosted)
KINDS: dict[str, Maker] = {maker.__name__: maker for maker in _MAKERS}
NOISE = "noise"
BATCH_SIZE = 250


def synthetic_outliers(images: Tensor, kind: str, *, labels: Tensor | None = None, seed: int = 0) -> Tensor:
    """One synthetic outlier for each of ``images`` (pixels from 0 to 1), reproducible by ``seed``.

    With ``labels``, images are combined with images of a different class; without, with any other.

    >>> synthetic_outliers(torch.zeros(2, 3, 4, 4), "inverted")[0, :, 0, 0]
    tensor([0., 1., 1.])
    """
    if kind not in KINDS:
        raise ArgumentError(f"kind={kind!r} must be one of {', '.join(KINDS)}")
    if images.ndim != 4 or len(images) < 2:
        shape = tuple(images.shape)
        raise ArgumentError(f"at least two images (n, c, h, w) are needed, got shape {shape}; give a batch of them")
    generator = torch.Generator().manual_seed(seed)
    return KINDS[kind](images, _partners(len(images), labels, generator), generator)


class NoiseImages:
    """Batches of images whose every pixel is N(0, 1) after normalisation; the same in every iteration."""

    def __init__(self, shape: Sequence[int], count: int, *, seed: int = 0) -> None:
        if count < 1:
            raise ArgumentError(f"{count} noise images were requested; at least one is needed")
        self.shape, self.count, self.seed = shape, count, seed

    def __len__(self) -> int:
        return -(-self.count // BATCH_SIZE)

    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        for start in range(0, self.count, BATCH_SIZE):
            yield torch.randn(min(BATCH_SIZE, self.count - start), *self.shape, generator=generator)


def noise_features(model: nn.Module, images: Any, *, count: int = 1000, seed: int = 0, **options: Any) -> Features:
    """Features of ``count`` noise images of the shape of ``images``: a batch, or a loader to take one from.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> noise_features(model, torch.rand(2, 3, 2, 2), count=50, progress=False)
    Features(rows=50, width=8, classes=3, labels=no)
    """
    first, _ = first_images(BatchReader(unwrap(model)), [images] if isinstance(images, Tensor) else images, 1)
    return extract(model, NoiseImages(first.shape[1:], count, seed=seed), labels=False, **options)


def outlier_features(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    count: int = 1000,
    seed: int = 0,
    **options: Any,
) -> dict[str, Features]:
    """Features of every kind of synthetic outlier, made from the first ``count`` held-out ID images of ``loader``.

    ``mean`` and ``std`` are those of the images' normalisation; without them, each channel's own range is mapped to 0
    to 1. ``options`` are passed to :func:`oodles.extract`.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> outliers = outlier_features(model, [torch.rand(20, 3, 4, 4)], progress=False)
    >>> list(outliers), len(outliers["jigsaw"])
    (['noise', 'arithmetic_mean', 'geometric_mean', 'jigsaw', 'speckle', 'inverted', 'ghosted'], 20)
    """
    images, labels = first_images(BatchReader(unwrap(model)), loader, count)
    images, labels = images.cpu(), None if labels is None else labels.cpu()
    if mean and std:  # the values of pixels 0 and 1 after normalisation
        low, high = ((end - torch.tensor(mean)) / torch.tensor(std) for end in (0, 1))
        low, high = low.view(1, -1, 1, 1), high.view(1, -1, 1, 1)
    else:
        low, high = channel_bounds(images)
    width = (high - low).clamp(min=1e-12)
    pixels = (images - low).div_(width).clamp_(0, 1)
    del images
    options["labels"] = False

    def features(made: Tensor) -> Features:
        return extract(model, list(torch.split(made, BATCH_SIZE)), **options)

    # one kind after another, so that only one is in memory beside the images
    noise = features(torch.randn(pixels.shape, generator=torch.Generator().manual_seed(seed)))
    return {NOISE: noise} | {
        kind: features(synthetic_outliers(pixels, kind, labels=labels, seed=seed).mul_(width).add_(low))
        for kind in KINDS
    }


def mixed_features(held_out: Features, *, seed: int = 0) -> dict[str, Features]:
    """Outliers without images: means of two embeddings of different predicted classes, and units shuffled over rows.

    >>> from oodles.testing import example_features
    >>> {kind: len(rows) for kind, rows in mixed_features(example_features(rows=100)).items()}
    {'mixed': 88, 'shuffled': 100}
    """
    if held_out.head is None:
        raise DataError(
            f"mixing embeddings needs the head, which {held_out} does not have; extract them from the model"
        )
    generator = torch.Generator().manual_seed(seed)
    embedding, classes = held_out.embedding, held_out.logits.argmax(dim=1)
    partner = torch.randperm(len(held_out), generator=generator)
    different = classes[partner] != classes
    if not different.any():
        raise DataError(
            "all held-out rows are predicted to be of the same class, so there is nothing to mix; give more rows"
        )
    order = torch.stack([torch.randperm(len(held_out), generator=generator) for _ in range(held_out.width)], dim=1)
    return {
        "mixed": Features((embedding + embedding[partner])[different] / 2, head=held_out.head),
        "shuffled": Features(embedding.gather(0, order.to(embedding.device)), head=held_out.head),
    }


def _partners(count: int, labels: Tensor | None, generator: torch.Generator) -> Tensor:
    """For each row another one, of a different class if there is one."""
    own = torch.arange(count)
    partner = (own + torch.randint(1, count, (count,), generator=generator)) % count
    if labels is None:
        return partner
    for _ in range(100):
        same = labels[partner] == labels
        if not same.any():
            break
        again = (own + torch.randint(1, count, (count,), generator=generator)) % count
        partner = torch.where(same, again, partner)
    return partner
