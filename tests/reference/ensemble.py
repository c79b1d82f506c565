"""Rank ensembles written out score by score: which rows are held out, ranks among them, and how ranks are combined."""

import math
import struct
from collections.abc import Sequence
from statistics import NormalDist

import torch
from scipy.stats import norm

from oodles.detectors import Detector
from oodles.features import Features


def row_keys(rows: torch.Tensor) -> list[int]:
    """A 64-bit number from the float32 bits of each row, in Python's integers."""
    generator = torch.Generator().manual_seed(rows.shape[1])
    factors = [2 * value + 1 for value in torch.randint(1 << 61, (rows.shape[1],), generator=generator).tolist()]
    return [_row_key(row, factors) for row in rows.tolist()]


def _row_key(row: list[float], factors: list[int]) -> int:
    key = 0
    for value, factor in zip(row, factors, strict=True):
        (bits,) = struct.unpack("<i", struct.pack("<f", value))
        key = _signed(key + bits * factor)
    key = _signed((key ^ (key >> 31)) * -7046029254386353131)
    return key ^ (key >> 29)


def _signed(value: int) -> int:
    """The value as a 64-bit integer that has overflowed."""
    value %= 1 << 64
    return value - (1 << 64) if value >= 1 << 63 else value


def is_held_out(features: Features, per_thousand: int = 200) -> torch.Tensor:
    """Which rows an ensemble holds out, by the keys of the embedding, or of the logits if there is no embedding."""
    return torch.tensor([key % 1000 < per_thousand for key in keys_of(features)])


def keys_of(features: Features) -> list[int]:
    """The keys that decide which rows are held out."""
    return row_keys(features.column("embedding" if features.holds("embedding") else "logits").float())


def split(features: Features) -> tuple[Features, Features]:
    """The rows that members learn from, and the rows held out for ranks."""
    held_out = is_held_out(features)
    return features[(~held_out).nonzero()[:, 0]], features[held_out.nonzero()[:, 0]]


def reference_quantiles(scores: Sequence[float]) -> list[float]:
    """Evenly spaced quantiles."""
    count = min(101, max(2, len(scores) // 4))
    return [quantile(scores, place / (count - 1)) for place in range(count)]


def quantile(scores: Sequence[float], q: float) -> float:
    """One quantile, interpolated between two of the sorted scores."""
    ordered = sorted(scores)
    at = q * (len(ordered) - 1)
    low = min(int(at), max(0, len(ordered) - 2))
    return ordered[low] + (at - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


def deviation(score: float, held_out: Sequence[float]) -> float:
    """Standard deviations from the median of the held-out scores, whose 5 % quantile is 1.645 of them below it."""
    median = quantile(held_out, 0.5)
    low = quantile(held_out, 0.05)
    if low >= median:
        low = min(held_out)
    width = max(median - low, 1e-6 * abs(median), 1e-30)
    return (score - median) / (width / -NormalDist().inv_cdf(0.05))


def reduce(deviations: Sequence[float], reduction: str) -> float:
    """The members' deviations of one row as one score."""
    logs = [float(norm.logcdf(each)) for each in deviations]
    if reduction == "min":
        return min(logs)
    return sum(logs if reduction == "fisher" else map(math.exp, logs)) / len(logs)


def below(deviations: Sequence[float], limit: float = -4.0) -> float:
    """What checks add to the score: nothing until they are this far below the median of ID scores."""
    return sum(min(0.0, float(norm.logcdf(each) - norm.logcdf(limit))) for each in deviations)


def scores(
    members: Sequence[Detector],
    held_out: Features,
    test: Features,
    reduction: str,
    checks: Sequence[Detector] = (),
) -> list[float]:
    """The ensemble's scores of ``test``, from members and checks that are fitted already."""
    if checks:
        plain = scores(members, held_out, test, reduction)
        found = [deviations_of(check, held_out, test) for check in checks]
        return [score + below(row) for score, row in zip(plain, zip(*found, strict=True), strict=True)]
    columns = [deviations_of(member, held_out, test) for member in members]
    return [reduce(row, reduction) for row in zip(*columns, strict=True)]


def deviations_of(member: Detector, held_out: Features, test: Features) -> list[float]:
    """The deviation of each row of ``test`` from the scores of held-out rows."""
    reference = member.score(held_out).double().tolist()
    return [deviation(score, reference) for score in member.score(test).double().tolist()]
