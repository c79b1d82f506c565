"""``RankEnsemble``: several detectors on one scale, each by the ranks of its scores among held-out ID rows."""

import copy
import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from oodles.detectors.base import INPUTS, Detector, Statistics, extra_columns, remember_model
from oodles.detectors.network_detector import NetworkDetector, is_tuned, layers_of, needs_network, steps_of
from oodles.detectors.statistics import RowSample, Statistic, row_keys
from oodles.errors import ArgumentError, DataError, FitWarning, NotFittedError
from oodles.features import Features, Head
from oodles.functional.normal import log_ndtr
from oodles.steps import Step, distinct_steps

REDUCTIONS = ("mean", "min", "fisher")
HELD_OUT, LEARNED = "held_out", "learned"
MAX_ROWS, MIN_ROWS = 4000, 20
"""At most this many held-out rows are the reference for ranks; below the second number, training rows are added."""
LOW = 0.05
"""The quantile that, with the median, defines the normal distribution that ranks are read from."""

FARTHEST = 1e18
"""Deviations are limited to this many, whose square is finite in float32."""

LIMIT = -4.0
"""Deviations from which on a check lowers the score: of 30,000 normal ID scores, one is so low."""
LOG_LIMIT = float(log_ndtr(torch.tensor(LIMIT, dtype=torch.float64)))


class RankEnsemble(NetworkDetector):
    """Several detectors combined by the ranks of their scores among held-out ID rows; no OOD data is used.

    A rank says which fraction of ID scores is lower. It is read from the normal distribution with the median and the
    5 % quantile of the held-out ID scores, so it goes on falling beyond the lowest of them. ``reduction`` combines the
    members' ranks: their ``mean``, the logarithm of their minimum (``min``), or the mean of their logarithms
    (``fisher``, as in Fisher's method for combining p-values, in which one confident member outweighs several doubtful
    ones). A detector that is listed twice counts twice.

    ``checks`` are detectors that have no effect on ordinary inputs. Each lowers the score if its own is more than 4
    standard deviations below the ID median: by the logarithm of its rank, relative to that limit.

    ``holdout`` is the fraction of training rows that members do not learn from and that ranks are computed on. Rows are
    assigned by their content, so the split is the same in whatever order and parts they arrive. With 0, or if a member
    needs more of the network, ranks are computed by :meth:`tune` on held-out rows; :func:`combine` does that.

    >>> from oodles.testing import example_features
    >>> ensemble = RankEnsemble(detectors=["energy", "knn(5)"], reduction="min").fit(example_features())
    >>> ensemble.score(example_features()[:1]).exp() < 1  # the smaller of the two ranks
    tensor([True])
    """

    centre_: Tensor | None
    spread_: Tensor | None
    reference_: Tensor | None

    def __init__(
        self,
        *,
        detectors: Sequence[str | Detector],
        reduction: str = "mean",
        holdout: float = 0.2,
        checks: Sequence[str | Detector] = (),
    ) -> None:
        super().__init__()
        from oodles.detectors.parsing import as_detector  # parsing knows every detector, this one included

        if reduction not in REDUCTIONS:
            raise ArgumentError(f"reduction={reduction!r} must be one of {', '.join(REDUCTIONS)}")
        if isinstance(detectors, str) or len(detectors) < (1 if checks else 2):
            raise ArgumentError(f"detectors={detectors!r}: an ensemble needs at least two; name another detector")
        if not 0 <= holdout < 1:
            raise ArgumentError(f"holdout={holdout} must lie in [0, 1); it is a fraction of the training rows")
        if 0 < holdout < 0.001:
            raise ArgumentError(f"holdout={holdout} would hold out almost no row; give 0.001 or more, or 0")
        # copies: fitting the ensemble must not change a detector that was fitted before or is used elsewhere
        given, checking = ([copy.deepcopy(as_detector(each)) for each in some] for some in (detectors, checks))
        members = list({member.spec: member for member in (*given, *checking)}.values())
        if any(isinstance(member, RankEnsemble) for member in members):
            raise ArgumentError(f"detectors={detectors!r}: an ensemble cannot contain another; name its members")
        self.members = nn.ModuleList(members)
        self.detectors, self.checks = (tuple(member.spec for member in some) for some in (given, checking))
        self._listed = [self.detectors.count(member.spec) for member in members]
        self.reduction = reduction
        self.holdout = holdout
        self.holds_out_rows = holdout > 0 and not any(needs_network(each) or extra_columns(each) for each in members)
        self.rows_at_once = min(member.rows_at_once for member in members)
        self.layers = layers_of(members)
        learned = [name for member in members for name in member.learns_from]
        self.learns_from = tuple(dict.fromkeys([*learned, *(self.scores_from if self.holds_out_rows else ())]))
        self.learns_against = any(member.learns_against for member in self._network_members())

    @override
    def arguments(self) -> dict[str, Any]:
        members = {member.spec: member for member in self._members()}
        lists = {name: tuple(members[spec] for spec in getattr(self, name)) for name in ("detectors", "checks")}
        return super().arguments() | lists

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
        return () if self.holds_out_rows else ("centre_", "spread_", "reference_")

    @property
    @override
    def tuned(self) -> bool:
        return (self.holds_out_rows or self.reference_ is not None) and all(map(is_tuned, self._members()))

    @override
    def begin(self) -> dict[str, Statistic]:
        whole: dict[str, Statistic] = {
            f"{place}.{name}": statistic
            for place, member in enumerate(self._members())
            for name, statistic in member.begin().items()
        }
        ranked = {HELD_OUT: RowSample(MAX_ROWS), LEARNED: RowSample(MIN_ROWS)} if self.holds_out_rows else {}
        return whole | ranked

    @override
    def observe(self, batch: Features, statistics: Statistics) -> None:
        if self.holds_out_rows:
            columns = torch.cat([batch.column(name).detach().float().cpu() for name in self._ranked()], dim=1)
            # of the embedding alone: logits computed from it round differently from batch to batch
            keys = row_keys(batch.embedding if batch.holds("embedding") else batch.logits)
            # the low bits, because the sample is of the rows with the smallest keys
            held_out = keys % 1000 < round(1000 * self.holdout)
            for name, chosen in ((HELD_OUT, held_out), (LEARNED, ~held_out)):
                statistics[name].add(columns[chosen], keys=keys[chosen])
            if held_out.all():
                return
            batch = batch[(~held_out).nonzero()[:, 0]]
        for place, member in enumerate(self._members()):
            member.observe(batch, _members_statistics(statistics, place))

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        self.centre_ = self.spread_ = self.reference_ = None
        rows = self._rows_to_rank(statistics[HELD_OUT], statistics[LEARNED]) if self.holds_out_rows else None
        for place, member in enumerate(self._members()):
            self.learn_member(member, _members_statistics(statistics, place), head)
        if rows is not None:
            widths = [self._seen[INPUTS.index(name)] for name in self._ranked()]
            columns = dict(zip(self._ranked(), torch.split(rows, widths, dim=1), strict=True))
            embedding = columns.get("embedding", rows.new_empty(len(rows), 0))
            self.tune(Features(embedding, logits=columns.get("logits"), head=head if "embedding" in columns else None))

    def learn_member(self, member: Detector, statistics: Statistics, head: Head) -> None:
        """Let one member learn from its own statistics."""
        member.learn(statistics, head)
        remember_model(member, self._seen, self._head)

    def _rows_to_rank(self, held_out: RowSample, learned: RowSample) -> Tensor:
        rows, others = held_out.rows(), learned.rows()
        if len(rows) + len(others) < MIN_ROWS:
            raise DataError(f"{self.spec} was given {len(rows) + len(others)} rows; it needs at least {MIN_ROWS}")
        if not len(others):
            raise DataError(
                f"{self} held out all {len(rows)} rows (equal rows count as one); give more rows or a smaller holdout"
            )
        if len(rows) >= MIN_ROWS:
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
        rows = held_out.embedding if held_out.width else held_out.logits
        if bool((rows == rows[:1]).all()):
            raise DataError(f"the {len(rows)} held-out rows are all equal, so {self} cannot rank scores among them")
        scores = [member.score(held_out).double() for member in self.scoring_members()]
        self.centre_, self.spread_ = torch.stack([centre_and_spread(each) for each in scores], dim=1).float()
        self.reference_ = torch.stack([reference_quantiles(each) for each in scores]).float()
        self.to(held_out.device if self.shape_ is None else self.shape_.device)

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        return self.combined(self.member_scores(embedding, logits, *others))

    def member_scores(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """The scores of the members ``(members, n)``; the arguments are those of :meth:`forward`."""
        columns = dict(zip((*INPUTS, *extra_columns(self)), (embedding, logits, *others), strict=True))
        members = self.scoring_members()
        return torch.stack(
            [member(*(columns[name] for name in (*INPUTS, *extra_columns(member)))) for member in members]
        )

    def combined(self, scores: Tensor) -> Tensor:
        """One score ``(n,)`` from those of the members ``(members, n)``."""
        counts = self._counts()
        ranked, checked = torch.split(self.deviations(scores), [len(counts) - counts.count(0), counts.count(0)])
        below = (log_ndtr(checked) - LOG_LIMIT).clamp(max=0).sum(dim=0)
        if self.reduction == "min":
            return log_ndtr(ranked).amin(dim=0) + below
        ranks: Tensor = torch.special.ndtr(ranked) if self.reduction == "mean" else log_ndtr(ranked)
        weights = torch.tensor(counts[: len(ranked)])[:, None].to(ranks)
        return (weights * ranks).sum(dim=0) / sum(counts) + below

    def deviations(self, scores: Tensor) -> Tensor:
        """The members' scores ``(members, n)`` on one scale: in standard deviations from the ID median."""
        if self.centre_ is None or self.spread_ is None:
            raise NotFittedError(f"{self} has no reference scores yet; call .tune(held_out) first")
        # a member's +inf is an overflow, which must not count as its most confident answer
        scores = torch.where(scores < math.inf, scores, math.nan)
        found = (scores - self.centre_.to(scores)[:, None]) / self.spread_.to(scores)[:, None]
        return found.clamp(-FARTHEST, FARTHEST)

    def scoring_members(self) -> list[Detector]:
        """The members whose ranks are combined, in their order."""
        return self._members()

    def limits(self) -> list[float | None]:
        """Return the deviation below which each scoring member counts: None for any, :data:`LIMIT` for a check."""
        return [None if count else LIMIT for count in self._counts()]

    def _counts(self) -> list[int]:
        """How often each scoring member counts; 0 for a check."""
        used = {id(member) for member in self.scoring_members()}
        return [count for member, count in zip(self.members, self._listed, strict=True) if id(member) in used]

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
    """Fit ``detectors`` on ``train`` and combine them by their ranks among ``held_out`` ID rows.

    >>> from oodles.testing import example_features
    >>> train, held_out = example_features().split(0.5)
    >>> both = combine(["energy", "knn(5)"], train=train, held_out=held_out)
    >>> 0.4 < float(both.score(held_out).mean()) < 0.6  # a mean rank is about a half on ID data
    True
    """
    ensemble = RankEnsemble(detectors=detectors, reduction=reduction, holdout=0).fit(train)
    ensemble.tune(held_out)
    return ensemble


def reference_quantiles(scores: Tensor) -> Tensor:
    """Evenly spaced quantiles of ID scores: 101, or one for every four scores."""
    count = min(101, max(2, len(scores) // 4))
    return torch.quantile(scores, torch.linspace(0, 1, count, dtype=scores.dtype))


def centre_and_spread(scores: Tensor) -> Tensor:
    """Mean and standard deviation of the normal distribution with the median and the 5 % quantile of the scores.

    The upper half is not looked at: only low scores say OOD. If more than 45 % of the scores equal the median, the
    lowest score takes the place of the quantile.

    >>> centre, spread = centre_and_spread(torch.arange(101.0))
    >>> torch.special.ndtr((torch.tensor([50.0, 5.0]) - centre) / spread)
    tensor([0.5000, 0.0500])
    """
    median, low, least = torch.quantile(scores, scores.new_tensor([0.5, LOW, 0.0]))
    width = median - (low if low < median else least)
    # scores that differ by rounding alone are equal
    width = torch.maximum(width, 1e-6 * median.abs()).clamp(min=1e-30)
    return torch.stack([median, width / -torch.special.ndtri(scores.new_tensor(LOW))])


def _members_statistics(statistics: Statistics, place: int) -> Statistics:
    prefix = f"{place}."
    return {name.removeprefix(prefix): value for name, value in statistics.items() if name.startswith(prefix)}
