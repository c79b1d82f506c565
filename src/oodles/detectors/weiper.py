"""WeiPer: how far the histograms of an input's activations and noisy logits are from those of ID data."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from oodles.detectors.arguments import check_whole
from oodles.detectors.base import Detector, Statistics
from oodles.detectors.sparsifiers import MAX_SEED
from oodles.detectors.statistics import RowSample, Statistic
from oodles.errors import ArgumentError
from oodles.features import Head

ROWS = 5000  # training rows used for the histograms of ID data
MAX_VALUES = 1 << 29  # numbers in all copies of the head together: 2 GB
TOGETHER = 1000  # logits of an input computed at a time
FLOOR_ACTIVATIONS, FLOOR_LOGITS = 0.01, 0.025  # added to every bin, so that the logarithm of an empty one is defined


class WeiPer(Detector):
    """Minus the divergence of two histograms from those of ID data (WeiPer+KLD; Granz et al., NeurIPS 2024).

    The head is copied ``repeats`` times, each weight vector moved in a random direction by ``delta`` times its norm;
    one histogram is of an input's activations, the other of its logits under all copies, both over the range of ID
    data. ``s = -D(activations) - weight * D(logits) + confidence * mean of the copies' largest softmax probability``,
    where D is the symmetric Kullback-Leibler divergence and the input's histogram is smoothed over ``smooth`` and
    ``smooth_logits`` bins. The copies are drawn once, from ``seed``; the authors' code draws new ones for each batch.
    A window of an even number of bins takes its extra bin from below, not from above as in the authors' code, because
    that ranks better here. Ranges and mean histograms come from a sample of training rows. It costs as much as
    ``repeats`` heads.

    >>> from oodles.testing import example_features
    >>> detector = WeiPer(repeats=10).fit(example_features())
    >>> detector.heads_.shape  # ten copies of the head, moved at random
    torch.Size([10, 5, 24])
    """

    learns_from = ("embedding", "head")
    scores_from = ("embedding",)
    rows_at_once = 512
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
        check_whole("repeats", repeats, 1, 100_000)
        check_whole("bins", bins, 2, 10_000)
        check_whole("smooth", smooth, 1, bins)
        check_whole("smooth_logits", smooth_logits, 1, bins)
        if not 0 <= delta < 1e6:
            raise ArgumentError(f"delta={delta} must be 0 or more")
        if not abs(weight) < 1e30 or not abs(confidence) < 1e30:
            raise ArgumentError(f"weight={weight} and confidence={confidence} must be finite")
        self.repeats, self.delta, self.bins, self.seed = repeats, delta, bins, check_whole("seed", seed, 0, MAX_SEED)
        self.smooth, self.smooth_logits, self.weight, self.confidence = smooth, smooth_logits, weight, confidence

    @override
    def begin(self) -> dict[str, Statistic]:
        return {"rows": RowSample(ROWS)}

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        weight = head.weight
        if self.repeats * weight.numel() > MAX_VALUES:
            raise ArgumentError(
                f"{self} would hold {self.repeats:,} copies of a head of {weight.shape[0]} x {weight.shape[1]} "
                f"numbers, more than {MAX_VALUES:,} in all; give fewer repeats"
            )
        noise = torch.randn(self.repeats, *weight.shape, generator=torch.Generator().manual_seed(self.seed))
        length = torch.linalg.vector_norm(weight, dim=1, keepdim=True)
        # in place, because all copies of a large head are the largest tensor there is
        noise /= torch.linalg.vector_norm(noise, dim=2, keepdim=True).clamp(min=1e-12)
        self.heads_ = noise.mul_(self.delta * length).add_(weight)
        self.bias_ = head.full_bias().clone()
        rows = statistics["rows"].rows()
        # a few copies at a time: all logits under all copies of a large head would not fit in memory
        ends = torch.stack([torch.stack(part.aminmax()) for part in self._copies(rows)])
        self.range_, self.logit_range_ = _range(rows), _range(ends)
        self.mean_ = histogram(rows, self.range_, self.bins).mean(dim=0).float()
        self.logit_mean_ = self._noisy_logits(rows)[0].mean(dim=0).float()

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        own = histogram(embedding, self.range_, self.bins)
        own_logits, confidence = self._noisy_logits(embedding)
        score = (
            -divergence(own, self.mean_, self.smooth, FLOOR_ACTIVATIONS)
            - self.weight * divergence(own_logits, self.logit_mean_, self.smooth_logits, FLOOR_LOGITS)
            + self.confidence * confidence
        )
        return score.to(embedding.dtype)

    def _copies(self, embedding: Tensor) -> Iterator[Tensor]:
        """Logits ``(n, copies, C)`` of a few copies of the head at a time.

        They are float64, because a histogram turns rounding errors into whole counts.
        """
        for heads in torch.split(self.heads_, max(1, TOGETHER // self.heads_.shape[1])):
            flat = F.linear(embedding.double(), heads.flatten(0, 1).double())
            yield flat.view(-1, *heads.shape[:2]) + self.bias_.double()

    def _noisy_logits(self, embedding: Tensor) -> tuple[Tensor, Tensor]:
        """The histogram of logits under all copies, and the mean of the copies' largest probability."""
        shares = confidence = embedding.new_zeros((), dtype=torch.float64)
        for part in self._copies(embedding):
            shares = shares + histogram(part.flatten(1), self.logit_range_, self.bins) * part.shape[1]
            confidence = confidence + part.softmax(dim=2).amax(dim=2).sum(dim=1)
        return shares / self.repeats, confidence / self.repeats


def histogram(rows: Tensor, ends: Tensor, bins: int) -> Tensor:
    """The fraction of each row's values in each bin between two ends, float64; values outside are not counted.

    >>> histogram(torch.tensor([[0.0, 0.5, 2.0, 9.0]]), torch.tensor([0.0, 2.0]), 2)
    tensor([[0.5000, 0.2500]], dtype=torch.float64)
    """
    values, (low, high) = rows.double(), ends.double()
    # the last bin includes its upper end; values outside go to an extra bin that is dropped
    place = ((values - low) * bins / (high - low)).floor().clamp(0, bins - 1)
    place = torch.where((values >= low) & (values <= high), place.nan_to_num(bins - 1), bins).long()
    counts = values.new_zeros(values.shape[0], bins + 1).scatter_add(1, place, values.new_ones(()).expand_as(values))
    return counts[:, :bins] / values.shape[1]


def divergence(own: Tensor, mean: Tensor, width: int, floor: float) -> Tensor:
    """Symmetric Kullback-Leibler divergence of each row, smoothed by a box of ``width`` bins, from ``mean``."""
    padded = F.pad(own[:, None], (width // 2, (width - 1) // 2), mode="replicate")
    if torch.compiler.is_exporting():  # onnxruntime has no pooling in float64
        places = [padded[:, 0, place : place + own.shape[1]] for place in range(width)]
        smoothed = torch.stack(places).mean(dim=0) + floor
    else:
        smoothed = F.avg_pool1d(padded, width, stride=1)[:, 0] + floor
    own, mean = smoothed / smoothed.sum(dim=1, keepdim=True), mean.double() + floor
    mean = mean / mean.sum()
    return ((mean - own) * (mean.log() - own.log())).sum(dim=1)


def _range(values: Tensor) -> Tensor:
    """The smallest and the largest value, made different if they are equal."""
    low, high = values.double().aminmax()
    ends = torch.stack([low, torch.where(high > low, high, low + 1)])
    near = ends.float()
    # rounded outwards, because an end rounded to the nearest may exclude the very value it came from
    inwards = (near.double() - ends) * ends.new_tensor([1.0, -1.0]) > 0
    return torch.where(inwards, torch.nextafter(near, near.new_tensor([-torch.inf, torch.inf])), near)
