"""AdaSCALE: SCALE with a percentile per input, set by how far a small step moves its largest activations."""

import torch
from torch import Tensor
from typing_extensions import override

from oodles.detectors.base import Statistics
from oodles.detectors.network_detector import NetworkDetector
from oodles.detectors.odin import NegativeMaximum
from oodles.errors import ArgumentError, NotFittedError
from oodles.features import Features, Head
from oodles.functional import energy, prefix_ratio
from oodles.records.calls import write_call
from oodles.steps import Step

SCALED = ("embedding", "logits")


class AdaSCALE(NetworkDetector):
    """SCALE at a percentile between ``low`` and ``high`` that depends on the input (Regmi, 2025).

    The image is moved by ``epsilon`` up the gradient of its largest logit, in the fraction ``share`` of its values
    where that gradient is smallest. With ``h`` before and ``h'`` after, ``q = shift * sum |h - h'|`` over the largest
    1 % of ``h`` ``+ sum relu(h')`` over the largest 5 %; the rank of ``q`` among held-out ID images moves the
    percentile from ``high``, for the smallest, to ``low``. ``scaled="embedding"`` scales like SCALE (AdaSCALE-A),
    ``scaled="logits"`` like LTS (AdaSCALE-L). It costs one more forward and backward pass per image, and is tuned on
    held-out ID images.

    >>> detector = AdaSCALE()
    >>> [(step.column, step.share) for step in detector.steps()], detector.tuned
    ([('layer.adascale(epsilon=0.5, share=0.05)', 0.05)], False)
    """

    learns_from = ("embedding", "head")
    tunes = ("reference_",)
    bias_: Tensor
    reference_: Tensor | None

    def __init__(
        self,
        *,
        low: float = 75,
        high: float = 85,
        scaled: str = "embedding",
        epsilon: float = 0.5,
        share: float = 0.05,
        shift: float = 10.0,
    ) -> None:
        super().__init__()
        if not 1 <= low <= high < 100:
            raise ArgumentError(f"low={low} and high={high} must be percentiles, 1 to 100, with low <= high")
        if scaled not in SCALED:
            raise ArgumentError(f"scaled={scaled!r} must be one of {', '.join(SCALED)}")
        if epsilon is None or not 0 < epsilon < 1e6 or not 0 < share <= 1:
            raise ArgumentError(f"epsilon={epsilon} must be positive, share={share} a fraction of an image's values")
        if not abs(shift) < 1e30:
            raise ArgumentError(f"shift={shift} must be finite")
        self.low, self.high, self.scaled, self.shift = low, high, scaled, shift
        self.epsilon, self.share = float(epsilon), float(share)

    @property
    @override
    def scores_from(self) -> tuple[str, ...]:  # type: ignore[override]
        return "embedding", "logits", self._step().column

    @property
    @override
    def tuned(self) -> bool:
        return self.reference_ is not None

    @override
    def steps(self) -> tuple[Step, ...]:
        return (self._step(),)

    @override
    def trials(self) -> tuple[Step, ...]:
        return (self._step(),)

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        self.reference_ = None
        self.bias_ = head.full_bias().clone()

    @override
    def tune(self, held_out: Features, adversarial: Features | None = None) -> None:
        moved = self._moved(held_out.embedding, held_out.column(self._step().column))
        self.reference_ = moved.sort().values.to(self.bias_.device)

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        if self.reference_ is None:
            raise NotFittedError(f"{self} has not seen held-out images; call oodles.selection.tune first")
        moved = self._moved(embedding, others[0])
        rows = len(self.reference_)
        above = rows - torch.searchsorted(self.reference_.to(moved), moved.contiguous(), right=True)
        percentile = self.low + above.double() * (self.high - self.low) / rows
        width = embedding.shape[1]
        kept = (width - (width * percentile / 100).round()).long().clamp(1, width)
        ratio = prefix_ratio(embedding, kept)
        of_logits = self.scaled == "logits"
        scaled = logits * ratio.square() if of_logits else ratio.exp() * (logits - self.bias_) + self.bias_
        return torch.where(moved.isnan(), torch.nan, energy(scaled))

    def _moved(self, embedding: Tensor, after: Tensor) -> Tensor:
        """How far the step moves the largest activations, plus how large they are afterwards."""
        width = embedding.shape[1]
        # in float64, because the rank of the result must not depend on rounding
        embedding, after = embedding.double(), after.double()
        order = embedding.topk(max(1, width // 20), dim=1).indices
        few = order[:, : max(1, width // 100)]
        gap = (embedding.gather(1, few) - after.gather(1, few)).abs().sum(dim=1)
        return (self.shift * gap + after.gather(1, order).relu().sum(dim=1)).float()

    def _step(self) -> Step:
        name = write_call("adascale", {"epsilon": self.epsilon, "share": self.share})
        return Step(name, NegativeMaximum("logits"), self.epsilon, keep="embedding", share=self.share)
