"""Write ``docs/detectors.md`` from the classes and a measurement: ``python tools/write_detectors.py``."""

import inspect
import re
import time
from pathlib import Path

import torch

from oodles.detectors import STAGES, WHOLES, Detector, detector_list, parse
from oodles.detectors.statistics import RowSample
from oodles.features import Features, Head
from oodles.functional.quantiles import EXACT_VALUES, Quantiles
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

## Whole detectors

| name | what it does |
|---|---|
{whole_lines}

## Needs and costs

What each learns and scores from; the time to fit and to score a row, over that of one product with the head
({rows:,} rows, {width} units, {classes} classes; measured in one run, best of {repeats}). Every fit folds over batches, so data may
be larger than memory, and merges what several processes have seen; the column says whether the result is then exactly that
of one pass over everything. Scores export as a static graph, except that an input gradient stays outside it. The conformance
suite, {checks} checks, holds for each.

| name | paper | learns from | scores from | streams and merges | exports | fit | score |
|---|---|---|---|---|---|---|---|
{lines}

## What is not here

RankFeat and Gram look at whole feature maps, and features hold one vector a layer; keeping maps would multiply what is stored
and passed on by their area for these two alone.
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
        cells = [paper(detector), *needs, folds(detector), "not its step" if detector.steps() else "yes"]
        lines.append(f"| `{detector.spec}` | {' | '.join(cells)} | {fit:.1f} | {score:.1f} |")
    page = PAGE.format(
        count=len(STAGES) + len(WHOLES),
        stages=len(STAGES),
        stage_lines=listing(STAGES),
        whole_lines=listing(WHOLES),
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
    more = ("odin(epsilon=0.004)", "godin(epsilon=0.02)", "adascale", "mahalanobis(layers=('inner',))")
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


def listing(names: dict[str, object]) -> str:
    """A line a name, with the first line of its docstring."""
    return "\n".join(f"| `{name}` | {first_line(thing)} |" for name, thing in names.items())


def paper(detector: Detector) -> str:
    """Who and where, from the docstrings of the class or of its stages."""
    whole = WHOLES.get(type(detector).__name__.lower())
    names = [part.split("(")[0] for part in detector.spec.split("+")]
    # energy is what every chain ends in unless it says otherwise
    stages = [STAGES[name] for name in names if name in STAGES and (name != "energy" or len(names) == 1)]
    found = (re.search(r"\(([^()]*\d{4})\)", first_line(part)) for part in stages or [whole])
    return "; ".join(dict.fromkeys(match[1].split("; ")[-1] for match in found if match)) or "-"


def folds(detector: Detector) -> str:
    """What of the rows it keeps until the fit ends."""
    kept = list(detector.begin().values())
    samples = [statistic.limit for statistic in kept if isinstance(statistic, RowSample)]
    if samples:
        return f"a sample of {max(samples):,} rows"
    if any(isinstance(statistic, Quantiles) for statistic in kept):
        return f"exactly to {EXACT_VALUES:,} activations, then within 1/4096"
    return "exactly" if kept else "nothing to learn"


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
