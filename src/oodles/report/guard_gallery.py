"""Rows of features worth looking at, with their pictures and their nearest training rows if these are known."""

from collections.abc import Mapping, Sequence

import numpy as np

from oodles.data.image_sets import ImageSet
from oodles.errors import ArgumentError
from oodles.explanation.explaining import Explanation, explain
from oodles.explanation.findings import Neighbour, class_text
from oodles.features import Features
from oodles.report.document import Card, Gallery, Picture, Section, judgement_facts, shortened
from oodles.report.judged import Judged, Trial
from oodles.report.pictures import Pictures

SHOWN, NEAREST = 5, 2  # rows of a gallery, training rows of each: with their pictures at most 60
TRAIN = "train"


def check_images(images: Mapping[str, ImageSet], sets: Mapping[str, Features]) -> None:
    """Raise unless each set of images belongs to a set of features and has as many rows."""
    for name, each in images.items():
        if name not in sets:
            raise ArgumentError(f"images of {name!r} belong to no features; name one of {', '.join(sets)}")
        if len(each) != len(sets[name]):
            raise ArgumentError(
                f"{each.name} has {len(each):,} images, but the features of {name!r} have {len(sets[name]):,} "
                "rows; give the images that they were extracted from"
            )


def gallery_section(trial: Trial) -> Section:
    """Return the galleries of rows."""
    id_set, pictures = trial.id_set, Pictures()
    ids = [(id_set, row) for row in _by_score(id_set)]
    others = [(each, row) for each in trial.ood for row in _by_score(each)]
    others.sort(key=lambda pair: -pair[0].ranked[pair[1]])
    near = sorted([*ids, *others], key=lambda pair: abs(pair[0].ranked[pair[1]] - trial.threshold.value))[:SHOWN]
    near.sort(key=lambda pair: pair[0].ranked[pair[1]])
    groups = [
        ("Least in-distribution", f"Rows of {id_set.name} with the lowest scores, the lowest first.", ids[:SHOWN]),
        ("Borderline", "Rows closest to the threshold, by score.", near),
        ("OOD that looks most in-distribution", "OOD rows with the highest scores.", others[:SHOWN]),
        ("Most in-distribution", f"Rows of {id_set.name} with the highest scores.", ids[-1 : -SHOWN - 1 : -1]),
    ]
    explained = _explained(trial, [pair for *_, rows in groups for pair in rows])
    galleries = [
        Gallery(heading, caption, tuple(_card(trial, *pair, explained[pair], pictures) for pair in rows))
        for heading, caption, rows in groups
        if rows
    ]
    note = "Rows are counted from 0. Features hold no images; --images NAME=PATH adds their pictures."
    return Section("Inputs to look at", () if trial.images else (note,), galleries=tuple(galleries))


def _explained(trial: Trial, pairs: Sequence[tuple[Judged, int]]) -> dict[tuple[Judged, int], Explanation]:
    """Explain the rows, in one call for each set, because each call reads all training rows."""
    found: dict[tuple[Judged, int], Explanation] = {}
    for each in dict.fromkeys(each for each, _ in pairs):
        rows = sorted({row for other, row in pairs if other is each})
        part = each.features[rows]
        answers = explain(trial.detector, part, trial.threshold, classes=trial.class_names, train=trial.train)
        found |= {(each, row): answer for row, answer in zip(rows, answers, strict=True)}
    return found


def _card(trial: Trial, each: Judged, row: int, found: Explanation, pictures: Pictures) -> Card:
    (p_value,) = trial.threshold.p_values([found.score])
    label = None if found.label is None else _named(found.label, found.class_name)
    facts = judgement_facts(found.is_id, found.score, label, None if np.isnan(p_value) else p_value)
    near = [neighbour for finding in found.findings for neighbour in finding.neighbours][:NEAREST]
    return Card(
        f"{each.name}, row {row:,}",
        (*facts, *_most_sceptical(found)),
        _picture(trial, each.name, row, pictures),
        tuple(_nearest(trial, neighbour, pictures) for neighbour in near),
    )


def _nearest(trial: Trial, neighbour: Neighbour, pictures: Pictures) -> Card:
    known = neighbour.train_row
    name = f"kept row {neighbour.index:,}" if known is None else f"row {known:,}"
    label = [] if neighbour.label is None else [_named(neighbour.label, neighbour.class_name)]
    picture = None if known is None else _picture(trial, TRAIN, known, pictures)
    return Card(name, (*label, f"similarity {neighbour.similarity:.3f}"), picture)


def _picture(trial: Trial, name: str, row: int, pictures: Pictures) -> Picture | None:
    images = trial.images.get(name)
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
