"""Draw the conventions of FPR95 and the decision tree: ``docs/images``."""

from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from oodles.bench.demo import load_pack
from oodles.detectors import parse
from oodles.metrics import evaluate
from oodles.plots import ID_COLOUR, INK, OOD_COLOURS, STYLE, save_figure
from studies.pages import DOCS

IMAGES = DOCS / "images"
QUESTIONS = (
    ("Multi-label model\n(one sigmoid per class)?", "joint_energy, max_logit,\nor a distance: knn"),
    ("Only logits,\nno embeddings?", "energy, gen, max_logit"),
    ("Examples of what\nshould be rejected?", "compare on them:\noodles bench"),
    ("Time per input\nmatters most?", "ReLU: react_scale_dice,\ndice(0.9); signed: nci, vra"),
)
OTHERWISE = ("default", "is another clearly better?\noodles select")
DETECTOR, OOD_SET = "energy", "textures"
OOD_COLOUR, BINS = OOD_COLOURS[0], 60


def fpr95_conventions() -> Figure:
    """The same scores twice: the threshold that accepts 95 % of ID, and the one that rejects 95 % of OOD."""
    train, test, ood, _ = load_pack()
    detector = parse(DETECTOR).fit(train)
    ids, oods = (np.sort(detector.score(part).double().numpy()) for part in (test, ood[OOD_SET]))
    row = evaluate(ids, oods)
    accept = ids[len(ids) - int(np.ceil(0.95 * len(ids) - 1e-9))]
    reject = oods[int(np.ceil(0.95 * len(oods) - 1e-9)) - 1]
    # the areas that are drawn are the numbers of the metrics
    assert np.isclose((oods >= accept).mean(), row.fpr95)
    assert np.isclose((ids <= reject).mean(), row.fpr95_ood)
    with mpl.rc_context(STYLE | {"svg.fonttype": "path"}):
        figure = Figure(figsize=(6.4, 5.6), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True)
        ends = min(ids[0], oods[0]), np.quantile(ids, 0.999)
        _panel(above, ends, ids, oods, accept, wrong=oods, side="right", name="OOD accepted", rate=row.fpr95)
        above.set_title("ID is positive (the paper; fpr95): the threshold accepts 95 % of ID")
        _panel(below, ends, ids, oods, reject, wrong=ids, side="left", name="ID rejected", rate=row.fpr95_ood)
        below.set_title("OOD is positive (OpenOOD; fpr95_ood): the threshold rejects 95 % of OOD")
        below.set_xlabel(f"score ({DETECTOR}; larger = more in-distribution). ID: CIFAR-10, OOD: {OOD_SET}")
    return figure


def _panel(
    axis: Any, ends: Any, ids: Any, oods: Any, at: float, *, wrong: Any, side: str, name: str, rate: float
) -> None:
    """Both histograms, the threshold, and the part of one of them that counts as false positives."""
    width = (ends[1] - ends[0]) / BINS
    first = at - width * np.ceil((at - ends[0]) / width)  # the threshold is the edge of a bin
    edges = first + width * np.arange(BINS + 2)
    for scores, colour, label in ((ids, ID_COLOUR, "ID"), (oods, OOD_COLOUR, "OOD")):
        weights = np.full(len(scores), 1 / len(scores))
        axis.hist(scores, edges, weights=weights, histtype="step", color=colour, linewidth=1.4, label=label)
    counted = wrong >= at if side == "right" else wrong <= at
    colour = OOD_COLOUR if wrong is oods else ID_COLOUR
    shown = wrong[counted]
    axis.hist(
        shown,
        edges,
        weights=np.full(len(shown), 1 / len(wrong)),
        color=colour,
        alpha=0.45,
        label=f"{name}: FPR95 = {100 * rate:.1f} %",
    )
    axis.axvline(at, color="black", linewidth=1, linestyle="--", label="threshold")
    axis.set_ylabel("fraction")
    axis.legend(loc="upper right")


def decision_tree() -> Figure:
    """Questions from top to bottom, the answer to each at its right."""
    with mpl.rc_context(STYLE | {"svg.fonttype": "path", "font.size": 10}):
        figure = Figure(figsize=(6.4, 5.4))
        axis = figure.add_axes((0, 0, 1, 1))
        axis.set(xlim=(0, 10), ylim=(-len(QUESTIONS) - 0.5, 0.5))
        axis.axis("off")
        for row, (question, answer) in enumerate(QUESTIONS):
            _box(axis, 2.3, -row, question, ID_COLOUR)
            _box(axis, 7.5, -row, answer, INK)
            _arrow(axis, (4.2, -row), (5.4, -row), "yes")
            _arrow(axis, (2.3, -row - 0.33), (2.3, -row - 0.67), "no")
        _box(axis, 2.3, -len(QUESTIONS), OTHERWISE[0], INK)
        _box(axis, 7.5, -len(QUESTIONS), OTHERWISE[1], INK)
        _arrow(axis, (4.2, -len(QUESTIONS)), (5.4, -len(QUESTIONS)), "check")
    return figure


def _box(axis: Any, x: float, y: float, text: str, colour: str) -> None:
    frame = {"boxstyle": "round,pad=0.5", "facecolor": "white", "edgecolor": colour, "linewidth": 1.3}
    axis.text(x, y, text, ha="center", va="center", bbox=frame, linespacing=1.35)


def _arrow(axis: Any, start: tuple[float, float], end: tuple[float, float], text: str) -> None:
    axis.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 1.1})
    across = start[1] == end[1]
    place = ((start[0] + end[0]) / 2, start[1] + 0.12) if across else (start[0] + 0.15, (start[1] + end[1]) / 2)
    axis.text(*place, text, ha="center" if across else "left", va="bottom" if across else "center", fontsize=9)


def main() -> None:
    """Write the pictures."""
    for name, figure in (("fpr95-conventions", fpr95_conventions()), ("decision-tree", decision_tree())):
        path = IMAGES / f"{name}.svg"
        save_figure(figure, path)
        print(f"written: {path}")
