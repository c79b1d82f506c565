"""Detectors that compare logits with those of training rows: KL matching, temperature scaling, OpenMax."""

import torch
from torch import Tensor

from oodles.detectors.base import Detector, Statistics
from oodles.detectors.statistics import ClassMeans, RowSample, Statistic
from oodles.errors import ArgumentError
from oodles.features import Features, Head
from oodles.functional import msp

SAMPLE = 50_000
FLOOR = 1e-30
"""Probabilities below it count as this: the logarithm of 0 would make 0 log 0 a NaN."""
LARGEST_INVERSE = 1e3
"""The inverse temperature stops here; where every row is labelled right, the likelihood has no maximum."""


class KLMatching(Detector):
    """Minus the divergence from the nearest mean softmax of a predicted class (Hendrycks et al., ICML 2022).

    ``-min_k KL(softmax(z) || d_k)``, as the entropy plus ``max_k softmax(z) . log d_k``: one product.
    """

    learns_from = ("logits",)
    scores_from = ("logits",)
    templates_: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("templates_", None)

    def begin(self) -> dict[str, Statistic]:
        """The mean softmax of each predicted class."""
        return {"softmax": ClassMeans()}

    def observe(self, batch: Features, statistics: Statistics) -> None:
        """Add one batch."""
        probability = torch.softmax(batch.logits.double(), dim=1)
        statistics["softmax"].add(probability, batch.logits.argmax(dim=1), batch.classes)

    def learn(self, statistics: Statistics, head: Head | None) -> None:
        """The logarithm of the templates; classes never predicted have none."""
        means = statistics["softmax"]
        self.templates_ = means.values()[means.counts > 0].clamp(min=FLOOR).log().float()

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """Minus the smallest divergence."""
        log_probability = torch.log_softmax(logits, dim=1)
        probability = log_probability.exp()
        nearest: Tensor = (probability @ self.templates_.T).amax(dim=1)
        return nearest - (probability * log_probability).sum(dim=1)


class _OnLabelledLogits(Detector):
    learns_from = ("logits", "labels")
    scores_from = ("logits",)

    def begin(self) -> dict[str, Statistic]:
        """A sample of logits with labels."""
        return {"rows": RowSample(SAMPLE)}

    def observe(self, batch: Features, statistics: Statistics) -> None:
        """Sample one batch."""
        statistics["rows"].add(with_labels(batch))


class TempScale(_OnLabelledLogits):
    """Largest softmax probability at the temperature that fits labelled rows best (Guo et al., ICML 2017).

    Fit it on held-out rows: on training rows a network is more confident than it should be. The likelihood is
    concave in 1 / T, so Newton steps inside a bracket find its maximum.
    """

    temperature_: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("temperature_", None)

    def learn(self, statistics: Statistics, head: Head | None) -> None:
        """The inverse temperature at which the expected logit is that of the label."""
        rows = statistics["rows"].rows().double()
        logits, labels = rows[:, :-1], rows[:, -1].long()
        own = logits.gather(1, labels[:, None])[:, 0]
        low, high, inverse = 0.0, LARGEST_INVERSE, 1.0
        for _ in range(60):
            probability = torch.softmax(inverse * logits, dim=1)
            mean = (probability * logits).sum(dim=1)
            slope = float((mean - own).mean())
            low, high = (low, inverse) if slope > 0 else (inverse, high)
            curvature = float(((probability * logits.square()).sum(dim=1) - mean.square()).mean())
            step = inverse - slope / curvature if curvature > 0 else (low + high) / 2
            inverse = step if low < step < high else (low + high) / 2
        self.temperature_ = torch.tensor(1 / max(inverse, 1 / LARGEST_INVERSE))

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """MSP at that temperature."""
        return msp(logits / self.temperature_)


class OpenMax(_OnLabelledLogits):
    """Probability mass moved from known classes to an unknown one (Bendale & Boult, CVPR 2016).

    For every class the distances of its correctly labelled training logits from their mean; the ``tail`` largest are
    fitted by an extreme-value law. The ``top`` largest logits of an input give up the share that its distance from
    their class is improbable by; what they give up is the unknown's logit, and ``s = logsumexp(kept) - unknown``.
    Logits are first shifted by their smallest, since shares of negative ones would turn the order round.
    """

    centres_: Tensor
    place_: Tensor
    width_: Tensor

    def __init__(self, *, tail: int = 20, top: int = 10) -> None:
        super().__init__()
        if tail < 2 or top < 1:
            raise ArgumentError(f"tail={tail} must be at least 2 and top={top} at least 1")
        self.tail = tail
        self.top = top
        for name in ("centres_", "place_", "width_"):
            self.register_buffer(name, None)

    def learn(self, statistics: Statistics, head: Head | None) -> None:
        """Centres of the classes and the law of their farthest rows; a class with too few of them gives up nothing."""
        rows = statistics["rows"].rows().double()
        logits, labels = rows[:, :-1], rows[:, -1].long()
        right = logits.argmax(dim=1) == labels
        self.remarks = () if right.any() else (f"{self}: no training row is labelled right, so it knows no class",)
        classes = logits.shape[1]
        centres = torch.zeros(classes, classes, dtype=torch.float64)
        place, width = torch.full((classes,), torch.inf), torch.ones(classes)
        for label in range(classes):
            mine = logits[right & (labels == label)]
            if len(mine) == 0:
                continue
            centres[label] = mine.mean(dim=0)
            distance = torch.linalg.vector_norm(mine - centres[label], dim=1)
            # two rows lie equally far from their mean, and say nothing of how far is far
            if len(mine) >= 3 and distance.max() > distance.min():
                place[label], width[label] = tail_law(distance.topk(min(self.tail, len(mine))).values)
        self.centres_, self.place_, self.width_ = centres.float(), place.float(), width.float()

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """How much of the logits stays with the known classes."""
        distance = torch.cdist(logits, self.centres_, compute_mode="donot_use_mm_for_euclid_dist")
        improbable = -torch.expm1(-((distance - self.place_) / self.width_).clamp(max=30).exp())
        count = min(self.top, logits.shape[1])
        weights = torch.arange(count, 0, -1, device=logits.device, dtype=logits.dtype) / count
        places = logits.topk(count, dim=1).indices
        share = torch.zeros_like(logits).scatter(1, places, weights.expand_as(places)) * improbable
        positive = logits - logits.amin(dim=1, keepdim=True)
        return torch.logsumexp(positive * (1 - share), dim=1) - (positive * share).sum(dim=1)


def with_labels(batch: Features) -> Tensor:
    """Logits with the label as a last column."""
    return torch.cat([batch.logits.float().cpu(), batch.column("labels").float().cpu()[:, None]], dim=1)


def tail_law(distances: Tensor) -> tuple[Tensor, Tensor]:
    """Place and width of ``1 - exp(-exp((d - place) / width))`` with the largest likelihood.

    The width solves ``width = sum d w / sum w - mean d`` with ``w = exp(d / width)``, by bisection; the limit of the
    authors' Weibull law, which is fitted to distances moved by ten thousand.
    """
    top = distances.max()
    low, high = torch.zeros((), dtype=distances.dtype), top - distances.mean()
    for _ in range(80):
        middle = (low + high) / 2
        weight = ((distances - top) / middle).exp()
        wider = (distances * weight).sum() / weight.sum() - distances.mean() > middle
        low, high = torch.where(wider, middle, low), torch.where(wider, high, middle)
    width = (low + high) / 2
    return top + width * ((distances - top) / width).exp().mean().log(), width
