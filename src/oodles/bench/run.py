"""``benchmark``: every detector on every set; and the tables of an experiment, each detector fitted once for all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from torch import nn

from oodles.bench.comparison import Rows, compare, sweep_table
from oodles.bench.openood import AUPR, compare_groups
from oodles.bench.sets import ID_SETS, TEST, TRAIN, FeaturesFor, Source, fit_on_sets
from oodles.bench.tables import Table, latex, markdown, rows_csv, rows_json
from oodles.detectors import Detector
from oodles.detectors.parsing import as_detector
from oodles.distributed.processes import current
from oodles.errors import ArgumentError, DataError
from oodles.metrics import Row, evaluate
from oodles.network.progress import tracked
from oodles.paper.published import METHODS, TABLES, detectors_of
from oodles.paper.sweep import SWEEP_GRID, SweepPoint, sweep
from oodles.records.files import Kind, check_output, write_bytes

Detectors = Sequence[str | Detector] | Mapping[str, str | Detector]
MARK = "written by oodles bench"
NAMES = [field.name.encode() for field in fields(Row) if field.name != "intervals"]
WRITTEN = Kind("a result of `oodles bench`", lambda text: MARK.encode() in text or all(name in text for name in NAMES))


def benchmark(
    detectors: Detectors,
    *,
    model: nn.Module | str | Path | None = None,
    train: Source,
    test: Source,
    ood: Mapping[str, Source],
    id_set: str = "id",
    run: str = "",
    bootstrap: int = 0,
    **options: Any,
) -> Rows:
    """Fit each detector on ``train`` and compare its scores on the ID set ``test`` with those on each OOD set.

    The sets are ``Features``, or with ``model`` what the network takes: loaders, or image sets with
    ``preprocessing=``. The network then runs once per input, whatever the number of detectors, and once more for each
    input step; detectors that have something to choose on the network are tuned on up to 1,000 inputs of ``train``.
    ``options`` are those of :func:`oodles.extract`; ``store`` is a folder that keeps the features of each set for the
    next benchmark. All detectors are fitted in one pass over ``train``.

    Returns one row per detector and OOD set, named by the detector's spec or key. Detectors may be given as text.
    ``bootstrap`` resamples add 95 % intervals; ``run`` names the checkpoint. Detectors that learn from labels, or from
    layers, that are not there are left out with a warning.

    >>> from oodles.features import Features
    >>> from oodles.testing import example_features
    >>> train, test = example_features().split(0.5)
    >>> other = Features(example_features(seed=1).embedding, head=train.head)
    >>> rows = benchmark(["energy", "knn(5)"], train=train, test=test, ood={"other": other})
    >>> print(rows)
               average other
    ────────────────────────
    energy   80.0/62.5  80.0
    knn(k=5) 13.0/98.2  13.0
    average: FPR95 / AUROC; each set: FPR95. In percent, lower FPR95 and higher AUROC are better
    >>> rows[0].n_id, rows[0].ood_set
    (150, 'other')
    """
    if not ood:
        raise DataError("there is no OOD set to compare with; give at least one")
    if {*ood} & {*ID_SETS}:
        raise ArgumentError(f"an OOD set cannot be called {' or '.join(ID_SETS)}; choose another name")
    named = name_detectors(detectors)
    sets = {TRAIN: train, TEST: test, **ood}
    features = fit_on_sets(list(named.values()), sets, model=model, **options)
    return evaluate_detectors(named, features, id_set=id_set, run=run, bootstrap=bootstrap)


def name_detectors(detectors: Detectors) -> dict[str, Detector]:
    """Make detectors from text, and name them by their spec unless they have names."""
    if isinstance(detectors, Mapping):
        return {name: as_detector(detector) for name, detector in detectors.items()}
    made = [as_detector(detector) for detector in detectors]
    named = {detector.spec: detector for detector in made}
    if len(named) < len(made):
        twice = next(detector.spec for detector in made if named[detector.spec] is not detector)
        raise ArgumentError(f"two detectors are called {twice!r}; give a mapping, with a name for each")
    return named


def evaluate_detectors(
    named: Mapping[str, Detector],
    features: Mapping[str, FeaturesFor],
    *,
    id_set: str = "id",
    run: str = "",
    bootstrap: int = 0,
) -> Rows:
    """Return the rows of fitted detectors; those that were left out of the fit have none.

    Of several processes, which all have all features, the first computes the rows.
    """
    rows = Rows()
    if current().rank:
        return rows
    for name, detector in tracked(named.items(), "score", len(named)):
        if detector not in features[TEST]:
            continue
        id_scores = detector.score(features[TEST][detector])
        for ood_set in [each for each in features if each not in ID_SETS]:
            scores = detector.score(features[ood_set][detector])
            row = evaluate(
                id_scores, scores, detector=name, id_set=id_set, ood_set=ood_set, run=run, bootstrap=bootstrap
            )
            rows.append(row)
    return rows


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
            what = "OpenOOD's metrics" if groups and name == "main" else _title(name, id_set)
            title = f"{id_set} (accuracy {accuracy}): {what}"
            if rows and groups:
                tables[name] = compare_groups(rows, groups, title=title, published=id_set if published else None)
                tables[f"{name}-aupr"] = compare_groups(rows, groups, AUPR, title=title)
            elif rows:
                tables[name] = compare(rows, title=title, paper=id_set if paper else None)
        if self.points:
            title = f"{id_set}: {_title('sweep', id_set)}"
            tables["sweep"] = sweep_table(self.points, title=title, paper=id_set if paper else None)
        return tables

    def write(self, folder: Path, tables: Mapping[str, Table]) -> None:
        """Write all rows as JSON and CSV, and each table as Markdown and LaTeX."""
        texts = {"rows.json": rows_json(self.all_rows()), "rows.csv": rows_csv(self.all_rows())}
        for name, table in tables.items():
            texts |= {f"{name}.md": f"{markdown(table)}<!-- {MARK} -->\n", f"{name}.tex": f"% {MARK}\n{latex(table)}"}
        for name, text in texts.items():
            write_bytes(folder / name, text.encode(), WRITTEN)


def check_tables(folder: Path) -> None:
    """Raise if :meth:`Tables.write` would replace a file of another kind."""
    for path in (folder / f"{name}{end}" for name in ("rows", *TABLES) for end in (".json", ".csv", ".md", ".tex")):
        check_output(path, WRITTEN)


def _title(table: str, id_set: str) -> str:
    """What a table shows; on the paper's own sets also which of its tables that is."""
    return TABLES[table] if id_set in METHODS else TABLES[table].partition(" (")[0]


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
    if (accuracy := plain[TEST].accuracy) is not None:
        result.accuracy[run] = accuracy
    return result
