"""Detectors that look at the directions ID embeddings use: ViM, Residual, NECO."""

import torch
from torch import Tensor

from oodles.detectors.base import Detector, Statistics
from oodles.detectors.statistics import Moments, RowSample, Statistic, row_keys
from oodles.errors import ArgumentError, DataError
from oodles.features import Features, Head
from oodles.functional import energy, max_logit

SAMPLE = 10_000
"""Rows over which means of norms are taken: enough for under one per cent."""
EXPLAINED = 0.9


class Residual(Detector):
    """Minus the norm of the part of an embedding outside the principal subspace (Wang et al., CVPR 2022).

    The origin is where the head says nothing, ``-pinv(W) b``; the subspace is spanned by the ``dimension`` largest
    eigenvectors of the second moment about it: 1,000 from 2,048 units on, 512 from 768 on, else half, unless given.
    """

    learns_from: tuple[str, ...] = ("embedding", "head")
    scores_from: tuple[str, ...] = ("embedding",)
    origin_: Tensor
    outside_: Tensor

    def __init__(self, *, dimension: int | None = None) -> None:
        super().__init__()
        if dimension is not None and (not isinstance(dimension, int) or dimension < 1):
            raise ArgumentError(f"dimension={dimension} must be a whole number, at least 1")
        self.dimension = dimension
        self.register_buffer("origin_", None)
        self.register_buffer("outside_", None)

    def begin(self) -> dict[str, Statistic]:
        """Mean and covariance."""
        return {"moments": Moments()}

    def observe(self, batch: Features, statistics: Statistics) -> None:
        """Add one batch of embeddings."""
        statistics["moments"].add(batch.embedding)

    def learn(self, statistics: Statistics, head: Head | None) -> None:
        """Find the directions that ID embeddings use least."""
        if head is None:
            return
        width = head.width
        usual = 1000 if width >= 2048 else 512 if width >= 768 else width // 2
        dimension = usual if self.dimension is None else self.dimension
        if not 0 < dimension < width:
            raise ArgumentError(f"dimension={dimension} leaves nothing outside it in embeddings of width {width}")
        weight = head.weight.double().cpu()
        bias = torch.zeros(len(weight), dtype=torch.float64) if head.bias is None else head.bias.double().cpu()
        origin = -torch.linalg.pinv(weight) @ bias
        step = statistics["moments"].mean() - origin
        directions = torch.linalg.eigh(statistics["moments"].covariance() + torch.outer(step, step)).eigenvectors
        self.origin_, self.outside_ = origin.float(), directions[:, : width - dimension].float().contiguous()

    def residual(self, embedding: Tensor) -> Tensor:
        """The norm outside the principal subspace, ``(n,)``."""
        norm: Tensor = torch.linalg.vector_norm((embedding - self.origin_) @ self.outside_, dim=1)
        return norm

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """Minus the residual."""
        return -self.residual(embedding)


class ViM(Residual):
    """Energy less the residual, scaled to the size of the largest logit (Wang et al., CVPR 2022).

    ``s = energy - alpha |residual|`` with ``alpha`` the mean largest logit over the mean residual of training rows, of
    which a sample is kept.
    """

    learns_from = ("embedding", "logits", "head")
    scores_from = ("embedding", "logits")
    alpha_: Tensor

    def __init__(self, *, dimension: int | None = None) -> None:
        super().__init__(dimension=dimension)
        self.register_buffer("alpha_", None)

    def begin(self) -> dict[str, Statistic]:
        """Moments, and a sample of rows with their largest logits."""
        return {**super().begin(), "rows": RowSample(SAMPLE)}

    def observe(self, batch: Features, statistics: Statistics) -> None:
        """Add one batch."""
        super().observe(batch, statistics)
        largest = max_logit(batch.logits.float())[:, None].to(batch.embedding.device)
        statistics["rows"].add(torch.cat([batch.embedding.float(), largest], dim=1), row_keys(batch.embedding))

    def learn(self, statistics: Statistics, head: Head | None) -> None:
        """Match the two scales."""
        super().learn(statistics, head)
        rows = statistics["rows"].rows()
        largest, residual = rows[:, -1].double().mean(), self.residual(rows[:, :-1]).double().mean()
        if not largest > 0 or not residual > 0:
            raise DataError(
                f"{self} matches the mean largest logit ({largest:.3g}) to the mean residual ({residual:.3g}), and one "
                "of them is not positive; take Residual, or another dimension"
            )
        self.alpha_ = (largest / residual).float()

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """Energy less the scaled residual."""
        return energy(logits) - self.alpha_ * self.residual(embedding)


class NECO(Detector):
    """Share of an embedding inside the principal subspace, times the largest logit (Ben Ammar et al., ICLR 2024).

    ``s = |P' x| / |x| * max z`` with ``x`` the embedding standardised by unit and ``P`` the principal directions that
    explain 90 % of its variance, or ``dimension`` of them. Logits are shifted where training rows have negative ones,
    which would turn the order round.
    """

    learns_from = ("embedding", "logits")
    scores_from = ("embedding", "logits")
    mean_: Tensor
    spread_: Tensor
    inside_: Tensor
    shift_: Tensor

    def __init__(self, *, dimension: int | None = None) -> None:
        super().__init__()
        if dimension is not None and (not isinstance(dimension, int) or dimension < 1):
            raise ArgumentError(f"dimension={dimension} must be a whole number, at least 1")
        self.dimension = dimension
        for name in ("mean_", "spread_", "inside_", "shift_"):
            self.register_buffer(name, None)

    def begin(self) -> dict[str, Statistic]:
        """Moments, and a sample of largest logits."""
        return {"moments": Moments(), "largest": RowSample(SAMPLE)}

    def observe(self, batch: Features, statistics: Statistics) -> None:
        """Add one batch."""
        statistics["moments"].add(batch.embedding)
        statistics["largest"].add(max_logit(batch.logits)[:, None], row_keys(batch.embedding))

    def learn(self, statistics: Statistics, head: Head | None) -> None:
        """Principal directions of the correlation matrix."""
        covariance = statistics["moments"].covariance()
        spread = covariance.diagonal().sqrt()
        spread = torch.where(spread > 0, spread, 1.0)
        variances, directions = torch.linalg.eigh(covariance / torch.outer(spread, spread))
        shares = variances.flip(0).clamp(min=0).cumsum(0) / variances.clamp(min=0).sum()
        count = int((shares < EXPLAINED).sum()) + 1 if self.dimension is None else self.dimension
        if count > len(variances):
            raise ArgumentError(f"dimension={count} is more than the {len(variances)} units there are")
        self.mean_, self.spread_ = statistics["moments"].mean().float(), spread.float()
        self.inside_ = directions[:, -count:].float().contiguous()
        self.shift_ = (-statistics["largest"].rows().min()).clamp(min=0)

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """The share times the largest logit."""
        x = (embedding - self.mean_) / self.spread_
        inside = torch.linalg.vector_norm(x @ self.inside_, dim=1)
        share = inside / torch.linalg.vector_norm(x, dim=1).clamp(min=1e-12)
        score: Tensor = share * (max_logit(logits) + self.shift_)
        return score
