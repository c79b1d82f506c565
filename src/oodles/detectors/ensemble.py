"""``RankEnsemble``: several detectors on one scale, each by the ranks of its scores among held-out ID rows."""

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from oodles.detectors.base import INPUTS, Detector, Statistics, extra_columns
from oodles.detectors.network_detector import NetworkDetector, is_tuned, layers_of, needs_network, steps_of
from oodles.detectors.statistics import RowSample, Statistic, row_keys
from oodles.errors import ArgumentError, DataError, FitWarning, NotFittedError
from oodles.features import Features, Head
from oodles.steps import Step, distinct_steps

REDUCTIONS = ("mean", "min", "fisher")
HELD_OUT, LEARNED = "held_out", "learned"
MOST_ROWS, FEWEST_ROWS = 4000, 20
"""At most this many held-out rows are the reference for ranks; below the second number, training rows are added."""
TAIL = 0.01
"""Ranks below this are continued by the distance from the reference scores, since too few of them are left to count."""


class RankEnsemble(NetworkDetector):
    """Several detectors combined by the ranks of their scores among held-out ID rows; no OOD data is used.

    A rank says where a score lies among the held-out ID scores, see :func:`rank`. ``reduction`` combines the members'
    ranks: their ``mean``, their minimum (``min``), or the mean of their logarithms (``fisher``, as in Fisher's method
    for combining p-values, in which one confident member outweighs several doubtful ones).

    ``holdout`` is the fraction of training rows that members do not learn from and that ranks are computed on. Rows are
    assigned by their content, so the split is the same in whatever order and parts they arrive. With 0, or if a member
    needs more of the network, ranks are computed by :meth:`tune` on held-out rows; :func:`combine` does that.
    """

    reference_: Tensor | None

    def __init__(self, *, detectors: Sequence[str | Detector], reduction: str = "mean", holdout: float = 0.2) -> None:
        super().__init__()
        from oodles.detectors.parse import parse  # parsing knows every detector, this one included

        if reduction not in REDUCTIONS:
            raise ArgumentError(f"reduction={reduction!r} must be one of {', '.join(REDUCTIONS)}")
        if isinstance(detectors, str) or len(detectors) < 2:
            raise ArgumentError(f"detectors={detectors!r}: an ensemble needs at least two")
        if not 0 <= holdout < 1:
            raise ArgumentError(f"holdout={holdout} must lie in [0, 1); it is a fraction of the training rows")
        if 0 < holdout < 0.001:
            raise ArgumentError(f"holdout={holdout} would hold out almost no row; give 0.001 or more, or 0")
        # copies: fitting the ensemble must not change a detector that was fitted before or is used elsewhere
        members = [parse(each) if isinstance(each, str) else copy.deepcopy(each) for each in detectors]
        if any(isinstance(member, RankEnsemble) for member in members):
            raise ArgumentError(f"detectors={detectors!r}: an ensemble cannot contain another; name its members")
        self.members = nn.ModuleList(members)
        self.detectors = tuple(member.spec for member in members)
        self.reduction = reduction
        self.holdout = holdout
        self.ranks_itself = holdout > 0 and not any(needs_network(each) or extra_columns(each) for each in members)
        self.layers = layers_of(members)
        learned = [name for member in members for name in member.learns_from]
        self.learns_from = tuple(dict.fromkeys([*learned, *(self.scores_from if self.ranks_itself else ())]))
        self.learns_against = any(member.learns_against for member in self._network_members())

    @override
    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "detectors": tuple(self._members())}

    @override
    def text_arguments(self) -> dict[str, Any]:
        return {**self.arguments(), "detectors": self.detectors}

    @property
    @override
    def scores_from(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys(name for member in self._members() for name in member.scores_from))

    @property
    @override
    def needs_softmax(self) -> bool:
        return any(member.needs_softmax for member in self._members())

    @property
    @override
    def tunes(self) -> tuple[str, ...]:  # type: ignore[override]
        return () if self.ranks_itself else ("reference_",)

    @property
    @override
    def tuned(self) -> bool:
        return (self.ranks_itself or self.reference_ is not None) and all(map(is_tuned, self._members()))

    @override
    def begin(self) -> dict[str, Statistic]:
        whole: dict[str, Statistic] = {
            f"{place}.{name}": statistic
            for place, member in enumerate(self._members())
            for name, statistic in member.begin().items()
        }
        ranked = {HELD_OUT: RowSample(MOST_ROWS), LEARNED: RowSample(FEWEST_ROWS)} if self.ranks_itself else {}
        return whole | ranked

    @override
    def observe(self, batch: Features, statistics: Statistics) -> None:
        if self.ranks_itself:
            columns = torch.cat([batch.column(name).detach().float().cpu() for name in self._ranked()], dim=1)
            # of the embedding alone: logits computed from it round differently from batch to batch
            keys = row_keys(batch.embedding if batch.holds("embedding") else batch.logits)
            # the low bits, because the sample is of the rows with the smallest keys
            held_out = keys % 1000 < round(1000 * self.holdout)
            for name, chosen in ((HELD_OUT, held_out), (LEARNED, ~held_out)):
                statistics[name].add(columns[chosen], keys[chosen])
            if held_out.all():
                return
            batch = batch[(~held_out).nonzero()[:, 0]]
        for place, member in enumerate(self._members()):
            member.observe(batch, _members_statistics(statistics, place))

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        self.reference_ = None
        rows = self._rows_to_rank(statistics[HELD_OUT], statistics[LEARNED]) if self.ranks_itself else None
        for place, member in enumerate(self._members()):
            member.learn(_members_statistics(statistics, place), head)
            if member.learns_from:
                member.shape_ = torch.tensor(self._seen)
                member.probe_ = None if self._head is None else self._head.probe.clone()
        if rows is not None:
            widths = [self._seen[INPUTS.index(name)] for name in self._ranked()]
            columns = dict(zip(self._ranked(), torch.split(rows, widths, dim=1), strict=True))
            embedding = columns.get("embedding", rows.new_empty(len(rows), 0))
            self.tune(Features(embedding, logits=columns.get("logits"), head=head if "embedding" in columns else None))

    def _rows_to_rank(self, held_out: RowSample, learned: RowSample) -> Tensor:
        rows, others = held_out.rows(), learned.rows()
        if not len(others):
            raise DataError(
                f"{self} held out all {len(rows)} rows (equal rows count as one); give more rows or a smaller holdout"
            )
        if len(rows) >= FEWEST_ROWS:
            return rows
        warnings.warn(
            f"{self} held out only {len(rows)} rows, so ranks are computed on training rows too",
            FitWarning,
            stacklevel=2,
        )
        return torch.cat([rows, others])

    @override
    def steps(self) -> tuple[Step, ...]:
        return steps_of(self._members())

    @override
    def trials(self) -> tuple[Step, ...]:
        members = self._network_members()
        return distinct_steps(step for member in members for step in (*member.trials(), *member.steps()))

    @override
    def tune(self, held_out: Features, adversarial: Features | None = None) -> None:
        for member in self._network_members():
            if not member.tuned:
                member.tune(held_out, adversarial)
        scores = [member.score(held_out).double() for member in self._members()]
        self.reference_ = torch.stack([reference_quantiles(each) for each in scores]).float()
        self.to(held_out.device if self.shape_ is None else self.shape_.device)

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        if self.reference_ is None:
            raise NotFittedError(f"{self} has no reference scores yet; call .tune(held_out) first")
        columns = dict(zip((*INPUTS, *extra_columns(self)), (embedding, logits, *others), strict=True))
        scores = [member(*(columns[name] for name in (*INPUTS, *extra_columns(member)))) for member in self._members()]
        ranks = rank(torch.stack(scores), self.reference_)
        if self.reduction == "min":
            return ranks.amin(dim=0)
        return (log_rank(ranks) if self.reduction == "fisher" else ranks).mean(dim=0)

    def _members(self) -> list[Detector]:
        return [member for member in self.members if isinstance(member, Detector)]

    def _network_members(self) -> list[NetworkDetector]:
        return [member for member in self.members if isinstance(member, NetworkDetector)]

    def _ranked(self) -> list[str]:
        """The columns of the held-out rows."""
        return [name for name in INPUTS if name in self.scores_from]


def combine(
    detectors: Sequence[str | Detector], *, train: Features, held_out: Features, reduction: str = "mean"
) -> RankEnsemble:
    """Fit ``detectors`` on ``train`` and combine them by their ranks among ``held_out`` ID rows."""
    ensemble = RankEnsemble(detectors=detectors, reduction=reduction, holdout=0).fit(train)
    ensemble.tune(held_out)
    return ensemble


def reference_quantiles(scores: Tensor) -> Tensor:
    """Evenly spaced quantiles to rank scores against: 101, or one for every four scores.

    Against every single score, a rounding error between two that nearly agree would count as a whole rank.
    """
    count = min(101, max(2, len(scores) // 4))
    return torch.quantile(scores, torch.linspace(0, 1, count, dtype=scores.dtype))


def rank(scores: Tensor, reference: Tensor) -> Tensor:
    """Where each score lies among sorted reference scores, from 0 to 1, and a little beyond at either end.

    Between two reference scores it is interpolated linearly. Rows of scores go with rows of references.

    >>> rank(torch.tensor([0.0, 1.0, 2.5, 3.0, 9.0]), torch.tensor([1.0, 2.0, 3.0]))
    tensor([-0.1667,  0.0000,  0.7500,  1.0000,  1.3750])
    """
    least, most, count = reference[..., :1], reference[..., -1:], reference.shape[-1]
    inside = torch.minimum(torch.maximum(scores, least), most).contiguous()
    first, after = (torch.searchsorted(reference, inside, right=right) for right in (False, True))
    above = first.clamp(1, max(1, count - 1))
    low, high = reference.gather(-1, above - 1), reference.gather(-1, above.clamp(max=count - 1))
    gap = high - low
    between = above - 1 + torch.where(gap > 0, (inside - low) / torch.where(gap > 0, gap, 1.0), 0.5)
    # the middle of all reference scores that are equal to it
    place = torch.where(after > first, (first + after - 1) / 2, between)
    # beyond the last reference score all ranks would be equal; a bounded function of the distance keeps the order
    width = torch.maximum(most - least, 1e-6 * reference.abs().amax(dim=-1, keepdim=True)).clamp(min=1e-30)
    beyond = (scores - inside) / width
    bounded = torch.where(beyond.isinf(), beyond.sign() / 2, 0.5 * beyond / (1 + beyond.abs()))
    placed = place / max(1, count - 1) + bounded
    return torch.where(torch.isnan(scores), scores, placed)


def log_rank(ranks: Tensor) -> Tensor:
    """The logarithm of a rank; below ``TAIL`` it keeps falling, ever more slowly, with the distance.

    >>> log_rank(torch.tensor([1.0, 0.01, 0.0, -0.1]))
    tensor([ 0.0000, -4.6052, -5.2983, -7.0901])
    """
    return ranks.clamp(min=TAIL).log() - ((TAIL - ranks).clamp(min=0) / TAIL).log1p()


def _members_statistics(statistics: Statistics, place: int) -> Statistics:
    prefix = f"{place}."
    return {name.removeprefix(prefix): value for name, value in statistics.items() if name.startswith(prefix)}
