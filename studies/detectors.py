"""Write ``docs/detectors.md`` from the registry and a measurement."""

import warnings
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from oodles.calibration import calibrate
from oodles.detectors import Detector, Residual, ScoreDetector, Shape, Sparsifier, detector_list, parse
from oodles.detectors.network_detector import steps_of
from oodles.detectors.registry import BUILT_IN, Entry
from oodles.detectors.statistics import RowSample
from oodles.errors import FitWarning
from oodles.features import Features, Head
from oodles.functional.quantiles import EXACT_VALUES, Quantiles
from oodles.testing import CHECKS, fit_and_tune, with_passes
from studies.data import example
from studies.pages import write_page
from studies.timing import fastest

ROWS, WIDTH, CLASSES, REPEATS = 20_000, 342, 10, 3
OTHERS = ("joint_energy", "mcm", "rank_ensemble(['energy', 'knn'])", "support", "supported('energy')")
"""Detectors of embeddings and logits that :func:`detector_list` leaves out."""
NETWORK = (
    "odin(epsilon=0.004)",
    "iodin(epsilon=0.004)",
    "godin(epsilon=0.02)",
    "adascale",
    "mahalanobis(layers=('inner',))",
    "rankfeat('inner')",
    "gram(['inner'])",
)
"""Detectors that need more of the network than embeddings."""
FAR_ROWS, FAR_WIDTH, FAR, HELD_OUT = 4000, 64, 1000, 1000
"""Rows to fit on, units, how many mean lengths away the inputs are, and rows for the threshold and to move away."""


def main() -> None:
    """Measure and write."""
    warnings.simplefilter("ignore", FitWarning)  # a unit of the second measurement is dead
    features = example(ROWS, WIDTH, CLASSES)
    head = features.head
    assert head is not None
    product = fastest(partial(head, features.embedding), REPEATS)
    lines = []
    of_features = [*detector_list(), *map(parse, OTHERS)]
    for detector in [*of_features, *map(parse, NETWORK)]:
        rows = with_passes(detector, cosine(features) if detector.spec == "mcm" else features)
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
        far=f"{FAR:,}",
        far_width=FAR_WIDTH,
        far_rows=f"{FAR_ROWS:,}",
        far_lines="\n".join(far_lines([detector for detector in of_features if detector.spec != "mcm"])),
    )


def cosine(features: Features) -> Features:
    """The features of a cosine head: embeddings and weights have length 1."""
    assert features.head is not None
    head = Head(F.normalize(features.head.weight, dim=1))
    return Features(F.normalize(features.embedding, dim=1), labels=features.labels, head=head)


def far_lines(detectors: Sequence[Detector]) -> list[str]:
    """One line per detector: the percentage of far inputs that it accepts, for each kind of direction."""
    made = example(FAR_ROWS + 2 * HELD_OUT, FAR_WIDTH, CLASSES)
    embedding = made.embedding.clone()
    embedding[:, -1] = 0
    features = Features(embedding, labels=made.labels, head=made.head)
    train, held_out = features[:FAR_ROWS], features[FAR_ROWS : FAR_ROWS + HELD_OUT]
    moved = far_away(train, features.embedding[FAR_ROWS + HELD_OUT :])
    lines = []
    for detector in detectors:
        detector.fit(train)
        threshold = calibrate(detector.score(held_out), id_rate=0.95)
        scores = [detector.score(Features(rows, head=made.head)) for rows in moved]
        cells = " | ".join(f"{100 * float(threshold.is_id(each).float().mean()):.0f}" for each in scores)
        lines.append(f"| `{detector.spec}` | {cells} |")
    return lines


def far_away(train: Features, rows: Tensor) -> list[Tensor]:
    """The rows, moved far away: longer, in random directions, along one unit, the dead unit, the leading subspace."""
    generator = torch.Generator().manual_seed(0)
    step = FAR * float(torch.linalg.vector_norm(rows, dim=1).mean())
    outside = Residual().fit(train).outside_.double()
    inside = torch.linalg.svd(outside)[0][:, outside.shape[1] :].float()
    units = F.one_hot(torch.randint(0, rows.shape[1] - 1, (len(rows),), generator=generator), rows.shape[1])
    signs = torch.randint(0, 2, (len(rows), 1), generator=generator) * 2 - 1
    directions = [
        torch.randn(rows.shape, generator=generator),
        (signs * units).float(),
        F.one_hot(torch.tensor([rows.shape[1] - 1]), rows.shape[1]).float(),
        torch.randn(len(rows), inside.shape[1], generator=generator) @ inside.T,
    ]
    return [FAR * rows, *(rows + step * F.normalize(each, dim=1) for each in directions)]


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
