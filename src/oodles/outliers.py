"""Stand-ins for the unknown, made from ID images alone: the paper's noise, and those of Hendrycks et al. (2019).

They work on pixels between 0 and 1; normalising comes afterwards. Give them images the network was not trained on:
the mean of two training images is near-ID to a network that has memorised both.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from oodles.errors import ArgumentError

Maker = Callable[[Tensor, Tensor, torch.Generator], Tensor]
"""Stand-ins from images, for each the index of another one of a different class, and chance."""


def arithmetic_mean(images: Tensor, partner: Tensor, chance: torch.Generator) -> Tensor:
    """Half of an image and half of another."""
    return (images + images[partner]) / 2


def geometric_mean(images: Tensor, partner: Tensor, chance: torch.Generator) -> Tensor:
    """The root of the product of two images."""
    return (images * images[partner]).sqrt()


def jigsaw(images: Tensor, partner: Tensor, chance: torch.Generator) -> Tensor:
    """Quadrants moved, two of them with their halves swapped: the fixed permutation of the authors' code."""
    height, width = images.shape[2] // 2, images.shape[3] // 2
    top_left, top_right = images[:, :, :height, :width], images[:, :, :height, width : 2 * width]
    bottom_left, bottom_right = images[:, :, height : 2 * height, :width], images[:, :, height : 2 * height, width:]
    swapped_rows = torch.cat([top_left[:, :, height // 2 :], top_left[:, :, : height // 2]], dim=2)
    swapped_columns = torch.cat([top_right[..., width // 2 :], top_right[..., : width // 2]], dim=3)
    top = torch.cat([swapped_rows, bottom_left], dim=3)
    bottom = torch.cat([bottom_right[..., :width], swapped_columns], dim=3)
    moved = images.clone()
    moved[:, :, : 2 * height, : 2 * width] = torch.cat([top, bottom], dim=2)
    return moved


def speckle(images: Tensor, partner: Tensor, chance: torch.Generator) -> Tensor:
    """Noise in proportion to the pixel."""
    return (images + images * torch.randn(images.shape, generator=chance)).clamp(0, 1)


def inverted(images: Tensor, partner: Tensor, chance: torch.Generator) -> Tensor:
    """Green and blue inverted, red as it was; an image of one channel inverted."""
    if images.shape[1] == 1:
        return 1 - images
    return torch.cat([images[:, :1], 1 - images[:, 1:]], dim=1)


def ghosted(images: Tensor, partner: Tensor, chance: torch.Generator) -> Tensor:
    """Channels moved round, the first of them mirrored."""
    moved = images.roll(-1, dims=1)
    moved[:, :1] = moved[:, :1].flip(3)
    return moved


KINDS: dict[str, Maker] = {
    maker.__name__: maker for maker in (arithmetic_mean, geometric_mean, jigsaw, speckle, inverted, ghosted)
}
NOISE = "noise"


def stand_ins(images: Tensor, kind: str, *, labels: Tensor | None = None, seed: int = 0) -> Tensor:
    """One stand-in for each of ``images`` (pixels from 0 to 1), the same each time for the same seed.

    ``labels`` make the means those of two images of different classes; without, of any two.

    >>> stand_ins(torch.zeros(2, 3, 4, 4), "inverted")[0, :, 0, 0]
    tensor([0., 1., 1.])
    """
    if kind not in KINDS:
        raise ArgumentError(f"{kind!r} is no kind of stand-in; there are {', '.join(KINDS)}")
    if images.ndim != 4 or len(images) < 2:
        raise ArgumentError(f"stand-ins are made from at least two images (n, c, h, w), got {tuple(images.shape)}")
    chance = torch.Generator().manual_seed(seed)
    return KINDS[kind](images, _partners(len(images), labels, chance), chance)


def _partners(count: int, labels: Tensor | None, chance: torch.Generator) -> Tensor:
    """For each row another one, of a different class where there is any."""
    own = torch.arange(count)
    partner = (own + torch.randint(1, count, (count,), generator=chance)) % count
    if labels is None:
        return partner
    for _ in range(100):
        same = labels[partner] == labels
        if not same.any():
            break
        again = (own + torch.randint(1, count, (count,), generator=chance)) % count
        partner = torch.where(same, again, partner)
    return partner
