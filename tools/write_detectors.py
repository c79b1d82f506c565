"""Write ``docs/detectors.md`` from the registry and a measurement: ``python tools/write_detectors.py``."""

import argparse
import time
from collections.abc import Callable, Sequence

import torch
from pages import write_page

from oodles.detectors import Detector, ScoreDetector, Shape, Sparsifier, detector_list, parse
from oodles.detectors.network_detector import steps_of
from oodles.detectors.registry import BUILT_IN, Entry
from oodles.detectors.statistics import RowSample
from oodles.features import Features, Head
from oodles.functional.quantiles import EXACT_VALUES, Quantiles
from oodles.testing import CHECKS, fit_and_tune, with_passes

ROWS, WIDTH, CLASSES, REPEATS = 20_000, 342, 10, 3
NETWORK = ("odin(epsilon=0.004)", "godin(epsilon=0.02)", "adascale", "mahalanobis(layers=('inner',))")
"""Detectors that need more of the network than embeddings."""


def main() -> None:
    """Measure and write."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    features = example()
    head = features.head
    assert head is not None
    product = best(lambda: head(features.embedding))
    lines = []
    for detector in [*detector_list(), *map(parse, NETWORK)]:
        rows = with_passes(detector, features)
        fit = best(lambda detector=detector, rows=rows: detector.fit(rows)) / product if detector.learns_from else 0.0
        fit_and_tune(detector, rows)
        score = best(lambda detector=detector, rows=rows: detector.score(rows)) / product
        lines.append(f"| `{detector.spec}` | {' | '.join(needs(detector))} | {fit:.1f} | {score:.1f} |")
    stages = [entry for entry in BUILT_IN if issubclass(entry.kind, Shape | Sparsifier | ScoreDetector)]
    write_page(
        "detectors",
        count=len(BUILT_IN),
        stages=len(stages),
        stage_lines=listing(stages),
        other_lines=listing([entry for entry in BUILT_IN if entry not in stages]),
        rows=f"{ROWS:,}",
        width=WIDTH,
        classes=CLASSES,
        repeats=REPEATS,
        checks=len(CHECKS),
        lines="\n".join(lines),
    )


def example() -> Features:
    """Features like those of a CIFAR-sized ReLU network."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(ROWS) % CLASSES
    centres = torch.rand(CLASSES, WIDTH, generator=generator) ** 4
    embedding = (centres[labels] + 0.3 * torch.randn(ROWS, WIDTH, generator=generator)).relu()
    return Features(embedding, labels=labels, head=Head(centres - centres.mean(dim=0), torch.zeros(CLASSES)))


def listing(entries: Sequence[Entry]) -> str:
    """One line per name: its class, what it does and where it was published."""
    return "\n".join(
        f"| `{entry.name}` | `{entry.kind.__name__}` | {entry.summary}{f' ({entry.paper})' if entry.paper else ''} |"
        for entry in entries
    )


def needs(detector: Detector) -> list[str]:
    """The cells of a detector's line that are not measured."""
    columns = [name.removeprefix("layer.") for name in detector.scores_from]
    inputs = [", ".join(names) or "nothing" for names in (detector.learns_from, columns)]
    return [papers(detector), *inputs, folds(detector), "not its step" if steps_of([detector]) else "yes"]


def papers(detector: Detector) -> str:
    """Where the detector, or each stage of the chain, was published."""
    names = [part.split("(")[0] for part in detector.spec.split("+")]
    # energy is the score of every chain that does not name another
    named = {entry.name: entry.paper for entry in BUILT_IN if entry.name != "energy" or len(names) == 1}
    return "; ".join(dict.fromkeys(named[name] for name in names if named.get(name))) or "-"


def folds(detector: Detector) -> str:
    """What is kept of the rows until the fit ends."""
    kept = list(detector.begin().values())
    samples = [statistic.limit for statistic in kept if isinstance(statistic, RowSample)]
    if samples:
        return f"a sample of {max(samples):,} rows"
    if any(isinstance(statistic, Quantiles) for statistic in kept):
        return f"exactly up to {EXACT_VALUES:,} activations, then within 1/4096"
    return "exactly" if kept else "nothing to learn"


def best(action: Callable[[], object]) -> float:
    """The shortest of several runs, in seconds."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()
