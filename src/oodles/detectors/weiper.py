"""WeiPer: how unlike the histograms of ID data those of one input are, of its activations and of many noisy logits."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from oodles.detectors.base import Detector, Statistics
from oodles.detectors.statistics import RowSample, Statistic
from oodles.errors import ArgumentError
from oodles.features import Features, Head

ROWS = 5000
"""Training rows the histograms of ID data are taken of."""
TOGETHER = 1000
"""Logits of an input looked at together."""
FLOOR_ACTIVATIONS, FLOOR_LOGITS = 0.01, 0.025
"""Added to every bin, so that an empty one can be compared."""


class WeiPer(Detector):
    """Minus the divergence of two histograms from those of ID data (WeiPer+KLD; Granz et al., NeurIPS 2024).

    The head is copied ``repeats`` times, each weight vector moved in a random direction by ``delta`` times its length;
    one histogram is of an input's activations, one of its logits under all copies, both over the range of ID data.
    ``s = -D(activations) - weight * D(logits) + confidence * mean of the copies' largest softmax probability``, where
    D is the symmetric Kullback-Leibler divergence and the input's own histogram is smoothed over ``smooth`` and
    ``smooth_logits`` bins. The copies are drawn once, from ``seed``; the authors' code draws anew for each batch.
    Ranges and mean histograms are of a sample of training rows. It costs as much as ``repeats`` heads.
    """

    learns_from = ("embedding", "head")
    scores_from = ("embedding",)
    heads_: Tensor
    bias_: Tensor
    range_: Tensor
    mean_: Tensor
    logit_range_: Tensor
    logit_mean_: Tensor

    def __init__(
        self,
        *,
        repeats: int = 100,
        delta: float = 1.8,
        bins: int = 100,
        smooth: int = 4,
        smooth_logits: int = 15,
        weight: float = 2.5,
        confidence: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        whole = all(isinstance(value, int) for value in (repeats, bins, smooth, smooth_logits))
        if not whole or repeats < 1 or bins < 2 or not 1 <= smooth <= bins or not 1 <= smooth_logits <= bins:
            raise ArgumentError(
                f"repeats={repeats} must be a whole number from 1, bins={bins} from 2, smooth={smooth} and "
                f"smooth_logits={smooth_logits} from 1 to bins"
            )
        if not 0 <= delta < 1e6:
            raise ArgumentError(f"delta={delta} must be 0 or more")
        if not abs(weight) < 1e30 or not abs(confidence) < 1e30:
            raise ArgumentError(f"weight={weight} and confidence={confidence} must be finite")
        if not isinstance(seed, int) or not 0 <= seed < 1 << 31:
            raise ArgumentError(f"seed={seed} must be a whole number from 0 to 2**31 - 1")
        self.repeats, self.delta, self.bins, self.seed = repeats, delta, bins, seed
        self.smooth, self.smooth_logits, self.weight, self.confidence = smooth, smooth_logits, weight, confidence
        for name in ("heads_", "bias_", "range_", "mean_", "logit_range_", "logit_mean_"):
            self.register_buffer(name, None)

    def begin(self) -> dict[str, Statistic]:
        """A sample of training rows."""
        return {"rows": RowSample(ROWS)}

    def observe(self, batch: Features, statistics: Statistics) -> None:
        """Sample embeddings."""
        statistics["rows"].add(batch.embedding)

    def learn(self, statistics: Statistics, head: Head | None) -> None:
        """Draw the copies of the head, then take both histograms of the sample."""
        if head is None:
            return
        weight = head.weight.float().cpu()
        noise = torch.randn(self.repeats, *weight.shape, generator=torch.Generator().manual_seed(self.seed))
        length = torch.linalg.vector_norm(weight, dim=1, keepdim=True)
        self.heads_ = weight + self.delta * length * F.normalize(noise, dim=2)
        self.bias_ = weight.new_zeros(len(weight)) if head.bias is None else head.bias.float().cpu().clone()
        rows = statistics["rows"].rows()
        # some copies at a time: all logits under all copies of a large head would not fit memory
        ends = torch.stack([torch.stack(part.aminmax()) for part in self._copies(rows)])
        self.range_, self.logit_range_ = _range(rows), _range(ends)
        self.mean_ = histogram(rows, self.range_, self.bins).mean(dim=0).float()
        self.logit_mean_ = self._look(rows)[0].mean(dim=0).float()

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """Both divergences and the copies' confidence."""
        own = histogram(embedding, self.range_, self.bins)
        own_logits, sure = self._look(embedding)
        score = (
            -divergence(own, self.mean_, self.smooth, FLOOR_ACTIVATIONS)
            - self.weight * divergence(own_logits, self.logit_mean_, self.smooth_logits, FLOOR_LOGITS)
            + self.confidence * sure
        )
        return score.to(embedding.dtype)

    def _copies(self, embedding: Tensor) -> Iterator[Tensor]:
        """Logits ``(n, copies, C)`` of some copies of the head after the other.

        They are float64: a histogram turns rounding into whole counts.
        """
        for heads in torch.split(self.heads_, max(1, TOGETHER // self.heads_.shape[1])):
            flat = F.linear(embedding.double(), heads.flatten(0, 1).double())
            yield flat.view(-1, *heads.shape[:2]) + self.bias_.double()

    def _look(self, embedding: Tensor) -> tuple[Tensor, Tensor]:
        """The histogram of logits under all copies, and the mean of the copies' largest probability."""
        shares, sure = embedding.new_zeros((), dtype=torch.float64), embedding.new_zeros((), dtype=torch.float64)
        for part in self._copies(embedding):
            shares = shares + histogram(part.flatten(1), self.logit_range_, self.bins) * part.shape[1]
            sure = sure + part.softmax(dim=2).amax(dim=2).sum(dim=1)
        return shares / self.repeats, sure / self.repeats


def histogram(rows: Tensor, ends: Tensor, bins: int) -> Tensor:
    """The share of each row's values in each of the bins between two ends, float64; outside, in none of them.

    >>> histogram(torch.tensor([[0.0, 0.5, 2.0, 9.0]]), torch.tensor([0.0, 2.0]), 2)
    tensor([[0.5000, 0.2500]], dtype=torch.float64)
    """
    values, (low, high) = rows.double(), ends.double()
    # the last bin holds its upper end; what lies outside goes to an extra bin that is cut off
    place = ((values - low) * bins / (high - low)).floor().clamp(0, bins - 1)
    place = torch.where((values >= low) & (values <= high), place.nan_to_num(bins - 1), bins).long()
    counts = values.new_zeros(values.shape[0], bins + 1).scatter_add(1, place, values.new_ones(()).expand_as(values))
    return counts[:, :bins] / values.shape[1]


def divergence(own: Tensor, mean: Tensor, width: int, floor: float) -> Tensor:
    """Symmetric Kullback-Leibler divergence of each row, smoothed by a box of ``width`` bins, from ``mean``."""
    padded = F.pad(own[:, None], (width // 2, (width - 1) // 2), mode="replicate")
    smoothed = F.avg_pool1d(padded, width, stride=1)[:, 0] + floor
    own, mean = smoothed / smoothed.sum(dim=1, keepdim=True), mean.double() + floor
    mean = mean / mean.sum()
    return ((mean - own) * (mean.log() - own.log())).sum(dim=1)


def _range(values: Tensor) -> Tensor:
    """The smallest and the largest value, and never the same."""
    low, high = values.double().aminmax()
    ends = torch.stack([low, torch.where(high > low, high, low + 1)])
    near = ends.float()
    # outwards: rounded to the nearest, an end may leave out the very value it is
    inwards = (near.double() - ends) * ends.new_tensor([1.0, -1.0]) > 0
    return torch.where(inwards, torch.nextafter(near, near.new_tensor([-torch.inf, torch.inf])), near)
