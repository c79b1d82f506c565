"""KNN's exact search compared with the exact searches of faiss and scikit-learn, on the same rows."""

from collections.abc import Iterator

import torch
from torch.nn import functional as F

from oodles.detectors import KNN
from oodles.features import Features
from studies.bench.results import Row, cost, sides, speedup
from studies.timing import paired

QUERIES = 2048
CASES = ((342, 10_000, 10), (342, 50_000, 50), (2048, 10_000, 10), (342, 10_000, 1000))
"""Width of the embedding, number of rows to search, number of neighbours."""


def run(quick: bool = False) -> Iterator[Row]:
    """The searches of every case."""
    for width, bank, k in CASES[:1] if quick else CASES:
        yield from search(width, bank, k, budget=1.0 if quick else 4.0)


def search(width: int, bank: int, k: int, budget: float = 4.0) -> Iterator[Row]:
    """Our search for the k-th neighbour of each query against the peers', which must find the same."""
    import faiss
    from sklearn.neighbors import NearestNeighbors

    generator = torch.Generator().manual_seed(0)
    rows, queries = (torch.randn(count, width, generator=generator).relu() for count in (bank, QUERIES))
    detector = KNN(k=k, bank=bank).fit(Features(rows))
    index = faiss.IndexFlatIP(width)
    index.add(detector.bank_.numpy())
    other = NearestNeighbors(n_jobs=torch.get_num_threads(), n_neighbors=k).fit(detector.bank_.numpy())
    bank_rows = detector.bank_.T
    unit = F.normalize(queries, dim=1).numpy()
    with torch.no_grad():
        ours, theirs = detector.nearest(queries)[:, -1], torch.from_numpy(index.search(unit, k)[0][:, -1])
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        times = paired(
            {
                "ours": lambda: detector.nearest(queries),
                "faiss": lambda: index.search(unit, k),
                "scikit-learn": lambda: other.kneighbors(unit),
                "product": lambda: torch.mm(queries, bank_rows),
            },
            budget=budget,
        )
    name = f"{k:,} of {bank:,} rows of {width}"
    for peer in ("faiss", "scikit-learn"):
        yield speedup(name, peer, sides(times, "ours", peer), target=1)
    yield cost(name, "the product of queries and rows", sides(times, "ours", "product"))
