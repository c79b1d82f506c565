"""The plots of ``docs/performance.md``."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from oodles.plots import ID_COLOUR, OOD_COLOURS, STYLE, save_figure
from studies.bench.results import Row, detector_and_size

COLOURS = (ID_COLOUR, *OOD_COLOURS)
PLAIN = "{x:,.8g}"  # the powers of ten on logarithmic axes would need mathematics, which the style does not draw


@mpl.rc_context(STYLE)
def plot_detectors(rows: Sequence[Row], path: Path) -> None:
    """Speed-ups of fit and score on a logarithmic axis, one colour per size."""
    if not rows:
        return
    figure = Figure(figsize=(9, 7.5), layout="constrained")
    axes = figure.subplots(1, 2, sharex=True)
    for axis, verb in zip(axes, ("fit", "score"), strict=True):
        chosen = [row for row in rows if row.name.startswith(f"{verb} ")]
        parts = [(*detector_and_size(row), row) for row in chosen]
        names = list(dict.fromkeys(name for name, _, _ in parts))[::-1]
        sizes = list(dict.fromkeys(size for _, size, _ in parts))
        for offset, size in enumerate(sizes):
            points = [(names.index(name) + 0.22 * (1 - offset), row) for name, each, row in parts if each == size]
            places, found = [place for place, _ in points], [row for _, row in points]
            axis.hlines(
                places, [row.low for row in found], [row.high for row in found], color=COLOURS[offset], alpha=0.5
            )
            axis.plot([row.ratio for row in found], places, "o", markersize=4, color=COLOURS[offset], label=size)
        axis.axvline(1, color="0.4", linewidth=1)
        axis.set(xscale="log", yticks=range(len(names)), yticklabels=names, title=verb, ylim=(-0.7, len(names) - 0.3))
        axis.set_xlabel("times as fast as pytorch-ood")
        axis.xaxis.set_major_formatter(PLAIN)
        axis.grid(axis="x", alpha=0.3)
    axes[0].legend(title="rows x units, classes", loc="center right", fontsize=8)
    save_figure(figure, path)


@mpl.rc_context(STYLE)
def plot_metrics(rows: Sequence[Row], path: Path) -> None:
    """The cost of all metrics against one sort, by the number and kind of scores."""
    against_sort = [row for row in rows if row.kind == "cost"]
    if not against_sort:
        return
    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    lines: dict[str, list[tuple[int, Row]]] = {}
    for row in against_sort:
        count, kind = row.name.split(" scores, ")
        lines.setdefault(kind, []).append((int(count.replace(",", "")), row))
    for colour, (kind, points) in zip(COLOURS, lines.items(), strict=False):
        counts, ratios = [count for count, _ in points], [row.ratio for _, row in points]
        axis.plot(counts, ratios, "o-", markersize=4, color=colour, label=kind)
    axis.axhline(2, color="0.4", linewidth=1, linestyle="--", label="target")
    axis.set(xscale="log", xlabel="scores", ylabel="times one numpy.sort", ylim=(0, None))
    axis.xaxis.set_major_formatter(PLAIN)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    save_figure(figure, path)
