"""``select``: which detector suits this network, judged on synthetic outliers made from ID data."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from oodles.detectors import Detector, default_detector, fit_together, parse
from oodles.detectors.network_detector import needs_network
from oodles.errors import ArgumentError
from oodles.features import Features

Floats = npt.NDArray[np.float64]
RESAMPLES = 50
BASELINE = "msp"
HOPELESS = 0.55  # mean AUROC below which no candidate can be said to work
SIGNED = 0.05  # fraction of negative activations; a ReLU leaves none, a LayerNorm about half
DEFAULT = 0  # the index of the default detector among the candidates


@dataclass(frozen=True)
class Candidate:
    """A detector's AUROC against each kind of outlier, and its utility among all candidates, see :func:`utilities`."""

    spec: str
    utility: float
    auroc: Mapping[str, float]


@dataclass(frozen=True)
class Choice:
    """The detector for this network (not fitted), why it was chosen, and how stable the choice is.

    ``candidates`` are sorted by utility. ``agreement`` is the fraction of resamples of the rows in which the same
    choice was made. ``leave_one_kind_out`` gives, for each kind of outlier, what would be chosen without it, and the
    rank of that choice on it. ``verdict`` says all this in a sentence.
    """

    detector: Detector
    candidates: tuple[Candidate, ...]
    standard_error: float
    agreement: float
    leave_one_kind_out: Mapping[str, tuple[str, float]]
    verdict: str


def select(
    *,
    train: Features,
    held_out: Features,
    outliers: Mapping[str, Features],
    candidates: Sequence[str] | None = None,
    seed: int = 0,
) -> Choice:
    """Choose the detector that ranks best over all kinds of outliers and badly on none; if in doubt, the default.

    A mean over kinds rewards a detector that is excellent against noise and poor against something else; the worst
    rank alone depends on a single kind. The utility is the mean of both. The default (:func:`oodles.default_detector`)
    is kept unless another is better by more than one standard error, in at least half of the resamples of the rows.

    >>> from oodles.selection import mixed_features
    >>> from oodles.testing import example_features
    >>> train, held_out = example_features(rows=600).split(0.5)
    >>> choice = select(train=train, held_out=held_out, outliers=mixed_features(held_out), candidates=["knn(5)", "vim"])
    >>> len(choice.candidates), sorted(choice.candidates[0].auroc)
    (4, ['mixed', 'shuffled'])
    """
    if not outliers:
        raise ArgumentError("there are no outliers to compare ID rows with; see oodles.selection.outlier_features")
    others = [parse(text).spec for text in candidates or candidate_list(train)]
    specs = list(dict.fromkeys([default_detector().spec, BASELINE, *others]))
    detectors = [parse(spec) for spec in specs]
    unsuitable = next((detector for detector in detectors if needs_network(detector)), None)
    if unsuitable is not None:
        fact = "needs more of the network than embeddings, which select does not have"
        raise ArgumentError(f"{unsuitable.spec} {fact}; leave it out of the candidates")
    fit_together(detectors, train)
    generator = np.random.default_rng(seed)
    id_weights = _weights(generator, len(held_out))
    ood_weights = {kind: _weights(generator, len(part)) for kind, part in outliers.items()}
    # candidates x kinds x resamples, the first of which is the data itself
    cube = np.empty((len(detectors), len(outliers), RESAMPLES + 1))
    for row, detector in enumerate(detectors):
        scores = detector.score(held_out).double().numpy()
        for column, (kind, part) in enumerate(outliers.items()):
            outside = detector.score(part).double().numpy()
            cube[row, column] = weighted_auroc(scores, outside, id_weights, ood_weights[kind])
    utility = utilities(cube)
    place, agreement, error = _choose(utility)
    left_out = {}
    for column, kind in enumerate(outliers) if len(outliers) > 1 else ():
        rest = utilities(np.delete(cube, column, axis=1))
        other = _choose(rest)[0]
        left_out[kind] = specs[other], float(utilities(cube[:, [column], 0])[other])
    order = np.argsort(-utility[:, 0], kind="stable")
    table = tuple(
        Candidate(specs[i], float(utility[i, 0]), dict(zip(outliers, cube[i, :, 0].tolist(), strict=True)))
        for i in order
    )
    best_auroc = float(cube[:, :, 0].mean(axis=1).max())
    verdict = _verdict(specs, utility, place, error, agreement, best_auroc)
    return Choice(parse(specs[place]), table, error, agreement, left_out, verdict)


def candidate_list(train: Features) -> list[str]:
    """What is tried besides the default: chains of stages over a grid, and the fast ones of the other detectors.

    Detectors that learn from labels are left out if there are none; scaling, ASH and chains of stages, which take
    activations to be positive, are left out if many are negative.
    """
    embedding = next(iter(train.batches())).embedding if train.width else None
    signed = embedding is not None and float((embedding < 0).double().mean()) > SIGNED
    clips, sparse = ("react(95)", "react(97)", "react(99)"), ("", "dice(0.05)", "dice(0.1)", "dice(0.3)")
    scales = [f"{name}({p})" for name in ("scale", "lts") for p in (65, 75, 85, 90, 95)]
    chains = ["+".join(part for part in chain if part) for chain in itertools.product(clips, ["", *scales], sparse)]
    shaped = [
        *(f"dice({p})" for p in (0.05, 0.1, 0.3, 0.5, 0.7, 0.9)),
        *scales,
        *(f"ash_s({p})" for p in (65, 80, 90, 95)),
        *(f"ash_b({p})" for p in (65, 80, 90)),
        *chains,
    ]
    texts = [
        *("msp", "max_logit", "energy", "entropy", "gen", "doctor", "react(90)", "vra(60)"),
        *([] if signed else shaped),
        *("kl_matching", "temp_scale", "gradnorm", "mahalanobis", "mahalanobis_pp", "rmds", "she", "vim", "residual"),
        *("neco", "fdbd", "nci", "nnguide", *(f"knn({k})" for k in (1, 10, 50, 200))),
    ]
    return [text for text in texts if train.holds("labels") or "labels" not in parse(text).learns_from]


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


def utilities(cube: Floats) -> Floats:
    """The mean of each candidate's mean and worst rank over the kinds, 0 to 1, from ``(candidates, kinds, ...)``."""
    from scipy.stats import rankdata  # imported here, because it takes a third of the time of importing torch

    ranks = (rankdata(np.round(cube, 4), axis=0) - 1) / max(1, len(cube) - 1)
    return np.asarray((ranks.mean(axis=1) + ranks.min(axis=1)) / 2)


def _choose(utility: Floats) -> tuple[int, float, float]:
    """The choice, the fraction of resamples that make the same one, and the standard error of the best one's lead.

    The first column is the data itself, the first row the default.
    """
    best = int(np.argmax(utility[:, 0]))
    error = float(np.std(utility[best, 1:] - utility[DEFAULT, 1:]))
    place, *resampled = (_best_or_default(column, error) for column in utility.T)
    if np.mean(np.equal(resampled, place)) < 0.5:
        place = DEFAULT
    return place, float(np.mean(np.equal(resampled, place))), error


def _best_or_default(utility: Floats, error: float) -> int:
    """The best candidate, or the default if the best does not lead it by more than the error."""
    best = int(np.argmax(utility))
    return best if utility[best] - utility[DEFAULT] > error else DEFAULT


def _verdict(specs: list[str], utility: Floats, place: int, error: float, agreement: float, best_auroc: float) -> str:
    if best_auroc < HOPELESS:
        return (
            f"nothing works here: no candidate separates held-out ID rows from the outliers (best mean AUROC "
            f"{best_auroc:.1%}), so {specs[place]} is only the least bad; are the features those of a trained network?"
        )
    baseline, best = specs.index(BASELINE), int(np.argmax(utility[:, 0]))
    lead = utility[best, 0] - utility[DEFAULT, 0]
    if place != DEFAULT:
        text = (
            f"{specs[place]}: its utility is {lead:.3f} above that of {specs[DEFAULT]} (standard error {error:.3f}), "
            f"and {agreement:.0%} of the resamples choose it"
        )
    elif best == DEFAULT:
        text = f"{specs[DEFAULT]}: no candidate has a higher utility; {agreement:.0%} of the resamples agree"
    else:
        fact = f"{specs[best]} has a utility {lead:.3f} higher"
        within = f"within the standard error of {error:.3f}"
        why = within if lead <= error else "and fewer than half of the resamples choose it"
        text = f"keep {specs[DEFAULT]}: {fact}, {why}"
    if utility[baseline, 0] >= utility[place, 0] - error:
        text += ". Plain msp is as good as anything here"
    return text


def _weights(generator: np.random.Generator, rows: int) -> Floats:
    """All ones for the data itself, then bootstrap resamples as counts."""
    drawn = generator.multinomial(rows, np.full(rows, 1 / rows), size=RESAMPLES)
    return np.concatenate([np.ones((1, rows)), drawn]).astype(np.float64)
