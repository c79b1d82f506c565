"""``explain``: why an input was accepted or rejected."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from oodles.calibration import Threshold
from oodles.detectors.base import INPUTS, Detector, check_head, extra_columns
from oodles.detectors.ensemble import RankEnsemble
from oodles.detectors.logit import LogitDetector
from oodles.detectors.neighbours import KNN, NNGuide
from oodles.detectors.statistics import ClassMeans
from oodles.errors import ArgumentError, ShapeError
from oodles.features import Features, Head
from oodles.findings import Contributions, Explanation, Finding, Neighbour

__all__ = ["Explanation", "explain"]

ROWS = 256  # rows compared with the training rows of a detector at a time
SAME = 1e-5  # one minus the cosine of two copies of an embedding, one of them perhaps stored in half precision


@torch.no_grad()
def explain(
    detector: Detector,
    features: Features,
    threshold: Threshold | None = None,
    *,
    classes: Sequence[str] = (),
    train: Features | None = None,
) -> list[Explanation]:
    """Why a fitted detector accepts or rejects each row of ``features``.

    It reports how unusual the row is to each member of an ensemble; the nearest training rows, if a detector keeps
    such; and if it has a sparsifier, as DICE does, what the units add to the predicted class's logit, which takes
    features with a head. ``classes`` are the names of the classes. ``train``, the features that the detector was fitted
    on, tells which of them are nearest and what units add usually; all of it is read.
    """
    names = tuple(classes) or features.class_names
    if names and features.classes not in (0, len(names)):
        raise ArgumentError(f"classes has {len(names)} names, but {features} has {features.classes} classes")
    if train is not None:
        _check_train(train, features, detector)
    used = [features.column(name) for name in (*INPUTS, *extra_columns(detector)) if features.holds(name)]
    finite = torch.stack([torch.isfinite(column).all(dim=1).cpu() for column in used]).all(dim=0)
    scores = torch.where(finite, detector.score(features), torch.nan)
    decisions = [None] * len(scores) if threshold is None else threshold.is_id(scores).tolist()
    labels = features.logits.argmax(dim=1).cpu() if features.holds("logits") else None
    reduction = detector.reduction if isinstance(detector, RankEnsemble) else None
    value, id_rate = (None, None) if threshold is None else (threshold.value, threshold.id_rate)
    explanations = []
    findings = _findings(_Setting(features, labels, names, train), detector, scores)
    for row, (score, is_id, found) in enumerate(zip(scores.tolist(), decisions, findings, strict=True)):
        scored = not math.isnan(score)
        label = int(labels[row]) if scored and labels is not None else None
        name, found = _class_name(label, names), found if scored else ()
        explanations.append(Explanation(label, name, score, value, id_rate, is_id, reduction, found))
    return explanations


@dataclass(frozen=True, eq=False)
class _Setting:
    """The rows to explain, their predicted classes, the names of the classes, and the training rows."""

    features: Features
    labels: Tensor | None
    names: tuple[str, ...]
    train: Features | None


def _findings(setting: _Setting, detector: Detector, scores: Tensor) -> list[tuple[Finding, ...]]:
    """The findings of each row; of an ensemble's members those with the lowest ranks first."""
    if not isinstance(detector, RankEnsemble) or detector.reference_ is None:
        return [(finding,) for finding in _findings_of(setting, detector, scores, None)]
    members = detector.scoring_members()
    each = torch.stack([member.score(setting.features).double() for member in members])
    reference = detector.reference_.double().cpu()
    found = [_findings_of(setting, *part) for part in zip(members, each, reference, strict=True)]
    order = detector.deviations(each).nan_to_num(-torch.inf).argsort(dim=0, stable=True)
    return [tuple(found[place][row] for place in places) for row, places in enumerate(order.T.tolist())]


def _findings_of(setting: _Setting, detector: Detector, scores: Tensor, reference: Tensor | None) -> list[Finding]:
    """One detector's findings; ``reference`` are quantiles of its held-out ID scores, if it is part of an ensemble."""
    fractions: list[float | None] = [None] * len(scores)
    lowest = median = None
    if reference is not None:
        count, lowest, median = len(reference), float(reference[0]), float(reference.quantile(0.5))
        below = np.interp(scores.double().numpy(), reference.numpy(), np.linspace(0, 1, count))
        fractions = np.clip(below, 1 / count, 1).tolist()
    details = zip(_neighbours(setting, detector), _contributions(setting, detector), strict=True)
    return [
        Finding(detector.spec, score, fraction, lowest, median, near, parts)
        for score, fraction, (near, parts) in zip(scores.tolist(), fractions, details, strict=True)
    ]


def _neighbours(setting: _Setting, detector: Detector) -> list[tuple[Neighbour, ...]]:
    """The ``k`` nearest of the training rows that the detector keeps, if it keeps any."""
    features, train = setting.features, setting.train
    if not isinstance(detector, KNN | NNGuide):
        return [()] * len(features)
    bank = detector.bank_
    parts = torch.split(F.normalize(features.embedding.to(bank), dim=1), ROWS)
    nearest = [(part @ bank.T).topk(min(detector.k, len(bank)), dim=1) for part in parts]
    similarity, places = (torch.cat(part).tolist() for part in zip(*nearest, strict=True))
    train_rows = {} if train is None else _train_rows(bank, sorted({each for row in places for each in row}), train)
    labels = None if train is None else train.labels

    def neighbour(place: int, value: float) -> Neighbour:
        row = train_rows.get(place)
        label = None if row is None or labels is None else int(labels[row])
        return Neighbour(place, value, row, label, _class_name(label, setting.names))

    return [tuple(map(neighbour, *pair)) for pair in zip(places, similarity, strict=True)]


def _train_rows(bank: Tensor, places: list[int], train: Features) -> dict[int, int]:
    """The training row that each of these rows of a bank is a normalised copy of, if it is one of ``train``."""
    # in float64, in which rows that differ in float32 have cosines that differ
    wanted = F.normalize(bank[places].cpu().double(), dim=1)
    best, found, start = wanted.new_full((len(places),), 1 - SAME), torch.full((len(places),), -1), 0
    for batch in train.batches():
        cosine, row = (wanted @ F.normalize(batch.embedding.cpu().double(), dim=1).T).max(dim=1)
        found = torch.where(cosine > best, row + start, found)
        best, start = torch.maximum(best, cosine), start + len(batch)
    return {place: row for place, row in zip(places, found.tolist(), strict=True) if row >= 0}


def _contributions(setting: _Setting, detector: Detector) -> Sequence[Contributions | None]:
    """Contributions to the predicted class, if the detector sparsifies the head and the head is known."""
    features, labels, train = setting.features, setting.labels, setting.train
    if not isinstance(detector, LogitDetector) or detector.sparsifier() is None:
        return [None] * len(features)
    if labels is None or features.head is None or not features.holds("embedding"):
        return [None] * len(features)
    found = _split(detector, features.head, _shaped(detector, features.embedding), labels)
    if train is None or not train.holds("logits"):
        return found
    means = ClassMeans()
    for batch in train.batches():
        predicted = batch.logits.argmax(dim=1).cpu()
        needed = torch.isin(predicted, labels)
        means.add(_shaped(detector, batch.embedding[needed]), predicted[needed], features.classes)
    usual = _split(detector, features.head, means.values()[labels], labels)
    known = (means.counts[labels] > 0).tolist()
    return [replace(own, usual=mean if yes else None) for own, mean, yes in zip(found, usual, known, strict=True)]


def _shaped(detector: LogitDetector, embedding: Tensor) -> Tensor:
    """Shaped embeddings times the logit factor, which is one more column: ``(n, m + 1)`` in float64."""
    embedding = embedding if detector.dense else embedding.to(detector.weight_)
    embedding, factors = detector.shaped(embedding)
    factor = math.prod(factors, start=embedding.new_ones(len(embedding), 1))
    return torch.cat([embedding.double() * factor.double(), factor.double()], dim=1).cpu()


def _split(detector: LogitDetector, head: Head, shaped: Tensor, labels: Tensor) -> list[Contributions]:
    """The contributions of rows of :func:`_shaped` to the logits of these classes."""
    dense = head.weight.cpu()[labels].double()
    kept = dense if detector.dense else detector.weight_.cpu()[labels].double()
    rows, factor = shaped[:, :-1], shaped[:, -1]
    bias = head.full_bias().cpu()[labels].double() * factor
    parts = zip(kept * rows, torch.where(kept == 0, dense, 0.0) * rows, bias.tolist(), factor.tolist(), strict=True)
    return [Contributions(*part) for part in parts]


def _check_train(train: Features, features: Features, detector: Detector) -> None:
    want, got = (features.width, features.classes), (train.width, train.classes)
    if (want[0] and want[0] != got[0]) or (want[1] and got[1] not in (0, want[1])):
        raise ShapeError(f"train has (width, classes) {got}, the features have {want}; are both from the same model?")
    if train.head is not None:
        check_head(detector, train.head)


def _class_name(label: int | None, names: Sequence[str]) -> str | None:
    return names[label] if label is not None and label < len(names) else None
