"""``oodles demo``: detectors compared on features of real images that come with the package."""

import json
import time
from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from oodles.bench.run import benchmark
from oodles.bench.tables import compare, only, print_view, results, rows_json, sweep_view, write_text
from oodles.calibration import calibrate
from oodles.detectors import default_detector, parse
from oodles.features import Features
from oodles.metrics import Row
from oodles.paper.published import AVERAGE
from oodles.paper.sweep import SWEEP_GRID, sweep
from oodles.paper.tables import detectors_of
from oodles.plots import save_figure, score_histograms

OOD_SETS = ("svhn", "textures", "places365", "places_crop")
# the paper does not say where ReAct clips on CIFAR: 90 is the usual percentile, 1.0 the constant in the authors' code
MAIN = (
    *("msp", "max_logit", "energy", "entropy", "react(90)", "react(threshold=1.0)"),
    *("dice(0.9)", "react(99)+dice(0.9)", "dice(0.9)+msp", "react_scale_dice", default_detector().spec),
)
SHOWN = ("energy", "dice(0.9)+energy")


def load_pack() -> tuple[Features, Features, dict[str, Features], dict[str, Any]]:
    """ID training features, ID test features, the OOD sets by name, and the card that describes them."""
    with as_file(files("oodles") / "demo_pack") as folder:
        card: dict[str, Any] = json.loads((folder / "card.json").read_text())
        train, test = Features.load(folder / "train"), Features.load(folder / "test")
        return train, test, {name: Features.load(folder / name) for name in OOD_SETS}, card


def run_demo(out: Path, console: Console) -> list[Row]:
    """Compare detectors, DICE's ablations and its sparsities; write ``rows.json`` and ``scores.png``."""
    train, test, ood, card = load_pack()
    sets: dict[str, Any] = {"train": train, "test": test, "ood": ood, "id_set": "cifar10"}
    console.print(
        f"CIFAR-10 is in-distribution ({len(train):,} training rows to fit on, {len(test):,} test rows); "
        + ", ".join(f"{name} ({len(features):,})" for name, features in ood.items())
        + " are not.\n"
    )
    ablation = [*detectors_of("selection", MAIN, 0.9), *detectors_of("sparsification", MAIN, 0.9)]
    start = time.perf_counter()
    rows = benchmark([parse(spec) for spec in MAIN], **sets)
    ablated = benchmark([parse(spec) for spec in dict.fromkeys(ablation)], **sets)
    points = sweep(SWEEP_GRID, **sets)
    elapsed = time.perf_counter() - start
    print_view(console, compare(rows, title="Detectors", paper="cifar10"))
    print_view(console, only(compare(ablated, title="\nWhich weights of the last layer to keep, p = 0.9"), AVERAGE))
    print_view(console, sweep_view(points, title="\nHow much to drop"))
    count = len({row.detector for row in [*rows, *ablated]}) + len(points)
    scored = len(test) + sum(len(features) for features in ood.values())
    console.print(
        f"\nFitting and evaluating {count} detectors on {scored:,} rows took {elapsed:.2f} s."
        "\nWhat differs from the paper: the sets are subsets, the paper's averages are over its six sets, and the last "
        "layer is not the one that was trained with the paper's network but our own, fitted on "
        f"{card['chosen from']['train']:,} of its training embeddings."
    )
    grouped = results(rows)
    energy, dice, default = (fmean(grouped[spec, AVERAGE].fpr95) for spec in (*SHOWN, default_detector().spec))
    console.print(
        f"On average DICE accepts {dice:.1f} % of the OOD images, energy {energy:.1f} %, and the default detector "
        f"{default:.1f} %.\n"
    )
    write_text(out / "rows.json", rows_json([*rows, *ablated]))
    save_figure(_figure(train, test, ood, rows), out / "scores.png")
    console.print(f"rows: {out / 'rows.json'}   histograms: {out / 'scores.png'}", markup=False)
    return rows


def _figure(train: Features, test: Features, ood: Mapping[str, Features], rows: list[Row]) -> Any:
    grouped = results(rows)
    scores, thresholds, notes = {}, {}, {}
    for name in SHOWN:
        detector = parse(name).fit(train)
        id_scores = detector.score(test)
        scores[name] = id_scores.numpy(), {key: detector.score(part).numpy() for key, part in ood.items()}
        thresholds[name] = calibrate(id_scores).value
        average = grouped[name, AVERAGE]
        notes[name] = f"average FPR95 {fmean(average.fpr95):.1f} %, AUROC {fmean(average.auroc):.1f} %"
    return score_histograms(scores, thresholds, notes)
