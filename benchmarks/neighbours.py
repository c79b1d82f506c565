"""KNN's exact search compared with the exact search of faiss (``pip install faiss-cpu``), on the same rows."""

import torch
from torch.nn import functional as F

from benchmarks.timing import paired
from oodles.detectors import KNN
from oodles.features import Features

QUERIES = 8192
CASES = ((342, 10_000, 10), (342, 50_000, 50), (2048, 10_000, 10), (342, 10_000, 1000))
"""Width of the embedding, number of rows to search, number of neighbours."""


def ratio(width: int, bank: int, k: int) -> float:
    """The time of faiss divided by that of KNN."""
    import faiss

    generator = torch.Generator().manual_seed(0)
    rows, queries = (torch.randn(count, width, generator=generator).relu() for count in (bank, QUERIES))
    detector = KNN(k=k, bank=bank).fit(Features(rows))
    index = faiss.IndexFlatIP(width)
    index.add(detector.bank_.numpy())
    unit = F.normalize(queries, dim=1).numpy()
    with torch.no_grad():
        ours, theirs = detector.nearest(queries)[:, -1], torch.from_numpy(index.search(unit, k)[0][:, -1])
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        seconds = paired(
            {"knn": lambda: detector.nearest(queries), "faiss": lambda: index.search(unit, k)},
            repeats=5,
        )
    return seconds["faiss"] / seconds["knn"]


def main() -> None:
    """Print the ratios."""
    try:
        import faiss  # noqa: F401
    except ImportError:
        print("neighbours: faiss is not installed, nothing to compare with")
        return
    for width, bank, k in CASES:
        print(f"faiss, {k} of {bank:,} rows of {width}: {ratio(width, bank, k):.1f} times as long as KNN")
