"""Detectors that keep training rows: KNN and NNGuide."""

import torch
from torch import Tensor
from torch.nn import functional as F

from oodles.detectors.base import Detector, Statistics
from oodles.detectors.statistics import RowSample, Statistic, row_keys
from oodles.errors import ArgumentError, DataError
from oodles.features import Features, Head
from oodles.functional import energy

BANK = 10_000
CHUNK = 2048
"""Rows of the bank compared at a time: their cosines with a batch stay in the caches."""


class _Neighbours(Detector):
    bank_: Tensor

    def __init__(self, k: int, bank: int) -> None:
        super().__init__()
        if not isinstance(k, int) or not 1 <= k <= bank:
            raise ArgumentError(f"k={k} must be a whole number from 1 to bank={bank}")
        self.k = k
        self.bank = bank
        self.register_buffer("bank_", None)

    def begin(self) -> dict[str, Statistic]:
        """A sample of training rows."""
        return {"rows": RowSample(self.bank)}

    def _keep(self, bank: Tensor) -> None:
        self.remarks = (f"{self}: {len(bank)} rows to keep, so k is {len(bank)}",) if len(bank) < self.k else ()
        self.bank_ = bank

    def nearest(self, embedding: Tensor) -> Tensor:
        """The ``k`` largest products of each row's direction with the bank, ``(n, k)``."""
        unit = F.normalize(embedding, dim=1)
        best = None
        for part in torch.split(self.bank_, CHUNK):
            products = unit @ part.T
            found = products.topk(min(self.k, len(part)), dim=1).values
            best = (
                found
                if best is None
                else torch.cat([best, found], dim=1).topk(min(self.k, best.shape[1] + found.shape[1]), dim=1).values
            )
        if best is None:
            raise DataError(f"{self} holds no rows")
        return best


class KNN(_Neighbours):
    """Cosine to the ``k``-th nearest of up to ``bank`` training embeddings (Sun et al., ICML 2022).

    It ranks as minus the distance between normalised embeddings, and keeps its digits where that is near 0. The authors
    take k = 50 on CIFAR-10 and 200 on CIFAR-100 with all rows, 10 with a hundredth of ImageNet; with a sample k
    shrinks with it, so 10 of 10,000 is 50 of 50,000.
    """

    learns_from = ("embedding",)
    scores_from = ("embedding",)

    def __init__(self, *, k: int = 10, bank: int = BANK) -> None:
        super().__init__(k, bank)

    def observe(self, batch: Features, statistics: Statistics) -> None:
        """Sample embeddings."""
        statistics["rows"].add(batch.embedding)

    def learn(self, statistics: Statistics, head: Head | None) -> None:
        """Keep their directions."""
        self._keep(F.normalize(statistics["rows"].rows(), dim=1))

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """The k-th largest cosine."""
        return self.nearest(embedding)[:, -1]


class NNGuide(_Neighbours):
    """Energy times the mean guided similarity to the ``k`` nearest training rows (Park et al., ICCV 2023).

    ``s = E(x) * mean of the k largest E_i cos(h, h_i)``. Energies are shifted to be positive on the training rows,
    where any is not, since products of negative ones would turn the order round.
    """

    learns_from = ("embedding", "logits")
    scores_from = ("embedding", "logits")
    shift_: Tensor

    def __init__(self, *, k: int = 10, bank: int = BANK) -> None:
        super().__init__(k, bank)
        self.register_buffer("shift_", None)

    def observe(self, batch: Features, statistics: Statistics) -> None:
        """Sample embeddings with their energies."""
        energies = energy(batch.logits.float())[:, None]
        rows = torch.cat([batch.embedding.float(), energies.to(batch.embedding.device)], dim=1)
        statistics["rows"].add(rows, row_keys(batch.embedding))

    def learn(self, statistics: Statistics, head: Head | None) -> None:
        """Keep directions times energies."""
        rows = statistics["rows"].rows()
        energies = rows[:, -1:]
        self.shift_ = (-energies.min()).clamp(min=0)
        self._keep(F.normalize(rows[:, :-1], dim=1) * (energies + self.shift_))

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """Energy times guidance."""
        return (energy(logits) + self.shift_) * self.nearest(embedding).mean(dim=1)
