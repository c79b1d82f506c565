"""The paper's figures from any features, each as a picture (PNG and SVG) with its data (CSV)."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from oodles import plots
from oodles.errors import ArgumentError, DataError
from oodles.features import Features, Head
from oodles.paper.analysis import (
    class_outputs,
    contribution_covariance,
    contribution_moments,
    dice_mask,
    drop_lowest,
    head_of,
    id_order,
    moments,
    near_zero,
    variances,
)
from oodles.paper.sweep import SWEEP_GRID, sweep
from oodles.records.files import Kind, write_bytes

NEAR_ZERO = 0.01
Rows = Iterable[Sequence[object]]


def draw_figures(
    features: Mapping[str, Features], out: Path, *, label: int = 0, p: float = 0.9, shown: str | None = None
) -> list[Path]:
    """Draw figures 1 to 4 and the covariance figure, and tabulate the variances; returns the files written to ``out``.

    ``features`` contains ``train``, ``test`` and the OOD sets. ``label`` is the class and ``p`` the sparsity of the
    figures; ``shown`` is the OOD set of the figures that show only one, by default the first.
    """
    train, test = features["train"], features["test"]
    ood = {name: part for name, part in features.items() if name not in ("train", "test")}
    if not ood:
        raise DataError("there is no OOD set to draw; give at least one besides train and test")
    shown = next(iter(ood)) if shown is None else shown
    if shown not in ood:
        raise ArgumentError(f"OOD set {shown!r} must be one of {', '.join(ood)}")
    head, name = head_of(train), f"class {label}"
    id_moments, ood_moments = moments(train), moments(ood[shown])
    order = id_order(head, id_moments, label)
    mask = dice_mask(head, id_moments, p)
    kept_from = head.width - int(mask[label].sum())
    # the paper's figures 1 and 2 show ID images of the class itself
    own = test if test.labels is None or not test.labels.eq(label).any() else test[test.labels.eq(label)]
    (train_mean, train_variance), (own_mean, own_variance), (ood_mean, ood_variance) = (
        contribution_moments(head, part, label, order) for part in (id_moments, moments(own), ood_moments)
    )
    units = range(head.width), order.tolist()
    on_own, on_ood = (own_mean, np.sqrt(own_variance)), (ood_mean, np.sqrt(ood_variance))
    curves = (train_mean, ood_mean, train_variance, ood_variance)
    id_outputs, ood_outputs = (class_outputs(head, mask, part, label) for part in (own, ood[shown]))
    dense, sparse = zip(id_outputs, ood_outputs, strict=True)
    matrix = contribution_covariance(head, ood_moments, label, order)
    note = f"{shown}, {name}: {near_zero(matrix, NEAR_ZERO):.1%} of pairs below\n{NEAR_ZERO:g} of the largest variance"
    drawings: list[tuple[str, Figure, Sequence[str], Rows]] = [
        (
            "figure1-contributions",
            plots.contributions({f"ID ({name})": on_own, f"OOD ({shown})": on_ood}, kept_from=kept_from, name=name),
            ("rank", "unit", "id_mean", "id_std", "ood_mean", "ood_std"),
            zip(*units, *on_own, *on_ood, strict=True),
        ),
        (
            "figure2-outputs",
            plots.output_densities({"all weights": dense, f"DICE, p = {p:g}": sparse}, name=name),
            ("set", "dense", "sparse"),
            [
                (part, *pair)
                for part, both in (("id", id_outputs), (shown, ood_outputs))
                for pair in zip(*both, strict=True)
            ],
        ),
        ("figure3-sweep", *_sweep(train, test, ood)),
        (
            "figure4-units",
            plots.unit_variances(*curves, kept_from=kept_from),
            ("rank", "unit", "id_mean", "ood_mean", "id_variance", "ood_variance"),
            zip(*units, *curves, strict=True),
        ),
        (
            "covariance",
            plots.covariance_matrix(matrix, note=note),
            [f"unit{unit}" for unit in order],
            matrix.tolist(),
        ),
    ]
    masks = {"dice": mask, "lowest units": drop_lowest(head, id_moments, min(head.width - 1, int(p * head.width)))}
    table = _variance_table(head, masks, {"test": test, **ood})
    for stem, figure, columns, rows in drawings:
        for suffix in (".png", ".svg"):
            plots.save_figure(figure, out / f"{stem}{suffix}")
        write_csv(out / f"{stem}.csv", columns, rows)
    write_csv(out / "variances.csv", *table)
    written = [out / f"{stem}{suffix}" for stem, *_ in drawings for suffix in (".png", ".svg", ".csv")]
    return [*written, out / "variances.csv"]


def variance_summary(features: Mapping[str, Features], p: float) -> list[tuple[str, float, float, float, int]]:
    """For each set the smallest, mean and largest ratio of output variances with DICE, and the classes above 1."""
    train = features["train"]
    head = head_of(train)
    mask = dice_mask(head, moments(train), p)
    ratios = {name: variances(head, mask, part).ratio for name, part in features.items() if name != "train"}
    return [
        (name, float(ratio.min()), fmean(ratio), float(ratio.max()), int((ratio > 1).sum()))
        for name, ratio in ratios.items()
    ]


def write_csv(path: Path, columns: Sequence[str], rows: Rows) -> None:
    """Write a table of plain values atomically."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    content = text.getvalue().encode()
    write_bytes(path, content, Kind("a table of these columns", lambda other: _names(other) == _names(content)))


def _names(table: bytes) -> set[bytes]:
    """Return the names of columns without the numbers of units."""
    return {name.rstrip(b"0123456789") for name in table.partition(b"\n")[0].split(b",")}


def _sweep(train: Features, test: Features, ood: Mapping[str, Features]) -> tuple[Figure, Sequence[str], Rows]:
    points = sweep(SWEEP_GRID, train=train, test=test, ood=ood)
    fpr95 = {name: np.array([100 * point.rows[k].fpr95 for point in points]) for k, name in enumerate(ood)}
    spread = {name: np.array([point.spread[name] for point in points]) for name in ood}
    rows = [
        (point.p, name, row.fpr95, row.auroc, point.accuracy, point.spread[name], point.gap[name])
        for point in points
        for name, row in zip(ood, point.rows, strict=True)
    ]
    panels = {"FPR95 (%)": fpr95, "std of OOD scores / mean ID score": spread}
    figure = plots.curves_over_p([point.p for point in points], panels)
    return figure, ("p", "set", "fpr95", "auroc", "accuracy", "spread", "gap"), rows


def _variance_table(
    head: Head, masks: Mapping[str, Tensor], sets: Mapping[str, Features]
) -> tuple[Sequence[str], list[tuple[object, ...]]]:
    rows: list[tuple[object, ...]] = []
    for name, features in sets.items():
        set_moments = moments(features)
        for rule, mask in masks.items():
            found = variances(head, mask, features, set_moments)
            columns = (found.direct_full, found.direct_kept, found.ratio, found.independent, found.correlated)
            rows += [(name, rule, label, *values) for label, values in enumerate(zip(*columns, strict=True))]
    return ("set", "rule", "class", "variance", "variance_kept", "ratio", "independent", "correlated"), rows
