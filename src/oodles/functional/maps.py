"""What is kept of a feature map ``(n, channels, positions)``: one vector per row."""

import torch
from torch import Tensor
from torch.nn import functional as F

ITERATIONS = 20
MIN_NORM = 1e-30  # no vector of numbers up to 1 that matters is shorter than this


def without_first_component(maps: Tensor) -> Tensor:
    """Maps without their first singular component, averaged over positions: ``(n, c, k) -> (n, c)``.

    ``mean(X - s1 u1 v1') = mean(X) - mean(v1) X v1`` (Song, Sebe & Wang, NeurIPS 2022). ``v1`` is found by 20 power
    iterations on the smaller of ``X'X`` and ``XX'``, started from equal values at every position: for maps without
    negative values that is close to ``v1``, and scores are reproducible.

    >>> without_first_component(torch.tensor([[[4.0, 0.0], [0.0, 1.0]]])).round(decimals=4)
    tensor([[0.0000, 0.5000]])
    """
    scale = _divisor(maps, (1, 2))
    scaled = maps / scale
    channels, positions = maps.shape[1:]
    vector = maps.new_full((maps.shape[0], positions, 1), positions**-0.5)
    if positions <= channels:
        products = scaled.mT @ scaled
    else:
        products, vector = scaled @ scaled.mT, scaled @ vector
    for _ in range(ITERATIONS):
        vector = _unit(products @ vector)
    if positions > channels:
        vector = _unit(scaled.mT @ vector)
    removed = (scaled @ vector) * vector.mean(dim=1, keepdim=True)
    return (scaled.mean(dim=2, keepdim=True) - removed)[:, :, 0] * scale[:, :, 0]


def gram_row_sums(maps: Tensor, orders: int) -> Tensor:
    """Row sums of the Gram matrices of orders 1 to ``orders``, one after another: ``(n, c, k) -> (n, orders * c)``.

    ``G_p = (F^p F^p')^(1/p)`` with powers of single values, and a root that keeps the sign, of the sums of its rows
    (Sastry & Oore, ICML 2020). A row's sum is ``F_i^p`` times the sum over channels of ``F_j^p``, so no matrix of
    channels by channels is made. Values are divided by their maximum first, because tenth powers overflow.

    >>> gram_row_sums(torch.tensor([[[1.0, 2.0], [0.0, 3.0]]]), 2)
    tensor([[11.0000, 15.0000,  7.2801, 10.8167]])
    """
    whole, channel = _divisor(maps, (1, 2)), _divisor(maps, (2,))
    of_whole, of_channel = maps / whole, maps / channel
    power, row_power, sums = torch.ones_like(maps), torch.ones_like(maps), []
    for order in range(1, orders + 1):
        power, row_power = power * of_whole, row_power * of_channel
        rows = (row_power * power.sum(dim=1, keepdim=True)).sum(dim=2)
        sums.append(rows.sign() * rows.abs() ** (1 / order) * channel[:, :, 0] * whole[:, :, 0])
    return torch.cat(sums, dim=1)


def _divisor(maps: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The largest absolute value, 1 where all are zero."""
    largest = maps.detach().abs().amax(dim=dims, keepdim=True)
    return torch.where(largest == 0, 1.0, largest)


def _unit(vectors: Tensor) -> Tensor:
    return F.normalize(vectors, dim=1, eps=MIN_NORM)
