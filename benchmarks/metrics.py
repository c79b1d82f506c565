"""All metrics of a million ID and a million OOD scores, compared with one ``numpy.sort`` of both."""

import numpy as np

from benchmarks.timing import paired
from oodles.metrics import evaluate


def ratio(dtype: type[np.floating], size: int = 1_000_000) -> float:
    """The time of ``evaluate`` divided by that of one sort of the same scores."""
    generator = np.random.default_rng(0)
    ids, oods = generator.normal(1, 1, size).astype(dtype), generator.normal(0, 1, size).astype(dtype)
    both = np.concatenate([ids, oods])
    seconds = paired({"evaluate": lambda: evaluate(ids, oods), "sort": lambda: np.sort(both)}, repeats=25)
    return seconds["evaluate"] / seconds["sort"]


def main() -> None:
    """Print the ratios."""
    for dtype in (np.float64, np.float32):
        print(f"evaluate, 1M + 1M {dtype.__name__}: {ratio(dtype):.2f} times one numpy.sort of both")
