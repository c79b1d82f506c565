"""A report on a guard: does it accept ID rows as it was set to, and does it reject OOD rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

import numpy as np
import numpy.typing as npt
import torch

from oodles import plots
from oodles.bench.tables import Cell, Column, Table
from oodles.calibration import Threshold, calibrate
from oodles.data.image_sets import ImageSet
from oodles.detectors import Detector
from oodles.detectors.ensemble import RankEnsemble
from oodles.errors import ArgumentError, DataError
from oodles.explanation.explaining import Explanation, explain
from oodles.explanation.findings import Neighbour, class_text, name_of
from oodles.features import Features
from oodles.metrics import Row, auroc, evaluate
from oodles.records.text import printable
from oodles.report.document import (
    Card,
    Figure,
    Gallery,
    Part,
    Picture,
    Pictures,
    Rate,
    Section,
    judgement_facts,
    shortened,
)
from oodles.report.scored import binned, class_table
from oodles.report.svg import draw

Floats = npt.NDArray[np.float64]

SHOWN, NEAREST = 5, 2  # rows of a gallery, training rows of each: with their pictures at most 60
TRAIN = "train"
RESAMPLES = 300
ROC_POINTS = 100
POOR = 0.7  # an AUROC below which a detector is of little use


@dataclass(frozen=True, eq=False)
class Judged:
    """A set: its name, its features, their scores, the predicted classes if there are logits, and what is accepted.

    The score of a row that has none is -inf: below all others, and never accepted.
    """

    name: str
    features: Features
    scores: Floats
    labels: npt.NDArray[np.int64] | None
    accepted: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, name: str, features: Features, detector: Detector, threshold: Threshold) -> "Judged":
        """Score the rows of a set."""
        scores = ranked(detector.score(features))
        return cls(name, features, scores, _predicted(features), threshold.is_id(scores))

    @property
    def rate(self) -> Rate:
        """The share of accepted rows."""
        return Rate(int(self.accepted.sum()), len(self.accepted))

    @property
    def finite(self) -> Floats:
        """The scores that there are."""
        return self.scores[np.isfinite(self.scores)]

    def rates_by_class(self, names: Sequence[str]) -> dict[str, Rate]:
        """The share of accepted rows of each predicted class."""
        if self.labels is None:
            return {}
        found = {int(label): self.accepted[self.labels == label] for label in np.unique(self.labels)}
        return {
            class_text(label, name_of(label, names)): Rate(int(each.sum()), len(each)) for label, each in found.items()
        }


def guard_part(
    detector: Detector,
    threshold: Threshold,
    features: Features,
    *,
    ood: Mapping[str, Features] | None = None,
    train: Features | None = None,
    class_names: Sequence[str] = (),
    images: Mapping[str, ImageSet] | None = None,
    id_set: str = "id",
) -> Part:
    """The part on a fitted detector and its threshold, from ID features that it was not fitted on.

    ``ood`` are features of OOD sets by name. With ``train``, the features that it was fitted on, nearest training rows
    are named. ``images`` are the images that features came from, by the name of their set: ``id_set``, ``train`` or one
    of ``ood``.
    """
    sets = {printable(name): part for name, part in (ood or {}).items()}
    names = tuple(map(printable, class_names or features.class_names))
    if {id_set, TRAIN} & {*sets}:
        raise ArgumentError(f"an OOD set is called {id_set!r} or {TRAIN!r}; choose another name")
    _check_images(images or {}, {id_set: features, **sets} | ({} if train is None else {TRAIN: train}))
    judged = [Judged.of(name, part, detector, threshold) for name, part in {id_set: features, **sets}.items()]
    if not len(judged[0].finite):
        raise DataError(f"{detector} gives not one ID row a finite score; are the features those it was fitted on?")
    about = _About(detector, threshold, judged[0], judged[1:], names, train, images or {})
    figures = [about.histogram(), about.roc()] if sets else [about.histogram()]
    sections = [
        Section("Scores", figures=tuple(figures)),
        *about.ood_sections(),
        *about.classes(),
        _gallery(about),
    ]
    title = f"Guard with {shortened(detector.spec, 60)}"
    return Part(title, about.recommendation(), about.summary(), about.facts(), tuple(sections))


@dataclass(frozen=True, eq=False)
class _About:
    """What a report says about a guard, the sets that it was tried on, and the images that their rows came from."""

    detector: Detector
    threshold: Threshold
    id_set: Judged
    ood: Sequence[Judged]
    class_names: Sequence[str]
    train: Features | None
    images: Mapping[str, ImageSet]

    @cached_property
    def rows(self) -> list[Row]:
        """The metrics on each OOD set."""
        own = self.id_set.scores
        return [evaluate(own, each.scores, ood_set=each.name, bootstrap=RESAMPLES) for each in self.ood]

    @cached_property
    def is_calibration(self) -> bool:
        """Whether the ID rows are those that the threshold was set on."""
        scores, known = self.id_set.finite, self.threshold
        if len(scores) != known.calibration_size:
            return False
        return bool(np.isclose(calibrate(scores, known.id_rate).value, known.value, rtol=1e-5, atol=1e-7))

    def facts(self) -> dict[str, str]:
        """The numbers that matter most."""
        facts = {
            "detector": shortened(self.detector.spec, 60),
            "threshold": f"{self.threshold.value:.5g}",
            "set to accept": f"{100 * self.threshold.id_rate:g} % of ID",
            "ID rows accepted": str(self.id_set.rate),
        }
        if self.ood:
            accepted = [each.rate.percent for each in self.ood]
            ends = f"{min(accepted):.1f} to {max(accepted):.1f} %" if len(accepted) > 1 else f"{accepted[0]:.1f} %"
            facts["OOD rows accepted"] = ends
        return facts

    def recommendation(self) -> str:
        """What to do."""
        wanted, (low, high) = 100 * self.threshold.id_rate, self.id_set.rate.interval
        if not low <= wanted <= high and not self.is_calibration:
            more = "more" if low > wanted else "fewer"
            return (
                f"Set the threshold again on these rows (oodles threshold): the guard accepts {self.id_set.rate} of "
                f"them, {more} than the {wanted:g} % it was set for."
            )
        if not self.ood:
            return "The threshold fits these ID rows. Give features of OOD sets (--ood) to see what the guard rejects."
        worst = min(self.rows, key=lambda row: row.auroc)
        if worst.auroc < POOR:
            return (
                f"Do not rely on this guard against inputs like {worst.ood_set}: it hardly tells them from ID inputs "
                f"(AUROC {100 * worst.auroc:.1f} %). Compare other detectors with oodles bench."
            )
        missed = max(self.ood, key=lambda each: each.rate.percent)
        return (
            f"Usable within limits: while {self.id_set.rate.percent:.1f} % of the ID rows are accepted, so are up to "
            f"{missed.rate.percent:.1f} % of OOD rows ({missed.name}). If that is too many, accept fewer ID inputs "
            "(oodles threshold --id-rate) or compare other detectors (oodles bench)."
        )

    def summary(self) -> tuple[str, ...]:
        """What was found, and how far it can be trusted."""
        known, lines = self.threshold, []
        if self.is_calibration:
            lines.append(
                f"The ID rows are those that the threshold was set on, so that {100 * known.id_rate:g} % are accepted "
                "is no evidence; other ID rows would be."
            )
        else:
            lines.append(
                f"The threshold was set on {known.calibration_size:,} ID rows; of {len(self.id_set.scores):,} others "
                f"{self.id_set.rate} are accepted."
            )
        lines += [f"{each.name}: {each.rate} of {len(each.scores):,} OOD rows are accepted." for each in self.ood]
        lost = sum(len(each.scores) - len(each.finite) for each in (self.id_set, *self.ood))
        if lost:
            lines.append(f"{lost:,} rows have no finite score and count as rejected.")
        if self.ood:
            lines.append("OOD inputs of other kinds than these may be easier or harder to detect.")
        return tuple(lines)

    def histogram(self) -> Figure:
        """The scores of every set with the threshold."""
        parts = [self.id_set, *(each for each in self.ood if len(each.finite))]
        edges = plots.score_edges(np.concatenate([*(each.finite for each in parts), [self.threshold.value]]))
        drawn = {shortened(each.name): 100 * binned(each.finite, edges) / len(each.finite) for each in parts}
        first = next(iter(drawn))
        figure = plots.binned_scores(
            edges, {first: drawn.pop(first)}, drawn, threshold=self.threshold.value, unit="rows (%)"
        )
        medians = ", ".join(f"{each.name} {np.median(each.finite):.4g}" for each in parts)
        alternative = f"Histograms of scores with the threshold {self.threshold.value:.4g}. Medians: {medians}."
        caption = (
            f"Scores of {self.id_set.name} (filled) and of the OOD sets (lines). Right of the threshold is accepted."
        )
        return draw(figure, alternative, caption)

    def roc(self) -> Figure:
        """The ROC of every OOD set."""
        curves = {shortened(each.name): roc(self.id_set.scores, each.scores) for each in self.ood}
        point = np.array([each.rate.percent for each in self.ood]), self.id_set.rate.percent
        figure = plots.roc_curves(curves, point)
        areas = ", ".join(f"{row.ood_set} {100 * row.auroc:.1f} %" for row in self.rows)
        alternative = f"ROC curve of each OOD set. Areas under the curves: {areas}."
        caption = "ROC: the share of ID rows accepted against that of OOD rows, for every threshold; circles: this one."
        return draw(figure, alternative, caption)

    def ood_sections(self) -> list[Section]:
        """The metrics on each OOD set, and of each member of an ensemble."""
        if not self.ood:
            return []
        cells = []
        for each, row in zip(self.ood, self.rows, strict=True):
            ends = {name: (100 * low, 100 * high) for name, (low, high) in row.intervals.items()}
            cells.append(
                (
                    Cell(each.name),
                    Cell(len(each.scores)),
                    Rate(int((~each.accepted).sum()), len(each.accepted)).cell,
                    Cell(100 * row.fpr95, ends["fpr95"]),
                    Cell(100 * row.auroc, ends["auroc"]),
                )
            )
        columns = Column("OOD set"), Column("rows", ",d"), Column("rejected, %"), Column("FPR95, %"), Column("AUROC, %")
        caption = (
            "What the guard does with OOD rows; rejected: at its threshold. Intervals: Wilson's, and from resamples"
        )
        return [Section("OOD sets", (), (), (Table(caption, columns, tuple(cells)), *self._members()))]

    def _members(self) -> list[Table]:
        if not isinstance(self.detector, RankEnsemble):
            return []
        lines = []
        for member in self.detector.scoring_members():
            ids, *others = (ranked(member.score(each.features)) for each in (self.id_set, *self.ood))
            lines.append((Cell(member.spec), *(Cell(100 * auroc(ids, each)) for each in others)))
        columns = Column("member"), *(Column(each.name) for each in self.ood)
        return [Table("AUROC in percent of each detector in the ensemble alone", columns, tuple(lines))]

    def classes(self) -> list[Section]:
        """Acceptance of ID rows by predicted class, the least accepted first."""
        rates = self.id_set.rates_by_class(self.class_names)
        if len(rates) < 2:
            return []
        shown = sorted(rates, key=lambda name: (rates[name].percent, name))[:60]
        wanted = 100 * self.threshold.id_rate
        low = [name for name in shown if rates[name].interval[1] < wanted]
        text = "A class that is accepted much less often than others is one that the guard serves badly: few training "
        text += "inputs, or varied ones. Some classes are low by chance."
        text += f" Below the rate by more than chance: {', '.join(low[:10])}." if low else ""
        return [Section("ID rows by predicted class", (text,), tables=(class_table(shown, rates),))]


def ranked(scores: torch.Tensor) -> Floats:
    """Return scores in which a row that has none is below all others."""
    return torch.where(scores.isfinite(), scores.double(), -torch.inf).numpy()


def roc(id_scores: Floats, ood_scores: Floats) -> tuple[Floats, Floats]:
    """The shares of OOD and of ID scores at or above each of about 200 thresholds, in percent, ascending."""
    ids, oods = np.sort(id_scores), np.sort(ood_scores)
    at = np.unique(np.concatenate([_spaced(ids), _spaced(oods)]))[::-1]
    shares = [np.concatenate([[0.0], 1 - np.searchsorted(each, at, side="left") / len(each)]) for each in (oods, ids)]
    return 100 * shares[0], 100 * shares[1]


def _spaced(ordered: Floats) -> Floats:
    places = np.linspace(0, len(ordered) - 1, min(ROC_POINTS, len(ordered))).round().astype(int)
    return np.take(ordered, places)


def _predicted(features: Features) -> npt.NDArray[np.int64] | None:
    if not features.holds("logits"):
        return None
    return torch.cat([batch.logits.argmax(dim=1).cpu() for batch in features.batches()]).numpy()


# Rows worth looking at, with their pictures and their nearest training rows if these are known


def _check_images(images: Mapping[str, ImageSet], sets: Mapping[str, Features]) -> None:
    """Raise unless each set of images belongs to a set of features and has as many rows."""
    for name, each in images.items():
        if name not in sets:
            raise ArgumentError(f"images of {name!r} belong to no features; name one of {', '.join(sets)}")
        if len(each) != len(sets[name]):
            raise ArgumentError(
                f"{each.name} has {len(each):,} images, but the features of {name!r} have {len(sets[name]):,} "
                "rows; give the images that they were extracted from"
            )


def _gallery(about: _About) -> Section:
    """Return the galleries of rows."""
    id_set, pictures = about.id_set, Pictures()
    lowest, highest = _first([id_set], lambda scores: scores), _first([id_set], lambda scores: -scores)
    near = _first([id_set, *about.ood], lambda scores: np.abs(scores - about.threshold.value))
    groups = [
        ("Least in-distribution", f"Rows of {id_set.name} with the lowest scores, the lowest first.", lowest),
        ("Borderline", "Rows closest to the threshold, the closest first.", near),
        (
            "OOD that looks most in-distribution",
            "OOD rows with the highest scores.",
            _first(about.ood, lambda scores: -scores),
        ),
        ("Most in-distribution", f"Rows of {id_set.name} with the highest scores.", highest),
    ]
    explained = _explained(about, [pair for *_, rows in groups for pair in rows])
    galleries = [
        Gallery(heading, caption, tuple(_card(about, *pair, explained[pair], pictures) for pair in rows))
        for heading, caption, rows in groups
        if rows
    ]
    note = "Rows are counted from 0. Features hold no images; --images NAME=PATH adds their pictures."
    return Section("Inputs to look at", () if about.images else (note,), galleries=tuple(galleries))


def _explained(about: _About, pairs: Sequence[tuple[Judged, int]]) -> dict[tuple[Judged, int], Explanation]:
    """Explain the rows, in one call for each set, because each call reads all training rows."""
    found: dict[tuple[Judged, int], Explanation] = {}
    for each in dict.fromkeys(each for each, _ in pairs):
        rows = sorted({row for other, row in pairs if other is each})
        part = each.features[rows]
        answers = explain(about.detector, part, about.threshold, classes=about.class_names, train=about.train)
        found |= {(each, row): answer for row, answer in zip(rows, answers, strict=True)}
    return found


def _card(about: _About, each: Judged, row: int, found: Explanation, pictures: Pictures) -> Card:
    (p_value,) = about.threshold.p_values([found.score])
    label = None if found.label is None else _named(found.label, found.class_name)
    facts = judgement_facts(found.is_id, found.score, label, p_value)
    near = [neighbour for finding in found.findings for neighbour in finding.neighbours][:NEAREST]
    return Card(
        f"{each.name}, row {row:,}",
        (*facts, *_most_sceptical(found)),
        _picture(about, each.name, row, pictures),
        tuple(_nearest(about, neighbour, pictures) for neighbour in near),
    )


def _nearest(about: _About, neighbour: Neighbour, pictures: Pictures) -> Card:
    known = neighbour.train_row
    name = f"kept row {neighbour.index:,}" if known is None else f"row {known:,}"
    label = [] if neighbour.label is None else [_named(neighbour.label, neighbour.class_name)]
    picture = None if known is None else _picture(about, TRAIN, known, pictures)
    return Card(name, (*label, f"similarity {neighbour.similarity:.3f}"), picture)


def _picture(about: _About, name: str, row: int, pictures: Pictures) -> Picture | None:
    images = about.images.get(name)
    return None if images is None else pictures.of(lambda: images.open(row), images.names[row])


def _first(sets: Sequence[Judged], key: Callable[[Floats], Floats]) -> list[tuple[Judged, int]]:
    """Return the rows whose scores have the smallest keys, the smallest first."""
    found = []
    for each in sets:
        values = key(each.scores)
        found += [(values[row], each, row) for row in np.argsort(values, kind="stable")[:SHOWN].tolist()]
    return [(each, row) for _, each, row in sorted(found, key=itemgetter(0))[:SHOWN]]


def _named(label: int, name: str | None) -> str:
    return shortened(class_text(label, name), 40)


def _most_sceptical(found: Explanation) -> list[str]:
    """The member of an ensemble to which the row is least usual."""
    if len(found.findings) < 2 or found.findings[0].p_value is None:
        return []
    first = found.findings[0]
    return [f"least usual to {shortened(first.spec, 40)} (p {first.p_value:.2f})"]
