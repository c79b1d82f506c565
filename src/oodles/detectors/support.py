"""``Support``: how far an input is from the ID data in its units; ``Supported``: a detector with this check."""

from typing import Any

from torch import Tensor
from typing_extensions import override

from oodles.detectors.base import INPUTS, Detector, Statistics
from oodles.detectors.ensemble import RankEnsemble
from oodles.detectors.statistics import Statistic, UnitMoments
from oodles.errors import ArgumentError
from oodles.features import Features, Head

FLOOR = 1e-4  # of the mean variance, added to each variance: a unit that never varied has a scale too
MAX_SCALE = 1e30


class Support(Detector):
    r"""Minus the squared deviation of the units from their ID means, on average or of the unit that is farthest off.

    With :math:`z_k = (h_k - \mu_k) / \sqrt{v_k + 10^{-4} \bar v}`, the score is :math:`-\mathrm{mean}_k z_k^2`
    (``of="mean"``) or :math:`-\max_k |z_k|` (``of="max"``). Both fall without bound along every ray, even if the only
    unit that moves was constant on the training data. Alone it is a weak detector; ensembles use it as a check
    (:class:`RankEnsemble`). ``column`` is what the units are: those of the ``embedding``, or the ``logits``.

    >>> import torch
    >>> rows = Features(torch.tensor([[1.0, 5.0], [-1.0, 5.0]]))
    >>> Support(of="max").fit(rows).score(Features(torch.tensor([[2.0, 5.0], [0.0, 6.0]])))  # the second unit is dead
    tensor([  -2.0000, -141.4214])
    """

    needs_softmax = False
    mean_: Tensor
    scale_: Tensor

    def __init__(self, *, of: str = "mean", column: str = "embedding") -> None:
        super().__init__()
        if of not in ("mean", "max"):
            raise ArgumentError(f"of={of!r} must be 'mean' or 'max'")
        if column not in INPUTS:
            raise ArgumentError(f"column={column!r} must be 'embedding' or 'logits'")
        self.of = of
        self.column = column
        self.learns_from = self.scores_from = (column,)

    @override
    def begin(self) -> dict[str, Statistic]:
        return {"units": UnitMoments()}

    @override
    def observe(self, batch: Features, statistics: Statistics) -> None:
        statistics["units"].add(batch.column(self.column))

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        variance = statistics["units"].variance()
        self.mean_ = statistics["units"].mean().float()
        self.scale_ = (variance + FLOOR * variance.mean()).rsqrt().clamp(max=MAX_SCALE).float()

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        z = ((embedding if self.column == "embedding" else logits) - self.mean_) * self.scale_
        return -z.square().mean(dim=1) if self.of == "mean" else -z.abs().amax(dim=1)


CHECKS = ("support", "support(of='max')")
"""The checks of an ensemble that scores from embeddings."""
LOGIT_CHECKS = ("support(column='logits')", "support(of='max', column='logits')")
"""The same for logits alone."""


class Supported(RankEnsemble):
    """A detector that also rejects inputs far from all ID data: its rank on ID data, with the checks of the default.

    Most detectors read a score far above the ID range as most in-distribution, and accept inputs that are many times
    too large. This keeps their ranking of ordinary inputs, and falls without bound along every ray away from the data.

    >>> from oodles.testing import example_features
    >>> train = example_features()
    >>> far = Features(1000 * train.embedding[:1], head=train.head)
    >>> checked = Supported(detector="energy").fit(train)
    >>> float(checked.score(far)) < float(checked.score(train).min())
    True
    """

    def __init__(self, *, detector: str | Detector = "energy", holdout: float = 0.2) -> None:
        super().__init__(detectors=[detector], reduction="fisher", holdout=holdout, checks=CHECKS)

    @property
    def detector(self) -> Detector:
        """The detector that is checked."""
        return self._members()[0]

    @override
    def arguments(self) -> dict[str, Any]:
        return {"detector": self.detector, "holdout": self.holdout}
