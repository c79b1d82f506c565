"""``MME``: a product of five scores, of which each was published by itself or is a variant of one that was."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from oodles.detectors.arguments import check_positive, check_whole
from oodles.detectors.base import Detector, Statistics, remember_model
from oodles.detectors.geometry import FDBD
from oodles.detectors.statistics import ClassMeans, Statistic
from oodles.detectors.subspace import ViM
from oodles.features import Features, Head
from oodles.functional import Quantiles, energy, scale_rows

LOW, HIGH = 0.01, 0.99  # quantiles of all training activations between which activations are clipped
SCALED = 90  # SCALE's percentile
APART = 4.0  # the squared distance of opposite unit vectors: no class mean is farther
SMALLEST = 1e-12


class MME(Detector):
    """Multi-method ensemble: a product of five scores, as the sum of their logarithms (BMVC 2025).

    With the embedding ``h``, its copy ``c`` clipped to the 1 % and 99 % quantiles of all training activations, and the
    logits ``s`` of SCALE at the 90th percentile:

    - ``energy(s) - alpha |residual of c|``, as ViM;
    - ``max_c -log softmax_c(d / temperature)`` of the squared distances ``d`` between ``h`` and the class means, all of
      unit length;
    - ``log 2`` if the nearest class mean is that of the class with the largest ``s``;
    - ``log(1 - r)`` with ``r`` the norm of ``c`` outside the ``dimension`` leading principal directions, over its own;
    - the logarithm of fDBD's score of ``c``.

    The authors use labels for the class means; these are of the predicted classes.

    >>> from oodles.testing import example_features
    >>> detector = MME().fit(train := example_features())
    >>> noise = Features(torch.rand(120, train.width), head=train.head)
    >>> float(detector.score(train).mean()) > float(detector.score(noise).mean())
    True
    """

    learns_from = ("embedding", "logits", "head")
    scores_from = ("embedding", "logits")
    low_: Tensor
    high_: Tensor
    weight_: Tensor
    bias_: Tensor
    centres_: Tensor
    empty_: Tensor
    mean_: Tensor
    minor_: Tensor

    def __init__(self, *, temperature: float = 0.1, dimension: int = 256) -> None:
        super().__init__()
        self.temperature = check_positive("temperature", temperature)
        self.dimension = check_whole("dimension", dimension, 1)
        self.vim, self.fdbd = ViM(), FDBD()

    @override
    def begin(self) -> dict[str, Statistic]:
        own: dict[str, Statistic] = {"activations": Quantiles(), "directions": ClassMeans()}
        return self.vim.begin() | self.fdbd.begin() | own

    @override
    def observe(self, batch: Features, statistics: Statistics) -> None:
        self.vim.observe(batch, statistics)
        statistics["mean"].add(batch.embedding)
        statistics["activations"].add(batch.embedding)
        directions = F.normalize(batch.embedding.double(), dim=1)
        statistics["directions"].add(directions, batch.logits.argmax(dim=1), batch.classes)

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        for part in (self.vim, self.fdbd):
            part.learn(statistics, head)
            remember_model(part, self._seen, self._head)
        self.low_, self.high_ = (torch.tensor(statistics["activations"].quantile(level)) for level in (LOW, HIGH))
        self.weight_, self.bias_ = head.weight.clone(), head.full_bias().clone()
        self.centres_ = F.normalize(statistics["directions"].values(), dim=1).float()
        self.empty_ = (statistics["directions"].counts == 0).float()
        self.mean_ = statistics["moments"].mean().float()
        principal = torch.linalg.eigh(statistics["moments"].covariance()).eigenvectors
        self.minor_ = principal[:, : max(0, head.width - self.dimension)].float().contiguous()

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        clipped = embedding.clamp(self.low_, self.high_)
        scaled = F.linear(scale_rows(embedding, SCALED), self.weight_, self.bias_)
        virtual = energy(scaled) - self.vim.alpha_ * self.vim.residual(clipped)
        distance = 2 - 2 * (F.normalize(embedding, dim=1) @ self.centres_.T)
        distance = torch.where(self.empty_ > 0, APART, distance)
        closeness = -torch.log_softmax(distance / self.temperature, dim=1).amin(dim=1)
        agrees = distance.argmin(dim=1) == scaled.argmax(dim=1)
        length = torch.linalg.vector_norm(clipped, dim=1).clamp(min=SMALLEST)
        outside = torch.linalg.vector_norm((clipped - self.mean_) @ self.minor_, dim=1) / length
        inside = (1 - outside).clamp(min=SMALLEST).log()
        boundary = self.fdbd(clipped, F.linear(clipped, self.weight_, self.bias_)).clamp(min=SMALLEST).log()
        score: Tensor = virtual + closeness + math.log(2) * agrees + inside + boundary
        return score
