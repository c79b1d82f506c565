"""``Combination``: several detectors on one scale, each by the ranks of its own scores on held-out ID rows."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from oodles.detectors.base import INPUTS, Detector, Statistics
from oodles.detectors.statistics import Statistic
from oodles.errors import ArgumentError, NotFittedError
from oodles.features import Features, Head
from oodles.perturbation import Step, distinct

WAYS = ("mean", "min")


class Combination(Detector):
    """The mean or the smallest of several detectors' ranks among held-out ID rows; no OOD data is used.

    A rank says where a score stands among the held-out ID scores, see :func:`rank`. Fit on training rows, then
    :meth:`tune` on held-out ones; :func:`combine` does both.
    """

    tunes = ("ranks_",)
    ranks_: Tensor | None

    def __init__(self, *, detectors: Sequence[str | Detector], how: str = "mean") -> None:
        super().__init__()
        from oodles.detectors.parse import parse  # a detector made of detectors: the two need each other

        if how not in WAYS:
            raise ArgumentError(f"how={how!r} is none of {', '.join(WAYS)}")
        if isinstance(detectors, str) or len(detectors) < 2:
            raise ArgumentError(f"detectors={detectors!r}: a combination takes at least two")
        members = [parse(each) if isinstance(each, str) else each for each in detectors]
        self.members = nn.ModuleList(members)
        self.detectors = tuple(member.spec for member in members)
        self.how = how
        self.layers = tuple(dict.fromkeys(name for member in members for name in member.layers))
        self.learns_from = tuple(dict.fromkeys(name for member in members for name in member.learns_from))
        self.learns_against = any(member.learns_against for member in members)
        self.register_buffer("ranks_", None)

    @property
    def scores_from(self) -> tuple[str, ...]:  # type: ignore[override]
        """What any of them scores from."""
        return tuple(dict.fromkeys(name for member in self._members() for name in member.scores_from))

    @property
    def tuned(self) -> bool:
        """Whether the ranks are known, and each member has nothing open."""
        return self.ranks_ is not None and all(member.tuned for member in self._members())

    def begin(self) -> dict[str, Statistic]:
        """The statistics of every member."""
        return {
            f"{place}.{name}": statistic
            for place, member in enumerate(self._members())
            for name, statistic in member.begin().items()
        }

    def observe(self, batch: Features, statistics: Statistics) -> None:
        """Each member its own."""
        for place, member in enumerate(self._members()):
            member.observe(batch, _own(statistics, place))

    def learn(self, statistics: Statistics, head: Head | None) -> None:
        """Each member its own; ranks have to be taken anew."""
        self.ranks_ = None
        for place, member in enumerate(self._members()):
            member.learn(_own(statistics, place), head)
            member.shape_ = torch.tensor(self._seen) if member.learns_from else None

    def steps(self) -> tuple[Step, ...]:
        """The input steps of all members."""
        return distinct(step for member in self._members() for step in member.steps())

    def trials(self) -> tuple[Step, ...]:
        """Those of all members."""
        return distinct(step for member in self._members() for step in member.trials())

    def tune(self, held_out: Features, adversarial: Features | None = None) -> None:
        """Settle what members have open, and take their ranks on held-out ID rows."""
        for member in self._members():
            if not member.tuned:
                member.tune(held_out, adversarial)
        scores = [member.score(held_out).double() for member in self._members()]
        self.ranks_ = torch.stack([knots(each) for each in scores]).float()

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """The mean or the smallest rank."""
        if self.ranks_ is None:
            raise NotFittedError(f"{self} has no ranks yet; call .tune(held_out) first")
        columns = dict(zip((*INPUTS, *self.extras), (embedding, logits, *others), strict=True))
        ranks = []
        for place, member in enumerate(self._members()):
            score = member(*(columns[name] for name in (*INPUTS, *member.extras)))
            ranks.append(rank(score, self.ranks_[place].contiguous()))
        stacked = torch.stack(ranks)
        return stacked.mean(dim=0) if self.how == "mean" else stacked.amin(dim=0)

    def _members(self) -> list[Detector]:
        return [member for member in self.members if isinstance(member, Detector)]


def combine(
    detectors: Sequence[str | Detector], *, train: Features, held_out: Features, how: str = "mean"
) -> Combination:
    """Fit ``detectors`` on ``train`` and put their scores on one scale by their ranks on ``held_out`` ID rows."""
    combination = Combination(detectors=detectors, how=how).fit(train)
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

    Between two reference scores it is drawn straight.

    >>> rank(torch.tensor([0.0, 1.0, 2.5, 3.0, 9.0]), torch.tensor([1.0, 2.0, 3.0]))
    tensor([-0.1667,  0.0000,  0.7500,  1.0000,  1.3750])
    """
    inside = torch.minimum(torch.maximum(scores, reference[0]), reference[-1]).contiguous()
    above = torch.searchsorted(reference, inside).clamp(1, max(1, len(reference) - 1))
    low, high = reference[above - 1], reference[above.clamp(max=len(reference) - 1)]
    gap = high - low
    between = torch.where(gap > 0, (inside - low) / torch.where(gap > 0, gap, 1.0), 0.5)
    beyond = (scores - inside) / (reference[-1] - reference[0]).clamp(min=1e-30)
    # past the last reference score ranks are all alike; squeezed distances keep the order there
    squeezed = 0.5 * beyond / (1 + beyond.abs())
    placed = (above - 1 + between) / max(1, len(reference) - 1) + torch.where(
        beyond.isinf(), beyond.sign() / 2, squeezed
    )
    return torch.where(torch.isnan(scores), scores, placed)


def _own(statistics: Statistics, place: int) -> Statistics:
    prefix = f"{place}."
    return {name.removeprefix(prefix): value for name, value in statistics.items() if name.startswith(prefix)}
