"""How well scores separate ID from OOD; larger scores mean ID, everywhere.

Every function takes ID scores and OOD scores as two arrays, NumPy or torch, and handles ties exactly. :func:`evaluate`
computes all metrics from one sort. Values are fractions in [0, 1]. Scores of NaN or +inf are refused, because no
threshold accepts them; -inf is an ordinary value.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Literal, TypedDict

import numpy as np
import numpy.typing as npt
import torch

from oodles.errors import ArgumentError, DataError

Scores = npt.ArrayLike | torch.Tensor
Array = npt.NDArray[Any]
Kind = Literal["id", "ood"]
Interval = tuple[float, float]

PARALLEL_FROM = 1 << 17
BLOCK = 1 << 18


@dataclass(frozen=True)
class Row:
    """One detector on one pair of ID and OOD sets; tables and reports are views of rows.

    ``fpr95`` is the paper's: the fraction of OOD accepted when 95 % of ID is accepted (ID positive). ``fpr95_ood`` is
    OpenOOD's: the fraction of ID rejected when 95 % of OOD is rejected (OOD positive). ``run`` names the checkpoint if
    there are several.
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


class Names(TypedDict):
    """The names that identify a row."""

    detector: str
    id_set: str
    ood_set: str
    run: str


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
    return _fpr_id(ids, oods, tpr) if positive == "id" else _fpr_ood(ids, oods, tpr)


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
    ties: bool = False

    def __add__(self, other: "_Totals") -> "_Totals":
        return _Totals(
            self.ranks + other.ranks,
            self.precision_id + other.precision_id,
            self.precision_ood + other.precision_ood,
            max(self.gap, other.gap),
            self.accepted_ood + other.accepted_ood,
            self.rejected_id + other.rejected_id,
            self.ties or other.ties,
        )


def _totals(ids: Array, oods: Array) -> _Totals:
    """Totals of all scores: by their values, or by their ranks if the last bit of the values is needed."""
    keys = np.concatenate([ids, oods], dtype=np.float64)
    narrow = ids.dtype.itemsize < 8 and oods.dtype.itemsize < 8
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(keys.sum())
    if finite:
        totals = _Sweep(keys, len(ids)).totals()
        if narrow or not totals.ties:
            return totals
    # ranks distinguish infinities, and float64 scores that differ only in the last bit; no metric changes
    ranks = np.unique(np.concatenate([ids, oods]), return_inverse=True)[1]
    return _Sweep(ranks.astype(np.float64), len(ids)).totals()


class _Sweep:
    """One pass over ID and OOD scores together, in ascending order, sorted once.

    The last bit of each 64-bit key says which kind it is (1 for OOD), so that no permutation has to be sorted with the
    keys; scores that were float32 never use that bit.
    """

    def __init__(self, keys: Array, n_id: int) -> None:
        self.n, self.n_id, self.n_ood = len(keys), n_id, len(keys) - n_id
        self._parallel = self.n >= PARALLEL_FROM
        bits = keys.view(np.int64)
        bits &= ~1
        keys += 0.0  # -0.0 becomes 0.0, so that equal scores have equal bits
        bits[n_id:] |= 1
        if self._parallel:
            middle = self.n // 2
            keys.partition(middle)
            self._both(keys[:middle].sort, keys[middle:].sort)
        else:
            keys.sort()
        self._keys, self._bits = keys, bits

    def totals(self) -> _Totals:
        """The totals of all scores, block by block, so that every temporary array stays in the caches."""
        marks = range(BLOCK, self.n - BLOCK // 2, BLOCK)
        cuts = sorted({0, self.n, *(self._group_end(mark) for mark in marks)})
        spans = list(pairwise(cuts))
        half = len(spans) // 2
        kinds_low, kinds_high = self._both(lambda: self._kinds(spans[:half]), lambda: self._kinds(spans[half:]))
        kinds = [*kinds_low, *kinds_high]
        before = np.cumsum([0, *(int(np.count_nonzero(kind)) for kind in kinds)]).tolist()

        def work(part: range) -> _Totals:
            return sum((self._block(*spans[k], kinds[k], before[k]) for k in part), _Totals())

        low, high = self._both(lambda: work(range(half)), lambda: work(range(half, len(spans))))
        total: _Totals = low + high
        return total

    def _kinds(self, spans: list[tuple[int, int]]) -> list[Array]:
        """For each span, True where a score is OOD, from its last bit."""
        return [(self._bits[start:stop].astype(np.uint8) & 1).view(np.bool_) for start, stop in spans]

    def _block(self, start: int, stop: int, is_ood: Array, ood_before: int) -> _Totals:
        """The scores ``start:stop``; a group of equal scores is never split between blocks."""
        step = self._bits[start + 1 : stop] ^ self._bits[start : stop - 1]
        if stop - start > 1 and step.view(np.uint64).min() <= 1:
            return self._tied(start, is_ood, np.flatnonzero(step.view(np.uint64) > 1), ood_before)
        return self._distinct(start, is_ood, ood_before)

    def _distinct(self, start: int, is_ood: Array, ood_before: int) -> _Totals:
        """A block in which no two scores are equal; the usual case, so computed in place."""
        totals = _Totals()
        at = np.flatnonzero(~is_ood).astype(np.float64)
        if len(at):
            first = start - ood_before
            at += start
            rank = np.arange(first, first + len(at), dtype=np.float64)
            totals.ranks = float(at.sum() - rank.sum())
            wanted = self.n_id - _at_least(0.95, self.n_id) - first
            if 0 <= wanted < len(at):
                totals.accepted_ood = self.n_ood - float(at[wanted] - rank[wanted])
            left = self.n_id - rank
            gap = at * (1 / self.n_ood)
            rank *= 1 / self.n_ood + 1 / self.n_id
            gap -= rank
            totals.gap = float(gap.max())
            np.subtract(self.n, at, out=at)
            left /= at
            totals.precision_id = float(left.sum())
        at = np.flatnonzero(is_ood).astype(np.float64)
        if len(at):
            at += start + 1
            rank = np.arange(ood_before + 1, ood_before + 1 + len(at), dtype=np.float64)
            wanted = _at_least(0.95, self.n_ood) - 1 - ood_before
            if 0 <= wanted < len(at):
                totals.rejected_id = float(at[wanted] - rank[wanted])
            rank /= at
            totals.precision_ood = float(rank.sum())
        return totals

    def _tied(self, start: int, is_ood: Array, ends: Array, ood_before: int) -> _Totals:
        """A block with ties: the same sums over groups of equal scores; an edge counts the scores below it."""
        groups = len(ends) + 1
        all_edge, ood_edge = np.empty(groups + 1), np.empty(groups + 1)
        all_edge[0], ood_edge[0] = start, ood_before
        all_edge[-1] = start + len(is_ood)
        np.add(ends, start + 1.0, out=all_edge[1:-1])
        upto = np.cumsum(is_ood, dtype=np.float64)
        upto += ood_before
        np.take(upto, ends, out=ood_edge[1:-1])
        ood_edge[-1] = upto[-1]
        id_edge = all_edge - ood_edge
        ids, oods = np.diff(id_edge), np.diff(ood_edge)
        left = self.n_id - id_edge[:-1]
        left /= self.n - all_edge[:-1]
        totals = _Totals(
            ranks=float(np.dot(ids, ood_edge[:-1]) + np.dot(ids, ood_edge[1:])) / 2,
            precision_id=float(np.dot(ids, left)),
            precision_ood=float(np.dot(oods, ood_edge[1:] / all_edge[1:])),
            gap=float((ood_edge[:-1] * (1 / self.n_ood) - id_edge[:-1] * (1 / self.n_id)).max()),
            ties=True,
        )
        wanted = self.n_id - _at_least(0.95, self.n_id)
        if id_edge[0] <= wanted < id_edge[-1]:
            at = int(np.searchsorted(id_edge[1:], wanted, side="right"))
            totals.accepted_ood = self.n_ood - float(ood_edge[at])
        wanted = _at_least(0.95, self.n_ood) - 1
        if ood_edge[0] <= wanted < ood_edge[-1]:
            at = int(np.searchsorted(ood_edge[1:], wanted, side="right"))
            totals.rejected_id = float(id_edge[at + 1])
        return totals

    def _group_end(self, index: int) -> int:
        """The index just after the group of equal scores that ``index`` lies in."""
        bits = self._bits[index : index + 1]
        largest = max((bits | 1).view(np.float64)[0], (bits & ~1).view(np.float64)[0])
        return int(np.searchsorted(self._keys, largest, side="right"))

    def _both(self, one: Callable[[], Any], two: Callable[[], Any]) -> tuple[Any, Any]:
        """Call both, in parallel if the arrays are large: NumPy releases the interpreter lock."""
        if not self._parallel:
            return one(), two()
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(two)
            return one(), other.result()


def _fpr_id(ids: Array, oods: Array, tpr: float) -> float:
    rank = len(ids) - _at_least(tpr, len(ids))
    return float(np.count_nonzero(oods >= np.partition(ids, rank)[rank])) / len(oods)


def _fpr_ood(ids: Array, oods: Array, tpr: float) -> float:
    rank = _at_least(tpr, len(oods)) - 1
    return float(np.count_nonzero(ids <= np.partition(oods, rank)[rank])) / len(ids)


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
    return {
        name: (float(ends[0]), float(ends[1]))
        for name, values in drawn.items()
        for ends in [np.quantile(np.concatenate(values), [0.025, 0.975])]
    }


def _resample(generator: np.random.Generator, n: int, count: int) -> Array:
    """How often each of ``n`` rows is drawn in ``n`` draws with replacement; ``(count, n)``."""
    draws = generator.integers(0, n, size=(count, n)) + np.arange(count)[:, None] * n
    return np.bincount(draws.ravel(), minlength=count * n).reshape(count, n)


def _array(name: str, scores: Scores) -> Array:
    if isinstance(scores, torch.Tensor):
        scores = scores.detach().cpu()
        scores = (scores.float() if scores.dtype == torch.bfloat16 else scores).numpy()
    array: Array = np.asarray(scores)
    if array.dtype.kind not in "fiu":
        raise DataError(f"{name} must be numbers, got {array.dtype}")
    if array.ndim != 1 or len(array) == 0:
        raise DataError(f"{name} must be a non-empty one-dimensional array, got shape {array.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        suspicious = array.dtype.kind == "f" and not np.isfinite(array.sum())
    bad = np.flatnonzero(~(array < np.inf)) if suspicious else np.empty(0)
    if len(bad):
        raise DataError(f"{name}: {len(bad)} of {len(array)} scores are NaN or +inf, the first at index {bad[0]}")
    return array


def _check_kind(positive: str) -> None:
    if positive not in ("id", "ood"):
        raise ArgumentError(f"positive={positive!r} must be 'id' (the paper) or 'ood' (OpenOOD)")
