"""Figures from arrays; nothing is computed here beyond what drawing needs."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from oodles.errors import ArgumentError
from oodles.records.files import Kind, check_output, write_with

Array = npt.NDArray[Any]

PICTURES = {".png": {"Software": "oodles"}, ".svg": {"Creator": "oodles", "Date": None}, ".pdf": {"Creator": "oodles"}}
MARKS = b"Software\0oodles", b"<dc:title>oodles</dc:title>", b"/Creator (oodles)"
PICTURE = Kind("a picture", lambda content: any(mark in content for mark in MARKS))
# Okabe and Ito's palette: distinguishable to colour-blind readers, and by lightness in greyscale
INK, ID_COLOUR = "#000000", "#0072B2"
OOD_COLOURS = ("#D55E00", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#999999", "#F0E442")
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "figure.dpi": 150,
    "svg.hashsalt": "oodles",
    "text.parse_math": False,  # names of sets and classes may contain dollar signs
}
NARROW = (4.6, 3.1)  # inches: readable on a phone


def score_histograms(
    scores: Mapping[str, tuple[Array, Mapping[str, Array]]], thresholds: Mapping[str, float], notes: Mapping[str, str]
) -> Figure:
    """For each detector, ID scores filled and each OOD set as a line, with the threshold that accepts 95 % of ID."""
    with mpl.rc_context(STYLE):
        figure, axes = _panels(len(scores), width=4.2, height=3.4)
        for axis, (detector, (id_scores, ood)) in zip(axes, scores.items(), strict=True):
            bins = score_edges(np.concatenate([id_scores, *ood.values()]), 60)
            weights = np.full(len(id_scores), 1 / len(id_scores))
            axis.hist(id_scores, bins.tolist(), weights=weights, color=ID_COLOUR, alpha=0.35, label="in-distribution")
            for colour, (name, values) in zip(cycle(OOD_COLOURS), ood.items(), strict=False):
                weights = np.full(len(values), 1 / len(values))
                axis.hist(
                    values, bins.tolist(), weights=weights, histtype="step", linewidth=1.4, color=colour, label=name
                )
            axis.axvline(thresholds[detector], color=INK, linewidth=1, linestyle="--", label="accepts 95 % of ID")
            axis.set_title(f"{detector}\n{notes[detector]}")
            axis.set_xlabel("score (larger = more in-distribution)")
        axes[0].set_ylabel("fraction of images")
        _legend(figure, axes[0])
    return figure


def contributions(panels: Mapping[str, tuple[Array, Array]], *, kept_from: int, name: str) -> Figure:
    """Figure 1: mean contribution of each unit with its standard deviation shaded, one panel per data set.

    ``panels`` maps a title to means and standard deviations, in ID order; units left of ``kept_from`` are dropped.
    """
    with mpl.rc_context(STYLE):
        figure, axes = _panels(len(panels), width=3.6, height=3.0, sharey=True)
        for axis, colour, (title, (mean, spread)) in zip(axes, (ID_COLOUR, *OOD_COLOURS), panels.items(), strict=False):
            index = np.arange(len(mean))
            axis.fill_between(index, mean - spread, mean + spread, color=colour, alpha=0.3, linewidth=0)
            axis.plot(index, mean, color=colour, linewidth=1.2)
            axis.axvline(kept_from, color=INK, linewidth=1, linestyle=":")
            axis.axhline(0, color=INK, linewidth=0.6)
            axis.set_title(title)
            axis.set_xlabel("unit, by mean ID contribution")
        axes[0].set_ylabel(f"contribution to {name}")
    return figure


def output_densities(panels: Mapping[str, tuple[Array, Array]], *, name: str) -> Figure:
    """Figure 2: the output of one class on ID and OOD data; one panel without and one with sparsification."""
    with mpl.rc_context(STYLE):
        figure, axes = _panels(len(panels), width=3.6, height=3.0)
        for axis, (title, (on_id, on_ood)) in zip(axes, panels.items(), strict=True):
            # fewer bins for fewer rows, so that the histogram stays smooth
            count = int(np.clip(2 * np.sqrt(min(len(on_id), len(on_ood))), 12, 50))
            bins = score_edges(np.concatenate([on_id, on_ood]), count)
            for values, colour, label in ((on_id, ID_COLOUR, "ID"), (on_ood, OOD_COLOURS[0], "OOD")):
                axis.hist(values, bins.tolist(), density=True, color=colour, alpha=0.45, label=label)
                axis.hist(values, bins.tolist(), density=True, color=colour, histtype="step", linewidth=1.2)
            axis.set_title(f"{title}\nOOD standard deviation {on_ood.std():.2f}")
            axis.set_xlabel(f"output of {name}")
        axes[0].set_ylabel("density")
        _legend(figure, axes[0])
    return figure


def curves_over_p(
    grid: Sequence[float], panels: Mapping[str, Mapping[str, Array]], *, chosen: float | None = None
) -> Figure:
    """Figure 3: curves against p, a panel for each label of an axis; several curves with their average, thicker.

    A dashed line marks the p that is ``chosen``.
    """
    places = np.arange(len(grid))
    with mpl.rc_context(STYLE):
        figure, axes = _panels(len(panels), width=3.8, height=3.2)
        for axis, (label, curves) in zip(axes, panels.items(), strict=True):
            for colour, (name, values) in zip(cycle(OOD_COLOURS), curves.items(), strict=False):
                axis.plot(places, values, color=colour, marker="o", markersize=3.5, linewidth=1, label=name)
            if len(curves) > 1:
                average = np.mean(list(curves.values()), axis=0)
                axis.plot(places, average, color=INK, marker="s", markersize=4, linewidth=2, label="average")
            if chosen is not None and chosen in grid:
                axis.axvline(list(grid).index(chosen), color=INK, linewidth=1, linestyle="--", label=f"p = {chosen:g}")
            axis.set_xticks(places, [f"{p:g}" for p in grid], rotation=90 if len(grid) > 8 else 0)
            axis.set_xlabel("sparsity p")
            axis.set_ylabel(label)
            if not label.startswith("AUROC"):
                axis.set_ylim(bottom=min(0.0, *(float(values.min()) for values in curves.values())))
        _legend(figure, axes[0])
    return figure


def unit_variances(
    id_mean: Array, ood_mean: Array, id_variance: Array, ood_variance: Array, *, kept_from: int
) -> Figure:
    """Figure 4: mean contribution of each unit on ID and OOD above, its variance below, units in ID order."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.6), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True)
        index = np.arange(len(id_mean))
        above.plot(index, ood_mean, color=OOD_COLOURS[0], linewidth=0.9, label="OOD")
        above.plot(index, id_mean, color=ID_COLOUR, linewidth=1.4, label="ID")
        above.set_ylabel("mean contribution")
        below.plot(index, ood_variance, color=OOD_COLOURS[0], linewidth=0.9)
        below.plot(index, id_variance, color=ID_COLOUR, linewidth=1.4)
        below.set_ylabel("variance")
        below.set_xlabel("unit, by mean ID contribution (dropped left of the dotted line, kept right of it)")
        for axis in (above, below):
            axis.axvline(kept_from, color=INK, linewidth=1, linestyle=":")
        _legend(figure, above)
    return figure


def covariance_matrix(matrix: Array, *, note: str) -> Figure:
    """The covariance of contributions as a heat map; colours saturate at the 99.5th percentile of its entries."""
    with mpl.rc_context({**STYLE, "axes.spines.top": True, "axes.spines.right": True}):
        figure = Figure(figsize=(4.6, 4.2), layout="constrained")
        axis = figure.subplots()
        limit = float(np.quantile(np.abs(matrix), 0.995)) or 1.0
        image = axis.imshow(matrix, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
        axis.set_title(note)
        axis.set_xlabel("unit, by mean ID contribution")
        axis.set_ylabel("unit")
        figure.colorbar(image, ax=axis, shrink=0.85, label="covariance")
    return figure


def binned_scores(
    edges: Array, filled: Mapping[str, Array], lines: Mapping[str, Array], *, threshold: float | None, unit: str
) -> Figure:
    """Histograms that are counted already: some filled, one on another, the others as lines."""
    with mpl.rc_context(STYLE):
        figure, axis = _narrow()
        base = np.zeros(len(edges) - 1)
        for colour, (name, values) in zip((ID_COLOUR, *OOD_COLOURS), filled.items(), strict=False):
            axis.stairs(base + values, edges, baseline=base, fill=True, color=colour, alpha=0.45, label=name)
            base = base + values
        for colour, (name, values) in zip(cycle(OOD_COLOURS), lines.items(), strict=False):
            axis.stairs(values, edges, color=colour, linewidth=1.4, label=name)
        if threshold is not None:
            axis.axvline(threshold, color=INK, linewidth=1, linestyle="--", label="threshold")
        axis.set_xlabel("score (larger = more in-distribution)")
        axis.set_ylabel(unit)
        _legend(figure, axis, columns=2)
    return figure


def roc_curves(curves: Mapping[str, tuple[Array, Array]], point: tuple[Array, float]) -> Figure:
    """ID accepted against OOD accepted, in percent, one curve per set; ``point`` is where the threshold is on each."""
    with mpl.rc_context(STYLE):
        figure, axis = _narrow()
        for colour, (name, (ood_rate, id_rate)) in zip(cycle(OOD_COLOURS), curves.items(), strict=False):
            axis.plot(ood_rate, id_rate, color=colour, linewidth=1.4, label=name)
        axis.plot([0, 100], [0, 100], color=INK, linewidth=0.6, linestyle=":", label="chance")
        at = np.full(len(point[0]), point[1])
        axis.plot(point[0], at, "o", color=INK, markersize=4, markerfacecolor="none", label="threshold")
        axis.set_xlabel("OOD accepted (%)")
        axis.set_ylabel("ID accepted (%)")
        _legend(figure, axis, columns=2)
    return figure


def detector_dots(detectors: Sequence[str], by_set: Mapping[str, Array], average: Array) -> Figure:
    """FPR95 of each detector, one line each: a dot per set and a bar at the average."""
    with mpl.rc_context(STYLE):
        figure, axis = _narrow(1.1 + 0.21 * len(detectors))
        places = np.arange(len(detectors))[::-1]
        axis.set_yticks(places, detectors)
        axis.set_ylim(-0.7, len(detectors) - 0.3)
        for place in places:
            axis.axhline(place, color=INK, linewidth=0.4, alpha=0.25)
        for colour, (name, values) in zip(cycle(OOD_COLOURS), by_set.items(), strict=False):
            axis.plot(values, places, "o", color=colour, markersize=4, label=name)
        axis.plot(average, places, "|", color=INK, markersize=9, markeredgewidth=2, label="average")
        axis.set_xlabel("FPR95 (%), lower is better")
        _legend(figure, axis, columns=3)
    return figure


def monitored_stream(
    edges: Array,
    rates: Array,
    limits: tuple[Array, Array],
    expected: float,
    evidence: Mapping[str, Array],
    *,
    alarm_at: float,
    alarms: Sequence[int],
) -> Figure:
    """Share of rejected inputs by window, in percent, with its limits; below, evidence on a logarithmic axis."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.6), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True)
        low, high = limits
        above.stairs(high, edges, baseline=low, fill=True, color=ID_COLOUR, alpha=0.2, label="limits of a window")
        above.axhline(expected, color=INK, linewidth=1, linestyle="--", label="expected")
        above.stairs(rates, edges, baseline=None, color=ID_COLOUR, linewidth=1.4, label="rejected")
        above.set_ylabel("rejected (%)")
        above.set_ylim(bottom=0)
        for colour, (name, values) in zip(cycle(OOD_COLOURS), evidence.items(), strict=False):
            drawn = np.maximum(values, 1.0)  # less is no evidence
            below.stairs(drawn, edges, baseline=None, color=colour, linewidth=1.4, label=f"evidence: {name}")
        below.axhline(alarm_at, color=INK, linewidth=1, linestyle=":", label="alarm")
        below.set_yscale("log")
        below.set_ylim(bottom=1.0)
        below.yaxis.set_major_formatter("{x:,.0f}")  # the usual one is mathematical text
        below.yaxis.set_minor_formatter(NullFormatter())
        below.xaxis.set_major_formatter("{x:,.0f}")
        below.set_ylabel("evidence")
        below.set_xlabel("inputs")
        for axis in (above, below):
            for alarm in alarms:
                axis.axvline(alarm, color=INK, linewidth=1, alpha=0.7)
        figure.legend(loc="outside lower center", ncols=3)
    return figure


def score_edges(values: Array, count: int = 51) -> Array:
    """Return ``count`` edges of bins that leave out the outermost thousandths."""
    low, high = (float(end) for end in np.quantile(values, [0.001, 0.999]))
    pad = max(abs(low), abs(high), 1.0) * 1e-6
    return np.linspace(low, high, count) if high - low > pad else np.linspace(low - 0.5, high + 0.5, count)


def check_picture(path: Path, inputs: Iterable[Path] = ()) -> None:
    """Raise unless a picture made from ``inputs`` can be written to ``path``, in the format of its suffix."""
    if path.suffix not in PICTURES:
        raise ArgumentError(f"{path} must end in one of {', '.join(PICTURES)}")
    check_output(path, PICTURE, inputs)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure atomically, in the format of its suffix."""
    check_picture(path)
    kind, metadata = path.suffix.lstrip("."), PICTURES[path.suffix]
    with mpl.rc_context(STYLE):  # the ids inside an SVG are generated when it is written
        write_with(path, lambda temporary: figure.savefig(temporary, format=kind, metadata=metadata), PICTURE)


def _panels(count: int, *, width: float, height: float, sharey: bool = False) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width * count, height), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False, sharey=sharey)[0])


def _narrow(height: float = NARROW[1]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(NARROW[0], height), layout="constrained")
    return figure, figure.subplots()


def _legend(figure: Figure, axis: Axes, columns: int = 6) -> None:
    """One legend below the panels."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), columns))
