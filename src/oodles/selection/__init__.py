"""Choosing without OOD data: a detector, DICE's sparsity, what a detector tunes on the network; synthetic outliers.

Everything here works from ID data alone; comparisons with real OOD data belong in ``bench``.
"""

from oodles.selection.detector import select
from oodles.selection.outliers import mixed_features, noise_features, outlier_features, synthetic_outliers
from oodles.selection.sparsity import select_p
from oodles.selection.tuning import tune

__all__ = [
    "mixed_features",
    "noise_features",
    "outlier_features",
    "select",
    "select_p",
    "synthetic_outliers",
    "tune",
]
