"""Pure mathematics: tensors in, tensors out, one formula per function. Detectors do not belong here."""

from oodles.functional.maps import gram_row_sums, without_first_component
from oodles.functional.quantiles import Quantiles, quantile
from oodles.functional.scores import doctor, energy, entropy, gen, joint_energy, label_probability, max_logit, msp
from oodles.functional.shaping import (
    between,
    binarise_top,
    clip,
    keep_top,
    prefix_ratio,
    prune_and_scale,
    scale_rows,
    top_ratio,
)
from oodles.functional.sparsity import contribution, keep_largest, keep_random, keep_units

__all__ = [
    "Quantiles",
    "between",
    "binarise_top",
    "clip",
    "contribution",
    "doctor",
    "energy",
    "entropy",
    "gen",
    "gram_row_sums",
    "joint_energy",
    "keep_largest",
    "keep_random",
    "keep_top",
    "keep_units",
    "label_probability",
    "max_logit",
    "msp",
    "prefix_ratio",
    "prune_and_scale",
    "quantile",
    "scale_rows",
    "top_ratio",
    "without_first_component",
]
