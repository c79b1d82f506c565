"""A report on benchmark rows: which detector is best, how sure that is, and every number beside the paper's."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct

from oodles import plots
from oodles.bench.tables import Result, results
from oodles.data.limits import regular_size
from oodles.errors import DataError
from oodles.metrics import Row
from oodles.paper.published import AVERAGE, published, published_sets, without_seed
from oodles.records.text import printable
from oodles.report.document import Cell, Column, Figure, Part, Section, Table, shortened
from oodles.report.svg import inline_svg

MAX_BYTES = 1 << 25  # of a file of rows
MAX_LINES, MAX_DRAWN, MAX_SETS = 120, 30, 40  # detectors in a table and in the figure, sets
Metric = Literal["fpr95", "auroc"]

Fraction = Annotated[float, Meta(ge=0, le=1)]
Name = Annotated[str, Meta(max_length=1000)]
Count = Annotated[int, Meta(ge=1, le=10**12)]


class _Row(Struct):
    """A row as JSON has it; what a later version adds is ignored."""

    detector: Annotated[str, Meta(min_length=1, max_length=1000)]
    id_set: Name
    ood_set: Annotated[str, Meta(min_length=1, max_length=1000)]
    n_id: Count
    n_ood: Count
    fpr95: Fraction
    auroc: Fraction
    aupr_id: Fraction
    aupr_ood: Fraction
    detection_error: Fraction
    fpr95_ood: Fraction
    intervals: dict[str, tuple[Fraction, Fraction]] = {}
    run: Name = ""


def read_rows(path: str | Path) -> list[Row]:
    """The rows in a ``rows.json`` that ``oodles bench`` or ``oodles demo`` wrote."""
    path = Path(path)
    regular_size(path, MAX_BYTES)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=list[_Row])
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path} does not hold rows of `oodles bench` ({error})") from None
    if not found:
        raise DataError(f"{path} holds no rows; `oodles bench --out FOLDER` writes some")
    return [_as_row(row) for row in found]


def _as_row(row: _Row) -> Row:
    names = {name: printable(getattr(row, name)) for name in ("detector", "id_set", "ood_set", "run")}
    values: dict[str, Any] = msgspec.structs.asdict(row) | names
    return Row(**values)


def rows_parts(rows: Sequence[Row], title: str = "Detectors compared", notes: Sequence[str] = ()) -> list[Part]:
    """One part for each ID set among the rows; ``notes`` are added to the summary."""
    if not rows:
        raise DataError("there are no rows to report; give those of a benchmark")
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
        order = complete or [each for each in detectors if (each, AVERAGE) in grouped]
        ranked = sorted(order, key=lambda each: fmean(grouped[each, AVERAGE].fpr95))
        return cls(id_set, rows, grouped, sets, ranked, [each for each in detectors if each not in ranked])

    def part(self, title: str, notes: Sequence[str]) -> Part:
        """The whole part."""
        best = self.ranked[0]
        fpr95, auroc = (self.mean(best, AVERAGE, metric) for metric in ("fpr95", "auroc"))
        counts = [row.n_id for row in self.rows]
        facts = (
            ("best detector", _label(best)),
            ("average FPR95", f"{fpr95:.1f} %"),
            ("average AUROC", f"{auroc:.1f} %"),
            ("detectors compared", f"{len(self.ranked)}"),
            ("OOD sets", f"{len(self.sets)}"),
            ("ID rows", f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"),
        )
        sections = (
            Section("FPR95 on each set", self._notes(), (self._figure(),), (self._table("fpr95", "FPR95"),)),
            Section("AUROC on each set", (), (), (self._table("auroc", "AUROC"),)),
            Section("Other metrics and sample sizes", (), (), (self._others(), self._sizes())),
        )
        return Part(title, self._recommendation(), (*self._summary(), *notes), facts, sections)

    def mean(self, detector: str, name: str, metric: Metric) -> float:
        """The mean over runs and seeds, in percent."""
        return fmean(getattr(self.grouped[detector, name], metric))

    def _recommendation(self) -> str:
        best = self.ranked[0]
        fpr95, auroc = (self.mean(best, AVERAGE, metric) for metric in ("fpr95", "auroc"))
        over = "this OOD set" if len(self.sets) == 1 else f"these {len(self.sets)} OOD sets"
        text = f"Recommended: {_label(best)}. On {over} it accepts {fpr95:.1f} % of the OOD inputs on average"
        text += f" when 95 % of the ID inputs are accepted (AUROC {auroc:.1f} %)."
        if len(self.ranked) == 1:
            return text
        second = self.ranked[1]
        gap = self.mean(second, AVERAGE, "fpr95") - fpr95
        text += f" The next best, {_label(second)}, accepts {gap:.1f} points more"
        errors = self._interval_error(best), self._interval_error(second)
        if None not in errors:
            chance = "the uncertainty of both explains"
        else:
            errors = self._standard_error(best), self._standard_error(second)
            chance = "the numbers of OOD rows alone explain"
        if gap > 2 * math.hypot(*(error or 0.0 for error in errors)):
            return f"{text}, which is more than {chance}."
        return f"{text}, which is no more than {chance}: take the simpler or faster of the two."

    def _standard_error(self, detector: str) -> float:
        """Of the average FPR95 in points, from the numbers of OOD rows alone."""
        own = [row for row in self.rows if without_seed(row.detector) == detector]
        variances = [row.fpr95 * (1 - row.fpr95) / row.n_ood for row in own]
        return 100 * math.sqrt(sum(variances)) / len(own)

    def _interval_error(self, detector: str) -> float | None:
        """The standard error of the average FPR95 in points, from the intervals; None if some set has none.

        The mean of those of the sets, because the ID rows are the same for all, so that errors do not cancel.
        """
        ends = [self.grouped[detector, name].intervals.get("fpr95") for name in self.sets]
        widths = [high - low for low, high in (pair for pair in ends if pair is not None)]
        return fmean(widths) / (2 * 1.96) if len(widths) == len(ends) else None

    def _summary(self) -> tuple[str, ...]:
        best, lines = self.ranked[0], []
        winners = {name: min(self.ranked, key=lambda each: self.mean(each, name, "fpr95")) for name in self.sets}
        others = {name: winner for name, winner in winners.items() if winner != best}
        if len(self.sets) > 1 and len(self.ranked) > 1:
            elsewhere = ", ".join(f"{_label(winner)} on {name}" for name, winner in others.items())
            lines.append(
                f"No detector is best on every set; lower FPR95 than {_label(best)}: {elsewhere}."
                if others
                else f"{_label(best)} has the lowest FPR95 on every set."
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
                f"Not ranked, because rows of some sets are missing: {', '.join(map(_label, self.incomplete))}."
            )
        return tuple(lines)

    def _certainty(self) -> str:
        best = self.ranked[0]
        own = [self.grouped[best, name].intervals.get("fpr95") for name in self.sets]
        if len(self.ranked) > 1 and all(own):
            other = [self.grouped[self.ranked[1], name].intervals.get("fpr95") for name in self.sets]
            pairs = [(a, b) for a, b in zip(own, other, strict=True) if a is not None and b is not None]
            overlaps = sum(a[0] <= b[1] and b[0] <= a[1] for a, b in pairs)
            return (
                "Intervals are from bootstrap resamples of the ID and OOD rows; those of the two "
                f"best overlap on {overlaps} of {len(pairs)} sets."
            )
        if all(own):
            return "Intervals are from bootstrap resamples of the ID and OOD rows."
        return (
            f"The rows have no intervals (oodles bench --intervals adds them); from the numbers of OOD rows alone, "
            f"the average FPR95 has a standard error of {self._standard_error(best):.1f} points. Chance in the ID "
            "rows, which set the threshold, comes on top and may be larger."
        )

    def _notes(self) -> tuple[str, ...]:
        notes = ["Sorted by the average; the best of each column is bold."]
        if any(len(result.fpr95) > 1 for result in self.grouped.values()):
            notes.append("Where there are several runs or seeds, the mean and the standard deviation over them.")
        if any(published(self.id_set, each, name) for each in self.ranked for name in self.sets):
            notes.append(
                "“paper” is the number in the DICE paper's table (Sun & Li, ECCV 2022), measured with its own networks "
                "on the whole sets."
            )
        if len(self.ranked) > MAX_LINES:
            notes.append(f"The best {MAX_LINES} of {len(self.ranked)} detectors are shown.")
        return tuple(notes)

    def _table(self, metric: Metric, name: str) -> Table:
        better = "lower" if metric == "fpr95" else "higher"
        columns = [*([AVERAGE] if len(self.sets) > 1 else []), *self.sets]
        cells = {each: [self._cell(each, column, metric) for column in columns] for each in self._shown()}
        return Table(
            f"{name} in percent, {better} is better",
            (Column("detector"), *map(Column, columns)),
            tuple((Cell(_label(each)), *line) for each, line in cells.items()),
        )

    def _cell(self, detector: str, name: str, metric: Metric) -> Cell:
        result = self.grouped.get((detector, name))
        if result is None:
            return Cell(None)
        values: tuple[float, ...] = getattr(result, metric)
        pick = min if metric == "fpr95" else max
        best = pick(round(self.mean(each, name, metric), 1) for each in self.ranked if (each, name) in self.grouped)
        comparable = name != AVERAGE or published_sets(self.id_set) == set(self.sets)
        cited = published(self.id_set, detector, name) if comparable else None
        return Cell(
            fmean(values),
            result.intervals.get(metric),
            stdev(values) if len(values) > 1 else None,
            None if cited is None else getattr(cited, metric),
            round(fmean(values), 1) == best,
        )

    def _shown(self) -> list[str]:
        return self.ranked[:MAX_LINES]

    def _figure(self) -> Figure:
        drawn = self.ranked[:MAX_DRAWN]
        by_set = {name: [self._mean_or_nan(each, name) for each in drawn] for name in self.sets}
        average = [self.mean(each, AVERAGE, "fpr95") for each in drawn]
        figure = plots.detector_dots(
            [shortened(_label(each)) for each in drawn],
            {shortened(name): np.array(values) for name, values in by_set.items()},
            np.array(average),
        )
        best, worst = f"{_label(drawn[0])}, {average[0]:.1f} %", f"{_label(drawn[-1])}, {average[-1]:.1f} %"
        alternative = f"FPR95 of {len(drawn)} detectors on {len(self.sets)} OOD sets. Lowest average: {best}"
        alternative += f"; highest: {worst}." if len(drawn) > 1 else "."
        data = {"detectors": [_label(each) for each in drawn], "average": average, "fpr95": _without_nan(by_set)}
        caption = "FPR95 of each detector: a dot for each OOD set, a bar at the average."
        return Figure(inline_svg(figure, alternative), alternative, caption, data)

    def _mean_or_nan(self, detector: str, name: str) -> float:
        return self.mean(detector, name, "fpr95") if (detector, name) in self.grouped else math.nan

    def _others(self) -> Table:
        metrics = {
            "AUPR, ID positive": "aupr_id",
            "AUPR, OOD positive": "aupr_ood",
            "detection error": "detection_error",
            "FPR95, OOD positive": "fpr95_ood",
        }
        lines = []
        for each in self._shown():
            own = [row for row in self.rows if without_seed(row.detector) == each]
            lines.append(
                (
                    Cell(_label(each)),
                    *(Cell(100 * fmean(getattr(row, name) for row in own)) for name in metrics.values()),
                )
            )
        caption = (
            "Averages over the sets in percent. FPR95 with OOD positive, as in OpenOOD: ID rejected when 95 % of OOD is"
        )
        return Table(caption, (Column("detector"), *map(Column, metrics)), tuple(lines))

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


def _label(detector: str) -> str:
    """The detector without the score that is meant if none is named."""
    return printable(detector).removesuffix("+energy")


def _without_nan(curves: dict[str, list[float]]) -> dict[str, list[float | None]]:
    return {name: [None if math.isnan(value) else value for value in values] for name, values in curves.items()}
