"""Awkward numbers: rows of zeros, of huge, tiny and mixed numbers, NaN and infinities, in three precisions.

Every detector, fitted on ordinary rows, scores such rows, by itself and in a guard; and every detector is fitted on
rows of which some are awkward. A row or a score that is not finite must never be accepted as ID, and a fit on rows that
are far longer than the others must not be silent.
"""

import random
import warnings
from functools import cache
from itertools import cycle
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oodles.calibration import Threshold
from oodles.detectors import Detector, NetworkDetector, detector_list, drop_outliers, parse
from oodles.errors import FitWarning
from oodles.features import Features, Head
from oodles.guard import Guard
from oodles.testing import example_features, fit_and_tune, with_passes

from . import ACCEPTED, NON_FINITE, REFUSED

ROUNDS, SHORT = 10_000, 130

OTHERS = (
    *("joint_energy", "mcm", "react(per='unit')", "rank_ensemble(detectors=('energy', 'knn'))"),
    *("rank_ensemble(detectors=('ash_s', 'vim'), reduction='min')", "adascale", "adascale(scaled='logits')", "odin"),
    *("iodin", "godin", "rankfeat", "gram(layers=('a',))", "mahalanobis(layers=('a', 'b'))"),
)
SPECS = [*(detector.spec for detector in detector_list()), *OTHERS]
IN_TURN = cycle(SPECS), cycle(SPECS)
WIDTH, CLASSES = 24, 5
SIZES = (1e-45, 1e-40, 1e-20, 1e4, 1e10, 1e15, 1e19, 1e25, 1e30, 1e36, 3e37, 1e38, 3e38, 1e60, 1e300)
BROKEN = (torch.nan, torch.inf, -torch.inf)


def scored(rng: random.Random, place: Path) -> str:
    spec = next(IN_TURN[0])
    detector, train, threshold = ready(spec)
    assert train.head is not None
    rows = awkward_rows(rng, rng.choice([torch.float16, torch.float32, torch.float64]))
    columns = {f"layer.{name}": rows[:, : column.shape[1]] for name, column in train.layers.items()}
    columns |= {"embedding": rows, "logits": train.head.to(dtype=rows.dtype)(rows)}
    scores = detector.score(Features.unvalidated(columns, train.head))
    used = torch.cat([columns[name].to(scores.dtype) for name in detector.scores_from], dim=1)
    accepted = threshold.is_id(scores)
    if scores.isinf().any() or (accepted & ~finite(used)).any():
        return NON_FINITE
    if not isinstance(detector, NetworkDetector):
        verdict = guard(spec, rows.dtype)(rows)
        seen = torch.cat([rows.float(), verdict.logits.float()], dim=1)
        if verdict.score.isinf().any() or (verdict.is_id & ~finite(seen)).any():
            return NON_FINITE
    return ACCEPTED if accepted.any() else REFUSED


def fitted_on(rng: random.Random, place: Path) -> str:
    spec = next(IN_TURN[1])
    detector, train, _ = parse(spec), *ready(spec)[1:]
    columns = {"embedding": train.embedding, "logits": train.logits}
    columns |= {f"layer.{name}": column for name, column in train.layers.items()}
    columns = {name: column.double() if rng.random() < 0.3 else column.clone() for name, column in columns.items()}
    row, size = rng.randrange(len(train)), rng.choice([1.0, *SIZES, *BROKEN])
    for column in columns.values():
        column[row] = rows_of_size(rng, size, column.shape[1]).to(column.dtype)
    assert train.labels is not None
    poisoned = Features.unvalidated({**columns, "labels": train.labels}, train.head)
    drops = rng.random() < 0.5
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FitWarning)
        detector.fit(drop_outliers(poisoned) if drops else poisoned)
    learns = {*detector.learns_from} & {*columns}
    if learns and detector.begin() and not 1e-50 < abs(size) < 1e5:
        assert drops or any("training rows" in str(each.message) for each in caught), f"{spec}: silent"
    if not all(torch.isfinite(buffer).all() for buffer in detector.buffers()):
        return NON_FINITE
    return ACCEPTED


@cache
def ready(spec: str) -> tuple[Detector, Features, Threshold]:
    """A detector fitted on ordinary rows, those rows, and a threshold that accepts all of them."""
    detector, train = parse(spec), example_features(120, WIDTH, CLASSES)
    if spec == "mcm":
        assert train.head is not None
        head = Head(F.normalize(train.head.weight))
        train = Features(F.normalize(train.embedding), labels=train.labels, head=head)
    train = with_passes(detector, train)
    lowest = float(fit_and_tune(detector, train).score(train).min())
    return detector, train, Threshold(value=lowest, id_rate=0.95, calibration_size=len(train))


@cache
def guard(spec: str, dtype: torch.dtype) -> Guard:
    """The detector in a guard whose model is the head alone, in the precision of the rows."""
    detector, train, threshold = ready(spec)
    assert train.head is not None
    last = nn.Linear(WIDTH, CLASSES, bias=train.head.bias is not None)
    last.load_state_dict(train.head.tensors())
    ready_guard = Guard(nn.Sequential(nn.Flatten(), last).to(dtype), detector, threshold)
    ready_guard(train.embedding[:4].to(dtype))  # the last layer is found on ordinary rows
    return ready_guard


def awkward_rows(rng: random.Random, dtype: torch.dtype) -> Tensor:
    """Twenty rows, each awkward in its own way; numbers too large for the precision are its largest."""
    generator = torch.Generator().manual_seed(rng.getrandbits(31))
    ordinary = torch.rand(20, WIDTH, generator=generator, dtype=torch.float64)
    for row in ordinary[1:]:
        size, kind = rng.choice(SIZES), rng.randrange(7)
        if kind == 0:  # one unit is huge
            row[rng.randrange(WIDTH)] = rng.choice([-1, 1]) * size
        elif kind == 1:  # magnitudes are mixed
            row.copy_(10 ** torch.empty(WIDTH, dtype=torch.float64).uniform_(-40, 38, generator=generator))
        elif kind == 2:
            row[rng.randrange(WIDTH)] = rng.choice(BROKEN)
        elif kind == 3:
            row.fill_(rng.choice([0.0, size, -size, *BROKEN]))
        else:
            row.mul_(size * rng.choice([-1, 1]))
            if kind == 4:
                row.mul_(torch.randn(WIDTH, generator=generator).sign())
    largest = torch.finfo(dtype).max
    clipped = torch.where(ordinary.isinf(), ordinary, ordinary.clamp(-largest, largest))
    return clipped.to(dtype)


def rows_of_size(rng: random.Random, size: float, width: int) -> Tensor:
    """One row of random signs or equal numbers of that size."""
    signs = torch.tensor([rng.choice([-1.0, 1.0]) for _ in range(width)], dtype=torch.float64)
    return size * (signs if rng.random() < 0.5 else signs.abs())


def finite(rows: Tensor) -> Tensor:
    return torch.isfinite(rows).all(dim=1)


CASES = {"scores": scored, "fits": fitted_on}
