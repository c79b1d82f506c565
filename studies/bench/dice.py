"""DICE at ImageNet size (C = 1000, m = 2048): against dense energy, the broadcast form, and its sweep over p."""

from collections.abc import Iterator

import numpy as np
import torch

from oodles.detectors import DICE, GradNorm
from oodles.features import Features
from oodles.functional import energy
from oodles.paper.sweep import SWEEP_GRID, sweep
from studies.bench.baselines import broadcast_dice, gradnorm_per_sample
from studies.bench.peers import linear
from studies.bench.results import Row, cost, sides, speedup
from studies.data import example
from studies.memory import in_child, peak_growth
from studies.timing import paired

CLASSES, WIDTH, ROWS, FEW = 1000, 2048, 4096, 32


def run(quick: bool = False) -> Iterator[Row]:
    """Time and memory of DICE, the sweep, and GradNorm, whose peers go through the rows one by one."""
    features = example(1024 if quick else ROWS, WIDTH, CLASSES)
    yield from against_dense(features, budget=1.0 if quick else 6.0)
    if not quick:
        yield memory()
        yield over_p(features)
        yield gradnorm(features)


def against_dense(features: Features, budget: float = 6.0) -> Iterator[Row]:
    """DICE against the energy of the dense head; the broadcast form per row, on fewer rows."""
    detector = DICE(p=0.7).fit(features)
    few, head = features.embedding[:FEW], features.head
    assert head is not None
    part = features[:FEW]
    times = paired(
        {
            "ours": lambda: detector.score(features),
            "dense": lambda: torch.cat([energy(head(batch.embedding)) for batch in features.batches()]),
            "few": lambda: detector.score(part),
            "broadcast": lambda: broadcast_dice(few, detector.weight_, detector.bias_),
        },
        budget=budget,
    )
    size = f"{WIDTH} units, {CLASSES} classes"
    yield cost(f"score {len(features):,} rows, {size}", "dense energy", sides(times, "ours", "dense"), target=1.2)
    per_row = {"ours": np.divide(times["ours"], len(features)), "broadcast": np.divide(times["broadcast"], FEW)}
    listed = {name: list(map(float, values)) for name, values in per_row.items()}
    yield speedup(f"score, per row, {size}", f"broadcast form ({FEW} rows)", listed, target=20)
    yield speedup(f"score {FEW} rows, {size}", "broadcast form", sides(times, "few", "broadcast"))


def memory(rows: int = 16_384) -> Row:
    """The peak of scoring against the size of the logits."""
    peak = max(in_child("studies.bench.dice:measure_peak", rows) for _ in range(2)) / 1e6
    sizes = {"ours": [peak], "logits": [rows * CLASSES * 4 / 1e6]}
    return cost(f"peak memory, {rows:,} rows", "the size of the logits", sizes, target=2, unit="MB", memory=peak)


def measure_peak(rows: int) -> int:
    """Additional bytes while rows are scored; called in a process of its own."""
    embeddings = example(rows, WIDTH, CLASSES)
    features = Features(embeddings.embedding, head=embeddings.head)
    detector = DICE(p=0.7).fit(features)
    detector.score(features[:64])
    return peak_growth(lambda: detector.score(features))


def over_p(features: Features) -> Row:
    """The sweep over p with all metrics, against the energies of the dense head as often as there are values of p."""
    half, head = len(features) // 2, features.head
    test, ood = features[:half], {"ood": features[half:]}
    assert head is not None

    def dense() -> None:
        for _ in SWEEP_GRID:
            for batch in features.batches():
                energy(head(batch.embedding))

    calls = {"ours": lambda: sweep(SWEEP_GRID, train=features, test=test, ood=ood), "dense": dense}
    name = f"fit, scores and metrics at {len(SWEEP_GRID)} values of p, {len(features):,} rows"
    return cost(name, f"dense energy, {len(SWEEP_GRID)} times", paired(calls, budget=6.0))


def gradnorm(features: Features, rows: int = 64) -> Row:
    """GradNorm in closed form against one backward pass per row."""
    detector, head, part = GradNorm(), linear(features), features[:rows]
    torch.testing.assert_close(
        detector.score(part).argsort(), gradnorm_per_sample(head, part.embedding).argsort(), rtol=0, atol=0
    )
    times = paired(
        {"ours": lambda: detector.score(part), "other": lambda: gradnorm_per_sample(head, part.embedding)}, budget=3.0
    )
    return speedup(f"GradNorm, {rows} rows", "one backward pass per row (OpenOOD)", times, target=10)
