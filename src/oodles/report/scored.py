"""A report on scored inputs: how many were rejected, of which classes, and the inputs worth looking at."""

import heapq
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from oodles import plots
from oodles.bench.tables import Cell, Column, Table
from oodles.deploy.results.reading import read_rows
from oodles.deploy.results.rows import Row
from oodles.records.text import printable
from oodles.report.document import Card, Gallery, Part, Pictures, Rate, Section, judgement_facts, shortened
from oodles.report.svg import draw

Array = npt.NDArray[Any]

USUAL = 5.0  # percent of ID inputs that a guard at the usual rate rejects
MAX_LINES, MAX_ERRORS = 60, 10
PATH_LENGTH = 90
MAX_NAMES = 10_000  # different classes or errors that are counted separately
BATCH = 1000  # rows that are looked at together
NAME_LENGTH = 120
OTHERS = "others"


class Tally:
    """What a report says about scored inputs, from rows that are read in batches; of most, only the score is kept."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.total = 0
        self.errors: Counter[str] = Counter()
        self.by_class: Counter[str] = Counter()
        self.accepted_by_class: Counter[str] = Counter()
        self.accepted, self.rejected = array("d"), array("d")
        self.p_values = Rate(0, 0)  # how many of them are below 0.05
        self.highest: list[Row] = []
        self.lowest: list[Row] = []
        self.just_accepted: list[Row] = []
        self.just_rejected: list[Row] = []
        left = iter(rows)
        while batch := list(islice(left, BATCH)):
            self._add(batch)

    @property
    def scored(self) -> int:
        """How many inputs have a score."""
        return len(self.accepted) + len(self.rejected)

    @property
    def rejection(self) -> Rate:
        """The share of scored inputs that were rejected."""
        return Rate(len(self.rejected), self.scored)

    def threshold(self) -> float | None:
        """The lowest accepted score, which is at least the threshold; None if accepted and rejected scores overlap."""
        lowest = min(self.accepted, default=None)
        return lowest if lowest is not None and max(self.rejected, default=-math.inf) < lowest else None

    def _add(self, batch: Sequence[Row]) -> None:
        scored = [row for row in batch if self._count(row)]
        accepted = [row for row in scored if row.is_id]
        rejected = [row for row in scored if not row.is_id]
        score = attrgetter("score")
        self.highest = heapq.nlargest(12, [*self.highest, *scored], score)
        self.lowest = heapq.nsmallest(16, [*self.lowest, *scored], score)
        self.just_accepted = heapq.nsmallest(8, [*self.just_accepted, *accepted], score)
        self.just_rejected = heapq.nlargest(8, [*self.just_rejected, *rejected], score)

    def _count(self, row: Row) -> bool:
        """Count an input; returns whether it has a score."""
        self.total += 1
        if row.error is not None or row.score is None or not math.isfinite(row.score):
            _count_name(self.errors, row.error or "it has no score")
            return False
        name = _count_name(self.by_class, _class_name(row))
        if row.is_id:
            self.accepted_by_class[name] += 1
        (self.accepted if row.is_id else self.rejected).append(row.score)
        if row.p_value is not None and 0 <= row.p_value <= 1:
            self.p_values = Rate(self.p_values.count + (row.p_value < 0.05), self.p_values.total + 1)
        return True


def _class_name(row: Row) -> str:
    if row.class_name is not None:
        return row.class_name
    return "no class" if row.label is None else f"class {row.label}"


def _count_name(counter: Counter[str], name: str) -> str:
    """Count a name, or the rest if there are very many different ones; returns what was counted."""
    name = shortened(printable(name[: 2 * NAME_LENGTH]), NAME_LENGTH)
    if name not in counter and len(counter) >= MAX_NAMES:
        name = OTHERS
    counter[name] += 1
    return name


def results_part(path: str | Path) -> Part:
    """The part on the results of ``oodles score`` in a .jsonl, .csv or .parquet file, which is read row by row.

    Images that the results name are opened, if they are still there, for small copies of at most 64 of them.
    """
    path = Path(path)
    tally = Tally(read_rows(path))
    facts = {
        "inputs": f"{tally.total:,}",
        "accepted": f"{len(tally.accepted):,}",
        "rejected": f"{len(tally.rejected):,}",
        "not scored": f"{tally.errors.total():,}",
    }
    if tally.scored:
        facts["share rejected"] = str(tally.rejection)
    sections = [_scores(tally), _classes(tally)] if tally.scored else []
    sections += [_errors(tally)] if tally.errors else []
    sections += [_gallery(tally)] if tally.scored else []
    return Part(
        f"Scored inputs, {printable(path.name)}", _recommendation(tally), _summary(tally), facts, tuple(sections)
    )


def _recommendation(tally: Tally) -> str:
    if not tally.total:
        return "There is nothing to say: the file has no rows."
    if not tally.scored:
        return f"Not one of the {tally.total:,} inputs could be scored. Look at the errors below and score them again."
    usual = f"A guard set to accept 95 % of ID inputs rejects about {USUAL:g} % of them"
    if tally.rejection.interval[0] > USUAL:
        return (
            f"Look at the rejected inputs before relying on the predictions: {tally.rejection.percent:.1f} % were "
            f"rejected. {usual}, so more of these than chance explains are unlike the training data."
        )
    return (
        f"Nothing unusual in the share of rejected inputs, {tally.rejection.percent:.1f} %. {usual}; those that were "
        "rejected here may be ID inputs too."
    )


def _summary(tally: Tally) -> tuple[str, ...]:
    lines = []
    if tally.scored:
        lines.append(
            f"Of {tally.scored:,} scored inputs {tally.rejection} were rejected; the interval holds if they are a "
            "random sample of those to come."
        )
    if tally.p_values.total:
        lines.append(f"{tally.p_values} have a p-value below 0.05; of ID inputs it would be about 5 %.")
    if tally.errors:
        lines.append(f"{tally.errors.total():,} of {tally.total:,} inputs could not be scored: not in-distribution.")
    if tally.scored:
        lines.append(
            "A rejected input is one that the network has little experience with: its prediction may still be right, "
            "and that of an accepted one wrong."
        )
    return tuple(lines)


def _scores(tally: Tally) -> Section:
    values = {"accepted": np.array(tally.accepted), "rejected": np.array(tally.rejected)}
    edges = plots.score_edges(np.concatenate(list(values.values())))
    counts = {name: binned(each, edges) for name, each in values.items() if len(each)}
    threshold = tally.threshold()
    drawn = plots.binned_scores(edges, counts, {}, threshold=threshold, unit="inputs")
    alternative = (
        f"Histogram of the scores of {len(tally.accepted):,} accepted and {len(tally.rejected):,} rejected inputs, "
        f"between {edges[0]:.4g} and {edges[-1]:.4g}."
    )
    caption = "Scores of accepted and rejected inputs; the outermost bars include everything beyond."
    if threshold is not None:
        caption += " The threshold is at or just below the dashed line, the lowest accepted score."
    return Section("Scores", figures=(draw(drawn, alternative, caption),))


def binned(values: Array, edges: Array) -> Array:
    """How many values are in each bin; those beyond are counted in the outermost."""
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
    return np.asarray(counts)


def _classes(tally: Tally) -> Section:
    """Acceptance by predicted class, the least accepted first."""
    rates = {name: Rate(tally.accepted_by_class[name], total) for name, total in tally.by_class.items()}
    common = sorted(rates, key=lambda name: -rates[name].total)[:MAX_LINES]
    shown = sorted(common, key=lambda name: (rates[name].percent, name))
    notes = (f"The {len(shown)} most frequent of {len(rates):,} classes.",) if len(rates) > len(shown) else ()
    return Section("Predicted classes", notes, tables=(class_table(shown, rates),))


def class_table(names: list[str], rates: dict[str, Rate]) -> Table:
    """Return counts and shares by class."""
    lines = [(Cell(name), Cell(rates[name].total), Cell(rates[name].count), rates[name].cell) for name in names]
    columns = Column("predicted class"), Column("inputs", ",d"), Column("accepted", ",d"), Column("accepted, %")
    return Table("Share of accepted inputs by predicted class, the lowest first", columns, tuple(lines))


def _errors(tally: Tally) -> Section:
    common = tally.errors.most_common(MAX_ERRORS)
    left = tally.errors.total() - sum(count for _, count in common)
    notes = (f"The {MAX_ERRORS} most frequent; {left:,} inputs have others.",) if left else ()
    lines = tuple((Cell(text), Cell(count)) for text, count in common)
    return Section("Not scored", notes, (), (Table("Why", (Column("error"), Column("inputs", ",d")), lines),))


def _gallery(tally: Tally) -> Section:
    pictures = Pictures()
    borderline = [*reversed(tally.just_rejected), *tally.just_accepted]
    groups = (
        ("Least in-distribution", "The lowest scores, the lowest first.", tally.lowest),
        ("Borderline", "Just rejected and just accepted, by score.", borderline),
        ("Most in-distribution", "The highest scores, the highest first.", tally.highest),
    )
    galleries = tuple(
        Gallery(heading, caption, tuple(_card(row, pictures) for row in rows)) for heading, caption, rows in groups
    )
    return Section("Inputs to look at", galleries=galleries)


def _card(row: Row, pictures: Pictures) -> Card:
    name = row.class_name if row.class_name is not None else f"class {row.label}"
    sure = "" if row.probability is None or not math.isfinite(row.probability) else f" ({100 * row.probability:.0f} %)"
    predicted = None if row.label is None and row.class_name is None else f"{shortened(name, 40)}{sure}"
    facts = judgement_facts(row.is_id, row.score, predicted, row.p_value)
    return Card(shortened(row.path, PATH_LENGTH), facts, pictures.of_file(row.path))
