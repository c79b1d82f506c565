"""Detectors based on the principal subspace of ID embeddings: ViM, Residual, NECO, pNML."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from oodles.detectors.arguments import check_whole
from oodles.detectors.base import Detector, Statistics
from oodles.detectors.statistics import Moments, RowSample, Statistic, row_keys
from oodles.errors import ArgumentError, DataError
from oodles.features import Features, Head
from oodles.functional import energy, max_logit

SAMPLE = 10_000  # rows used for means of norms: enough for an error below one percent
EXPLAINED = 0.9


class Residual(Detector):
    """Minus the norm of the part of an embedding outside the principal subspace (Wang et al., CVPR 2022).

    The origin is ``-pinv(W) b``, where all logits are zero; the subspace is spanned by the ``dimension`` leading
    eigenvectors of the second moment about it: 1,000 of at least 2,048 units, 512 of at least 768, else half.

    >>> line = Features(torch.tensor([[1.0, 1.0], [2.0, 2.0]]), head=Head(torch.eye(2)))
    >>> detector = Residual(dimension=1).fit(line)
    >>> detector.score(Features(torch.tensor([[9.0, 8.0], [1.0, 0.0]]), head=line.head))  # both as far from the line
    tensor([-0.7071, -0.7071])
    """

    learns_from: tuple[str, ...] = ("embedding", "head")
    scores_from: tuple[str, ...] = ("embedding",)
    origin_: Tensor
    outside_: Tensor

    def __init__(self, *, dimension: int | None = None) -> None:
        super().__init__()
        self.dimension = _check_dimension(dimension)

    @override
    def begin(self) -> dict[str, Statistic]:
        return {"moments": Moments()}

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        width = head.width
        dimension = default_dimension(width) if self.dimension is None else self.dimension
        if not 0 < dimension < width:
            raise ArgumentError(f"dimension={dimension} must be smaller than the width of the embedding, {width}")
        origin = _origin(head)
        step = statistics["moments"].mean() - origin
        directions = torch.linalg.eigh(statistics["moments"].covariance() + torch.outer(step, step)).eigenvectors
        self.origin_, self.outside_ = origin.float(), directions[:, : width - dimension].float().contiguous()

    @property
    @override
    def needs_softmax(self) -> bool:
        return False  # the head only gives the origin

    def residual(self, embedding: Tensor) -> Tensor:
        """The norm outside the principal subspace, ``(n,)``."""
        norm: Tensor = torch.linalg.vector_norm((embedding - self.origin_) @ self.outside_, dim=1)
        return norm

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        return -self.residual(embedding)


class ViM(Residual):
    """Energy minus the residual, scaled to the size of the largest logit (Wang et al., CVPR 2022).

    ``s = energy - alpha |residual|`` with ``alpha`` the mean largest logit over the mean residual, both over a
    sample of training rows.

    >>> from oodles.testing import example_features
    >>> detector = ViM(dimension=8).fit(train := example_features())
    >>> embedding = torch.stack([train.embedding[0], train.embedding[0] + 5 * detector.outside_[:, 0]])
    >>> detector.score(Features(embedding, logits=train.logits[[0, 0]])).diff() < 0  # leaving the subspace costs
    tensor([True])
    """

    learns_from = ("embedding", "logits", "head")
    scores_from = ("embedding", "logits")
    alpha_: Tensor

    @property
    @override
    def needs_softmax(self) -> bool:
        return True

    @override
    def begin(self) -> dict[str, Statistic]:
        return {**super().begin(), "rows": RowSample(SAMPLE)}

    @override
    def observe(self, batch: Features, statistics: Statistics) -> None:
        statistics["moments"].add(batch.embedding)
        largest = max_logit(batch.logits.float())[:, None]
        statistics["rows"].add(batch.embedding, largest, keys=row_keys(batch.embedding))

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        super().learn(statistics, head)
        rows = statistics["rows"].rows()
        largest, residual = rows[:, -1].double().mean(), self.residual(rows[:, :-1]).double().mean()
        if not largest > 0 or not residual > 0:
            raise DataError(
                f"{self} scales the mean residual ({residual:.3g}) to the mean largest logit ({largest:.3g}), and one "
                "of them is not positive; use Residual, or another dimension"
            )
        self.alpha_ = (largest / residual).float()

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        return energy(logits) - self.alpha_ * self.residual(embedding)


class NECO(Detector):
    """Fraction of the norm in the principal subspace, times the largest logit (Ben Ammar et al., ICLR 2024).

    ``s = |P' x| / |x| * max z`` with ``x`` the embedding standardised per unit and ``P`` the principal directions that
    explain 90 % of its variance, or ``dimension`` of them. If training rows have negative largest logits, logits are
    shifted to be positive, because negative ones would reverse the ranking.

    >>> train = Features(torch.tensor([[2.0, 1.0], [-2.0, -1.0]]), logits=torch.tensor([[3.0, 0.0], [0.0, 3.0]]))
    >>> test = Features(torch.tensor([[4.0, 2.0], [4.0, -2.0]]), logits=torch.tensor([[3.0, 0.0], [3.0, 0.0]]))
    >>> NECO().fit(train).score(test).round(decimals=3)  # in the direction of the training rows, and across it
    tensor([3., 0.])
    """

    learns_from = ("embedding", "logits")
    scores_from = ("embedding", "logits")
    mean_: Tensor
    spread_: Tensor
    inside_: Tensor
    shift_: Tensor

    def __init__(self, *, dimension: int | None = None) -> None:
        super().__init__()
        self.dimension = _check_dimension(dimension)

    @override
    def begin(self) -> dict[str, Statistic]:
        return {"moments": Moments(), "largest": RowSample(SAMPLE)}

    @override
    def observe(self, batch: Features, statistics: Statistics) -> None:
        statistics["moments"].add(batch.embedding)
        statistics["largest"].add(max_logit(batch.logits)[:, None], keys=row_keys(batch.embedding))

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        covariance = statistics["moments"].covariance()
        spread = covariance.diagonal().sqrt()
        spread = torch.where(spread > 0, spread, 1.0)
        variances, directions = torch.linalg.eigh(covariance / torch.outer(spread, spread))
        shares = variances.flip(0).clamp(min=0).cumsum(0) / variances.clamp(min=0).sum()
        count = int((shares < EXPLAINED).sum()) + 1 if self.dimension is None else self.dimension
        if count > len(variances):
            raise ArgumentError(f"dimension={count} exceeds the number of units, {len(variances)}")
        self.mean_, self.spread_ = statistics["moments"].mean().float(), spread.float()
        self.inside_ = directions[:, -count:].float().contiguous()
        self.shift_ = (-statistics["largest"].rows().min()).clamp(min=0)

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        x = (embedding - self.mean_) / self.spread_
        inside = torch.linalg.vector_norm(x @ self.inside_, dim=1)
        share = inside / torch.linalg.vector_norm(x, dim=1).clamp(min=1e-12)
        score: Tensor = share * (max_logit(logits) + self.shift_)
        return score


class PNML(Detector):
    """Regret of the last layer's predictive normalised maximum likelihood (pNML; Bibas et al., NeurIPS 2021).

    With ``x`` the embedding of length 1, ``P`` the pseudo-inverse of the sum of ``x x^T`` over training rows,
    ``a = x^T P x`` and ``o`` the squared length of the part of ``x`` outside their span: ``k = max(o, a / (1 + a))``
    and ``s = -log(sum_c p_c / (p_c + (1 - p_c) p_c^k)) / log C`` with the softmax ``p`` of the head at ``x``. An
    embedding of zeros has no direction and counts as outside (``k = 1``); the formula would call it the most ID of all.

    >>> head = Head(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    >>> detector = PNML().fit(Features(torch.tensor([[4.0, 1.0, 0.0], [1.0, 4.0, 0.0]]), head=head))
    >>> detector.score(Features(torch.tensor([[4.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), head=head))  # the third unit is new
    tensor([-0.2319, -0.4150])
    """

    learns_from = ("embedding", "head")
    scores_from = ("embedding",)
    weight_: Tensor
    bias_: Tensor
    inverse_: Tensor
    outside_: Tensor

    @override
    def begin(self) -> dict[str, Statistic]:
        return {"moments": Moments()}

    @override
    def observe(self, batch: Features, statistics: Statistics) -> None:
        statistics["moments"].add(F.normalize(batch.embedding.double(), dim=1))

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        moments = statistics["moments"]
        second = moments.count * (moments.covariance() + torch.outer(moments.mean(), moments.mean()))
        values, directions = torch.linalg.eigh(second)
        kept = values > 1e-10 * values[-1]
        self.inverse_ = (directions[:, kept] / values[kept].sqrt()).float()
        self.outside_ = directions[:, ~kept].float()
        self.weight_, self.bias_ = head.weight.float().clone(), head.full_bias().float().clone()

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        unit = F.normalize(embedding, dim=1)
        leverage = (unit @ self.inverse_).square().sum(dim=1, keepdim=True)
        outside = (unit @ self.outside_).square().sum(dim=1, keepdim=True)
        outside = torch.where(unit.abs().amax(dim=1, keepdim=True) == 0, 1.0, outside)
        power = torch.maximum(outside, leverage / (1 + leverage))
        log_p = torch.log_softmax(F.linear(unit, self.weight_, self.bias_), dim=1)
        rest = -torch.expm1(log_p)
        # p / (p + (1 - p) p^k) is the sigmoid of (1 - k) log p - log(1 - p)
        terms = torch.sigmoid((1 - power) * log_p - rest.log())
        # the terms minus p are summed, because the p add up to 1 and the regret of an ID row is small
        regret = torch.log1p((terms * rest * -torch.expm1(power * log_p)).sum(dim=1))
        return -regret / math.log(max(2, log_p.shape[1]))


def default_dimension(width: int) -> int:
    """The dimension of the principal subspace that ViM's authors recommend."""
    return 1000 if width >= 2048 else 512 if width >= 768 else width // 2


def _origin(head: Head) -> Tensor:
    """``-pinv(W) b`` in float64: the shortest embedding at which all logits are zero, if there is one."""
    weight, bias = head.weight.double(), head.full_bias().double()
    # with independent rows it is -W^T (W W^T)^-1 b, many times faster; what solves W x = -b shows that they are
    factor, failed = torch.linalg.cholesky_ex(weight @ weight.T)
    if not failed:
        solution = -weight.T @ torch.cholesky_solve(bias[:, None], factor)[:, 0]
        if torch.allclose(weight @ solution, -bias, rtol=0, atol=1e-9 * float(bias.abs().max())):
            return solution
    origin: Tensor = -torch.linalg.pinv(weight) @ bias
    return origin


def _check_dimension(dimension: int | None) -> int | None:
    return None if dimension is None else check_whole("dimension", dimension, 1)
