"""Sections on DICE: how FPR95 depends on p, and what the units contribute on ID and on OOD data."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from oodles import plots
from oodles.detectors import Detector, LogitDetector, fit_together
from oodles.detectors.ensemble import RankEnsemble
from oodles.detectors.sparsifiers import DICE
from oodles.features import Features
from oodles.metrics import evaluate
from oodles.paper.analysis import contribution_moments, id_order, moments
from oodles.paper.sweep import SWEEP_GRID
from oodles.report.document import Figure, Section, shortened
from oodles.report.judged import Judged, Trial, class_name, ranked
from oodles.report.svg import draw

MAX_ROWS = 10_000  # of a set, for means and variances
MAX_UNITS, MAX_PANELS = 300, 3  # units that are drawn, OOD sets that they are drawn for


def dice_within(detector: Detector) -> LogitDetector | None:
    """The detector itself, or the first member of an ensemble, that sparsifies the head with DICE."""
    members = detector.scoring_members() if isinstance(detector, RankEnsemble) else [detector]
    logit = (each for each in members if isinstance(each, LogitDetector))
    return next((each for each in logit if isinstance(each.sparsifier(), DICE)), None)


def dice_sections(trial: Trial) -> list[Section]:
    """Return the curve over p if there are training features, the contributions if there is a head, for DICE."""
    detector = dice_within(trial.detector)
    if detector is None or not trial.ood:
        return []
    curve = None if trial.train is None else _curve(detector, trial.train, trial.id_set, trial.ood)
    parts = [part for part in (curve, _contributions(detector, trial)) if part is not None]
    texts, figures = zip(*parts, strict=True) if parts else ((), ())
    return [Section("What DICE drops", texts, figures)] if parts else []


def _curve(detector: LogitDetector, train: Features, id_set: Judged, ood: Sequence[Judged]) -> tuple[str, Figure]:
    """FPR95 of the detector with other values of p, fitted on the same rows in one pass."""
    sparsifier = detector.sparsifier()
    own = 0.0 if sparsifier is None else sparsifier.p
    grid = sorted({*SWEEP_GRID, own})
    candidates = [detector.with_p(p) for p in grid]
    fit_together(candidates, train)
    fpr95: dict[str, list[float]] = {each.name: [] for each in ood}
    for candidate in candidates:
        id_scores = ranked(candidate.score(id_set.features).double().numpy())
        for each in ood:
            scores = ranked(candidate.score(each.features).double().numpy())
            fpr95[each.name].append(100 * evaluate(id_scores, scores).fpr95)
    average = np.mean(list(fpr95.values()), axis=0)
    best, here = int(np.argmin(average)), grid.index(own)
    curves = {shortened(name): np.array(values) for name, values in fpr95.items()}
    figure = plots.curves_over_p(grid, {"FPR95 (%), lower is better": curves}, chosen=own)
    lowest = f"{average[best]:.1f} % at p = {grid[best]:g}"
    alternative = f"FPR95 against the sparsity p from {grid[0]:g} to {grid[-1]:g}; the lowest average is {lowest}."
    data = {"p": grid, "fpr95": fpr95, "average": average.tolist()}
    caption = "FPR95 for each share p of weights that are dropped; p = 0 keeps all."
    text = f"{detector.spec} drops a share p = {own:g} of the last layer's weights. Its average FPR95 is "
    text += f"{average[here]:.1f} %. "
    text += (
        "No other p of the curve is better" if best == here else f"On these OOD sets the best of the curve is {lowest}"
    )
    text += ". To choose p by these sets would be to tune on the answer; oodles select-p uses ID data and noise."
    return text, draw(figure, alternative, caption, data)


def _contributions(detector: LogitDetector, trial: Trial) -> tuple[str, Figure] | None:
    """What each unit adds to one class's logit, on ID rows of that class and on OOD rows; None without a head."""
    id_set, ood = trial.id_set, trial.ood
    head = id_set.features.head
    if head is None or not id_set.features.holds("embedding") or id_set.labels is None:
        return None
    label = _common_label(id_set.labels, ood)
    name = class_name(label, trial.class_names)
    own = np.flatnonzero(id_set.labels == label)[:MAX_ROWS]
    sets = {f"ID, predicted {name}": id_set.features[own.tolist()]}
    sets |= {f"OOD, {each.name}": each.features[:MAX_ROWS] for each in ood[:MAX_PANELS]}
    order = id_order(head, moments(id_set.features[:MAX_ROWS]), label)
    means = {title: contribution_moments(head, moments(part), label, order) for title, part in sets.items()}
    kept_from = 0 if detector.dense else int((detector.weight_[label] == 0).sum())
    shown = np.unique(np.linspace(0, head.width - 1, min(MAX_UNITS, head.width)).round().astype(int))
    panels = {
        shortened(title, 40): (mean[shown], np.sqrt(variance[shown])) for title, (mean, variance) in means.items()
    }
    figure = plots.contributions(panels, kept_from=kept_from, units=shown)
    dropped = {title: float(mean[:kept_from].sum()) for title, (mean, _) in means.items()}
    listed = "; ".join(f"{title}: {value:+.2f}" for title, value in dropped.items())
    alternative = (
        f"Mean contribution of {head.width} units to {name}, with one standard deviation. Sum over the {kept_from} "
        f"units that are dropped: {listed}."
    )
    caption = "Mean contribution of each unit with one standard deviation; units left of the dotted line are dropped."
    data = {"class": name, "units": head.width, "dropped units": kept_from, "dropped sums": dropped}
    text = (
        f"A unit contributes its activation times its weight for a class, here {name}, the class that is predicted "
        "most often for the OOD rows. DICE keeps the weights that contribute most on ID data."
    )
    return text, draw(figure, alternative, caption, data)


def _common_label(predicted: npt.NDArray[np.int64], ood: Sequence[Judged]) -> int:
    """The class that is predicted most often for OOD rows, among those that ID rows are predicted as."""
    known = np.unique(predicted)
    labels = [each.labels for each in ood if each.labels is not None] or [predicted]
    counts = [int((np.concatenate(labels) == label).sum()) for label in known]
    return int(known[int(np.argmax(counts))])
