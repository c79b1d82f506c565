"""Each detector's fit and score compared with pytorch-ood's, on the same rows with the same settings."""

import time
import warnings
from collections.abc import Callable, Iterator

from scipy.stats import spearmanr

from oodles.detectors import parse
from oodles.features import Features
from studies.bench.peers import PEERS, Peer, linear
from studies.bench.results import Row, speedup
from studies.data import example
from studies.timing import paired

SIZES = ((10_000, 342, 10), (50_000, 512, 100), (20_000, 2048, 1000))
"""Rows to fit, width of the embedding, classes."""
SCORED, MIN_SCORED, PROBE_SECONDS = 10_000, 32, 0.5
MAX_COVARIANCES = 2_000_000_000  # bytes of one covariance per class, which ddu and its peer keep
LOOP_TARGET = 10.0
SAME_RANKS = 0.999


def run(quick: bool = False, only: str | None = None) -> Iterator[Row]:
    """Fit and score of every detector that pytorch-ood has too, or of those whose name contains ``only``."""
    peers = [peer for peer in PEERS if (only or "") in peer.spec]
    for count, width, classes in SIZES[:1] if quick else SIZES:
        train, test = example(count, width, classes, 1), example(SCORED, width, classes, 2)
        for peer in peers:
            if not (peer.name == "GMM" and 8 * classes * width**2 > MAX_COVARIANCES):
                yield from compare(peer, train, test, budget=0.3 if quick else 0.8)


def compare(peer: Peer, train: Features, test: Features, budget: float) -> Iterator[Row]:
    """The rows of one detector: its fit, if it learns, and its score."""
    size = f"{len(train) // 1000}k x {train.width}, C={train.classes}"
    head = linear(train)
    ours, theirs = parse(peer.spec), peer.build(head)
    label = peer.spec.partition("(")[0]

    def fit_peer() -> None:
        nonlocal theirs
        theirs = peer.build(head)  # a part of ViM's work
        peer.fit(theirs, train)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the synthetic rows: ReLUs that are always off, classes that are certain
        if theirs.requires_fit:
            sides = {"ours": lambda: ours.fit(train), "peer": fit_peer}
            times = paired(sides, budget=budget)
            yield speedup(f"fit {label}, {size}", peer.name, times, target=_target(peer.slow_fit))
        elif ours.learns_from:
            ours.fit(train)
        rows = test[: _scored(lambda part: peer.score(theirs, part), test)]
        same = float(spearmanr(ours.score(rows), peer.score(theirs, rows)).statistic)
        times = paired({"ours": lambda: ours.score(rows), "peer": lambda: peer.score(theirs, rows)}, budget=budget)
    note = f"{len(rows):,} rows" if len(rows) < SCORED else ""
    if same < SAME_RANKS:
        note = "; ".join(filter(None, (note, f"the ranks differ (correlation {same:.3f})")))
    # ten classes make a short loop
    slow = peer.slow_score if peer.slow_score != "classes" or train.classes >= 100 else ""
    yield speedup(f"score {label}, {size}", peer.name, times, target=_target(slow), note=note)


def _target(slow: str) -> float:
    """Ten times as fast where the peer repeats its work for each class or sample, else never slower."""
    return LOOP_TARGET if slow else 1.0


def _scored(score: Callable[[Features], object], test: Features) -> int:
    """How many rows the peer scores in about half a second: some need gigabytes or minutes for all of them."""
    rows = MIN_SCORED
    while rows < len(test):
        start = time.perf_counter()
        score(test[:rows])
        if 4 * (time.perf_counter() - start) > PROBE_SECONDS:
            break
        rows *= 4
    return min(rows, len(test))
