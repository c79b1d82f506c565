"""Conformal p-values: how often an ID input would look as strange as this one, valid in finite samples."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from oodles.detectors import Detector
from oodles.errors import ArgumentError, DataError
from oodles.features import Features

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Conformal:
    """A fitted detector and its scores on held-out ID rows, sorted.

    The p-value of an input is ``(1 + number of held-out scores at most its own) / (n + 1)``. If the input is ID, and
    exchangeable with the held-out rows, the chance of a p-value of at most ``a`` is at most ``a``, for every ``n``.
    """

    detector: Detector
    scores: Tensor

    def p_values(self, features: Features) -> Floats:
        """One p-value a row; small means strange. A score that is not a number gets the smallest there is."""
        return p_values(self.detector.score(features), self.scores)

    def strange(self, features: Features, *, level: float = 0.05) -> npt.NDArray[np.bool_]:
        """Which rows to call OOD so that at most a share ``level`` of those called so are ID, on average.

        Benjamini-Hochberg over the whole batch. Conformal p-values that share one calibration set are positively
        dependent, under which the guarantee holds (Bates et al., 2023).
        """
        return benjamini_hochberg(self.p_values(features), level)


def conformal(detector: Detector, held_out: Features) -> Conformal:
    """P-values for a fitted detector, from ID rows it was not fitted on."""
    scores = detector.score(held_out).double()
    if torch.isnan(scores).any():
        raise DataError(f"{detector} gives scores that are not numbers on the held-out rows")
    return Conformal(detector, scores.sort().values)


def p_values(scores: Tensor, held_out: Tensor) -> Floats:
    """The share of held-out ID scores at most as large as each score, counting the score itself.

    >>> p_values(torch.tensor([0.0, 2.5]), torch.tensor([1.0, 2.0, 3.0]))
    array([0.25, 0.75])
    """
    reference = np.sort(held_out.double().numpy())
    values = scores.double().numpy()
    at_most = np.searchsorted(reference, values, side="right")
    at_most = np.where(np.isnan(values), 0, at_most)
    return np.asarray((1 + at_most) / (len(reference) + 1), dtype=np.float64)


def benjamini_hochberg(values: npt.ArrayLike, level: float = 0.05) -> npt.NDArray[np.bool_]:
    """Which hypotheses to reject so that the expected share of false rejections is at most ``level``.

    The ``k`` smallest p-values, for the largest ``k`` whose k-th is at most ``level * k / n``.

    >>> benjamini_hochberg([0.01, 0.9, 0.02, 0.5], 0.1)
    array([ True, False,  True, False])
    """
    if not 0 < level < 1:
        raise ArgumentError(f"level={level} must lie between 0 and 1")
    given = np.asarray(values, dtype=np.float64)
    if given.ndim != 1 or len(given) == 0 or not ((given >= 0) & (given <= 1)).all():
        raise ArgumentError("p-values are a list of numbers from 0 to 1, and there must be at least one")
    ordered = np.sort(given)
    passing = np.flatnonzero(ordered <= level * np.arange(1, len(given) + 1) / len(given))
    return np.asarray(given <= (ordered[passing[-1]] if len(passing) else -1.0))
