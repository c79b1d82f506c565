"""Embeddings like those of a trained network, of any size."""

import math

import torch
from torch import Tensor

from oodles.features import Features, Head


def centres(width: int, classes: int) -> Tensor:
    """Mean embeddings of the classes: non-negative, mostly near zero."""
    return torch.rand(classes, width, generator=torch.Generator().manual_seed(0)) ** 4


def head_of(width: int, classes: int) -> Head:
    """The head that recognises the classes, with logits so large that its probabilities are calibrated."""
    means = centres(width, classes)
    weight = (means - means.mean(dim=0)) * (40 / width) * (1.3 + math.log10(classes))
    return Head(weight, torch.linspace(-0.1, 0.1, classes))


def rows_of(count: int, width: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Embeddings after a ReLU and their labels; every class occurs, and one label in twenty is wrong."""
    generator = torch.Generator().manual_seed(seed)
    looks = torch.arange(count)[torch.randperm(count, generator=generator)] % classes
    noise = torch.randn(count, width, generator=generator)
    labels = looks.clone()
    labels[::20] = (labels[::20] + 1) % classes
    return noise.mul_(0.3).add_(centres(width, classes)[looks]).relu_(), labels


def example(count: int, width: int, classes: int, seed: int = 1) -> Features:
    """Features with the network's own logits, as an extraction gives them."""
    head = head_of(width, classes)
    embedding, labels = rows_of(count, width, classes, seed)
    return Features(embedding, logits=head(embedding), labels=labels, head=head)
