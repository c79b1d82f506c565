"""Rows of features worth looking at, with their pictures and their nearest training rows if these are known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from oodles.calibration import Threshold
from oodles.data.image_sets import ImageSet
from oodles.detectors import Detector
from oodles.errors import ArgumentError
from oodles.explanation.explaining import Explanation, explain
from oodles.explanation.findings import Neighbour, class_text
from oodles.features import Features
from oodles.report.document import Card, Gallery, Picture, Section, shortened
from oodles.report.judged import Judged
from oodles.report.pictures import Pictures

SHOWN, NEAREST = 5, 2  # rows of a gallery, training rows of each: with their pictures at most 60
TRAIN = "train"


@dataclass(frozen=True, eq=False)
class Looker:
    """What is needed to show a row: who judged it, what it was trained on, and the images that rows came from."""

    detector: Detector
    threshold: Threshold
    class_names: Sequence[str]
    train: Features | None
    images: Mapping[str, ImageSet]

    def check(self, sets: Mapping[str, Features]) -> None:
        """Raise unless each set of images belongs to a set of features and has as many rows."""
        for name, images in self.images.items():
            if name not in sets:
                raise ArgumentError(f"images of {name!r} belong to no features; name one of {', '.join(sets)}")
            if len(images) != len(sets[name]):
                raise ArgumentError(
                    f"{images.name} has {len(images):,} images, but the features of {name!r} have {len(sets[name]):,} "
                    "rows; give the images that they were extracted from"
                )

    def section(self, id_set: Judged, ood: Sequence[Judged]) -> Section:
        """The galleries."""
        pictures = Pictures()
        ids = [(id_set, row) for row in _by_score(id_set)]
        others = [(each, row) for each in ood for row in _by_score(each)]
        others.sort(key=lambda pair: -pair[0].ranked[pair[1]])
        near = sorted([*ids, *others], key=lambda pair: abs(pair[0].ranked[pair[1]] - self.threshold.value))[:SHOWN]
        near.sort(key=lambda pair: pair[0].ranked[pair[1]])
        groups = [
            ("Least in-distribution", f"Rows of {id_set.name} with the lowest scores, the lowest first.", ids[:SHOWN]),
            ("Borderline", "Rows closest to the threshold, by score.", near),
            ("OOD that looks most in-distribution", "OOD rows with the highest scores.", others[:SHOWN]),
            ("Most in-distribution", f"Rows of {id_set.name} with the highest scores.", ids[-1 : -SHOWN - 1 : -1]),
        ]
        explained = self._explained([pair for *_, rows in groups for pair in rows])
        galleries = [
            Gallery(heading, caption, tuple(self._card(*pair, explained[pair], pictures) for pair in rows))
            for heading, caption, rows in groups
            if rows
        ]
        return Section("Inputs to look at", self._notes(), galleries=tuple(galleries))

    def _notes(self) -> tuple[str, ...]:
        if self.images:
            return ()
        return ("Rows are counted from 0. Features hold no images; --images NAME=PATH adds their pictures.",)

    def _explained(self, pairs: Sequence[tuple[Judged, int]]) -> dict[tuple[Judged, int], Explanation]:
        """Explanations of the rows, in one call for each set, because each call reads all training rows."""
        found: dict[tuple[Judged, int], Explanation] = {}
        for each in dict.fromkeys(each for each, _ in pairs):
            rows = sorted({row for other, row in pairs if other is each})
            part = each.features[rows]
            answers = explain(self.detector, part, self.threshold, classes=self.class_names, train=self.train)
            found |= {(each, row): answer for row, answer in zip(rows, answers, strict=True)}
        return found

    def _card(self, each: Judged, row: int, found: Explanation, pictures: Pictures) -> Card:
        facts = [f"{'accepted' if found.is_id else 'rejected'}, score {found.score:.4g}"]
        if found.label is not None:
            facts.append(f"predicted: {_named(found.label, found.class_name)}")
        (p_value,) = self.threshold.p_values([found.score])
        facts += [] if np.isnan(p_value) else [f"p = {p_value:.3g}"]
        facts += _most_sceptical(found)
        near = [neighbour for finding in found.findings for neighbour in finding.neighbours][:NEAREST]
        return Card(
            f"{each.name}, row {row:,}",
            tuple(facts),
            self._picture(each.name, row, pictures),
            tuple(self._nearest(neighbour, pictures) for neighbour in near),
        )

    def _nearest(self, neighbour: Neighbour, pictures: Pictures) -> Card:
        known = neighbour.train_row
        name = f"kept row {neighbour.index:,}" if known is None else f"row {known:,}"
        label = [] if neighbour.label is None else [_named(neighbour.label, neighbour.class_name)]
        picture = None if known is None else self._picture(TRAIN, known, pictures)
        return Card(name, (*label, f"similarity {neighbour.similarity:.3f}"), picture)

    def _picture(self, name: str, row: int, pictures: Pictures) -> Picture | None:
        images = self.images.get(name)
        return None if images is None else pictures.of(lambda: images.open(row), images.names[row])


def _by_score(each: Judged) -> list[int]:
    """The rows that matter, in ascending order of scores: the first, the last, and those near the threshold."""
    order = np.argsort(each.ranked, kind="stable")
    border = int(np.count_nonzero(~each.accepted))
    places = [*range(SHOWN), *range(border - SHOWN, border + SHOWN), *range(len(order) - SHOWN, len(order))]
    return [int(order[place]) for place in sorted({place for place in places if 0 <= place < len(order)})]


def _named(label: int, name: str | None) -> str:
    return shortened(class_text(label, name), 40)


def _most_sceptical(found: Explanation) -> list[str]:
    """The member of an ensemble to which the row is least usual."""
    if len(found.findings) < 2 or found.findings[0].p_value is None:
        return []
    first = found.findings[0]
    return [f"least usual to {shortened(first.spec, 40)} (p {first.p_value:.2f})"]
