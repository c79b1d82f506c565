"""Shaping embeddings before the head, ``(n, m) -> (n, m)``."""

from torch import Tensor


def clip(embedding: Tensor, threshold: Tensor | float) -> Tensor:
    """Activations cut off from above (ReAct; Sun, Guo & Li, NeurIPS 2021).

    >>> import torch
    >>> clip(torch.tensor([[0.5, 3.0]]), 1.0)
    tensor([[0.5000, 1.0000]])
    """
    return embedding.clamp(max=threshold)
