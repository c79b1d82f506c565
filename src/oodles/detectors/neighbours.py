"""Detectors that keep training rows: KNN and NNGuide."""

import warnings

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from oodles.detectors.arguments import check_whole
from oodles.detectors.base import Detector, Statistics
from oodles.detectors.statistics import RowSample, Statistic, row_keys
from oodles.errors import ArgumentError, FitWarning
from oodles.features import Features, Head
from oodles.functional import energy

BANK = 10_000
TILE, CHUNK = 512, 2048  # rows compared at a time, and with how many of the bank: their cosines stay in the caches


class _Neighbours(Detector):
    rows_at_once = 4096  # of narrow rows, the neighbours take most memory
    bank_: Tensor

    def __init__(self, *, k: int = 10, bank: int = BANK) -> None:
        super().__init__()
        self.bank = check_whole("bank", bank, 1)
        self.k = check_whole("k", k, 1)
        if k > bank:
            raise ArgumentError(f"k={k} neighbours cannot be found in bank={bank} rows; give a smaller k")

    @override
    def begin(self) -> dict[str, Statistic]:
        return {"rows": RowSample(self.bank)}

    def _keep(self, bank: Tensor) -> None:
        if len(bank) < self.k:
            warnings.warn(f"{self}: there are only {len(bank)} rows, so k is {len(bank)}", FitWarning, stacklevel=2)
        self.bank_ = bank

    def nearest(self, embedding: Tensor) -> Tensor:
        """The ``k`` largest products of each row's direction with the bank, ``(n, k)``."""
        unit = F.normalize(embedding, dim=1)
        if torch.compiler.is_exporting() or len(unit) <= TILE:  # a graph has no loop over an unknown number of tiles
            return self._nearest(unit)
        return torch.cat([self._nearest(tile) for tile in torch.split(unit, TILE)])

    def _nearest(self, unit: Tensor) -> Tensor:
        parts = torch.split(self.bank_, CHUNK)
        best = [(unit @ part.T).topk(min(self.k, len(part)), dim=1).values for part in parts]
        return torch.cat(best, dim=1).topk(min(self.k, len(self.bank_)), dim=1).values


class KNN(_Neighbours):
    """Cosine to the ``k``-th nearest of up to ``bank`` training embeddings (Sun et al., ICML 2022).

    It ranks like minus the distance between normalised embeddings, and stays precise where that is near 0. The authors
    use k = 50 on CIFAR-10 and 200 on CIFAR-100 with all rows, 10 with 1 % of ImageNet; with a sample, k shrinks
    in proportion, so 10 of 10,000 corresponds to 50 of 50,000.

    >>> train = Features(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]))
    >>> KNN(k=1).fit(train).score(Features(torch.tensor([[5.0, 0.0], [1.0, 1.0]])))  # only directions matter
    tensor([1.0000, 0.7740])
    """

    learns_from = ("embedding",)
    scores_from = ("embedding",)

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        self._keep(F.normalize(statistics["rows"].rows(), dim=1))

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        return self.nearest(embedding)[:, -1]


class NNGuide(_Neighbours):
    """Energy times the mean guided similarity to the ``k`` nearest training rows (Park et al., ICCV 2023).

    ``s = E(x) * mean of the k largest E_i cos(h, h_i)``. If any training row has a negative energy, energies are
    shifted to be positive on the training rows, because products of negative ones would reverse the ranking.

    >>> head = Head(torch.eye(2))
    >>> detector = NNGuide(k=1).fit(Features(torch.tensor([[4.0, 0.0], [0.0, 4.0]]), head=head))
    >>> detector.score(Features(torch.tensor([[4.0, 0.0], [1.0, 0.0]]), head=head))  # the length matters, too
    tensor([16.1455,  5.2769])
    """

    learns_from = ("embedding", "logits")
    scores_from = ("embedding", "logits")
    shift_: Tensor

    @override
    def observe(self, batch: Features, statistics: Statistics) -> None:
        energies = energy(batch.logits.float())[:, None]
        statistics["rows"].add(batch.embedding, energies, keys=row_keys(batch.embedding))

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        rows = statistics["rows"].rows()
        energies = rows[:, -1:]
        self.shift_ = (-energies.min()).clamp(min=0)
        self._keep(F.normalize(rows[:, :-1], dim=1) * (energies + self.shift_))

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        return (energy(logits) + self.shift_) * self.nearest(embedding).mean(dim=1)
