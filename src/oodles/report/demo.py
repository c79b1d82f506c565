"""``oodles demo``: detectors compared on features of real images that come with the package."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from oodles.bench.run import benchmark
from oodles.bench.tables import overview, print_view, results, rows_json, write_text
from oodles.calibration import calibrate
from oodles.detectors import default_detector, parse
from oodles.features import Features
from oodles.metrics import Row
from oodles.models import read_card
from oodles.paper.published import AVERAGE
from oodles.paper.sweep import SWEEP_GRID, SweepPoint, sweep
from oodles.paper.tables import detectors_of
from oodles.plots import save_figure, score_histograms
from oodles.report import guard_part, rows_parts, write_report
from oodles.report.document import Cell, Column, Part, Section, Table

ID_SET, OOD_SETS = "cifar10", ("svhn", "textures", "places365", "places_crop")
# the paper does not say where ReAct clips on CIFAR: 90 is the usual percentile, 1.0 the constant in the authors' code
MAIN = (
    *("msp", "max_logit", "energy", "entropy", "react(90)", "react(threshold=1.0)"),
    *("dice(0.9)", "react(99)+dice(0.9)", "dice(0.9)+msp", "react_scale_dice", default_detector().spec),
)
SHOWN = ("energy", "dice(0.9)+energy")
REPORTED = (default_detector().spec, "dice(0.9)")
RESAMPLES = 200


def load_pack() -> tuple[Features, Features, dict[str, Features], dict[str, Any]]:
    """ID training features, ID test features, the OOD sets by name, and the card that describes them."""
    with as_file(files("oodles") / "demo_pack") as folder:
        card: dict[str, Any] = json.loads((folder / "card.json").read_text())
        train, test = Features.load(folder / "train"), Features.load(folder / "test")
        return train, test, {name: Features.load(folder / name) for name in OOD_SETS}, card


def run_demo(out: Path, console: Console) -> list[Row]:
    """Compare detectors; write ``rows.json``, ``scores.png`` and ``report.html``, which has all details."""
    train, test, ood, card = load_pack()
    sets: dict[str, Any] = {"train": train, "test": test, "ood": ood, "id_set": ID_SET}
    console.print(
        f"CIFAR-10 is in-distribution ({len(train):,} training rows to fit on, {len(test):,} test rows); "
        + ", ".join(f"{name} ({len(features):,})" for name, features in ood.items())
        + " are not.\n"
    )
    ablation = [*detectors_of("selection", MAIN, 0.9), *detectors_of("sparsification", MAIN, 0.9)]
    start = time.perf_counter()
    rows = benchmark(MAIN, **sets, bootstrap=RESAMPLES)
    ablated = benchmark(list(dict.fromkeys(ablation)), **sets)
    points = sweep(SWEEP_GRID, **sets)
    elapsed = time.perf_counter() - start
    print_view(console, overview(rows))
    count = len({row.detector for row in [*rows, *ablated]}) + len(points)
    scored = len(test) + sum(len(features) for features in ood.values())
    console.print(f"\nFitting and evaluating {count} detectors on {scored:,} rows took {elapsed:.2f} s.")
    grouped, shown = results(rows), {row.detector for row in rows}
    energy, dice, default = (fmean(grouped[spec, AVERAGE].fpr95) for spec in (*SHOWN, default_detector().spec))
    console.print(
        f"On average DICE accepts {dice:.1f} % of the OOD images, energy {energy:.1f} %, and the default detector "
        f"{default:.1f} %.\n"
    )
    write_text(out / "rows.json", rows_json([*rows, *(row for row in ablated if row.detector not in shown)]))
    save_figure(_figure(train, test, ood, rows), out / "scores.png")
    console.print(f"rows: {out / 'rows.json'}   histograms: {out / 'scores.png'}", markup=False, soft_wrap=True)
    parts = [
        *rows_parts(rows, notes=[_what_differs(card)]),
        *_guards(train, test, ood),
        *_ablation(ablated, points),
    ]
    write_report(out / "report.html", *parts, title="oodles demo: CIFAR-10 against four OOD sets")
    console.print(f"report: {out / 'report.html'}", markup=False, soft_wrap=True)
    return rows


def _what_differs(card: Mapping[str, Any]) -> str:
    return (
        "What differs from the paper: the sets are subsets, and the last layer is not the one that was trained with "
        f"the paper's network but our own, fitted on {card['chosen from']['train']:,} of its training embeddings."
    )


def _guards(train: Features, test: Features, ood: Mapping[str, Features]) -> list[Part]:
    """The default detector and DICE as guards."""
    parts = []
    for spec in REPORTED:
        detector = parse(spec).fit(train)
        threshold, names = calibrate(detector.score(test)), read_card("cifar10-small")["classes"]
        parts.append(guard_part(detector, threshold, test, ood=ood, train=train, class_names=names, id_set=ID_SET))
    return parts


def _ablation(rows: Sequence[Row], points: Sequence[SweepPoint]) -> list[Part]:
    """DICE's ablations and its sparsities."""
    (part,) = rows_parts(rows, "Which weights of the last layer to keep, p = 0.9")
    columns = *map(Column, ("p", "FPR95", "AUROC", "accuracy")), Column("spread", ".3f"), Column("gap", ".2f")
    lines = [
        (
            Cell(f"{point.p:g}"),
            Cell(100 * fmean(row.fpr95 for row in point.rows)),
            Cell(100 * fmean(row.auroc for row in point.rows)),
            Cell(None if point.accuracy is None else 100 * point.accuracy),
            Cell(fmean(point.spread.values())),
            Cell(fmean(point.gap.values())),
        )
        for point in points
    ]
    caption = (
        "DICE with energy, averages over the sets: FPR95, AUROC and the sparse layer's accuracy in percent; spread: "
        "standard deviation of OOD energies / mean ID energy; gap: mean largest logit, ID minus OOD"
    )
    section = Section("How much to drop", tables=(Table(caption, columns, tuple(lines)),))
    return [replace(part, sections=(*part.sections, section))]


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
