"""From scores to decisions that hold on finite data: thresholds, and conformal p-values."""

import hashlib
import math
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from oodles.errors import ArgumentError, DataError, FileError, FitWarning
from oodles.records.html import html_table

if TYPE_CHECKING:  # what decides also runs where there is no torch
    from torch import Tensor

    from oodles.detectors import Detector
    from oodles.features import Features

Floats = npt.NDArray[np.float64]

MAX_SCORES = 10_000  # of the calibration set that a threshold keeps
MIN_TIED = 10  # equal scores at the threshold, and a tenth of all, that are reported


@dataclass(frozen=True)
class Threshold:
    """Accepts an input as ID if its score is at least ``value``; a score that is NaN or infinite is never ID.

    ``id_rate`` is the rate it was set for, ``calibration_size`` the number of ID scores it was set on. ``id_scores``
    are those scores in ascending order, for p-values: all of them, or a random choice of 10,000; None if unknown.

    >>> import torch
    >>> Threshold(value=1.0, id_rate=0.95, calibration_size=100).is_id(torch.tensor([0.9, 1.0, torch.inf, torch.nan]))
    tensor([False,  True, False, False])
    """

    value: float
    id_rate: float
    calibration_size: int
    id_scores: npt.NDArray[Any] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ArgumentError(f"a threshold of {self.value} cannot decide anything; calibrate on finite scores")

    def as_record(self) -> dict[str, Any]:
        """Everything but the scores as plain values, for JSON."""
        return {"value": self.value, "id_rate": self.id_rate, "calibration_size": self.calibration_size}

    def digest(self) -> str | None:
        """The SHA-256 of the scores; None if they are unknown."""
        return None if self.id_scores is None else hashlib.sha256(self.id_scores.tobytes()).hexdigest()

    @overload
    def p_values(self, scores: "Tensor") -> "Tensor": ...
    @overload
    def p_values(self, scores: npt.ArrayLike) -> Floats: ...
    def p_values(self, scores: Any) -> Any:
        """The p-value of each score among the scores of the calibration set, see :func:`p_values`; NaN if unknown.

        Those of a tensor are a tensor on its device.
        """
        if hasattr(scores, "new_tensor"):
            import torch

            known = torch.from_numpy(np.empty(0) if self.id_scores is None else self.id_scores).double()
            at_most = torch.searchsorted(known.to(scores.device), scores.detach().double(), right=True)
            found = (1 + torch.where(scores < math.inf, at_most, 0)).double() / (len(known) + 1)
            return found if len(known) else found * math.nan
        if self.id_scores is None:
            return np.full(np.shape(scores), math.nan)
        return p_values(scores, self.id_scores)

    def _repr_html_(self) -> str:
        return html_table("Threshold", self.as_record().items())

    @overload
    def is_id(self, scores: "Tensor") -> "Tensor": ...
    @overload
    def is_id(self, scores: npt.NDArray[Any]) -> npt.NDArray[np.bool_]: ...
    def is_id(self, scores: Any) -> Any:
        """True where a score is finite and at least ``value``, for torch and NumPy alike."""
        return (scores >= self.value) & (scores < math.inf)


def check_id_rate(id_rate: float) -> None:
    """Raise unless ``id_rate`` is a fraction."""
    if not 0 < id_rate < 1:
        raise ArgumentError(f"id_rate={id_rate} must lie strictly between 0 and 1; it is a fraction: 0.95, not 95")


def calibrate(id_scores: "Tensor | npt.ArrayLike", id_rate: float = 0.95) -> Threshold:
    """The largest threshold that accepts a new ID input with probability at least ``id_rate``.

    It is the k-th smallest of the n ID scores of the calibration set, with ``k = floor((1 - id_rate)(n + 1))``. Over
    the calibration set and the new input together the probability is then ``1 - k/(n + 1)``, for any
    distribution. At least ``id_rate`` of the calibration set is accepted too.

    >>> calibrate(range(1, 100), id_rate=0.95).value
    5.0
    """
    scores = _as_array(id_scores)
    if scores.dtype.kind not in "fiu":
        raise DataError(f"ID scores must be numbers, got {scores.dtype}")
    check_id_rate(id_rate)
    if scores.ndim != 1 or len(scores) == 0:
        raise DataError(f"ID scores must be a non-empty, one-dimensional array, got shape {scores.shape}")
    bad = np.flatnonzero(~np.isfinite(scores))
    if len(bad):
        fact = f"{len(bad)} of {len(scores)} ID scores are not finite, the first at index {bad[0]}"
        raise DataError(f"{fact}; leave those inputs out, or find out what they are")
    rank = threshold_rank(len(scores), id_rate)
    if rank < 1:
        least = math.ceil(1 / (1 - id_rate) - 1 - 1e-9)
        raise DataError(f"{len(scores)} ID scores are too few for id_rate={id_rate}; at least {least} are needed")
    value = float(np.partition(scores, rank - 1)[rank - 1])
    tied = int((scores == value).sum())
    if tied >= max(MIN_TIED, len(scores) / 10):
        warnings.warn(
            f"{tied} of {len(scores)} ID scores equal the threshold {value:.7g}, so every OOD input with that score is "
            "accepted; the scores are saturated or rounded: use another detector, such as energy instead of msp",
            FitWarning,
            stacklevel=2,
        )
    return Threshold(value=value, id_rate=id_rate, calibration_size=len(scores), id_scores=kept_scores(scores))


def threshold_rank(size: int, id_rate: float) -> int:
    """Which of ``size`` ID scores in ascending order, counted from 1, is the threshold; 0 if they are too few."""
    return min(size, math.floor((1 - id_rate) * (size + 1) + 1e-9))


def kept_scores(scores: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The scores of a calibration set in ascending order; of very many a random choice, which is one as well."""
    if len(scores) > MAX_SCORES:
        scores = np.random.default_rng(0).choice(scores, MAX_SCORES, replace=False)
    narrow = scores.astype(np.float32)
    return np.sort(narrow if (narrow == scores).all() else scores)


def restore_threshold(record: dict[str, Any], scores: npt.NDArray[Any] | None, source: object) -> Threshold:
    """Return the threshold that a file records; raise unless its scores are as :func:`kept_scores` gives them."""
    if scores is not None:
        kept = scores.ndim == 1 and 1 <= len(scores) <= MAX_SCORES and scores.dtype in (np.float32, np.float64)
        if not kept or not np.isfinite(scores).all() or (scores[1:] < scores[:-1]).any():
            raise FileError(f"{source} has no usable scores of its calibration set; write it again")
    return Threshold(**record, id_scores=scores)


@dataclass(frozen=True, eq=False)
class Conformal:
    """A fitted detector and its sorted scores on the calibration set.

    The p-value of an input is ``(1 + number of calibration scores at most its own) / (n + 1)``. If the input is ID and
    exchangeable with the calibration set, the probability of a p-value of at most ``a`` is at most ``a``, for every
    ``n``.
    """

    detector: "Detector"
    scores: "Tensor"

    def __repr__(self) -> str:
        return f"Conformal({self.detector}, calibration_size={len(self.scores)})"

    def p_values(self, features: "Features") -> Floats:
        """One p-value per row; small means OOD. A score of NaN or +inf gets the smallest possible p-value."""
        return p_values(self.detector.score(features), self.scores)

    def is_ood(self, features: "Features", *, fdr: float = 0.05) -> npt.NDArray[np.bool_]:
        """Which rows to call OOD so that on average at most a fraction ``fdr`` of those are ID (false discovery rate).

        Benjamini-Hochberg over the whole batch. Conformal p-values that share one calibration set are positively
        dependent, and the guarantee holds under that dependence (Bates et al., 2023).
        """
        return benjamini_hochberg(self.p_values(features), fdr)


def conformal(detector: "Detector", calibration: "Features") -> Conformal:
    """P-values for a fitted detector, from ID rows that it was not fitted on.

    >>> from oodles.detectors import KNN
    >>> from oodles.testing import example_features
    >>> train, held_out = example_features().split(0.5)
    >>> rule = conformal(KNN(k=5).fit(train), held_out)
    >>> rule
    Conformal(KNN(k=5, bank=10000), calibration_size=150)
    >>> float(rule.p_values(held_out).mean().round(2))  # the mean of uniform numbers
    0.51
    """
    scores = detector.score(calibration).double()
    if not scores.isfinite().all():
        raise DataError(f"{detector} gives scores that are not finite on the calibration set; check those inputs")
    return Conformal(detector, scores.sort().values)


def p_values(scores: "Tensor | npt.ArrayLike", calibration_scores: "Tensor | npt.ArrayLike") -> Floats:
    """The fraction of ID calibration scores at most as large as each score, counting the score itself.

    >>> p_values([0.0, 2.5], [1.0, 2.0, 3.0])
    array([0.25, 0.75])
    """
    reference, values = np.sort(_as_array(calibration_scores)), _as_array(scores)
    at_most = np.searchsorted(reference, values, side="right")
    at_most = np.where(values < math.inf, at_most, 0)
    return np.asarray((1 + at_most) / (len(reference) + 1), dtype=np.float64)


def benjamini_hochberg(values: npt.ArrayLike, fdr: float = 0.05) -> npt.NDArray[np.bool_]:
    """Which hypotheses to reject so that the expected fraction of false rejections is at most ``fdr``.

    The ``k`` smallest p-values, for the largest ``k`` whose k-th is at most ``fdr * k / n``.

    >>> benjamini_hochberg([0.01, 0.9, 0.02, 0.5], 0.1)
    array([ True, False,  True, False])
    """
    if not 0 < fdr < 1:
        raise ArgumentError(f"fdr={fdr} must lie between 0 and 1")
    given = np.asarray(values, dtype=np.float64)
    if given.ndim != 1 or len(given) == 0 or not ((given >= 0) & (given <= 1)).all():
        raise ArgumentError("p-values must be a non-empty list of numbers from 0 to 1")
    ordered = np.sort(given)
    passing = np.flatnonzero(ordered <= fdr * np.arange(1, len(given) + 1) / len(given))
    return np.asarray(given <= (ordered[passing[-1]] if len(passing) else -1.0))


def _as_array(scores: "Tensor | npt.ArrayLike") -> npt.NDArray[Any]:
    detach = getattr(scores, "detach", None)  # of a tensor
    return np.asarray(scores if detach is None else detach().cpu().double().numpy())
