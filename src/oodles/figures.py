"""The paper's figures from anyone's features: a picture (PNG and SVG) and its data (CSV) for each."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
from matplotlib.figure import Figure

from oodles import plots
from oodles.analysis import (
    class_outputs,
    contribution_covariance,
    dice_mask,
    drop_lowest,
    head_of,
    moments,
    near_zero,
    units,
    variance_ratios,
    variances,
)
from oodles.bench.sweep import SWEEP_GRID, sweep
from oodles.errors import ArgumentError, DataError
from oodles.features import Features
from oodles.files import write_bytes

NEAR_ZERO = 0.01


def draw_figures(
    features: Mapping[str, Features], out: Path, *, label: int = 0, p: float = 0.9, shown: str | None = None
) -> list[Path]:
    """Draw figures 1 to 4, the covariance figure and the variance tables into ``out``; returns what was written.

    ``features`` hold ``train``, ``test`` and OOD sets. ``label`` is the class looked at, ``p`` the sparsity,
    ``shown`` the OOD set of the pictures of one set (the first unless given).
    """
    train, test = features["train"], features["test"]
    ood = {name: part for name, part in features.items() if name not in ("train", "test")}
    if not ood:
        raise DataError("there is no OOD set to draw; give at least one beside train and test")
    shown = next(iter(ood)) if shown is None else shown
    if shown not in ood:
        raise ArgumentError(f"{shown!r} is none of the OOD sets; there are {', '.join(ood)}")
    head = head_of(train)
    name = f"class {label}"
    id_moments, ood_moments = moments(train), moments(ood[shown])
    order = units(head, id_moments, ood_moments, label)
    # the paper's pictures are of ID data of the class itself
    own = test if test.labels is None or not test.labels.eq(label).any() else test[test.labels.eq(label)]
    own_moments = moments(own)
    mask = dice_mask(head, id_moments, p)
    kept_from = head.width - int(mask[label].sum())
    class_units = units(head, id_moments, own_moments, label)
    written: list[Path] = []

    def keep(stem: str, figure: Figure, columns: Sequence[str], table: Sequence[Sequence[object]]) -> None:
        for suffix in (".png", ".svg"):
            plots.save_figure(figure, out / f"{stem}{suffix}")
        write_csv(out / f"{stem}.csv", columns, table)
        written.extend(out / f"{stem}{suffix}" for suffix in (".png", ".svg", ".csv"))

    index = range(head.width)
    panels = {
        f"ID ({name})": (class_units.ood_mean, np.sqrt(class_units.ood_variance)),
        f"OOD ({shown})": (order.ood_mean, np.sqrt(order.ood_variance)),
    }
    keep(
        "figure1-contributions",
        plots.contributions(panels, name=name, kept_from=kept_from),
        ("rank", "unit", "id_mean", "id_std", "ood_mean", "ood_std"),
        list(zip(index, order.order, *(column for pair in panels.values() for column in pair), strict=True)),
    )
    on_id, on_ood = class_outputs(head, mask, own, label), class_outputs(head, mask, ood[shown], label)
    keep(
        "figure2-outputs",
        plots.output_densities(
            {"all weights": (on_id[0], on_ood[0]), f"DICE, p = {p:g}": (on_id[1], on_ood[1])}, name=name
        ),
        ("set", "dense", "sparse"),
        [(kind, *pair) for kind, outputs in (("id", on_id), (shown, on_ood)) for pair in zip(*outputs, strict=True)],
    )
    points = sweep(SWEEP_GRID, train=train, test=test, ood=ood)
    fpr95 = {part: np.array([100 * point.rows[k].fpr95 for point in points]) for k, part in enumerate(ood)}
    spread = {part: np.array([point.spread[part] for point in points]) for part in ood}
    keep(
        "figure3-sweep",
        plots.sparsity_sweep([point.p for point in points], fpr95, spread),
        ("p", "set", "fpr95", "auroc", "accuracy", "spread", "gap"),
        [
            (
                point.p,
                row.ood_set,
                row.fpr95,
                row.auroc,
                point.accuracy,
                point.spread[row.ood_set],
                point.gap[row.ood_set],
            )
            for point in points
            for row in point.rows
        ],
    )
    curves = (order.id_mean, order.ood_mean, order.id_variance, order.ood_variance)
    keep(
        "figure4-units",
        plots.unit_variances(*curves, kept_from=kept_from),
        ("rank", "unit", "id_mean", "ood_mean", "id_variance", "ood_variance"),
        list(zip(index, order.order, *curves, strict=True)),
    )
    matrix = contribution_covariance(head, id_moments, ood_moments, label)
    share = near_zero(matrix, NEAR_ZERO)
    keep(
        "covariance",
        plots.covariance_matrix(
            matrix, note=f"{shown}, {name}: {share:.1%} of pairs below\n{NEAR_ZERO:g} of the largest variance"
        ),
        [f"unit{unit}" for unit in order.order],
        matrix.tolist(),
    )
    lemma = drop_lowest(head, id_moments, min(head.width - 1, int(p * head.width)))
    table: list[tuple[object, ...]] = []
    for part, rows in {"test": test, **ood}.items():
        part_moments = moments(rows)
        for rule, chosen in (("dice", mask), ("lowest units", lemma)):
            found = variances(head, chosen, rows, part_moments)
            table += [
                (
                    part,
                    rule,
                    c,
                    found.direct_full[c],
                    found.direct_kept[c],
                    found.ratio[c],
                    found.independent[c],
                    found.correlated[c],
                )
                for c in range(head.classes)
            ]
    names = ("set", "rule", "class", "variance", "variance_kept", "ratio", "independent", "correlated")
    write_csv(out / "variances.csv", names, table)
    return [*written, out / "variances.csv"]


def variance_summary(features: Mapping[str, Features], p: float) -> list[tuple[str, float, float, float, int]]:
    """For each OOD set the smallest, mean and largest ratio of output variances under DICE, and classes above 1."""
    train = features["train"]
    sets = {name: part for name, part in features.items() if name != "train"}
    ratios = variance_ratios(head_of(train), moments(train), p, sets)
    return [
        (name, float(ratio.min()), fmean(ratio), float(ratio.max()), int((ratio > 1).sum()))
        for name, ratio in ratios.items()
    ]


def write_csv(path: Path, columns: Sequence[str], table: Sequence[Sequence[object]]) -> None:
    """A table of plain values, whole or not at all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(table)
    write_bytes(path, text.getvalue().encode())
