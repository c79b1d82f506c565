"""``select``: which detector for this network, from ID data and stand-ins for the unknown made of it."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import rankdata
from torch import nn

from oodles.detectors import Detector, default_detector, fit_together, parse
from oodles.errors import ArgumentError, DataError
from oodles.extraction import extract, first_images
from oodles.features import Features
from oodles.outliers import KINDS, NOISE, stand_ins
from oodles.perturbation import channel_bounds

Floats = npt.NDArray[np.float64]
RESAMPLES = 50
PLAIN = "msp"
USUAL = 0
"""The default's place among the candidates."""


@dataclass(frozen=True)
class Candidate:
    """How a detector does against each kind of stand-in, and its worth among all candidates, see :func:`worths`."""

    spec: str
    worth: float
    auroc: Mapping[str, float]


@dataclass(frozen=True)
class Choice:
    """The detector for this network (not fitted), why, and how sure that is.

    ``candidates`` are sorted by worth. ``certainty`` is the share of resamples of the rows in which the same choice was
    made. ``without`` tells for each kind what would be chosen had it not been seen, and that one's rank on it.
    """

    detector: Detector
    candidates: tuple[Candidate, ...]
    standard_error: float
    certainty: float
    without: Mapping[str, tuple[str, float]]
    verdict: str


def select(
    *,
    train: Features,
    held_out: Features,
    outliers: Mapping[str, Features],
    candidates: Sequence[str] | None = None,
    seed: int = 0,
) -> Choice:
    """Choose the detector that ranks best over the kinds of stand-ins and badly on none of them; in doubt, the default.

    A mean over kinds rewards a detector that is excellent against noise and poor against something else; the worst
    rank alone hangs on one kind. Half of each is its worth. The default (:func:`oodles.default_detector`) stays unless
    another is better by more than one standard error of the difference, and in at least half of the resamples of rows.
    """
    if not outliers:
        raise ArgumentError("there are no stand-ins to tell ID rows from; see oodles.outlier_features")
    specs = list(
        dict.fromkeys(
            [default_detector().spec, PLAIN, *(parse(text).spec for text in candidates or candidate_list(train))]
        )
    )
    detectors = [parse(spec) for spec in specs]
    inner = next((detector for detector in detectors if detector.needs_network), None)
    if inner is not None:
        raise ArgumentError(
            f"{inner.spec} asks more of the network than embeddings, which is all that is compared here"
        )
    fit_together(detectors, train)
    chance = np.random.default_rng(seed)
    inside = _weights(chance, len(held_out))
    outside = {kind: _weights(chance, len(part)) for kind, part in outliers.items()}
    # a cube of candidates, kinds and resamples, the first of which is the data itself
    cube = np.empty((len(detectors), len(outliers), RESAMPLES + 1))
    for row, detector in enumerate(detectors):
        scores = detector.score(held_out).double().numpy()
        for column, (kind, part) in enumerate(outliers.items()):
            cube[row, column] = weighted_auroc(scores, detector.score(part).double().numpy(), inside, outside[kind])
    worth = worths(cube)
    place, certainty, error = _choose(worth)
    without = {}
    for column, kind in enumerate(outliers) if len(outliers) > 1 else ():
        rest = worths(np.delete(cube, column, axis=1))
        other = _choose(rest)[0]
        without[kind] = specs[other], float(worths(cube[:, [column], 0])[other])
    order = np.argsort(-worth[:, 0], kind="stable")
    table = tuple(
        Candidate(specs[i], float(worth[i, 0]), dict(zip(outliers, cube[i, :, 0].tolist(), strict=True))) for i in order
    )
    return Choice(
        parse(specs[place]), table, error, certainty, without, _verdict(specs, worth, place, error, certainty)
    )


def candidate_list(train: Features) -> list[str]:
    """What is tried beside the default: stages over a grid, and the quick ones of those that stand alone.

    Detectors that learn from labels are left out where there are none.
    """
    clips, sparse = ("react(95)", "react(97)", "react(99)"), ("", "dice(0.05)", "dice(0.1)", "dice(0.3)")
    scales = [f"{name}({p})" for name in ("scale", "lts") for p in (65, 75, 85, 90, 95)]
    chains = ["+".join(part for part in chain if part) for chain in itertools.product(clips, ["", *scales], sparse)]
    texts = [
        *("msp", "max_logit", "energy", "entropy", "gen", "doctor", "react(90)", "vra(60)"),
        *(f"dice({p})" for p in (0.05, 0.1, 0.3, 0.5, 0.7, 0.9)),
        *scales,
        *(f"ash_s({p})" for p in (65, 80, 90, 95)),
        *(f"ash_b({p})" for p in (65, 80, 90)),
        *chains,
        *("klmatching", "tempscale", "gradnorm", "mahalanobis", "mahalanobispp", "rmds", "she", "vim", "residual"),
        *("neco", "fdbd", "nci", "nnguide", *(f"knn({k})" for k in (1, 10, 50, 200))),
    ]
    return [text for text in texts if train.holds("labels") or "labels" not in parse(text).learns_from]


def outlier_features(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    count: int = 1000,
    seed: int = 0,
    **options: Any,
) -> dict[str, Features]:
    """Features of every kind of stand-in, made of the first ``count`` images of ``loader``: held-out ID images.

    ``mean`` and ``std`` are those the images were normalised by; without, each channel's own range is taken for 0 to 1.
    ``options`` go to :func:`oodles.extract`.
    """
    images, labels = first_images(loader, count)
    if mean and std:  # what pixels of 0 and of 1 have become
        low, high = ((end - torch.tensor(mean)) / torch.tensor(std) for end in (0, 1))
        low, high = low.view(1, -1, 1, 1), high.view(1, -1, 1, 1)
    else:
        low, high = channel_bounds(images)
    width = (high - low).clamp(min=1e-12)
    pixels = ((images - low) / width).clamp(0, 1)
    made = {NOISE: torch.randn(images.shape, generator=torch.Generator().manual_seed(seed))}
    for kind in KINDS:
        made[kind] = stand_ins(pixels, kind, labels=labels, seed=seed) * width + low
    return {kind: extract(model, list(torch.split(some, 250)), labels=False, **options) for kind, some in made.items()}


def mixture_features(held_out: Features, *, seed: int = 0) -> dict[str, Features]:
    """Stand-ins without images: means of two embeddings of different predicted classes, and units shuffled."""
    if held_out.head is None:
        raise DataError("mixtures of embeddings need the head, which the features do not hold")
    chance = torch.Generator().manual_seed(seed)
    embedding, classes = held_out.embedding, held_out.logits.argmax(dim=1)
    partner = torch.randperm(len(held_out), generator=chance)
    apart = classes[partner] != classes
    if not apart.any():
        raise DataError("all held-out rows are given the same class, so there is nothing to mix")
    order = torch.stack([torch.randperm(len(held_out), generator=chance) for _ in range(held_out.width)], dim=1)
    return {
        "mixed": Features((embedding + embedding[partner])[apart] / 2, head=held_out.head),
        "shuffled": Features(embedding.gather(0, order), head=held_out.head),
    }


def weighted_auroc(id_scores: Floats, ood_scores: Floats, id_weights: Floats, ood_weights: Floats) -> Floats:
    """AUROC under each row of weights, ties counted half; weights are ``(resamples, rows)``.

    >>> weighted_auroc(np.array([1.0, 2.0]), np.array([0.0, 1.0]), np.ones((1, 2)), np.ones((1, 2)))
    array([0.875])
    """
    values, place = np.unique(np.concatenate([id_scores, ood_scores]), return_inverse=True)
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(len(values)))
    rows = len(id_weights)
    inside = np.concatenate([id_weights, np.zeros((rows, len(ood_scores)))], axis=1)[:, order]
    outside = np.concatenate([np.zeros((rows, len(id_scores))), ood_weights], axis=1)[:, order]
    id_mass, ood_mass = (np.add.reduceat(part, starts, axis=1) for part in (inside, outside))
    below = np.cumsum(ood_mass, axis=1) - ood_mass / 2
    return np.asarray((id_mass * below).sum(axis=1) / (id_mass.sum(axis=1) * ood_mass.sum(axis=1)))


def worths(cube: Floats) -> Floats:
    """The mean of each candidate's mean and worst rank over the kinds, 0 to 1, from ``(candidates, kinds, ...)``."""
    ranks = (rankdata(np.round(cube, 4), axis=0) - 1) / max(1, len(cube) - 1)
    return np.asarray((ranks.mean(axis=1) + ranks.min(axis=1)) / 2)


def _choose(worth: Floats) -> tuple[int, float, float]:
    """The choice, the share of resamples that make the same, and the standard error of the best one's lead.

    The first column is the rows themselves, the first row the default.
    """
    best = int(np.argmax(worth[:, 0]))
    error = float(np.std(worth[best, 1:] - worth[USUAL, 1:]))
    place, *resampled = (_settle(column, error) for column in worth.T)
    if np.mean(np.equal(resampled, place)) < 0.5:
        place = USUAL
    return place, float(np.mean(np.equal(resampled, place))), error


def _settle(worth: Floats, error: float) -> int:
    """The best candidate, or the default where the best does not lead by more than the error."""
    best = int(np.argmax(worth))
    return best if worth[best] - worth[USUAL] > error else USUAL


def _verdict(specs: list[str], worth: Floats, place: int, error: float, certainty: float) -> str:
    plain = specs.index(PLAIN)
    order = [i for i in np.argsort(-worth[:, 0], kind="stable") if i != place]
    runner_up = int(order[0])
    lead = worth[place, 0] - worth[runner_up, 0]
    split = place == USUAL and lead < -error
    sure = "which stays, the resamples being split over others" if split else f"{certainty:.0%} sure"
    text = f"{specs[place]}, {sure}; next is {specs[runner_up]}"
    text += f" ({lead:+.3f} in worth, standard error {error:.3f})"
    if worth[plain, 0] >= worth[place, 0] - error:
        text += ". Plain msp is as good as anything here"
    return text


def _weights(chance: np.random.Generator, rows: int) -> Floats:
    """The rows themselves, then resamples of them as counts."""
    drawn = chance.multinomial(rows, np.full(rows, 1 / rows), size=RESAMPLES)
    return np.concatenate([np.ones((1, rows)), drawn]).astype(np.float64)
