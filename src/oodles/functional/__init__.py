"""Pure mathematics: tensors in, tensors out, one formula a function."""

from oodles.functional.quantiles import Quantiles, quantile
from oodles.functional.scores import energy, entropy, max_logit, msp
from oodles.functional.shaping import clip
from oodles.functional.sparsity import contribution, keep_largest, keep_random, keep_units

__all__ = [
    "Quantiles",
    "clip",
    "contribution",
    "energy",
    "entropy",
    "keep_largest",
    "keep_random",
    "keep_units",
    "max_logit",
    "msp",
    "quantile",
]
