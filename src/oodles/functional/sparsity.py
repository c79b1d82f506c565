"""Which weights of the last layer to keep: masks ``(C, m)``, True where a weight is kept.

``p`` is the fraction dropped. Thresholds are ``p``-quantiles in float64 with linear interpolation, and only values
strictly above them are kept, so ties are dropped: the rule of the DICE paper's listing. ``p = 0`` keeps everything
(the strict rule would drop the smallest entry).
"""

import torch
from torch import Tensor

from oodles.functional.quantiles import quantile


def contribution(weight: Tensor, mean: Tensor) -> Tensor:
    r"""Mean contribution of each weight to its logit, :math:`V = W \odot E[h]`, in float64.

    >>> contribution(torch.tensor([[1.0, -2.0]]), torch.tensor([3.0, 4.0]))
    tensor([[ 3., -8.]], dtype=torch.float64)
    """
    return weight.double() * mean.double()


def keep_largest(values: Tensor, p: float) -> Tensor:
    """True for values strictly above the ``p``-quantile of all of them.

    >>> keep_largest(torch.tensor([1.0, 2.0, 3.0, 4.0]), 0.5)
    tensor([False, False,  True,  True])
    """
    if p == 0:
        return torch.ones_like(values, dtype=torch.bool)
    return values.double() > quantile(values, p)


def keep_random(shape: tuple[int, ...], p: float, seed: int) -> Tensor:
    """True for a fixed random choice of the fraction ``1 - p`` of entries, at least one, drawn on the CPU.

    >>> int(keep_random((10, 10), 0.9, seed=0).sum())
    10
    """
    entries = int(torch.Size(shape).numel())
    order = torch.randperm(entries, generator=torch.Generator().manual_seed(seed))
    mask = torch.zeros(entries, dtype=torch.bool)
    mask[order[: max(1, round((1 - p) * entries))]] = True
    return mask.view(shape)


def keep_units(values: Tensor, p: float, classes: int) -> Tensor:
    """:func:`keep_largest` over whole units: one value per column, repeated for every class.

    >>> keep_units(torch.tensor([1.0, 3.0, 2.0]), 0.5, classes=2)
    tensor([[False,  True, False],
            [False,  True, False]])
    """
    return keep_largest(values, p).expand(classes, -1)
