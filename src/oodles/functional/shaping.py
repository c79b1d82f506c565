"""Shaping embeddings before the head, ``(n, m) -> (n, m)``.

``percentile`` is the percentage of units dropped: ``k = m - round(m * percentile / 100)`` units are kept, at least one.
Ratios are of sums of positive parts, which for ReLU networks are the activations themselves.
"""

import torch
from torch import Tensor

MAX_EXPONENT = 80.0
"""Ratios are clipped here: beyond it, their exponential times an activation would overflow float32."""


def clip(embedding: Tensor, threshold: Tensor | float) -> Tensor:
    """Activations clipped from above (ReAct; Sun, Guo & Li, NeurIPS 2021).

    >>> clip(torch.tensor([[0.5, 3.0]]), 1.0)
    tensor([[0.5000, 1.0000]])
    """
    return embedding.clamp(max=threshold)


def between(embedding: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Activations below ``low`` set to 0, those above ``high`` clipped (VRA; Xu et al., NeurIPS 2023).

    >>> between(torch.tensor([[0.1, 0.5, 3.0]]), torch.tensor(0.2), torch.tensor(1.0))
    tensor([[0.0000, 0.5000, 1.0000]])
    """
    # a product, because NaN times 0 stays NaN; with 0 and 1 as floats, which is several times faster than with a mask
    return torch.minimum(embedding, high).mul_(embedding.detach().clone().ge_(low))


def kept_units(width: int, percentile: float) -> int:
    """How many units are kept; rounding is half to even, as in the authors' code."""
    return max(1, width - round(width * percentile / 100))


def keep_top(embedding: Tensor, percentile: float) -> Tensor:
    """Each row's largest activations, 0 elsewhere (ASH-P; Djurisic et al., ICLR 2023).

    >>> keep_top(torch.tensor([[1.0, 4.0, 2.0, 3.0]]), 50)
    tensor([[0., 4., 0., 3.]])
    """
    values, places = _top(embedding, percentile)
    return torch.zeros_like(embedding).scatter(-1, places, values)


def binarise_top(embedding: Tensor, percentile: float) -> Tensor:
    """Each row's largest activations set to one value so that the row's sum stays the same, 0 elsewhere (ASH-B).

    >>> binarise_top(torch.tensor([[1.0, 4.0, 2.0, 3.0]]), 50)
    tensor([[0., 5., 0., 5.]])
    """
    places = _top(embedding, percentile)[1]
    level = embedding.sum(dim=-1, keepdim=True) / places.shape[-1]
    return torch.zeros_like(embedding).scatter(-1, places, level.expand_as(places))


def top_ratio(embedding: Tensor, percentile: float) -> Tensor:
    """The sum of each row divided by that of its largest activations, ``(n, 1)``; 1 if nothing is positive.

    >>> top_ratio(torch.tensor([[1.0, 4.0, 2.0, 3.0]]), 50)
    tensor([[1.4286]])
    """
    positive = embedding.relu()
    return _ratio(positive, _top(positive, percentile)[0].sum(dim=-1, keepdim=True))


def prefix_ratio(embedding: Tensor, kept: Tensor) -> Tensor:
    """Like :func:`top_ratio`, with a number of largest activations per row, ``kept``: ``(n, 1)``.

    >>> prefix_ratio(torch.tensor([[1.0, 4.0, 2.0, 3.0], [1.0, 4.0, 2.0, 3.0]]), torch.tensor([2, 1]))
    tensor([[1.4286],
            [2.5000]])
    """
    positive = embedding.relu()
    sums = positive.sort(dim=-1, descending=True).values.cumsum(dim=-1)
    return _ratio(positive, sums.gather(-1, kept[..., None] - 1))


def _top(embedding: Tensor, percentile: float) -> tuple[Tensor, Tensor]:
    """The largest activations of each row and their places, in no order."""
    values, places = embedding.topk(kept_units(embedding.shape[-1], percentile), dim=-1, sorted=False)
    return values, places


def _ratio(positive: Tensor, top: Tensor) -> Tensor:
    whole = positive.sum(dim=-1, keepdim=True)
    return torch.where(top == 0, 1.0, whole / top).clamp(max=MAX_EXPONENT)


def scale_rows(embedding: Tensor, percentile: float) -> Tensor:
    """Each row times the exponential of its ratio (SCALE; Xu et al., ICLR 2024).

    >>> scale_rows(torch.tensor([[1.0, 1.0]]), 50)
    tensor([[7.3891, 7.3891]])
    """
    return embedding * top_ratio(embedding, percentile).exp()


def prune_and_scale(embedding: Tensor, percentile: float) -> Tensor:
    """Each row's largest activations times the exponential of its ratio, 0 elsewhere (ASH-S).

    >>> prune_and_scale(torch.tensor([[2.0, 1.0]]), 50)
    tensor([[8.9634, 0.0000]])
    """
    values, places = _top(embedding, percentile)
    ratio = _ratio(embedding.relu(), values.relu().sum(dim=-1, keepdim=True))
    return torch.zeros_like(embedding).scatter(-1, places, values * ratio.exp())
