"""How well scores separate ID from OOD; larger scores mean ID, everywhere.

Every function takes ID scores and OOD scores as two arrays, NumPy or torch, and handles ties exactly. :func:`evaluate`
computes all metrics from one sort. Values are fractions in [0, 1]. Scores of NaN or +inf are refused, because no
threshold accepts them; -inf is an ordinary value.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

from oodles.errors import ArgumentError, DataError

if TYPE_CHECKING:  # rows and their tables do not need torch
    import torch

Scores: TypeAlias = "npt.ArrayLike | torch.Tensor"
Array = npt.NDArray[Any]
Kind = Literal["id", "ood"]
Interval = tuple[float, float]

PARALLEL_FROM = 1 << 19  # below it, waiting for another thread costs more than it brings
FEW = 4  # if there are at most one in so many different scores, sums are over these
BLOCK = 1 << 17  # ID scores that are looked at together, so that every temporary array stays in the caches


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
    """Totals of all scores: both kinds are sorted, then merged block by block."""
    kind = np.result_type(ids, oods)
    kind = np.dtype(np.float32) if kind == np.float16 else kind
    parallel = len(ids) + len(oods) >= PARALLEL_FROM
    ids, oods = _both(
        lambda: np.sort(ids.astype(kind, copy=False)),
        lambda: np.sort(oods.astype(kind, copy=False)),
        parallel=parallel,
    )
    # a group of equal scores is never split between blocks
    firsts = ids[range(BLOCK, len(ids), BLOCK)]
    id_cuts = [0, *np.searchsorted(ids, firsts, side="left").tolist(), len(ids)]
    ood_cuts = [0, *np.searchsorted(oods, firsts, side="left").tolist(), len(oods)]
    blocks = [
        _Block(ids, oods, slice(*id_cut), slice(*ood_cut))
        for id_cut, ood_cut in zip(pairwise(id_cuts), pairwise(ood_cuts), strict=True)
    ]

    def work(part: list[_Block]) -> _Totals:
        return sum((block.totals() for block in part), _Totals())

    half = len(blocks) // 2
    low, high = _both(lambda: work(blocks[:half]), lambda: work(blocks[half:]), parallel=parallel and half > 0)
    total: _Totals = low + high
    return total


@dataclass
class _Block:
    """A range of scores, from all those in ascending order: the ID scores ``ids[id_part]`` and as for OOD.

    Among equal scores, ID comes first. Then a score at which ID is accepted accepts the OOD scores equal to it, no
    threshold inside a group of equal scores is better than the one below it, and ties matter in two places only:
    the precisions, which are those of whole groups, and pairs of equal scores, which count half.
    """

    ids: Array
    oods: Array
    id_part: slice
    ood_part: slice

    def totals(self) -> _Totals:
        """What the scores of this block add."""
        x, y = self.ids[self.id_part], self.oods[self.ood_part]
        is_ood = np.argsort(np.concatenate([x, y]), kind="stable") >= len(x)  # merges the two, which are sorted
        totals = _Totals()
        if len(x):
            self._add_ids(totals, x, np.flatnonzero(~is_ood))
        if len(y):
            self._add_oods(totals, x, y, np.flatnonzero(is_ood))
        return totals

    def _add_ids(self, totals: _Totals, x: Array, at: Array) -> None:
        n_id, n_ood, start = len(self.ids), len(self.oods), self.id_part.start
        at -= np.arange(len(x))
        below = at + float(self.ood_part.start)  # how many OOD scores are below each ID score
        totals.ranks = float(below.sum())
        wanted = n_id - _at_least(0.95, n_id) - start
        if 0 <= wanted < len(x):
            totals.accepted_ood = n_ood - float(below[wanted])
        left = np.arange(n_id - start, n_id - start - len(x), -1.0)  # how many ID scores are at or above it
        sizes = None
        distinct = _distinct(x)
        if distinct <= len(x) // FEW:
            firsts, sizes = _groups(x)
            below, left = below[firsts], left[firsts]
        elif distinct < len(x):
            left = n_id - start - _first_of_equals(x).astype(np.float64)
        gap = below * (1 / n_ood)
        gap += left * (1 / n_id)
        totals.gap = float(gap.max()) - 1
        np.subtract(n_ood, below, out=below)
        below += left
        left /= below
        totals.precision_id = float((left if sizes is None else left * sizes).sum())

    def _add_oods(self, totals: _Totals, x: Array, y: Array, at: Array) -> None:
        n_ood, start = len(self.oods), self.ood_part.start
        at -= np.arange(len(y))  # how many of the block's ID scores are at or below each OOD score
        wanted = _at_least(0.95, n_ood) - 1 - start
        if 0 <= wanted < len(y):
            totals.rejected_id = float(at[wanted] + self.id_part.start)
        count = np.arange(start + 1.0, start + 1.0 + len(y))  # how many OOD scores are at or below it
        sizes = None
        distinct = _distinct(y)
        if distinct <= len(y) // FEW:
            firsts, sizes = _groups(y)
            y, at, count = y[firsts], at[firsts], count[firsts + sizes - 1]
        elif distinct < len(y):
            count = start + len(y) - _first_of_equals(y[::-1])[::-1].astype(np.float64)
        if len(x):
            tied = np.flatnonzero(x[at - 1] == y)  # where at is 0 this is the largest, which is not equal
            pairs = at[tied] - np.searchsorted(x, y[tied], side="left")
            totals.ranks += float((pairs if sizes is None else pairs * sizes[tied]).sum()) / 2
        upto = at + float(self.id_part.start)
        upto += count
        count /= upto
        totals.precision_ood = float((count if sizes is None else count * sizes).sum())


def _distinct(ordered: Array) -> int:
    """How many different values there are among sorted ones."""
    return 1 + int(np.count_nonzero(ordered[1:] != ordered[:-1]))


def _groups(ordered: Array) -> tuple[Array, Array]:
    """Where each group of equal values begins, and how many there are in it."""
    firsts = np.concatenate([[0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1])
    return firsts, np.diff(firsts, append=len(ordered))


def _first_of_equals(ordered: Array) -> Array:
    """For each of some sorted values, the place of the first that is equal to it."""
    place = np.arange(len(ordered))
    place[1:][ordered[1:] == ordered[:-1]] = 0
    return np.maximum.accumulate(place, out=place)


def _both(one: Callable[[], Any], two: Callable[[], Any], *, parallel: bool) -> tuple[Any, Any]:
    """Call both, in parallel if that is worth it: NumPy releases the interpreter lock."""
    if not parallel:
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
    tensor = getattr(scores, "detach", None)
    array: Array = np.asarray(scores if tensor is None else _as_numpy(tensor().cpu()))
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


def _as_numpy(tensor: "torch.Tensor") -> Array:
    import torch

    array: Array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def _check_kind(positive: str) -> None:
    if positive not in ("id", "ood"):
        raise ArgumentError(f"positive={positive!r} must be 'id' (the paper) or 'ood' (OpenOOD)")
