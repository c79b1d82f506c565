"""``Combination``: several detectors on one scale, each by the ranks of its own scores on held-out ID rows."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from oodles.detectors.base import INPUTS, Detector, Statistics
from oodles.detectors.statistics import RowSample, Statistic, row_keys
from oodles.errors import ArgumentError, DataError, NotFittedError
from oodles.features import Features, Head
from oodles.perturbation import Step, distinct

WAYS = ("mean", "min", "fisher")
APART, LEARNED = "apart", "learned"
SAMPLE, FEWEST = 4000, 20
"""At most so many rows kept apart are ranked against; with fewer than the second, some that were learned from too."""
TAIL = 0.01
"""Ranks below it are told apart by how far they lie out, since there are few rows to count."""


class Combination(Detector):
    """Several detectors' ranks among held-out ID rows, joined; no OOD data is used.

    A rank says where a score stands among the held-out ID scores, see :func:`rank`. They are joined by their ``mean``,
    by the smallest (``min``), or by the mean of their logarithms (``fisher``, after R. A. Fisher's way to join
    p-values: one member that is sure counts for more than several that doubt a little).

    ``apart`` is the share of training rows that members do not learn from, kept to take ranks on. It is decided by
    each row's content, so the same ones are kept in whatever order and parts they come. With 0, or where a member
    looks inside the network, ranks are taken by :meth:`tune` on held-out rows; :func:`combine` does that.
    """

    ranks_: Tensor | None

    def __init__(self, *, detectors: Sequence[str | Detector], how: str = "mean", apart: float = 0.2) -> None:
        super().__init__()
        from oodles.detectors.parse import parse  # a detector made of detectors: the two need each other

        if how not in WAYS:
            raise ArgumentError(f"how={how!r} is none of {', '.join(WAYS)}")
        if isinstance(detectors, str) or len(detectors) < 2:
            raise ArgumentError(f"detectors={detectors!r}: a combination takes at least two")
        if not 0 <= apart < 1:
            raise ArgumentError(f"apart={apart} must lie in [0, 1); it is a fraction of the training rows")
        if 0 < apart < 0.001:
            raise ArgumentError(f"apart={apart} keeps next to no row apart; give 0.001 or more, or 0")
        members = [parse(each) if isinstance(each, str) else each for each in detectors]
        if any(isinstance(member, Combination) for member in members):
            raise ArgumentError(f"detectors={detectors!r}: a combination holds no other combination; name its members")
        self.members = nn.ModuleList(members)
        self.detectors = tuple(member.spec for member in members)
        self.how = how
        self.apart = apart
        self.ranks_itself = apart > 0 and not any(member.needs_network or member.extras for member in members)
        self.layers = tuple(dict.fromkeys(name for member in members for name in member.layers))
        learned = [name for member in members for name in member.learns_from]
        self.learns_from = tuple(dict.fromkeys([*learned, *(self.scores_from if self.ranks_itself else ())]))
        self.learns_against = any(member.learns_against for member in members)
        self.register_buffer("ranks_", None)

    @property
    def scores_from(self) -> tuple[str, ...]:  # type: ignore[override]
        """What any of them scores from."""
        return tuple(dict.fromkeys(name for member in self._members() for name in member.scores_from))

    @property
    def tunes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The ranks, unless they come with the fit."""
        return () if self.ranks_itself else ("ranks_",)

    @property
    def tuned(self) -> bool:
        """Whether the ranks are known or come with the fit, and each member has nothing open."""
        return (self.ranks_itself or self.ranks_ is not None) and all(member.tuned for member in self._members())

    def begin(self) -> dict[str, Statistic]:
        """The statistics of every member, and the rows kept apart."""
        whole: dict[str, Statistic] = {
            f"{place}.{name}": statistic
            for place, member in enumerate(self._members())
            for name, statistic in member.begin().items()
        }
        return whole | ({APART: RowSample(SAMPLE), LEARNED: RowSample(FEWEST)} if self.ranks_itself else {})

    def observe(self, batch: Features, statistics: Statistics) -> None:
        """Keep some rows apart; of the others each member its own."""
        if self.ranks_itself:
            columns = torch.cat([batch.column(name).detach().float().cpu() for name in self._ranked()], dim=1)
            # of the embedding alone: logits computed from it round otherwise from batch to batch
            keys = row_keys(batch.embedding if batch.holds("embedding") else batch.logits)
            # the low bits: the sample is by the size of the same keys
            aside = keys % 1000 < round(1000 * self.apart)
            for name, some in ((APART, aside), (LEARNED, ~aside)):
                statistics[name].add(columns[some], keys[some])
            if aside.all():
                return
            batch = batch[(~aside).nonzero()[:, 0]]
        for place, member in enumerate(self._members()):
            member.observe(batch, _own(statistics, place))

    def learn(self, statistics: Statistics, head: Head | None) -> None:
        """Each member its own, then their ranks on the rows kept apart, or else later."""
        self.ranks_, self.remarks = None, ()
        rows = self._rows_to_rank(statistics[APART], statistics[LEARNED]) if self.ranks_itself else None
        head = None if head is None else head.to(dtype=torch.float32)
        for place, member in enumerate(self._members()):
            member.learn(_own(statistics, place), head)
            member.shape_ = torch.tensor(self._seen) if member.learns_from else None
            self.remarks += member.remarks
        if rows is not None:
            widths = [self._seen[INPUTS.index(name)] for name in self._ranked()]
            columns = dict(zip(self._ranked(), torch.split(rows, widths, dim=1), strict=True))
            embedding = columns.get("embedding", rows.new_empty(len(rows), 0))
            head = head if "embedding" in columns else None
            self.tune(Features(embedding, logits=columns.get("logits"), head=head))

    def _rows_to_rank(self, apart: RowSample, learned: RowSample) -> Tensor:
        rows, others = apart.rows(), learned.rows()
        if not len(others):
            raise DataError(f"{self} kept all {len(rows)} rows apart, equal ones being one row; give more rows")
        if len(rows) >= FEWEST:
            return rows
        self.remarks = (f"{self} kept only {len(rows)} rows apart, so ranks are taken on rows it learned from too",)
        return torch.cat([rows, others])

    def steps(self) -> tuple[Step, ...]:
        """The input steps of all members."""
        return distinct(step for member in self._members() for step in member.steps())

    def trials(self) -> tuple[Step, ...]:
        """Those of all members."""
        return distinct(step for member in self._members() for step in (*member.trials(), *member.steps()))

    def tune(self, held_out: Features, adversarial: Features | None = None) -> None:
        """Settle what members have open, and take their ranks on held-out ID rows."""
        for member in self._members():
            if not member.tuned:
                member.tune(held_out, adversarial)
        scores = [member.score(held_out).double() for member in self._members()]
        self.ranks_ = torch.stack([knots(each) for each in scores]).float()

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """The members' ranks, joined."""
        if self.ranks_ is None:
            raise NotFittedError(f"{self} has no ranks yet; call .tune(held_out) first")
        columns = dict(zip((*INPUTS, *self.extras), (embedding, logits, *others), strict=True))
        scores = [member(*(columns[name] for name in (*INPUTS, *member.extras))) for member in self._members()]
        ranks = rank(torch.stack(scores), self.ranks_)
        if self.how == "min":
            return ranks.amin(dim=0)
        return (evidence(ranks) if self.how == "fisher" else ranks).mean(dim=0)

    def _members(self) -> list[Detector]:
        return [member for member in self.members if isinstance(member, Detector)]

    def _ranked(self) -> list[str]:
        """The columns of the rows kept apart."""
        return [name for name in INPUTS if name in self.scores_from]


class Jury(Combination):
    """Five detectors of different kinds at once, joined by Fisher's way: what is used where no detector is named.

    Trio, which shapes the embedding and thins the head; ASH-B, which keeps only which units are active; fDBD, the
    distance to the decision boundaries; Mahalanobis++, the distance to the classes; KNN, that to single rows. Where
    some are blind, others see. It needs no labels: the classes are those the network predicts.
    docs/default-detector.md has the study.
    """

    def __init__(self) -> None:
        members = ("trio", "ash_b(90)", "fdbd", "mahalanobispp", "knn(5, 2000)")
        super().__init__(detectors=members, how="fisher")
        self.learns_from = ("embedding", "logits", "head")

    def observe(self, batch: Features, statistics: Statistics) -> None:
        """With predicted classes for labels."""
        predicted = batch.logits.argmax(dim=1)
        super().observe(Features(batch.embedding, logits=batch.logits, labels=predicted, head=batch.head), statistics)


def combine(
    detectors: Sequence[str | Detector], *, train: Features, held_out: Features, how: str = "mean"
) -> Combination:
    """Fit ``detectors`` on ``train`` and put their scores on one scale by their ranks on ``held_out`` ID rows."""
    combination = Combination(detectors=detectors, how=how, apart=0).fit(train)
    combination.tune(held_out)
    return combination


def knots(scores: Tensor) -> Tensor:
    """Evenly spaced quantiles to measure ranks against: 101, or one for every four scores.

    Against every single score, two that nearly agree would turn rounding into a whole place.
    """
    count = min(101, max(2, len(scores) // 4))
    return torch.quantile(scores, torch.linspace(0, 1, count, dtype=scores.dtype))


def rank(scores: Tensor, reference: Tensor) -> Tensor:
    """Where each score stands among sorted reference scores, from 0 to 1, and a little beyond at either end.

    Between two reference scores it is drawn straight. Rows of scores go with rows of references.

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
    # in the middle of all references that are just as large
    place = torch.where(after > first, (first + after - 1) / 2, between)
    # past the last reference score ranks are all alike; squeezed distances keep the order there
    width = torch.maximum(most - least, 1e-6 * reference.abs().amax(dim=-1, keepdim=True)).clamp(min=1e-30)
    beyond = (scores - inside) / width
    squeezed = torch.where(beyond.isinf(), beyond.sign() / 2, 0.5 * beyond / (1 + beyond.abs()))
    placed = place / max(1, count - 1) + squeezed
    return torch.where(torch.isnan(scores), scores, placed)


def evidence(ranks: Tensor) -> Tensor:
    """The logarithm of a rank; below ``TAIL`` it falls on, ever slower, with the distance.

    >>> evidence(torch.tensor([1.0, 0.01, 0.0, -0.1]))
    tensor([ 0.0000, -4.6052, -5.2983, -7.0901])
    """
    return ranks.clamp(min=TAIL).log() - ((TAIL - ranks).clamp(min=0) / TAIL).log1p()


def _own(statistics: Statistics, place: int) -> Statistics:
    prefix = f"{place}."
    return {name.removeprefix(prefix): value for name, value in statistics.items() if name.startswith(prefix)}
