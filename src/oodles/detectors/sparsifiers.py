"""Sparsifiers: which weights of the last layer are kept. DICE, and the ablations of its paper."""

import torch
from torch import Tensor
from typing_extensions import override

from oodles.detectors.arguments import check_whole
from oodles.detectors.logit import ScoreFunction, Shapes, Sparsifier
from oodles.errors import ArgumentError
from oodles.functional import contribution, energy, keep_largest, keep_random, keep_units

MAX_SEED = 2**31 - 1


class DICE(Sparsifier):
    """Keep only the weights that contribute most on ID data, then score with the energy (Sun & Li, ECCV 2022).

    ``p`` is the fraction of weights dropped: 0.9 is the paper's choice on CIFAR, 0.7 on ImageNet. Weights with equal
    contributions, such as those of dead units, are dropped together; :meth:`fit` warns if the fraction is much larger.
    With ``shape=ReAct(percentile=90)`` it is DICE + ReAct, with ``score=msp`` DICE + MSP. Contributions are signed: a
    negative weight of a unit that is negative on average counts as positive.

    >>> weight, mean = torch.tensor([[2.0, 1.0, -3.0, 0.5]]), torch.tensor([1.0, 4.0, 1.0, 0.1])
    >>> DICE(p=0.5).mask(weight, mean)  # of the contributions 2, 4, -3 and 0.05, the two largest
    tensor([[ True,  True, False, False]])
    """

    needs = ("mean",)

    @override
    def mask(self, weight: Tensor, mean: Tensor) -> Tensor:
        return keep_largest(contribution(weight, mean), self.p)


class BottomK(Sparsifier):
    """Keep the weights that contribute least (an ablation of Sun & Li, ECCV 2022).

    >>> weight, mean = torch.tensor([[2.0, 1.0, -3.0, 0.5]]), torch.tensor([1.0, 4.0, 1.0, 0.1])
    >>> BottomK(p=0.5).mask(weight, mean)  # of the contributions 2, 4, -3 and 0.05, the two smallest
    tensor([[False, False,  True,  True]])
    """

    needs = ("mean",)

    @override
    def mask(self, weight: Tensor, mean: Tensor) -> Tensor:
        return keep_largest(-contribution(weight, mean), self.p)


class TopBottomK(Sparsifier):
    """Keep the weights whose contributions are largest in absolute value (an ablation of Sun & Li, ECCV 2022).

    >>> weight, mean = torch.tensor([[2.0, 1.0, -3.0, 0.5]]), torch.tensor([1.0, 4.0, 1.0, 0.1])
    >>> TopBottomK(p=0.5).mask(weight, mean)  # of the contributions 2, 4, -3 and 0.05, the two largest by size
    tensor([[False,  True,  True, False]])
    """

    needs = ("mean",)

    @override
    def mask(self, weight: Tensor, mean: Tensor) -> Tensor:
        return keep_largest(contribution(weight, mean).abs(), self.p)


class WeightPruning(Sparsifier):
    """Keep the weights that are largest in absolute value (an ablation of Sun & Li, ECCV 2022).

    >>> weight, mean = torch.tensor([[2.0, 1.0, -3.0, 0.5]]), torch.tensor([1.0, 4.0, 1.0, 0.1])
    >>> WeightPruning(p=0.5).mask(weight, mean)  # the activations do not matter
    tensor([[ True, False,  True, False]])
    """

    @override
    def mask(self, weight: Tensor, mean: Tensor) -> Tensor:
        return keep_largest(weight.abs(), self.p)


class UnitPruning(Sparsifier):
    """Keep whole units with the largest weight vectors or mean activations (an ablation of Sun & Li, ECCV 2022).

    >>> weight, mean = torch.tensor([[1.0, 3.0], [2.0, 3.0]]), torch.tensor([5.0, 1.0])
    >>> UnitPruning(p=0.5).mask(weight, mean), UnitPruning(p=0.5, by="activation").mask(weight, mean)
    (tensor([[False,  True],
            [False,  True]]), tensor([[ True, False],
            [ True, False]]))
    """

    def __init__(
        self, *, p: float = 0.9, by: str = "weight", shape: Shapes = (), score: ScoreFunction = energy
    ) -> None:
        super().__init__(p=p, shape=shape, score=score)
        if by not in ("weight", "activation"):
            raise ArgumentError(f"by={by!r} must be 'weight' (the paper) or 'activation'")
        self.by = by
        self.needs = () if by == "weight" else ("mean",)

    @override
    def mask(self, weight: Tensor, mean: Tensor) -> Tensor:
        size = torch.linalg.vector_norm(weight.double(), dim=0) if self.by == "weight" else mean
        return keep_units(size, self.p, weight.shape[0])


class _Seeded(Sparsifier):
    def __init__(self, *, p: float = 0.9, seed: int = 0, shape: Shapes = (), score: ScoreFunction = energy) -> None:
        super().__init__(p=p, shape=shape, score=score)
        self.seed = check_whole("seed", seed, 0, MAX_SEED)


class RandomK(_Seeded):
    """Keep a fixed random selection of contributions (an ablation of Sun & Li, ECCV 2022).

    >>> weight, mean = torch.ones(2, 4), torch.ones(4)
    >>> RandomK(p=0.5, seed=1).mask(weight, mean)  # half of all, the same for the same seed
    tensor([[ True, False,  True, False],
            [ True, False, False,  True]])
    """

    @override
    def mask(self, weight: Tensor, mean: Tensor) -> Tensor:
        return keep_random(tuple(weight.shape), self.p, 2 * self.seed)


class WeightDropout(_Seeded):
    """Keep a fixed random selection of weights: random-k with another draw (an ablation of Sun & Li, ECCV 2022).

    >>> weight, mean = torch.ones(2, 4), torch.ones(4)
    >>> WeightDropout(p=0.5, seed=1).mask(weight, mean)
    tensor([[False, False,  True,  True],
            [ True,  True, False, False]])
    """

    @override
    def mask(self, weight: Tensor, mean: Tensor) -> Tensor:
        return keep_random(tuple(weight.shape), self.p, 2 * self.seed + 1)


class UnitDropout(_Seeded):
    """Keep a fixed random selection of whole units (an ablation of Sun & Li, ECCV 2022).

    >>> weight, mean = torch.ones(2, 4), torch.ones(4)
    >>> UnitDropout(p=0.5, seed=1).mask(weight, mean)  # the same units for every class
    tensor([[False,  True, False,  True],
            [False,  True, False,  True]])
    """

    @override
    def mask(self, weight: Tensor, mean: Tensor) -> Tensor:
        return keep_random((1, weight.shape[1]), self.p, self.seed).expand(weight.shape[0], -1)
