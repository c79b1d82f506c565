"""Detectors based on the geometry of head and class means: fDBD, NCI, SHE, CADRef, MCM."""

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from oodles.detectors.arguments import check_positive
from oodles.detectors.base import Detector, Statistics
from oodles.detectors.statistics import ClassMeans, Mean, Statistic
from oodles.errors import DataError
from oodles.features import Features, Head
from oodles.functional import energy, msp

CLOSE = 1e-8  # two classes whose weight vectors are closer than this have no decision boundary between them


class _Centred(Detector):
    learns_from = ("embedding", "head")
    scores_from = ("embedding", "logits")
    mean_: Tensor

    @override
    def begin(self) -> dict[str, Statistic]:
        return {"mean": Mean()}


class FDBD(_Centred):
    """Mean distance to the decision boundaries, over the distance to the mean embedding (Liu & Qin, ICML 2024).

    ``mean over k of (z_y - z_k) / |w_y - w_k|``, divided by ``|h - mean|``, with ``y`` the predicted class.

    >>> head = Head(torch.eye(2))
    >>> detector = FDBD().fit(Features(torch.tensor([[4.0, 1.0], [0.0, 4.0]]), head=head))
    >>> detector.score(Features(torch.tensor([[4.0, 0.0], [4.0, 3.0]]), head=head))  # close to the boundary is low
    tensor([0.8835, 0.3430])
    """

    inverse_: Tensor

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        weight = head.weight.double()
        distance = torch.cdist(weight, weight, compute_mode="donot_use_mm_for_euclid_dist")
        self.mean_ = statistics["mean"].value().float()
        self.inverse_ = torch.where(distance > CLOSE, 1 / distance.clamp(min=CLOSE), 0.0).float()

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        largest, winner = logits.max(dim=1, keepdim=True)
        margins = ((largest - logits) * self.inverse_[winner[:, 0]]).sum(dim=1) / max(1, logits.shape[1] - 1)
        score: Tensor = margins / torch.linalg.vector_norm(embedding - self.mean_, dim=1).clamp(min=1e-12)
        return score


class NCI(_Centred):
    """Alignment of the centred embedding with its class's weights, plus a fraction of its norm (Liu & Qin, CVPR 2025).

    ``w_y . (h - mean) / |h - mean| + alpha |h|_1`` with ``y`` the predicted class.

    >>> head = Head(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
    >>> detector = NCI().fit(Features(torch.tensor([[4.0, 0.0], [0.0, 4.0]]), head=head))
    >>> detector.score(Features(torch.tensor([[4.0, 0.0], [9.0, 8.0]]), head=head))  # the second is between them
    tensor([1.4146, 0.1102])
    """

    weight_: Tensor

    def __init__(self, *, alpha: float = 1e-4) -> None:
        super().__init__()
        self.alpha = check_positive("alpha", alpha, low=0)

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        self.mean_, self.weight_ = statistics["mean"].value().float(), head.weight.clone()

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        centred = embedding - self.mean_
        aligned = (centred * self.weight_[logits.argmax(dim=1)]).sum(dim=1)
        length: Tensor = torch.linalg.vector_norm(centred, dim=1).clamp(min=1e-12)
        return aligned / length + self.alpha * embedding.abs().sum(dim=1)


class SHE(Detector):
    """Inner product with the mean embedding of the predicted class (Zhang et al., ICLR 2023).

    The mean is over the class's correctly classified training rows; over all its rows if there are none, and over all
    rows if the class is empty.

    >>> head = Head(torch.eye(2))
    >>> detector = SHE().fit(Features(torch.tensor([[4.0, 0.0], [0.0, 2.0]]), head=head, labels=torch.tensor([0, 1])))
    >>> detector.score(Features(torch.tensor([[3.0, 1.0], [1.0, 3.0]]), head=head))  # 3 x 4, and 3 x 2
    tensor([12.,  6.])
    """

    learns_from = ("embedding", "logits", "labels")
    scores_from = ("embedding", "logits")
    patterns_: Tensor

    @override
    def begin(self) -> dict[str, Statistic]:
        return {"correct": ClassMeans(), "all": ClassMeans()}

    @override
    def observe(self, batch: Features, statistics: Statistics) -> None:
        labels = batch.column("labels")
        correct = (batch.logits.argmax(dim=1) == labels).nonzero().flatten()
        statistics["all"].add(batch.embedding, labels, batch.classes)
        statistics["correct"].add(batch.embedding[correct], labels[correct], batch.classes)

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        correct, others = statistics["correct"], statistics["all"].values_or_overall()
        self.patterns_ = torch.where(correct.counts[:, None] > 0, correct.values(), others).float()

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        return (embedding * self.patterns_[logits.argmax(dim=1)]).sum(dim=1)


class CADRef(Detector):
    """Distance to the predicted class's mean, split by the sign of its weights (Ling et al., CVPR 2025).

    With ``d = h - mean_y`` and ``s = sign(w_y)`` for the predicted class ``y``, ``p = sum relu(d s) / |h|_1`` and
    ``n = sum relu(-d s) / |h|_1``: ``-(p / energy(z) + n / mean ID energy)``. An energy below a thousandth of the mean
    counts as that, because dividing by a negative one would reverse the ranking. A class that is never predicted on
    training rows has the mean of all rows.

    >>> head = Head(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
    >>> detector = CADRef().fit(Features(torch.tensor([[4.0, 0.0], [0.0, 4.0]]), head=head))
    >>> detector.score(Features(torch.tensor([[4.0, 1.0], [2.0, 1.0]]), head=head))  # the first is closer to its class
    tensor([-0.0500, -0.2500])
    """

    learns_from = ("embedding", "logits", "head")
    scores_from = ("embedding", "logits")
    means_: Tensor
    signs_: Tensor
    energy_: Tensor

    @override
    def begin(self) -> dict[str, Statistic]:
        return {"means": ClassMeans(), "energy": Mean()}

    @override
    def observe(self, batch: Features, statistics: Statistics) -> None:
        statistics["means"].add(batch.embedding, batch.logits.argmax(dim=1), batch.classes)
        statistics["energy"].add(energy(batch.logits.double())[:, None])

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        mean_energy = statistics["energy"].value()
        if not mean_energy > 0:
            raise DataError(f"{self} divides by the mean ID energy, which is {float(mean_energy):.3g}; use fdbd or nci")
        self.means_ = statistics["means"].values_or_overall().float()
        self.signs_, self.energy_ = head.weight.sign().float(), mean_energy.float()

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        predicted = logits.argmax(dim=1)
        away = (embedding - self.means_[predicted]) * self.signs_[predicted]
        size = embedding.abs().sum(dim=1).clamp(min=1e-30)
        with_sign, against = away.clamp(min=0).sum(dim=1) / size, (-away).clamp(min=0).sum(dim=1) / size
        own = torch.maximum(energy(logits), 1e-3 * self.energy_)
        return -(with_sign / own + against / self.energy_)


class MCM(Detector):
    """Maximum softmax over cosines at temperature 1, as a logarithm, for cosine heads (Ming et al., NeurIPS 2022).

    The classes are the head's weights, in a zero-shot classifier the embeddings of the class names. A head's own scale,
    often 100, is left out, because it would make the softmax nearly one-hot.

    >>> head = Head(torch.eye(2))
    >>> detector = MCM().fit(Features(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), head=head))
    >>> detector.score(Features(torch.tensor([[1.0, 0.0]]), head=head)).exp()  # the softmax of the cosines 1 and 0
    tensor([0.7311])
    """

    learns_from = ("embedding", "head")
    scores_from = ("embedding",)
    classes_: Tensor

    def __init__(self, *, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = check_positive("temperature", temperature)

    @override
    def observe(self, batch: Features, statistics: Statistics) -> None:
        self._require_equal_norms("embeddings", batch.embedding)

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        self._require_equal_norms("weights", head.weight)
        self.classes_ = F.normalize(head.weight)

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        return msp(F.normalize(embedding) @ self.classes_.T, self.temperature)

    def _require_equal_norms(self, what: str, rows: Tensor) -> None:
        least, most = (float(end) for end in torch.linalg.vector_norm(rows.double(), dim=1).aminmax())
        if most > 1.01 * least:
            raise DataError(
                f"{self} is for cosine heads, whose {what} are normalised; here their norms go from {least:.3g} to "
                f"{most:.3g}. Use msp for other heads"
            )
