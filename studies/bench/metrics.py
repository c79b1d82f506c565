"""All metrics of ID and OOD scores, against one ``numpy.sort`` of both and against the peers' metrics."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from oodles.metrics import evaluate
from studies.bench.baselines import Scores, metrics_in_a_loop, metrics_of_pytorch_ood, metrics_of_scikit_learn
from studies.bench.peers import pytorch_ood
from studies.bench.results import Row, cost, sides, speedup
from studies.timing import paired

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
KINDS: dict[str, Callable[[Scores], Scores]] = {
    "float32": lambda scores: scores.astype(np.float32),
    "float64": lambda scores: scores,
    "float64 holding float32": lambda scores: scores.astype(np.float32).astype(np.float64),
    "float32 with ties": lambda scores: scores.round(2).astype(np.float32),
    "float64 with ties": lambda scores: scores.round(2),
    "float32, saturated": lambda scores: np.minimum(scores, 1).astype(np.float32),
}


def run(quick: bool = False) -> Iterator[Row]:
    """The cost against a sort for each size and kind of scores, and the speed-up over the peers."""
    for size in SIZES[1:2] if quick else SIZES:
        for kind in list(KINDS)[:2] if quick else KINDS:
            yield against_sort(size, kind, budget=0.5 if quick else 1.5)
    if not quick:
        yield from against_peers(10_000)
        yield from against_peers(1_000_000, loop=False)


def scores_of(size: int, kind: str) -> tuple[Scores, Scores]:
    """Scores of ``size`` images, half of them ID."""
    generator = np.random.default_rng(0)
    ids, oods = generator.normal(1, 1, size // 2), generator.normal(0, 1, size // 2)
    return KINDS[kind](ids), KINDS[kind](oods)


def against_sort(size: int, kind: str, budget: float = 3.0) -> Row:
    """``evaluate`` against one sort of the same scores."""
    ids, oods = scores_of(size, kind)
    both = np.concatenate([ids, oods])
    times = paired({"ours": lambda: evaluate(ids, oods), "sort": lambda: np.sort(both)}, budget=budget, most=100)
    return cost(f"{size:,} scores, {kind}", "one numpy.sort of them", times, target=2)


def against_peers(size: int, loop: bool = True) -> Iterator[Row]:
    """``evaluate`` against pytorch-ood's metrics, scikit-learn's curves and the loop of the paper's code."""
    ids, oods = scores_of(size, "float32")
    ours = evaluate(ids, oods)
    theirs = metrics_of_pytorch_ood(pytorch_ood())
    peers: dict[str, Callable[[Scores, Scores], dict[str, float]]] = {
        "pytorch-ood": theirs,
        "scikit-learn's curves (OpenOOD)": metrics_of_scikit_learn,
        **({"a loop (the paper's code)": metrics_in_a_loop} if loop else {}),
    }
    for name, peer in peers.items():
        auroc = {key.lower(): value for key, value in peer(ids, oods).items()}["auroc"]
        assert abs(auroc - ours.auroc) < 1e-4, f"{name} gives another AUROC: {auroc}, not {ours.auroc}"
    runs = {name: partial(peer, ids, oods) for name, peer in peers.items()}
    times = paired({"ours": lambda: evaluate(ids, oods), **runs}, budget=4.0)
    for name in peers:
        yield speedup(f"{size:,} scores, float32", name, sides(times, "ours", name), target=1)
