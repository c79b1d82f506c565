"""OpenOOD's tables: its metrics, averaged over near and far OOD sets, beside the leaderboard's numbers."""

import re
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import NamedTuple

from oodles.bench.tables import Cell, View
from oodles.metrics import Row
from oodles.paper.published import without_seed


class Metric(NamedTuple):
    """A column of rows, its name in tables, and whether smaller values are better."""

    column: str
    title: str
    smaller: bool = False


FPR95_AUROC = (Metric("fpr95_ood", "FPR95", smaller=True), Metric("auroc", "AUROC"))
AUPR = (Metric("aupr_id", "AUPR-in"), Metric("aupr_ood", "AUPR-out"))

LEADERBOARD = {
    "msp": {"cifar10": (88.03, 90.73), "cifar100": (80.27, 77.76), "imagenet": (76.02, 85.23)},
    "energy": {"cifar10": (87.58, 91.21), "cifar100": (80.91, 79.77), "imagenet": (75.89, 89.47)},
    "react+energy": {"cifar10": (87.11, 90.42), "cifar100": (80.77, 80.39), "imagenet": (77.38, 93.67)},
    "dice+energy": {"cifar10": (78.34, 84.23), "cifar100": (79.38, 80.01), "imagenet": (73.07, 90.95)},
    "ash_b+energy": {"cifar10": (75.27, 78.49), "cifar100": (78.20, 80.58), "imagenet": (78.17, 95.74)},
    "scale+energy": {"cifar10": (82.55, 86.39), "cifar100": (80.99, 81.42), "imagenet": (81.36, 96.53)},
    "knn": {"cifar10": (90.64, 92.96), "cifar100": (80.18, 82.40), "imagenet": (71.10, 90.18)},
    "vim": {"cifar10": (88.68, 93.48), "cifar100": (74.98, 81.70), "imagenet": (72.08, 92.68)},
    "rmds": {"cifar10": (89.80, 92.20), "cifar100": (80.15, 82.92), "imagenet": (76.99, 86.38)},
    "fdbd": {"cifar10": (90.42, 93.16), "cifar100": (81.26, 79.85), "imagenet": (76.63, 92.77)},
    "gen": {"cifar10": (88.20, 91.35), "cifar100": (81.31, 79.68), "imagenet": (76.85, 89.76)},
    "adascale": {"cifar10": (83.92, 88.00), "cifar100": (81.04, 81.84), "imagenet": (84.42, 97.27)},
}
"""AUROC near and far in percent, by method and ID set, on OpenOOD's v1.5 leaderboard; its ASH is ASH-B."""


def leaderboard(suite: str, detector: str) -> dict[str, float]:
    """The leaderboard's AUROC for ``near`` and ``far``, in percent; empty if it does not have the method.

    Settings do not matter, since OpenOOD chooses them on OOD validation images; a variant given by name does.

    >>> leaderboard("openood-cifar10", "react(90)+energy")
    {'near': 87.11, 'far': 90.42}
    """
    method = re.sub(r"\([^()']*\)", "", detector)
    pair = LEADERBOARD.get(method, {}).get(suite.removeprefix("openood-"))
    return {} if pair is None else dict(zip(("near", "far"), pair, strict=True))


def has_leaderboard(suite: str) -> bool:
    """Whether numbers of the leaderboard for this suite are at hand."""
    return bool(leaderboard(suite, "msp"))


def compare_groups(
    rows: Sequence[Row],
    groups: Mapping[str, Sequence[str]],
    metrics: Sequence[Metric] = FPR95_AUROC,
    *,
    title: str = "",
    published: str | None = None,
) -> View:
    """Metrics of each detector on each OOD set, and plain means over those sets of each group that have rows.

    Several runs, and detectors that differ only in their seed, become mean and standard deviation, as OpenOOD computes
    it (of the population). ``published`` is the suite whose AUROC on the leaderboard is given in brackets.
    """
    columns = _columns(rows, groups)
    variants: dict[str, dict[tuple[str, str], dict[str, Row]]] = {}
    for row in rows:
        same = variants.setdefault(without_seed(row.detector), {})
        same.setdefault((row.run, row.detector), {})[row.ood_set] = row
    values = {
        (detector, label, metric): _percent(list(same.values()), names, metric)
        for detector, same in variants.items()
        for label, names in columns.items()
        for metric in metrics
    }
    published = published if metrics is FPR95_AUROC else None
    lines = []
    for detector in variants:
        cited = {} if published is None else leaderboard(published, detector)
        cells = []
        for label in columns:
            best = [
                bool(values[detector, label, metric])
                and _shown(values[detector, label, metric], metric)
                == max(_shown(values[other, label, metric], metric) for other in variants)
                for metric in metrics
            ]
            texts = [_mean_and_deviation(values[detector, label, metric]) for metric in metrics]
            notes = (f"(AUROC {cited[label]:.2f})",) if label in cited else ()
            cells.append(Cell(tuple(texts), tuple(best), notes))
        lines.append((detector.removesuffix("+energy"), tuple(cells)))
    return View(title, _caption(groups, columns, metrics, cited=published is not None), tuple(columns), tuple(lines))


def _columns(rows: Sequence[Row], groups: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The sets that each column is over: the sets of each group and then the group, at the end sets without a group."""
    found = dict.fromkeys(row.ood_set for row in rows)
    columns: dict[str, list[str]] = {}
    for group, names in groups.items():
        present = [name for name in names if name in found]
        columns |= {name: [name] for name in present} | ({group: present} if present else {})
    return columns | {name: [name] for name in found if name not in columns}


def _percent(variants: Sequence[Mapping[str, Row]], names: Sequence[str], metric: Metric) -> list[float]:
    """For each run and seed that has all the sets, the mean over them."""
    complete = [rows for rows in variants if all(name in rows for name in names)]
    return [100 * fmean(getattr(rows[name], metric.column) for name in names) for rows in complete]


def _shown(values: Sequence[float], metric: Metric) -> float:
    """The mean as the table shows it, such that the largest is the best."""
    if not values:
        return -float("inf")
    return round(fmean(values), 1) * (-1 if metric.smaller else 1)


def _mean_and_deviation(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{fmean(values):.1f}" + (f"±{pstdev(values):.1f}" if len(values) > 1 else "")


def _caption(
    groups: Mapping[str, Sequence[str]], columns: Mapping[str, Sequence[str]], metrics: Sequence[Metric], *, cited: bool
) -> str:
    parts = [
        " / ".join(metric.title for metric in metrics) + " in percent, the best in bold",
        "FPR95 is the ID images rejected when 95 % of OOD is rejected"
        if metrics is FPR95_AUROC
        else "average precision, where OpenOOD uses the trapezoidal rule",
    ]
    for group, names in groups.items():
        absent = [name for name in names if name not in columns]
        if absent:
            parts.append(f"{group} without {', '.join(absent)}")
    if cited:
        parts.append("in brackets the leaderboard's AUROC, with OpenOOD's networks, settings and all sets")
    return "; ".join(parts)
