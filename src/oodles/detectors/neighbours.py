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

    def kept_rows(self) -> Tensor:
        """The rows of the bank that inputs of unit length are compared with, in float64."""
        return self.bank_.double()

    def nearest(self, rows: Tensor) -> Tensor:
        """The ``k`` largest products of each row with the bank, ``(n, k)``."""
        if torch.compiler.is_exporting() or len(rows) <= TILE:  # a graph has no loop over an unknown number of tiles
            return self._nearest(rows)
        return torch.cat([self._nearest(tile) for tile in torch.split(rows, TILE)])

    def _nearest(self, rows: Tensor) -> Tensor:
        parts = [slice(start, start + CHUNK) for start in range(0, len(self.bank_), CHUNK)]
        best = [self._largest(self._products(rows, part)) for part in parts]
        return self._largest(torch.cat(best, dim=1))

    def _products(self, rows: Tensor, part: slice) -> Tensor:
        return rows @ self.bank_[part].T

    def _largest(self, products: Tensor) -> Tensor:
        return products.topk(min(self.k, products.shape[1]), dim=1).values


class KNN(_Neighbours):
    """Minus half the squared distance to the ``k``-th nearest of up to ``bank`` training rows, all of unit length.

    Sun et al., ICML 2022; it is the cosine minus one. The authors use k = 50 on CIFAR-10 and 200 on CIFAR-100 with all
    rows, 10 with 1 % of ImageNet; with a sample, k shrinks in proportion, so 10 of 10,000 corresponds to 50 of 50,000.

    >>> train = Features(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]))
    >>> KNN(k=1).fit(train).score(Features(torch.tensor([[5.0, 0.0], [1.0, 1.0]])))  # only directions matter
    tensor([ 0.0000, -0.2260])
    """

    learns_from = ("embedding",)
    scores_from = ("embedding",)
    centre_: Tensor
    offset_: Tensor

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        bank = F.normalize(statistics["rows"].rows().double(), dim=1)
        # about their mean: the cosines of rows with a large common part differ in digits that float32 does not have
        self.centre_ = bank.mean(dim=0).float()
        self._keep((bank - self.centre_).float())
        self.offset_ = -self.bank_.double().square().sum(dim=1).float() / 2

    @override
    def kept_rows(self) -> Tensor:
        return self.bank_.double() + self.centre_.double()

    @override
    def _products(self, rows: Tensor, part: slice) -> Tensor:
        return torch.addmm(self.offset_[part], rows, self.bank_[part].T)

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        rows = F.normalize(embedding, dim=1) - self.centre_
        return (self.nearest(rows)[:, -1] - rows.square().sum(dim=1) / 2).clamp(max=0)


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
        return (energy(logits) + self.shift_) * self.nearest(F.normalize(embedding, dim=1)).mean(dim=1)
