"""OpenOOD's tables: its metrics, averaged over near and far OOD sets, beside the leaderboard's numbers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import pstdev

from oodles.bench.comparison import AUROC, Metric, results, tabulate
from oodles.bench.tables import Table
from oodles.metrics import Row

FPR95_AUROC = (Metric("fpr95_ood", "FPR95", smaller=True), AUROC)
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
) -> Table:
    """Compare metrics of each detector on each OOD set, and plain means over those sets of each group that have rows.

    Several runs, and detectors that differ only in their seed, become mean and standard deviation, as OpenOOD computes
    it (of the population). ``published`` is the suite whose AUROC on the leaderboard is given in brackets.
    """
    found = dict.fromkeys(row.ood_set for row in rows)
    present = {group: [name for name in names if name in found] for group, names in groups.items()}
    grouped = results(rows, {group: names for group, names in present.items() if names})
    columns = dict.fromkeys(name for group, names in present.items() if names for name in (*names, group)) | found
    published = published if metrics is FPR95_AUROC else None

    def cited(detector: str, column: str, metric: Metric) -> float | None:
        return leaderboard(published, detector).get(column) if published and metric is AUROC else None

    parts = [
        " / ".join(metric.title for metric in metrics) + " in percent, the best in bold",
        "FPR95 is the ID images rejected when 95 % of OOD is rejected"
        if metrics is FPR95_AUROC
        else "average precision, where OpenOOD uses the trapezoidal rule",
    ]
    for group, names in groups.items():
        absent = [name for name in names if name not in found]
        parts += [f"{group} without {', '.join(absent)}"] if absent else []
    if published is not None:
        parts.append("in brackets the leaderboard's AUROC, with OpenOOD's networks, settings and all sets")
    return replace(tabulate(grouped, list(columns), metrics, cited, pstdev), title=title, caption="; ".join(parts))
