"""``explain``: why an input was accepted or rejected."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

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
from oodles.explanation.findings import (
    Contributions,
    Explanation,
    Finding,
    Neighbour,
    Part,
    Ranks,
    explanations_of,
    findings_by_row,
    name_of,
)
from oodles.features import Features, Head

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
    labels = features.logits.argmax(dim=1).cpu() if features.holds("logits") else None
    return explanations_of(
        scores.numpy(),
        [None] * len(scores) if threshold is None else threshold.is_id(scores).tolist(),
        None if labels is None else labels.numpy(),
        _findings(_Setting(features, labels, names, train), detector, scores),
        class_names=names,
        threshold=threshold,
        reduction=detector.reduction if isinstance(detector, RankEnsemble) else None,
    )


def explained_parts(detector: Detector) -> list[Detector]:
    """The detectors that an explanation has findings of: the members of an ensemble, or the detector alone."""
    return detector.scoring_members() if isinstance(detector, RankEnsemble) else [detector]


def ranks_of(detector: Detector) -> Ranks | None:
    """What the members of a fitted ensemble are ranked by; None if the detector is no ensemble."""
    if not isinstance(detector, RankEnsemble):
        return None
    learned = (detector.reference_, detector.centre_, detector.spread_)
    reference, centre, spread = (each.double().cpu().numpy() for each in learned if each is not None)
    return Ranks(reference, centre, spread, detector.limits())


def is_sparsified(detector: Detector) -> TypeGuard[LogitDetector]:
    """Whether a detector drops weights of the head, so that it has contributions to show."""
    return isinstance(detector, LogitDetector) and detector.sparsifier() is not None


@dataclass(frozen=True, eq=False)
class _Setting:
    """The rows to explain, their predicted classes, the names of the classes, and the training rows."""

    features: Features
    labels: Tensor | None
    names: tuple[str, ...]
    train: Features | None


def _findings(setting: _Setting, detector: Detector, scores: Tensor) -> list[tuple[Finding, ...]]:
    """Return the findings of each row; of an ensemble's members those with the lowest p-values first."""
    ranks, parts = ranks_of(detector), []
    for member in explained_parts(detector):
        own = scores if ranks is None else member.score(setting.features)
        parts.append(Part(member.spec, own.numpy(), _neighbours(setting, member), _contributions(setting, member)))
    return findings_by_row(parts, ranks)


def _neighbours(setting: _Setting, detector: Detector) -> list[tuple[Neighbour, ...]]:
    """The ``k`` nearest of the training rows that the detector keeps, if it keeps any."""
    features, train = setting.features, setting.train
    if not isinstance(detector, KNN | NNGuide):
        return [()] * len(features)
    bank = detector.kept_rows()
    parts = torch.split(F.normalize(features.embedding.to(bank), dim=1), ROWS)
    nearest = [(part @ bank.T).topk(min(detector.k, len(bank)), dim=1) for part in parts]
    similarity, places = (torch.cat(part).tolist() for part in zip(*nearest, strict=True))
    train_rows = {} if train is None else _train_rows(bank, sorted({each for row in places for each in row}), train)
    labels = None if train is None else train.labels

    def neighbour(place: int, value: float) -> Neighbour:
        row = train_rows.get(place)
        label = None if row is None or labels is None else int(labels[row])
        return Neighbour(place, value, row, label, name_of(label, setting.names))

    return [tuple(map(neighbour, *pair)) for pair in zip(places, similarity, strict=True)]


def _train_rows(bank: Tensor, places: list[int], train: Features) -> dict[int, int]:
    """The training row that each of these rows of a bank is a normalised copy of, if it is one of ``train``."""
    # in float64, in which rows that differ in float32 have cosines that differ
    wanted = F.normalize(bank[places].cpu(), dim=1)
    best, found, start = wanted.new_full((len(places),), 1 - SAME), torch.full((len(places),), -1), 0
    for batch in train.batches():
        cosine, row = (wanted @ F.normalize(batch.embedding.cpu().double(), dim=1).T).max(dim=1)
        found = torch.where(cosine > best, row + start, found)
        best, start = torch.maximum(best, cosine), start + len(batch)
    return {place: row for place, row in zip(places, found.tolist(), strict=True) if row >= 0}


def _contributions(setting: _Setting, detector: Detector) -> Sequence[Contributions | None]:
    """Contributions to the predicted class, if the detector sparsifies the head and the head is known."""
    features, labels, train = setting.features, setting.labels, setting.train
    if not is_sparsified(detector) or labels is None or features.head is None or not features.holds("embedding"):
        return [None] * len(features)
    found = _contribution_list(detector, features.head, shaped_rows(detector, features.embedding), labels)
    if train is None or not train.holds("logits"):
        return found
    means = ClassMeans()
    for batch in train.batches():
        predicted = batch.logits.argmax(dim=1).cpu()
        needed = torch.isin(predicted, labels)
        means.add(shaped_rows(detector, batch.embedding[needed]), predicted[needed], features.classes)
    usual = _contribution_list(detector, features.head, means.values()[labels], labels)
    known = (means.counts[labels] > 0).tolist()
    return [replace(own, usual=mean if yes else None) for own, mean, yes in zip(found, usual, known, strict=True)]


def shaped_rows(detector: LogitDetector, embedding: Tensor) -> Tensor:
    """Shaped embeddings times the logit factor, which is one more column: ``(n, m + 1)`` in float64."""
    embedding = embedding if detector.dense else embedding.to(detector.weight_)
    embedding, factors = detector.shaped(embedding)
    factor = math.prod(factors, start=torch.ones_like(embedding[:, :1]))
    return torch.cat([embedding.double() * factor.double(), factor.double()], dim=1).cpu()


def split(
    detector: LogitDetector, weight: Tensor, bias: Tensor, rows: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Kept, dropped ``(n, m)``, bias and factor ``(n,)`` of :func:`shaped_rows` in the logits of these classes.

    ``weight`` and ``bias`` are the dense head's.
    """
    dense = weight.cpu()[labels].double()
    kept = dense if detector.dense else detector.weight_.cpu()[labels].double()
    shaped, factor = rows[:, :-1], rows[:, -1]
    dropped = torch.where(kept == 0, dense, 0.0) * shaped
    return kept * shaped, dropped, bias.cpu()[labels].double() * factor, factor


def _contribution_list(detector: LogitDetector, head: Head, rows: Tensor, labels: Tensor) -> list[Contributions]:
    kept, dropped, bias, factor = split(detector, head.weight, head.full_bias(), rows, labels)
    parts = zip(kept.numpy(), dropped.numpy(), bias.tolist(), factor.tolist(), strict=True)
    return [Contributions(*part) for part in parts]


def _check_train(train: Features, features: Features, detector: Detector) -> None:
    want, got = (features.width, features.classes), (train.width, train.classes)
    if (want[0] and want[0] != got[0]) or (want[1] and got[1] not in (0, want[1])):
        raise ShapeError(f"train has (width, classes) {got}, the features have {want}; are both from the same model?")
    if train.head is not None:
        check_head(detector, train.head)
