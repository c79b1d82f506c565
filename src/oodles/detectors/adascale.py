"""AdaSCALE: SCALE whose percentile is each input's own, by how far a small step moves its largest activations."""

import torch
from torch import Tensor

from oodles.calls import write_call
from oodles.detectors.base import Detector, Statistics
from oodles.detectors.gradient import Remoteness
from oodles.errors import ArgumentError, NotFittedError
from oodles.features import Features, Head
from oodles.functional import energy, prefix_ratio
from oodles.perturbation import Step

WAYS = ("embedding", "logits")


class AdaScale(Detector):
    """SCALE at a percentile between ``low`` and ``high`` that each input chooses for itself (AdaSCALE; Regmi, 2025).

    The image is moved by ``epsilon`` up the gradient of its largest logit, in the ``share`` of its values where that
    gradient is smallest. With ``h`` before and ``h'`` after, ``q = shift * sum |h - h'|`` over the largest 1 % of ``h``
    ``+ sum relu(h')`` over the largest 5 %; where ``q`` stands among held-out ID images moves the percentile from
    ``high``, for the least, to ``low``. ``how="embedding"`` scales as SCALE does (AdaSCALE-A), ``how="logits"`` as LTS
    (AdaSCALE-L). One forward pass and one backward pass more for each image; tune it on held-out ID images.
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
        how: str = "embedding",
        epsilon: float = 0.5,
        share: float = 0.05,
        shift: float = 10.0,
    ) -> None:
        super().__init__()
        if not 1 <= low <= high < 100:
            raise ArgumentError(f"low={low} and high={high} are percentiles, 1 to 100, the first not the larger one")
        if how not in WAYS:
            raise ArgumentError(f"how={how!r} is none of {', '.join(WAYS)}")
        if epsilon is None or not 0 < epsilon < 1e6 or not 0 < share <= 1:
            raise ArgumentError(
                f"epsilon={epsilon} must be positive, and share={share} a fraction of the image's values"
            )
        if not abs(shift) < 1e30:
            raise ArgumentError(f"shift={shift} must be finite")
        self.low, self.high, self.how, self.shift = low, high, how, shift
        self.epsilon, self.share = float(epsilon), float(share)
        self.register_buffer("bias_", None)
        self.register_buffer("reference_", None)

    @property
    def scores_from(self) -> tuple[str, ...]:  # type: ignore[override]
        """Both passes."""
        return "embedding", "logits", self._step().column

    @property
    def tuned(self) -> bool:
        """Whether the held-out images have been seen."""
        return self.reference_ is not None

    def steps(self) -> tuple[Step, ...]:
        """The one step."""
        return (self._step(),)

    def trials(self) -> tuple[Step, ...]:
        """The same step, on held-out images."""
        return (self._step(),)

    def learn(self, statistics: Statistics, head: Head | None) -> None:
        """Keep the bias; where held-out images stand has to be seen anew."""
        if head is None:
            return
        self.reference_ = None
        self.bias_ = torch.zeros_like(head.weight[:, 0]) if head.bias is None else head.bias.clone()

    def tune(self, held_out: Features, adversarial: Features | None = None) -> None:
        """Keep how far the step moves held-out ID images."""
        self.reference_ = (
            self._moved(held_out.embedding, held_out.column(self._step().column)).sort().values.to(self.bias_.device)
        )

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """Energy of the scaled logits."""
        if self.reference_ is None:
            raise NotFittedError(f"{self} has not seen held-out images; call oodles.tune first")
        moved = self._moved(embedding, others[0])
        rows = len(self.reference_)
        above = rows - torch.searchsorted(self.reference_.to(moved), moved.contiguous(), right=True)
        percentile = self.low + above.double() * (self.high - self.low) / rows
        width = embedding.shape[1]
        kept = (width - (width * percentile / 100).round()).long().clamp(1, width)
        ratio = prefix_ratio(embedding, kept)
        scaled = logits * ratio.square() if self.how == "logits" else ratio.exp() * (logits - self.bias_) + self.bias_
        return torch.where(moved.isnan(), torch.nan, energy(scaled))

    def _moved(self, embedding: Tensor, after: Tensor) -> Tensor:
        """How far the step moves the largest activations, and how large those after it are."""
        width = embedding.shape[1]
        # the same number whatever the floats: where it stands among others must not hang on rounding
        embedding, after = embedding.double(), after.double()
        order = embedding.topk(max(1, width // 20), dim=1).indices
        few = order[:, : max(1, width // 100)]
        gap = (embedding.gather(1, few) - after.gather(1, few)).abs().sum(dim=1)
        return (self.shift * gap + after.gather(1, order).relu().sum(dim=1)).float()

    def _step(self) -> Step:
        name = write_call("adascale", {"epsilon": self.epsilon, "share": self.share})
        return Step(name, Remoteness("logits"), self.epsilon, keep="embedding", share=self.share)
