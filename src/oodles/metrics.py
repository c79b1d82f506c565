"""How well scores separate ID from OOD; larger scores mean ID, everywhere.

Every function takes ID scores and OOD scores as two arrays, NumPy or torch, and handles ties exactly. :func:`evaluate`
computes all metrics from one sort. Values are fractions in [0, 1]. Scores of NaN or +inf are refused, because no
threshold accepts them; -inf is an ordinary value.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from oodles.errors import ArgumentError, DataError

if TYPE_CHECKING:  # rows and their tables do not need torch
    import torch

__all__ = ["Row", "aupr", "auroc", "detection_error", "evaluate", "fpr_at_tpr"]

Scores: TypeAlias = "npt.ArrayLike | torch.Tensor"
Array = npt.NDArray[Any]
Kind = Literal["id", "ood"]
Interval = tuple[float, float]

PARALLEL_FROM = 1 << 19  # below it, waiting for another thread costs more than it brings
FEW = 4  # if there are at most one in so many different scores, sums are over these
BLOCK = 1 << 16  # scores that are looked at together, so that every temporary array stays in the caches


@dataclass(frozen=True)
class Row:
    """One detector on one pair of ID and OOD sets; tables and reports are views of rows.

    ``fpr95`` is the paper's: the fraction of OOD accepted when 95 % of ID is accepted (ID positive). ``fpr95_ood`` is
    OpenOOD's: the fraction of ID rejected when 95 % of OOD is rejected (OOD positive). ``run`` names the checkpoint if
    there are several.

    >>> row = evaluate([2.0, 3.0], [0.0, 2.5], detector="msp", ood_set="noise")
    >>> row.fpr95, row.auroc, row.as_dict()["ood_set"]
    (0.5, 0.75, 'noise')
    """

    detector: str
    id_set: str
    ood_set: str
    n_id: int
    n_ood: int
    fpr95: float
    auroc: float
    aupr_id: float
    aupr_ood: float
    detection_error: float
    fpr95_ood: float
    intervals: dict[str, Interval] = field(default_factory=dict)
    run: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The row as plain values, for JSON."""
        return asdict(self)


def evaluate(
    id_scores: Scores,
    ood_scores: Scores,
    *,
    detector: str = "",
    id_set: str = "",
    ood_set: str = "",
    run: str = "",
    bootstrap: int = 0,
    seed: int = 0,
) -> Row:
    """All metrics of two sets of scores from one sort; ``bootstrap`` resamples give 95 % intervals.

    >>> evaluate([2.0, 3.0], [0.0, 1.0]).auroc
    1.0
    """
    ids, oods = _array("id_scores", id_scores), _array("ood_scores", ood_scores)
    if bootstrap < 0:
        raise ArgumentError(f"bootstrap={bootstrap} must not be negative; 0 leaves the intervals out")
    totals = _totals(ids, oods)
    return Row(
        detector=detector,
        id_set=id_set,
        ood_set=ood_set,
        n_id=len(ids),
        n_ood=len(oods),
        fpr95=totals.accepted_ood / len(oods),
        auroc=totals.ranks / (len(ids) * len(oods)),
        aupr_id=totals.precision_id / len(ids),
        aupr_ood=totals.precision_ood / len(oods),
        detection_error=(1 - totals.gap) / 2,
        fpr95_ood=totals.rejected_id / len(ids),
        intervals=_bootstrap(ids, oods, bootstrap, seed) if bootstrap else {},
        run=run,
    )


def fpr_at_tpr(id_scores: Scores, ood_scores: Scores, tpr: float = 0.95, positive: Kind = "id") -> float:
    """False positive rate at the threshold where the true positive rate first reaches ``tpr``.

    ``positive="id"`` is the paper's convention, ``"ood"`` that of OpenOOD and pytorch-ood; they give different numbers
    for the same scores.

    >>> fpr_at_tpr([1.0, 2.0, 3.0, 4.0], [0.5, 2.5], tpr=0.5)
    0.0
    """
    if not 0 < tpr <= 1:
        raise ArgumentError(f"tpr={tpr} must lie in (0, 1]")
    _check_kind(positive)
    ids, oods = _array("id_scores", id_scores), _array("ood_scores", ood_scores)
    if positive == "id":
        rank = len(ids) - _at_least(tpr, len(ids))
        return float(np.count_nonzero(oods >= np.partition(ids, rank)[rank])) / len(oods)
    rank = _at_least(tpr, len(oods)) - 1
    return float(np.count_nonzero(ids <= np.partition(oods, rank)[rank])) / len(ids)


def auroc(id_scores: Scores, ood_scores: Scores) -> float:
    """Probability that an ID score exceeds an OOD score, ties counting half.

    >>> auroc([1.0, 2.0], [1.0, 0.0])
    0.875
    """
    return evaluate(id_scores, ood_scores).auroc


def aupr(id_scores: Scores, ood_scores: Scores, positive: Kind = "id") -> float:
    """Area under the precision-recall curve as a step function (average precision).

    >>> aupr([2.0, 3.0], [0.0, 1.0], positive="ood")
    1.0
    """
    _check_kind(positive)
    row = evaluate(id_scores, ood_scores)
    return row.aupr_id if positive == "id" else row.aupr_ood


def detection_error(id_scores: Scores, ood_scores: Scores) -> float:
    """Smallest mean of the two error rates over all thresholds.

    >>> detection_error([2.0, 3.0], [0.0, 2.5])
    0.25
    """
    return evaluate(id_scores, ood_scores).detection_error


@dataclass
class _Totals:
    """The sums from which all metrics are computed; totals of successive ranges of scores add up."""

    ranks: float = 0.0
    precision_id: float = 0.0
    precision_ood: float = 0.0
    gap: float = 0.0
    accepted_ood: float = 0.0
    rejected_id: float = 0.0

    def __add__(self, other: "_Totals") -> "_Totals":
        return _Totals(
            self.ranks + other.ranks,
            self.precision_id + other.precision_id,
            self.precision_ood + other.precision_ood,
            max(self.gap, other.gap),
            self.accepted_ood + other.accepted_ood,
            self.rejected_id + other.rejected_id,
        )


def _totals(ids: Array, oods: Array) -> _Totals:
    """Totals of all scores: their keys are sorted, then looked at block by block."""
    keys = score_keys(ids, oods)
    half = len(keys) // 2
    parallel = len(keys) >= PARALLEL_FROM
    if parallel:
        keys.partition(half)
        _both(keys[:half].sort, keys[half:].sort, parallel=True)
    else:
        keys.sort()
    # a group of equal scores is never split between blocks
    firsts = keys[range(BLOCK, len(keys), BLOCK)] >> 1 << 1
    cuts = [0, *np.searchsorted(keys, firsts, side="left").tolist(), len(keys)]
    blocks, before = [], 0
    for start, stop in pairwise(cuts):
        if start < stop:
            blocks.append(_Block(keys[start:stop], start, before, len(ids), len(oods)))
            before += blocks[-1].oods

    def work(part: list[_Block]) -> _Totals:
        return sum((block.totals() for block in part), _Totals())

    half = len(blocks) // 2
    low, high = _both(lambda: work(blocks[:half]), lambda: work(blocks[half:]), parallel=parallel and half > 0)
    total: _Totals = low + high
    return total


def score_keys(ids: Array, oods: Array) -> Array:
    """Return an unsigned integer for each score: its rank among all possible scores, doubled, plus 1 if it is OOD.

    Sorting them sorts the scores and says which are OOD, without a permutation; among equal scores ID comes first.
    """
    kind = np.result_type(ids, oods)
    both = np.concatenate([ids, oods], dtype=np.float32 if kind == np.float16 else kind)
    order = _order(both) if both.dtype in (np.float32, np.float64) else None
    if order is None:
        order = np.unique(np.concatenate([ids, oods]), return_inverse=True)[1]
    keys: Array = order.view(np.dtype(f"u{order.itemsize}"))
    keys <<= 1
    keys[len(ids) :] |= 1
    return keys


def _order(scores: Array) -> Array | None:
    """Return integers from 0 in the order of the scores, in their place; None if their range needs every bit.

    The bits of a float, read as an integer, are in its order, once those of negative ones are negated.
    """
    size: Array = scores.view(np.dtype(f"i{scores.itemsize}"))
    most = np.iinfo(size.dtype).max
    sign = size >> (8 * size.itemsize - 1)
    size &= most
    # nothing lies between zero and the smallest size: without that gap, the range hardly ever needs every bit
    gap = size.min() - 1
    if gap < 0:
        gap = np.min(size, where=size > 0, initial=most) - 1
        np.maximum(size, gap, out=size)
    size -= gap
    size ^= sign
    size -= sign
    low, high = size.min(), size.max()
    size -= low
    return size if int(high) - int(low) <= most else None


@dataclass
class _Block:
    """Some of the sorted keys, with every score that is equal to one of them.

    ``start`` keys come before it, ``before`` of them OOD. Because ID comes first among equal scores, a score at which
    ID is accepted accepts the OOD scores equal to it, no threshold inside a group of equal scores is better than the
    one below it, and ties matter in two places only: the precisions, which are those of whole groups, and pairs of
    equal scores, which count half.
    """

    keys: Array
    start: int
    before: int
    n_id: int
    n_ood: int

    def __post_init__(self) -> None:
        self.is_ood = (self.keys & 1).astype(bool)
        self.oods = int(np.count_nonzero(self.is_ood))

    def totals(self) -> _Totals:
        """What the scores of this block add."""
        last = (self.keys[1:] ^ self.keys[:-1]) > 1  # of its group, for all but the last key
        groups = 1 + int(np.count_nonzero(last))
        if groups <= len(self.keys) // FEW:
            return self._by_group(np.append(np.flatnonzero(last), len(last)))
        return self._by_score(np.flatnonzero(~last) if groups < len(self.keys) else None)

    def _by_score(self, tied: Array | None) -> _Totals:
        """Totals from every score; ``tied`` are those that are equal to the next."""
        totals, n, ids_before = _Totals(), self.n_id + self.n_ood, self.start - self.before
        at_id, at_ood = np.flatnonzero(~self.is_ood), np.flatnonzero(self.is_ood)
        ids, oods = len(at_id), len(at_ood)
        totals.ranks = float(at_id.sum() - ids * (ids - 1) // 2 + ids * self.before)
        wanted = self.n_id - _at_least(0.95, self.n_id) - ids_before
        if 0 <= wanted < ids:
            totals.accepted_ood = float(self.n_ood - self.before - (at_id[wanted] - wanted))
        wanted = _at_least(0.95, self.n_ood) - 1 - self.before
        if 0 <= wanted < oods:
            totals.rejected_id = float(ids_before + at_ood[wanted] - wanted)
        # how many ID scores, and how many scores, are at or above each ID score
        left, tail = np.arange(self.n_id - ids_before, self.n_id - ids_before - ids, -1.0), n - self.start - at_id
        totals.gap = self._gap(left, tail)
        left /= tail
        # how many OOD scores, of how many scores, are at or below each OOD score
        count = np.arange(self.before + 1.0, self.before + oods + 1)
        at_ood += self.start + 1
        count /= at_ood
        if tied is not None:
            totals.ranks += self._count_ties(tied, left, count)
        totals.precision_id, totals.precision_ood = float(left.sum()), float(count.sum())
        return totals

    def _count_ties(self, tied: Array, precision_id: Array, precision_ood: Array) -> float:
        """Half the number of equal pairs; sets the precisions within a group of equal scores to that of the group."""
        gaps = np.flatnonzero(tied[1:] - tied[:-1] > 1)
        first, last = tied[np.concatenate([[0], gaps + 1])], tied[np.concatenate([gaps, [-1]])] + 1
        seen = np.cumsum(self.is_ood, dtype=np.int32)
        ood, ood_end = seen[first] - self.is_ood[first], seen[last]
        ids, oods = last + 1 - ood_end - (first - ood), ood_end - ood
        _level(precision_id, first - ood, first - ood, ids)
        _level(precision_ood, ood, ood_end - 1, oods)
        return float((ids * oods).sum()) / 2

    def _by_group(self, last: Array) -> _Totals:
        """Totals from the groups of equal scores, given the last of each."""
        end = last + (self.start + 1)
        ood_end = np.cumsum(self.is_ood, dtype=np.int32)[last] + self.before
        id_end = end - ood_end
        ids, oods = np.diff(id_end, prepend=self.start - self.before), np.diff(ood_end, prepend=self.before)
        below, left, tail = ood_end - oods, self.n_id - id_end + ids, self.n_id + self.n_ood - end + ids + oods
        totals = _Totals(float((ids * (2 * below + oods)).sum()) / 2)
        totals.gap = self._gap(left, tail)
        totals.precision_id = float((ids * (left / tail)).sum())
        totals.precision_ood = float((oods * (ood_end / end)).sum())
        wanted = self.n_id - _at_least(0.95, self.n_id)
        if self.start - self.before <= wanted < id_end[-1]:
            totals.accepted_ood = float(self.n_ood - below[np.searchsorted(id_end, wanted, side="right")])
        wanted = _at_least(0.95, self.n_ood) - 1
        if self.before <= wanted < ood_end[-1]:
            totals.rejected_id = float(id_end[np.searchsorted(ood_end, wanted, side="right")])
        return totals

    def _gap(self, left: Array, tail: Array) -> float:
        """The largest difference of the two rates, if ``left`` of the ``tail`` accepted scores are ID."""
        difference = left * (self.n_id + self.n_ood)
        difference -= tail * self.n_id
        return float(difference.max(initial=0)) / (self.n_id * self.n_ood)


def _level(values: Array, first: Array, source: Array, sizes: Array) -> None:
    """Set each of several ranges of ``values``, which begin at ``first``, to the value at its ``source``."""
    several = np.flatnonzero(sizes > 1)
    first, source, sizes = first[several], source[several], sizes[several]
    places = np.repeat(first - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
    values[places] = np.repeat(values[source], sizes)


def _both(one: Callable[[], Any], two: Callable[[], Any], *, parallel: bool) -> tuple[Any, Any]:
    """Call both, in parallel if that is worth it: NumPy releases the interpreter lock."""
    if not parallel:
        return one(), two()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(two)
        return one(), other.result()


def _at_least(rate: float, n: int) -> int:
    """The smallest count that is at least ``rate * n``, unaffected by the rounding of the product."""
    return max(1, int(np.ceil(rate * n - 1e-12 * n)))


def _bootstrap(ids: Array, oods: Array, resamples: int, seed: int) -> dict[str, Interval]:
    """Percentile intervals for ``fpr95`` and ``auroc``: ID and OOD rows are resampled, ranks reused."""
    generator = np.random.default_rng(seed)
    ids, oods = np.sort(ids), np.sort(oods)
    ood_below, ood_to = np.searchsorted(oods, ids, side="left"), np.searchsorted(oods, ids, side="right")
    drawn: dict[str, list[Array]] = {"fpr95": [], "auroc": []}
    step = max(1, (1 << 22) // (len(ids) + len(oods)))
    need = _at_least(0.95, len(ids))
    for start in range(0, resamples, step):
        count = min(step, resamples - start)
        weight_id = _resample(generator, len(ids), count)
        weight_ood = _resample(generator, len(oods), count)
        below = np.concatenate([np.zeros((count, 1), np.int64), weight_ood.cumsum(axis=1)], axis=1)
        mean_rank = (below[:, ood_below] + below[:, ood_to]) / 2
        drawn["auroc"].append((weight_id * mean_rank).sum(axis=1) / (len(ids) * len(oods)))
        accepted = weight_id[:, ::-1].cumsum(axis=1)
        at = len(ids) - 1 - (accepted < need).sum(axis=1)
        above = len(oods) - below[np.arange(count), ood_below[at]]
        drawn["fpr95"].append(above / len(oods))
    ends = {name: np.quantile(np.concatenate(values), [0.025, 0.975]) for name, values in drawn.items()}
    return {name: (float(low), float(high)) for name, (low, high) in ends.items()}


def _resample(generator: np.random.Generator, n: int, count: int) -> Array:
    """How often each of ``n`` rows is drawn in ``n`` draws with replacement; ``(count, n)``."""
    draws = generator.integers(0, n, size=(count, n)) + np.arange(count)[:, None] * n
    return np.bincount(draws.ravel(), minlength=count * n).reshape(count, n)


def _array(name: str, scores: Scores) -> Array:
    if hasattr(scores, "detach"):
        tensor = scores.detach().cpu()
        scores = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
    array: Array = np.asarray(scores)
    if array.dtype.kind not in "fiu":
        raise DataError(f"{name} must be numbers, got {array.dtype}")
    if array.ndim != 1 or len(array) == 0:
        raise DataError(f"{name} must be a non-empty one-dimensional array, got shape {array.shape}")
    if not array.max() < np.inf:  # which is NaN if any score is
        bad = np.flatnonzero(~(array < np.inf))
        fact = f"{len(bad)} of {len(array)} scores are NaN or +inf, the first at index {bad[0]}"
        raise DataError(f"{name}: {fact}; leave those inputs out, or find out what they are")
    return array


def _check_kind(positive: str) -> None:
    if positive not in ("id", "ood"):
        raise ArgumentError(f"positive={positive!r} must be 'id' (the paper) or 'ood' (OpenOOD)")
