"""``calibrate``: from scores to a decision that keeps its promise on finite data."""

import math
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from oodles.errors import ArgumentError, DataError
from oodles.features import Features

FEWEST_ROWS = 100


@dataclass(frozen=True)
class Threshold:
    """Accepts as ID what scores at least ``value``; a NaN score is never ID.

    >>> import torch
    >>> Threshold(value=1.0, id_rate=0.95, held_out=100).is_id(torch.tensor([0.9, 1.0, float("nan")]))
    tensor([False,  True, False])
    """

    value: float
    id_rate: float
    held_out: int

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ArgumentError(f"a threshold of {self.value} decides nothing; calibrate on finite scores")

    @overload
    def is_id(self, scores: Tensor) -> Tensor: ...
    @overload
    def is_id(self, scores: npt.NDArray[Any]) -> npt.NDArray[np.bool_]: ...
    def is_id(self, scores: Any) -> Any:
        """True where ``scores >= value``, for torch and NumPy alike."""
        return scores >= self.value


def calibrate(id_scores: Tensor | npt.ArrayLike, id_rate: float = 0.95) -> Threshold:
    """The largest threshold that accepts a new ID input with probability at least ``id_rate``.

    It is the k-th smallest of the n held-out ID scores with ``k = floor((1 - id_rate)(n + 1))``: the
    chance, over the held-out rows and the new one together, is then ``1 - k/(n + 1)``, for any
    distribution. At least ``id_rate`` of the held-out rows are accepted too.

    >>> import torch
    >>> calibrate(torch.arange(1.0, 100.0), id_rate=0.95).value
    5.0
    """
    scores = np.asarray(id_scores.detach().cpu().double().numpy() if isinstance(id_scores, Tensor) else id_scores)
    if scores.dtype.kind not in "fiu":
        raise DataError(f"held-out ID scores must be numbers, got {scores.dtype}")
    if not 0 < id_rate < 1:
        raise ArgumentError(f"id_rate={id_rate} must lie strictly between 0 and 1; it is a fraction: 0.95, not 95")
    if scores.ndim != 1 or len(scores) == 0:
        raise DataError(f"held-out ID scores must be one non-empty row of numbers, got shape {scores.shape}")
    bad = np.flatnonzero(~np.isfinite(scores))
    if len(bad):
        raise DataError(f"{len(bad)} of {len(scores)} held-out ID scores are not finite, the first is number {bad[0]}")
    rank = math.floor((1 - id_rate) * (len(scores) + 1) + 1e-9)
    if rank < 1:
        least = math.ceil(1 / (1 - id_rate) - 1 - 1e-9)
        raise DataError(f"{len(scores)} held-out scores are too few for id_rate={id_rate}; it takes at least {least}")
    value = float(np.partition(scores, rank - 1)[rank - 1])
    return Threshold(value=value, id_rate=id_rate, held_out=len(scores))


def keep_apart(features: Features) -> tuple[Features, Features]:
    """Four fifths to fit on and a fifth to calibrate on, by a fixed shuffle."""
    if len(features) < FEWEST_ROWS:
        raise DataError(
            f"{features} is too small to keep a fifth out for the threshold; give held-out rows (--held-out)"
        )
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(0))
    cut = len(features) // 5
    return features[order[cut:].sort().values], features[order[:cut].sort().values]
