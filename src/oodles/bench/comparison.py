"""Tables of rows: detectors by OOD set and on average, the best marked, beside published numbers."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

from oodles.bench.tables import Cell, Column, Table, html, print_table, records
from oodles.extras import needed_by
from oodles.metrics import Interval, Row
from oodles.paper.published import (
    AVERAGE,
    published,
    published_gap,
    published_sets,
    published_sweep,
    without_seed,
)

if TYPE_CHECKING:
    import pandas as pd

    from oodles.paper.sweep import SweepPoint

WIDTH = 120  # characters of a line of the printed table


class Metric(NamedTuple):
    """A column of rows, its name in tables, and whether smaller values are better."""

    column: str
    title: str
    smaller: bool = False


FPR95, AUROC = Metric("fpr95", "FPR95", smaller=True), Metric("auroc", "AUROC")


@dataclass(frozen=True)
class Result:
    """One detector on one set, or on average over several: for each run and seed, a row of each set."""

    variants: tuple[tuple[Row, ...], ...]

    def values(self, metric: str) -> list[float]:
        """Return a metric in percent for each run and seed, the mean over the sets."""
        return [100 * fmean(getattr(row, metric) for row in rows) for rows in self.variants]

    def mean(self, metric: str) -> float:
        """Return a metric in percent, the mean over runs and seeds."""
        return fmean(self.values(metric))

    def interval(self, metric: str) -> Interval | None:
        """Return the interval of a metric in percent, if there is a single row that has one."""
        single = len(self.variants) == len(self.variants[0]) == 1
        ends = self.variants[0][0].intervals.get(metric) if single else None
        return None if ends is None else (100 * ends[0], 100 * ends[1])


def results(rows: Sequence[Row], groups: Mapping[str, Sequence[str]] | None = None) -> dict[tuple[str, str], Result]:
    """Group rows by detector, without its seed, and by OOD set and group of sets.

    Without ``groups``, ``average`` is over all sets that a detector has rows of.
    """
    variants: dict[str, dict[tuple[str, str], dict[str, Row]]] = {}
    for row in rows:
        same = variants.setdefault(without_seed(row.detector), {})
        same.setdefault((row.run, row.detector), {})[row.ood_set] = row
    found = {}
    for detector, same in variants.items():
        own = list(dict.fromkeys(name for by_set in same.values() for name in by_set))
        columns = {name: [name] for name in own} | ({AVERAGE: own} if groups is None else dict(groups))
        for column, names in columns.items():
            complete = [by_set for by_set in same.values() if all(name in by_set for name in names)]
            if complete:
                found[detector, column] = Result(tuple(tuple(each[name] for name in names) for each in complete))
    return found


def tabulate(
    grouped: Mapping[tuple[str, str], Result],
    columns: Sequence[str],
    metrics: Sequence[Metric],
    cited: Callable[[str, str, Metric], float | None],
    deviation: Callable[[Sequence[float]], float] = stdev,
) -> Table:
    """Return a table with a line for each detector: the metrics in each of ``columns``, means over runs and seeds.

    ``cited`` gives the published number of a detector in a column. Values that are shown as the same tie.
    """
    detectors = list(dict.fromkeys(detector for detector, _ in grouped))
    best = {}
    for column in columns:
        for metric in metrics:
            shown = [round(each.mean(metric.column), 1) for (_, name), each in grouped.items() if name == column]
            best[column, metric] = (min if metric.smaller else max)(shown, default=None)

    def cell(detector: str, column: str, metric: Metric) -> Cell:
        result = grouped.get((detector, column))
        if result is None:
            return Cell(None)
        values = result.values(metric.column)
        return Cell(
            fmean(values),
            result.interval(metric.column),
            deviation(values) if len(values) > 1 else None,
            cited(detector, column, metric),
            round(fmean(values), 1) == best[column, metric],
        )

    rows = [
        (Cell(shown_name(detector)), *(cell(detector, column, metric) for column in columns for metric in metrics))
        for detector in detectors
    ]
    return Table("", (Column(""), *(Column(column) for column in columns for _ in metrics)), tuple(rows))


def shown_name(detector: str) -> str:
    """Return a detector's name without the score that is meant if none is named."""
    return detector.removesuffix("+energy")


def compare(rows: Sequence[Row], *, title: str = "", paper: str | None = None) -> Table:
    """Compare FPR95 and AUROC of each detector on each OOD set and on average; the best of each column is marked.

    Detectors that differ only in their seed, and several runs, become mean and standard deviation. ``paper`` (an ID
    set of the paper) adds the paper's numbers and the differences.
    """
    sets = list(dict.fromkeys(row.ood_set for row in rows))

    def cited(detector: str, column: str, metric: Metric) -> float | None:
        theirs = published(paper, detector, column) if paper else None
        value: float | None = None if theirs is None else getattr(theirs, metric.column)
        return value

    table = tabulate(results(rows), [*sets, AVERAGE], (FPR95, AUROC), cited)
    same_sets = paper is not None and published_sets(paper) == {*sets}
    columns = [
        replace(column, differences=paper is not None and (column.name != AVERAGE or same_sets))
        for column in table.columns
    ]
    caption = "FPR95 / AUROC in percent: lower / higher is better, the best in bold"
    if paper:
        caption += "; in brackets the paper's numbers, then ours minus theirs"
        caption += "" if same_sets else " (its average is over other sets)"
    return replace(table, title=title, caption=caption, columns=tuple(columns))


def overview(rows: Sequence[Row]) -> Table:
    """Return one line for each detector: FPR95 and AUROC on average, then FPR95 on each set."""
    full = compare([replace(row, intervals={}) for row in rows])
    average = len(full.columns) - 2
    caption = "average: FPR95 / AUROC; each set: FPR95. In percent, lower FPR95 and higher AUROC are better"
    return replace(full.pick([average, average + 1, *range(1, average, 2)]), caption=caption)


class Rows(list[Row]):
    """A list of rows, which prints as a table, in notebooks as an HTML table.

    >>> from oodles.metrics import evaluate
    >>> Rows([evaluate([2.0, 3.0], [0.0, 2.5], detector="msp", ood_set="noise")])
          average noise
    ───────────────────
    msp 50.0/75.0  50.0
    average: FPR95 / AUROC; each set: FPR95. In percent, lower FPR95 and higher AUROC are better
    """

    def __repr__(self) -> str:
        if not self:
            return "Rows([])"
        text = io.StringIO()
        print_table(Console(file=text, width=WIDTH, color_system=None, safe_box=True), overview(self))
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())

    def _repr_html_(self) -> str:
        return html(overview(self)) if self else "<p>no rows</p>"

    def to_dataframe(self) -> "pd.DataFrame":
        """Return one line per row with every metric; intervals, if any, as ``fpr95_low`` and ``fpr95_high``."""
        with needed_by("rows.to_dataframe()"):
            import pandas as pd
        return pd.DataFrame(records(self))


def sweep_table(points: Sequence["SweepPoint"], *, title: str = "", paper: str | None = None) -> Table:
    """Return for each sparsity the averages over sets and runs, the accuracy of the sparse layer, spread and gap."""
    lines = []
    for p in dict.fromkeys(point.p for point in points):
        same = [point for point in points if point.p == p]
        rows = [row for point in same for row in point.rows]
        accuracies = [point.accuracy for point in same if point.accuracy is not None]
        theirs = published_sweep(paper, p) if paper else {}
        lines.append(
            (
                Cell(f"p={p:g}"),
                Cell(100 * fmean(row.fpr95 for row in rows), published=theirs.get("fpr95")),
                Cell(100 * fmean(row.auroc for row in rows), published=theirs.get("auroc")),
                Cell(100 * fmean(accuracies) if accuracies else None, published=theirs.get("accuracy")),
                Cell(fmean(value for point in same for value in point.spread.values())),
                Cell(
                    fmean(value for point in same for value in point.gap.values()),
                    published=published_gap(paper or "", p),
                ),
            )
        )
    caption = (
        "DICE with energy, averages over the sets: FPR95, AUROC and the sparse layer's accuracy in percent; spread = "
        "std of OOD energies / mean ID energy; gap = mean largest logit, ID minus OOD"
    )
    if paper:
        caption += "; in brackets the paper's numbers, over its own sets"
    percent = (Column(name, ".2f") for name in ("FPR95", "AUROC", "accuracy"))
    columns = Column(""), *percent, Column("spread", ".3f"), Column("gap", ".2f")
    return Table(caption, columns, tuple(lines), title)
