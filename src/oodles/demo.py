"""``oodles demo``: every detector on a small pack of real features that comes with the package."""

import json
import time
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from rich.console import Console

from oodles.bench.report import AVERAGE, pivot, print_table, write_json
from oodles.bench.run import benchmark
from oodles.calibration import calibrate
from oodles.detectors import LogitDetector, detector_list, parse
from oodles.features import Features
from oodles.metrics import Row
from oodles.plots import save_figure, score_histograms

OOD_SETS = ("svhn", "textures", "places365", "places_crop")
SHOWN = ("energy", "dice(0.9)+energy")


def load_pack() -> tuple[Features, Features, dict[str, Features], dict[str, Any]]:
    """ID training rows, ID test rows, the OOD sets by name, and the card that says what they are."""
    with as_file(files("oodles") / "demo_pack") as folder:
        card: dict[str, Any] = json.loads((folder / "card.json").read_text())
        train, test = Features.load(folder / "train"), Features.load(folder / "test")
        return train, test, {name: Features.load(folder / name) for name in OOD_SETS}, card


def run_demo(out: Path, console: Console) -> list[Row]:
    """Fit and score every detector, print the table, write ``rows.json`` and ``scores.png`` to ``out``."""
    train, test, ood, card = load_pack()
    console.print(
        f"CIFAR-10 is in-distribution ({len(train):,} training rows to fit on, {len(test):,} test rows); "
        + ", ".join(f"{name} ({len(features):,})" for name, features in ood.items())
        + " are not.\n"
    )
    # the paper does not say where it clips on CIFAR; 1.0 is the constant of ReAct's own code
    detectors = [*detector_list(), parse("react(threshold=1.0)")]
    start = time.perf_counter()
    rows = benchmark(detectors, train=train, test=test, ood=ood, id_set="cifar10")
    elapsed = time.perf_counter() - start
    print_table(console, rows, paper="cifar10")
    scored = len(test) + sum(len(features) for features in ood.values())
    console.print(
        f"\nFitting, scoring and measuring all {len(detectors)} detectors on {scored:,} rows took {elapsed:.2f} s."
        "\nWhat differs from the paper: the sets are subsets, the paper's averages are over six other sets (so none is "
        f"shown), and the last layer is our own, fitted on {card['chosen from']['train']:,} training embeddings of the "
        "paper's network, where the paper uses the layer that was trained with it."
    )
    _, _, cells = pivot(rows)
    energy, dice = (cells[spec, AVERAGE][0] for spec in SHOWN)
    console.print(f"On average DICE lets {dice:.1f} % of the strange images pass where energy lets {energy:.1f} %.\n")
    write_json(rows, out / "rows.json")
    save_figure(_figure([parse(spec) for spec in SHOWN], train, test, ood, rows), out / "scores.png")
    console.print(f"rows: {out / 'rows.json'}   histograms: {out / 'scores.png'}")
    return rows


def _figure(
    detectors: list[LogitDetector], train: Features, test: Features, ood: dict[str, Features], rows: list[Row]
) -> Any:
    _, _, cells = pivot(rows)
    scores, thresholds, notes = {}, {}, {}
    for detector in detectors:
        id_scores = detector.fit(train).score(test)
        name = detector.spec
        scores[name] = id_scores.numpy(), {key: detector.score(part).numpy() for key, part in ood.items()}
        thresholds[name] = calibrate(id_scores).value
        notes[name] = f"average FPR95 {cells[name, AVERAGE][0]:.1f} %, AUROC {cells[name, AVERAGE][1]:.1f} %"
    return score_histograms(scores, thresholds, notes)
