"""Write ``docs/detectors.md`` from the classes and a measurement: ``python tools/write_detectors.py``."""

import inspect
import time
from pathlib import Path

import torch

from oodles.detectors import STAGES, WHOLES, Detector, detector_list, parse
from oodles.features import Features, Head
from oodles.testing import CHECKS, with_passes

DOCS = Path(__file__).parent.parent / "docs"
ROWS, WIDTH, CLASSES, REPEATS = 20_000, 342, 10, 3

PAGE = """# Detectors

Written from the classes by `python tools/write_detectors.py`. {count} names, of which {stages} are stages: any number of
shapes, one sparsifier and one score go together, in Python and as text. The rest stand alone.

## Stages

| name | what it does |
|---|---|
{stage_lines}

## Detectors

What each learns and scores from; the time to fit and to score a row, over that of one product with the head
({rows:,} rows, {width} units, {classes} classes; measured in one run, best of {repeats}). All of them fold over batches, so data may
be larger than memory; all merge what several processes have seen; all scores export as a static graph. The conformance
suite, {checks} checks, holds for each.

| name | learns from | scores from | fit | score | |
|---|---|---|---|---|---|
{lines}
"""


def main() -> None:
    """Measure and write."""
    features = example()
    head = features.head
    assert head is not None
    floor = best(lambda: head(features.embedding))
    lines = []
    for detector in listed():
        rows = with_passes(detector, features)
        fit = best(lambda detector=detector, rows=rows: detector.fit(rows)) / floor if detector.learns_from else 0.0
        prepare(detector, rows)
        score = best(lambda detector=detector, rows=rows: detector.score(rows)) / floor
        needs = [", ".join(names) or "nothing" for names in (detector.learns_from, columns(detector))]
        what = first_line(type(detector)) if type(detector).__name__.lower() in WHOLES else ""
        lines.append(f"| `{detector.spec}` | {needs[0]} | {needs[1]} | {fit:.1f} | {score:.1f} | {what} |")
    page = PAGE.format(
        count=len(STAGES) + len(WHOLES),
        stages=len(STAGES),
        stage_lines="\n".join(f"| `{name}` | {first_line(stage)} |" for name, stage in STAGES.items()),
        rows=ROWS,
        width=WIDTH,
        classes=CLASSES,
        repeats=REPEATS,
        checks=len(CHECKS),
        lines="\n".join(lines),
    )
    (DOCS / "detectors.md").write_text(page)
    print(f"written: {DOCS / 'detectors.md'}")


def listed() -> list[Detector]:
    """Those that work on embeddings, then those that ask more of the network."""
    more = ("odin(epsilon=0.004)", "godin(epsilon=0.02)", "mahalanobis(layers=('inner',))")
    return [*detector_list(), *map(parse, more)]


def example() -> Features:
    """Features as a CIFAR-sized ReLU network gives them."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(ROWS) % CLASSES
    centres = torch.rand(CLASSES, WIDTH, generator=generator) ** 4
    embedding = (centres[labels] + 0.3 * torch.randn(ROWS, WIDTH, generator=generator)).relu()
    return Features(embedding, labels=labels, head=Head(centres - centres.mean(dim=0), torch.zeros(CLASSES)))


def prepare(detector: Detector, rows: Features) -> None:
    """Settle what is open, against the same rows turned round."""
    if not detector.tuned:
        layers = {name: column.flip(1) for name, column in rows.layers.items()}
        detector.tune(rows, Features(rows.embedding.flip(1), logits=rows.logits, head=rows.head, layers=layers))


def columns(detector: Detector) -> list[str]:
    """What it scores from, a step by its own name."""
    return [name.removeprefix("layer.") for name in detector.scores_from]


def first_line(thing: object) -> str:
    """The first line of a docstring."""
    return (inspect.getdoc(thing) or "").splitlines()[0].replace("|", "\\|")


def best(action: object) -> float:
    """The shortest of several runs, in seconds."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()
