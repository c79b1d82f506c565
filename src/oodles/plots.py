"""Arrays on an axis. Nothing is computed here beyond what a picture needs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from oodles.files import write_with

# Okabe and Ito's palette: told apart by colour-blind readers, and in grey by their lightness
ID_COLOUR = "#0072B2"
OOD_COLOURS = ("#D55E00", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#999999")
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "figure.dpi": 150,
}


def score_histograms(
    scores: Mapping[str, tuple[npt.NDArray[Any], Mapping[str, npt.NDArray[Any]]]],
    thresholds: Mapping[str, float],
    notes: Mapping[str, str],
) -> Figure:
    """For each detector, ID scores filled and each OOD set as a line, with the threshold where 95 % of ID is kept."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.2 * len(scores), 3.4), layout="constrained")
        axes = figure.subplots(1, len(scores), squeeze=False)[0]
        for axis, (detector, (id_scores, ood)) in zip(axes, scores.items(), strict=True):
            _histograms(axis, id_scores, ood)
            axis.axvline(thresholds[detector], color="black", linewidth=1, linestyle="--", label="95 % of ID lie right")
            axis.set_title(f"{detector}\n{notes[detector]}")
            axis.set_xlabel("score (larger = more in-distribution)")
        axes[0].set_ylabel("share of images")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure whole or not at all; the suffix says the format."""
    write_with(path, lambda temporary: figure.savefig(temporary, format=path.suffix.lstrip(".")))


def _histograms(axis: Axes, id_scores: npt.NDArray[Any], ood: Mapping[str, npt.NDArray[Any]]) -> None:
    everything = np.concatenate([id_scores, *ood.values()])
    low, high = (float(end) for end in np.quantile(everything, [0.001, 0.999]))
    bins = np.linspace(low, high, 60).tolist()
    weights = np.full(len(id_scores), 1 / len(id_scores))
    axis.hist(id_scores, bins, weights=weights, color=ID_COLOUR, alpha=0.35, label="in-distribution")
    for colour, (name, values) in zip(OOD_COLOURS, ood.items(), strict=False):
        weights = np.full(len(values), 1 / len(values))
        axis.hist(values, bins, weights=weights, histtype="step", linewidth=1.4, color=colour, label=name)
