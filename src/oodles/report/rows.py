"""A report on benchmark rows: which detector is best, how sure that is, and every number beside the paper's."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Literal

import msgspec
import numpy as np

from oodles import plots
from oodles.bench.comparison import Result, compare, results, shown_name
from oodles.bench.tables import Cell, Column, Table
from oodles.data.limits import regular_size
from oodles.errors import DataError
from oodles.metrics import Row
from oodles.paper.published import AVERAGE, published, without_seed
from oodles.records.text import printable
from oodles.report.document import Figure, Part, Section, shortened
from oodles.report.svg import draw

MAX_BYTES = 1 << 25  # of a file of rows
MAX_LINES, MAX_DRAWN, MAX_SETS = 120, 30, 40  # detectors in a table and in the figure, sets
MAX_LETTERS, MAX_COUNT = 1000, 10**12  # of a name in a row, and inputs of a set
Metric = Literal["fpr95", "auroc"]


def read_rows(path: str | Path) -> list[Row]:
    """Read the rows in a ``rows.json`` that ``oodles bench`` or ``oodles demo`` wrote."""
    path = Path(path)
    regular_size(path, MAX_BYTES)
    try:
        rows = msgspec.json.decode(path.read_bytes(), type=list[Row])
        for row in rows:
            _check(row)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise DataError(f"{path} does not hold rows of `oodles bench` ({error})") from None
    if not rows:
        raise DataError(f"{path} holds no rows; `oodles bench --out FOLDER` writes some")
    return rows


def _check(row: Row) -> None:
    """Raise ValueError unless the values of a row are possible."""
    values = [getattr(row, field.name) for field in fields(Row)]
    ends = [end for pair in row.intervals.values() for end in pair]
    if not all(0 <= value <= 1 for value in (*values, *ends) if isinstance(value, float)):
        raise ValueError("a metric is not a fraction from 0 to 1")
    if not (1 <= min(row.n_id, row.n_ood) <= max(row.n_id, row.n_ood) <= MAX_COUNT and row.detector and row.ood_set):
        raise ValueError("a row has no detector, no OOD set or no inputs")
    if any(len(value) > MAX_LETTERS for value in values if isinstance(value, str)):
        raise ValueError(f"a name has more than {MAX_LETTERS:,} letters")


def _printable(row: Row) -> Row:
    detector, id_set, ood_set, run = map(printable, (row.detector, row.id_set, row.ood_set, row.run))
    return replace(row, detector=detector, id_set=id_set, ood_set=ood_set, run=run)


def rows_parts(rows: Sequence[Row], title: str = "Detectors compared", notes: Sequence[str] = ()) -> list[Part]:
    """One part for each ID set among the rows; ``notes`` are added to the summary."""
    if not rows:
        raise DataError("there are no rows to report; give those of a benchmark")
    rows = [_printable(row) for row in rows]
    id_sets = list(dict.fromkeys(row.id_set for row in rows))
    return [
        _Comparison.of([row for row in rows if row.id_set == name], name).part(
            f"{title}, {name}" if len(id_sets) > 1 else title, notes
        )
        for name in id_sets
    ]


@dataclass(frozen=True)
class _Comparison:
    """Rows of one ID set by detector and OOD set; ``ranked`` are the detectors with all sets, the best first."""

    id_set: str
    rows: Sequence[Row]
    grouped: dict[tuple[str, str], Result]
    sets: list[str]
    ranked: list[str]
    incomplete: list[str]

    @classmethod
    def of(cls, rows: Sequence[Row], id_set: str) -> "_Comparison":
        """Group and rank the rows; of rows for the same, the last counts."""
        rows = list({(row.run, row.detector, row.ood_set): row for row in rows}.values())
        grouped = results(rows)
        sets = list(dict.fromkeys(row.ood_set for row in rows))
        if len(sets) > MAX_SETS:
            raise DataError(f"the rows have {len(sets)} OOD sets; a report shows at most {MAX_SETS}, so give fewer")
        detectors = list(dict.fromkeys(key[0] for key in grouped))
        complete = [each for each in detectors if all((each, name) in grouped for name in [*sets, AVERAGE])]
        if not complete:
            raise DataError(f"no detector has rows of all OOD sets ({', '.join(sets)}); give those of one benchmark")
        ranked = sorted(complete, key=lambda each: grouped[each, AVERAGE].mean("fpr95"))
        return cls(id_set, rows, grouped, sets, ranked, [each for each in detectors if each not in ranked])

    def part(self, title: str, notes: Sequence[str]) -> Part:
        """The whole part."""
        best = self.ranked[0]
        fpr95, auroc = (self.mean(best, AVERAGE, metric) for metric in ("fpr95", "auroc"))
        counts = [row.n_id for row in self.rows]
        facts = {
            "best detector": shown_name(best),
            "average FPR95": f"{fpr95:.1f} %",
            "average AUROC": f"{auroc:.1f} %",
            "detectors compared": f"{len(self.ranked)}",
            "OOD sets": f"{len(self.sets)}",
            "ID rows": f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}",
        }
        fpr95_table, auroc_table = self._tables()
        sections = (
            Section("FPR95 on each set", self._notes(), (self._figure(),), (fpr95_table,)),
            Section("AUROC on each set", (), (), (auroc_table,)),
            Section("Sample sizes", (), (), (self._sizes(),)),
        )
        return Part(title, self._recommendation(), (*self._summary(), *notes), facts, sections)

    def mean(self, detector: str, name: str, metric: Metric) -> float:
        """Return the mean over runs and seeds, in percent."""
        return self.grouped[detector, name].mean(metric)

    def _recommendation(self) -> str:
        best = self.ranked[0]
        fpr95, auroc = (self.mean(best, AVERAGE, metric) for metric in ("fpr95", "auroc"))
        over = "this OOD set" if len(self.sets) == 1 else f"these {len(self.sets)} OOD sets"
        text = f"Recommended: {shown_name(best)}. On {over} it accepts {fpr95:.1f} % of the OOD inputs on average"
        text += f" when 95 % of the ID inputs are accepted (AUROC {auroc:.1f} %)."
        if len(self.ranked) == 1:
            return text
        second = self.ranked[1]
        gap = self.mean(second, AVERAGE, "fpr95") - fpr95
        text += f" The next best, {shown_name(second)}, accepts {gap:.1f} points more"
        chance = "the uncertainty of both explains" if self._with_intervals else "the numbers of OOD rows alone explain"
        if gap > 2 * math.hypot(self._standard_error(best), self._standard_error(second)):
            return f"{text}, which is more than {chance}."
        return f"{text}, which is no more than {chance}: take the simpler or faster of the two."

    @cached_property
    def _with_intervals(self) -> bool:
        """Whether there are intervals of the two best detectors on every set."""
        return all(self.grouped[each, name].interval("fpr95") for each in self.ranked[:2] for name in self.sets)

    def _standard_error(self, detector: str) -> float:
        """Return that of the average FPR95 in points, from the intervals or else from the numbers of OOD rows alone.

        Of intervals it is the mean over the sets, because the ID rows are the same for all: errors do not cancel.
        """
        if self._with_intervals:
            ends = filter(None, (self.grouped[detector, name].interval("fpr95") for name in self.sets))
            return fmean(high - low for low, high in ends) / (2 * 1.96)
        own = self._by_detector[detector]
        variances = [row.fpr95 * (1 - row.fpr95) / row.n_ood for row in own]
        return 100 * math.sqrt(sum(variances)) / len(own)

    def _summary(self) -> tuple[str, ...]:
        best, lines = self.ranked[0], []
        winners = {name: min(self.ranked, key=lambda each: self.mean(each, name, "fpr95")) for name in self.sets}
        others = {name: winner for name, winner in winners.items() if winner != best}
        if len(self.sets) > 1 and len(self.ranked) > 1:
            elsewhere = ", ".join(f"{shown_name(winner)} on {name}" for name, winner in others.items())
            lines.append(
                f"No detector is best on every set; lower FPR95 than {shown_name(best)}: {elsewhere}."
                if others
                else f"{shown_name(best)} has the lowest FPR95 on every set."
            )
        hardest = max(self.sets, key=lambda name: self.mean(best, name, "fpr95"))
        lines.append(f"The hardest set for it is {hardest}: {self.mean(best, hardest, 'fpr95'):.1f} % accepted.")
        lines.append(self._certainty())
        if len(self.ranked) > 2:
            lines.append(
                f"It was chosen as the best of {len(self.ranked)} on the same rows, which flatters it a little; "
                "OOD inputs of other kinds may rank the detectors differently."
            )
        if self.incomplete:
            lines.append(
                f"Not ranked, because rows of some sets are missing: {', '.join(map(shown_name, self.incomplete))}."
            )
        return tuple(lines)

    def _certainty(self) -> str:
        if self._with_intervals:
            return "Intervals are from bootstrap resamples of the ID and OOD rows."
        return (
            f"The rows have no intervals (oodles bench --intervals adds them); from the numbers of OOD rows alone, the "
            f"average FPR95 has a standard error of {self._standard_error(self.ranked[0]):.1f} points. Chance in the "
            "ID rows, which set the threshold, comes on top and may be larger."
        )

    def _notes(self) -> tuple[str, ...]:
        notes = ["Sorted by the average; the best of each column is bold."]
        if any(len(result.variants) > 1 for result in self.grouped.values()):
            notes.append("Where there are several runs or seeds, the mean and the standard deviation over them.")
        if any(published(self.id_set, each, name) for each in self.ranked for name in self.sets):
            notes.append(
                "In brackets is the number in the DICE paper's table (Sun & Li, ECCV 2022), measured with its own "
                "networks on the whole sets; below it, ours minus theirs."
            )
        if len(self.ranked) > MAX_LINES:
            notes.append(f"The best {MAX_LINES} of {len(self.ranked)} detectors are shown.")
        return tuple(notes)

    def _tables(self) -> list[Table]:
        """Return the tables of FPR95 and of AUROC, the average first; the paper's only if it is over the same sets."""
        full = compare([row for each in self.ranked for row in self._by_detector[each]], paper=self.id_set)
        columns = [Column("detector"), *full.columns[1:]]
        average = len(columns) - 2
        if not columns[average].differences:
            rows = [(*row[:average], *(replace(cell, published=None) for cell in row[average:])) for row in full.rows]
            full = replace(full, rows=tuple(rows))
        full = replace(full, columns=tuple(columns), rows=full.rows[:MAX_LINES])
        tables = []
        for place, (name, better) in enumerate((("FPR95", "lower"), ("AUROC", "higher"))):
            places = [*([average + place] if len(self.sets) > 1 else []), *range(1 + place, average, 2)]
            tables.append(replace(full.pick(places), caption=f"{name} in percent, {better} is better"))
        return tables

    @cached_property
    def _by_detector(self) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(without_seed(row.detector), []).append(row)
        return found

    def _figure(self) -> Figure:
        drawn = self.ranked[:MAX_DRAWN]
        average, *values = (
            np.array([self.mean(each, name, "fpr95") for each in drawn]) for name in (AVERAGE, *self.sets)
        )
        by_set = dict(zip(map(shortened, self.sets), values, strict=True))
        figure = plots.detector_dots([shortened(shown_name(each)) for each in drawn], by_set, average)
        best, worst = f"{shown_name(drawn[0])}, {average[0]:.1f} %", f"{shown_name(drawn[-1])}, {average[-1]:.1f} %"
        alternative = f"FPR95 of {len(drawn)} detectors on {len(self.sets)} OOD sets. Lowest average: {best}"
        alternative += f"; highest: {worst}." if len(drawn) > 1 else "."
        caption = "FPR95 of each detector: a dot for each OOD set, a bar at the average."
        return draw(figure, alternative, caption)

    def _sizes(self) -> Table:
        sizes = {name: [row for row in self.rows if row.ood_set == name] for name in self.sets}
        lines = [
            (Cell(name), Cell(max(row.n_ood for row in own)), Cell(max(row.n_id for row in own)))
            for name, own in sizes.items()
        ]
        return Table(
            "Rows that the numbers come from",
            (Column("OOD set"), Column("OOD rows", ",d"), Column("ID rows", ",d")),
            tuple(lines),
        )
