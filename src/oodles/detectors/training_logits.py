"""Detectors that compare logits with those of training rows: KL matching, temperature scaling, OpenMax."""

import warnings

import torch
from torch import Tensor
from typing_extensions import override

from oodles.detectors.arguments import check_whole
from oodles.detectors.base import Detector, Statistics
from oodles.detectors.statistics import ClassMeans, RowSample, Statistic
from oodles.errors import FitWarning
from oodles.features import Features, Head
from oodles.functional import msp

SAMPLE = 50_000
FLOOR = 1e-30  # smaller probabilities are set to this, because 0 log 0 would be NaN
FEW = 16  # with up to this many times ``top`` classes, distances to all are faster than only those to the top ones
MAX_INVERSE = 1e3
"""Largest inverse temperature: if every row is classified correctly, the likelihood has no maximum."""


class KLMatching(Detector):
    """Minus the KL divergence from the nearest class's mean softmax (KL matching; Hendrycks et al., ICML 2022).

    ``-min_k KL(softmax(z) || d_k)``, as the entropy plus ``max_k softmax(z) . log d_k``: one product.

    >>> train = Features(logits=torch.tensor([[4.0, 0.0], [5.0, 1.0], [0.0, 4.0]]))
    >>> KLMatching().fit(train).score(Features(logits=torch.tensor([[4.5, 0.5], [1.0, 1.0]]))).round(decimals=3)
    tensor([ 0.0000, -1.3250])
    """

    learns_from = ("logits",)
    scores_from = ("logits",)
    templates_: Tensor

    @override
    def begin(self) -> dict[str, Statistic]:
        return {"softmax": ClassMeans()}

    @override
    def observe(self, batch: Features, statistics: Statistics) -> None:
        probability = torch.softmax(batch.logits.double(), dim=1)
        statistics["softmax"].add(probability, batch.logits.argmax(dim=1), batch.classes)

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        means = statistics["softmax"]
        self.templates_ = means.values()[means.counts > 0].clamp(min=FLOOR).log().float()

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        log_probability = torch.log_softmax(logits, dim=1)
        probability = log_probability.exp()
        nearest: Tensor = (probability @ self.templates_.T).amax(dim=1)
        return nearest - (probability * log_probability).sum(dim=1)


class _OnLabelledLogits(Detector):
    learns_from = ("logits", "labels")
    scores_from = ("logits",)

    @override
    def begin(self) -> dict[str, Statistic]:
        return {"rows": RowSample(SAMPLE)}

    @override
    def observe(self, batch: Features, statistics: Statistics) -> None:
        statistics["rows"].add(with_labels(batch))


class TempScale(_OnLabelledLogits):
    """Maximum softmax probability at the temperature that fits labelled rows best (Guo et al., ICML 2017).

    Fit it on held-out rows, because a network is overconfident on its training rows. The likelihood is
    concave in 1 / T, so Newton steps inside a bracket find its maximum.

    >>> sure = torch.tensor([[4.0, 0.0]] * 4)  # of which one in four is wrong
    >>> TempScale().fit(Features(logits=sure, labels=torch.tensor([0, 0, 0, 1]))).temperature_  # then 75 % is right
    tensor(3.6410)
    """

    temperature_: Tensor

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        rows = statistics["rows"].rows()
        all_correct = bool((rows[:, :-1].argmax(dim=1) == rows[:, -1]).all())
        inverse = MAX_INVERSE if all_correct else _most_likely_inverse(rows)
        self.temperature_ = torch.tensor(1 / max(inverse, 1 / MAX_INVERSE))

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        return msp(logits / self.temperature_)


def _most_likely_inverse(rows: Tensor) -> float:
    """The inverse temperature with the largest likelihood."""
    low, high, inverse = 0.0, MAX_INVERSE, 1.0
    for _ in range(60):
        slope, curvature = _slope_and_curvature(rows, inverse)
        low, high = (low, inverse) if slope > 0 else (inverse, high)
        step = inverse - slope / curvature if curvature > 0 else (low + high) / 2
        if abs(step - inverse) <= 1e-12 * inverse:
            break
        inverse = step if low < step < high else (low + high) / 2
    return inverse


def _slope_and_curvature(rows: Tensor, inverse: float) -> tuple[float, float]:
    """Derivatives of the mean negative log-likelihood by the inverse temperature, summed in float64."""
    slope = curvature = 0.0
    for part in torch.split(rows, max(1, (1 << 18) // rows.shape[1])):
        logits, labels = part[:, :-1].double(), part[:, -1:].long()
        probability = torch.softmax(inverse * logits, dim=1)
        weighted = probability.mul_(logits)
        mean = weighted.sum(dim=1)
        slope += float((mean - logits.gather(1, labels)[:, 0]).sum())
        curvature += float((weighted.mul_(logits).sum(dim=1) - mean.square()).sum())
    return slope / len(rows), curvature / len(rows)


class OpenMax(_OnLabelledLogits):
    """Probability mass moved from known classes to an unknown one (Bendale & Boult, CVPR 2016).

    For every class, an extreme-value distribution is fitted to the ``tail`` largest distances of its correctly
    classified training logits from their mean. Each of the ``top`` largest logits of an input is reduced by the
    probability that its distance from that class is extreme; what is taken away becomes the logit of the unknown class,
    and ``s = logsumexp(remaining) - unknown``: the logarithm of the odds that the input is of a known class.

    >>> train = Features(logits=torch.tensor([[4.0, 0.0], [5.0, 0.0], [7.0, 0.0]]), labels=torch.zeros(3, dtype=int))
    >>> OpenMax().fit(train).score(Features(logits=torch.tensor([[5.0, 0.0], [50.0, 0.0]])))  # 50 is too much
    tensor([  4.2148, -49.3069])
    """

    centres_: Tensor
    place_: Tensor
    width_: Tensor

    def __init__(self, *, tail: int = 20, top: int = 10) -> None:
        super().__init__()
        self.tail = check_whole("tail", tail, 2)
        self.top = check_whole("top", top, 1)

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        rows = statistics["rows"].rows().double()
        logits, labels = rows[:, :-1], rows[:, -1].long()
        correct = logits.argmax(dim=1) == labels
        if not correct.any():
            warnings.warn(f"{self}: no training row is classified correctly", FitWarning, stacklevel=2)
        logits, labels = logits[correct], labels[correct]
        classes = logits.shape[1]
        means = ClassMeans()
        means.add(logits, labels, classes)
        centres = means.values()
        distance = torch.linalg.vector_norm(logits - centres[labels], dim=1)
        of_class = distance[labels.argsort(stable=True)].split(means.counts.long().tolist())
        tails = {
            label: own.topk(min(self.tail, len(own))).values
            for label, own in enumerate(of_class)
            # two rows are equally far from their mean and say nothing about the tail, so their class keeps its logit
            if len(own) >= 3 and own.max() > own.min()
        }
        place, width = torch.full((classes,), torch.finfo(torch.float32).max), torch.ones(classes)  # none is extreme
        if tails:
            which = torch.tensor(list(tails))
            found = fit_tails(torch.nn.utils.rnn.pad_sequence(list(tails.values()), True, torch.nan))
            place[which], width[which] = (each.float() for each in found)
        self.centres_, self.place_, self.width_ = centres.float(), place, width

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        count = min(self.top, logits.shape[1])
        weights = torch.arange(count, 0, -1, device=logits.device, dtype=logits.dtype) / count
        places = logits.topk(count, dim=1).indices
        share = torch.zeros_like(logits).scatter(1, places, weights * self._improbable(logits, places))
        return torch.logsumexp(logits * (1 - share), dim=1) - (logits * share).sum(dim=1)

    def _improbable(self, logits: Tensor, places: Tensor) -> Tensor:
        """The probability that the distance from each of the top classes is extreme, ``(n, top)``."""
        # ONNX has no cdist
        if logits.shape[1] <= FEW * places.shape[1] and not torch.compiler.is_exporting():
            distance = torch.cdist(logits, self.centres_, compute_mode="donot_use_mm_for_euclid_dist")
            return _extreme(distance, self.place_, self.width_).gather(1, places)
        # one class at a time to keep memory small
        own = [torch.linalg.vector_norm(logits - self.centres_[top], dim=1) for top in places.T]
        return _extreme(torch.stack(own, dim=1), self.place_[places], self.width_[places])


def _extreme(distance: Tensor, place: Tensor, width: Tensor) -> Tensor:
    return -torch.expm1(-((distance - place) / width).clamp(max=30).exp())


def with_labels(batch: Features) -> Tensor:
    """Logits with the label as a last column."""
    return torch.cat([batch.logits.float().cpu(), batch.column("labels").float().cpu()[:, None]], dim=1)


def fit_tails(distances: Tensor) -> tuple[Tensor, Tensor]:
    """Maximum-likelihood place and width of ``1 - exp(-exp((d - place) / width))`` for each row, NaN is no distance.

    The width solves ``width = sum d w / sum w - mean d`` with ``w = exp(d / width)``, by bisection. It is the
    limit of the authors' Weibull distribution, which they fit to distances shifted by ten thousand.
    """
    top = distances.nan_to_num(-torch.inf).amax(dim=1, keepdim=True)
    mean = distances.nanmean(dim=1, keepdim=True)
    low, high = torch.zeros_like(top), top - mean
    for _ in range(80):
        middle = (low + high) / 2
        weight = ((distances - top) / middle).exp()
        wider = (distances * weight).nansum(dim=1, keepdim=True) / weight.nansum(dim=1, keepdim=True) - mean > middle
        low, high = torch.where(wider, middle, low), torch.where(wider, high, middle)
    width = (low + high) / 2
    place = top + width * ((distances - top) / width).exp().nanmean(dim=1, keepdim=True).log()
    return place[:, 0], width[:, 0]
