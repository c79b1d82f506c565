"""Write ``docs/detectors.md`` from the registry and a measurement."""

from collections.abc import Sequence
from functools import partial

from oodles.detectors import Detector, ScoreDetector, Shape, Sparsifier, detector_list, parse
from oodles.detectors.network_detector import steps_of
from oodles.detectors.registry import BUILT_IN, Entry
from oodles.detectors.statistics import RowSample
from oodles.functional.quantiles import EXACT_VALUES, Quantiles
from oodles.testing import CHECKS, fit_and_tune, with_passes
from studies.data import example
from studies.pages import write_page
from studies.timing import fastest

ROWS, WIDTH, CLASSES, REPEATS = 20_000, 342, 10, 3
NETWORK = ("odin(epsilon=0.004)", "godin(epsilon=0.02)", "adascale", "mahalanobis(layers=('inner',))")
"""Detectors that need more of the network than embeddings."""


def main() -> None:
    """Measure and write."""
    features = example(ROWS, WIDTH, CLASSES)
    head = features.head
    assert head is not None
    product = fastest(partial(head, features.embedding), REPEATS)
    lines = []
    for detector in [*detector_list(), *map(parse, NETWORK)]:
        rows = with_passes(detector, features)
        fit = fastest(partial(detector.fit, rows), REPEATS) / product if detector.learns_from else 0.0
        fit_and_tune(detector, rows)
        score = fastest(partial(detector.score, rows), REPEATS) / product
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
