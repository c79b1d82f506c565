"""The tables of an experiment: every set is extracted once, every detector is fitted once, for all tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oodles.bench.comparison import compare, sweep_table
from oodles.bench.openood import AUPR, compare_groups
from oodles.bench.run import evaluate_detectors, name_detectors
from oodles.bench.sets import ID_SETS, TEST, TRAIN, Source, fit_on_sets
from oodles.bench.tables import Table, latex, markdown, rows_csv, rows_json
from oodles.detectors import Detector
from oodles.distributed.processes import current
from oodles.metrics import Row
from oodles.paper.sweep import SWEEP_GRID, SweepPoint, sweep
from oodles.paper.tables import TABLES, detectors_of
from oodles.records.files import write_bytes


@dataclass
class Tables:
    """The results: rows by table, the sweep's points, and each run's accuracy."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    points: list[SweepPoint] = field(default_factory=list)
    accuracy: dict[str, float] = field(default_factory=dict)

    def all_rows(self) -> list[Row]:
        """Return every row once: those of the tables first, then those that only the sweep has."""
        once: dict[tuple[str, str, str], Row] = {}
        swept = (row for point in self.points for row in point.rows)
        for row in (*(row for table in self.rows.values() for row in table), *swept):
            once.setdefault((row.run, row.detector, row.ood_set), row)
        return list(once.values())

    def tables(
        self,
        id_set: str,
        *,
        paper: bool = False,
        groups: Mapping[str, Sequence[str]],
        published: bool = False,
    ) -> dict[str, Table]:
        """Return each table; with ``groups``, OpenOOD's metrics, averaged over these groups of OOD sets.

        ``paper`` adds the paper's numbers, ``published`` those of OpenOOD's leaderboard.
        """
        accuracy = ", ".join(f"{value:.2%}" for value in self.accuracy.values())
        tables = {}
        for name, rows in self.rows.items():
            what = "OpenOOD's metrics" if groups and name == "main" else TABLES[name]
            title = f"{id_set} (accuracy {accuracy}): {what}"
            if rows and groups:
                tables[name] = compare_groups(rows, groups, title=title, published=id_set if published else None)
                tables[f"{name}-aupr"] = compare_groups(rows, groups, AUPR, title=title)
            elif rows:
                tables[name] = compare(rows, title=title, paper=id_set if paper else None)
        if self.points:
            title = f"{id_set}: {TABLES['sweep']}"
            tables["sweep"] = sweep_table(self.points, title=title, paper=id_set if paper else None)
        return tables

    def write(self, folder: Path, tables: Mapping[str, Table]) -> None:
        """Write all rows as JSON and CSV, and each table as Markdown and LaTeX."""
        texts = {"rows.json": rows_json(self.all_rows()), "rows.csv": rows_csv(self.all_rows())}
        for name, table in tables.items():
            texts |= {f"{name}.md": markdown(table), f"{name}.tex": latex(table)}
        for name, text in texts.items():
            write_bytes(folder / name, text.encode())


def run_tables(
    tables: Sequence[str],
    sets: Mapping[str, Source],
    *,
    main: Sequence[str | Detector],
    p: float,
    id_set: str = "id",
    run: str = "",
    bootstrap: int = 0,
    into: Tables | None = None,
    **options: Any,
) -> Tables:
    """Compute tables from ``train``, ``test`` and OOD sets; ``into`` adds a run to earlier ones.

    ``main`` are the detectors of the main table, ``p`` the sparsity of those of the others. The sets and ``options``
    are those of :func:`oodles.bench.sets.fit_on_sets`.
    """
    result = into or Tables()
    by_table = {table: name_detectors(detectors_of(table, main, p)) for table in tables}
    named = {name: detector for part in reversed(by_table.values()) for name, detector in part.items()}
    features = fit_on_sets(list(named.values()), sets, **options)
    if current().rank:
        return result
    rows = evaluate_detectors(named, features, id_set=id_set, run=run, bootstrap=bootstrap)
    plain = {name: parts[None] for name, parts in features.items()}
    ood = {name: part for name, part in plain.items() if name not in ID_SETS}
    for table, part in by_table.items():
        if table == "sweep":
            result.points += sweep(SWEEP_GRID, train=plain[TRAIN], test=plain[TEST], ood=ood, id_set=id_set, run=run)
        else:
            result.rows.setdefault(table, []).extend(row for name in part for row in rows if row.detector == name)
    test = plain[TEST]
    if test.labels is not None:
        result.accuracy[run] = float(test.logits.argmax(dim=1).eq(test.labels).double().mean())
    return result
