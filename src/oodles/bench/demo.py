"""The demo: detectors compared on features of real images that come with the package."""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import as_file, files
from typing import Any

from matplotlib.figure import Figure

from oodles.bench.comparison import Rows, results
from oodles.bench.run import benchmark
from oodles.calibration import calibrate
from oodles.detectors import default_detector, parse
from oodles.features import Features
from oodles.metrics import Row
from oodles.paper.published import AVERAGE, detectors_of
from oodles.paper.sweep import SWEEP_GRID, SweepPoint, sweep
from oodles.plots import score_histograms

ID_SET, OOD_SETS = "cifar10", ("svhn", "textures", "places365", "places_crop")
DEFAULT, ENERGY, DICE = default_detector().spec, "energy", "dice(0.9)+energy"
# the paper does not say where ReAct clips on CIFAR: 90 is the usual percentile, 1.0 the constant in the authors' code
MAIN = (
    *("msp", "max_logit", "energy", "entropy", "react(90)", "react(threshold=1.0)"),
    *("dice(0.9)", "react(99)+dice(0.9)", "dice(0.9)+msp", "react_scale_dice", DEFAULT),
)
RESAMPLES = 200


def load_pack() -> tuple[Features, Features, dict[str, Features], dict[str, Any]]:
    """Return ID training features, ID test features, the OOD sets by name, and the card that describes them."""
    with as_file(files("oodles") / "demo_pack") as folder:
        card: dict[str, Any] = json.loads((folder / "card.json").read_text())
        train, test = Features.load(folder / "train"), Features.load(folder / "test")
        return train, test, {name: Features.load(folder / name) for name in OOD_SETS}, card


def run_demo(train: Features, test: Features, ood: Mapping[str, Features]) -> tuple[Rows, Rows, list[SweepPoint]]:
    """Return the rows of the detectors, those of DICE's ablations, and DICE at each sparsity."""
    sets: dict[str, Any] = {"train": train, "test": test, "ood": ood, "id_set": ID_SET}
    ablation = [*detectors_of("selection", MAIN, 0.9), *detectors_of("sparsification", MAIN, 0.9)]
    rows = benchmark(MAIN, **sets, bootstrap=RESAMPLES)
    return rows, benchmark(list(dict.fromkeys(ablation)), **sets), sweep(SWEEP_GRID, **sets)


def draw_scores(train: Features, test: Features, ood: Mapping[str, Features], rows: Sequence[Row]) -> Figure:
    """Draw histograms of the scores of energy and DICE, with the threshold that accepts 95 % of ID."""
    grouped = results(rows)
    scores, thresholds, notes = {}, {}, {}
    for name in (ENERGY, DICE):
        detector = parse(name).fit(train)
        id_scores = detector.score(test)
        scores[name] = id_scores.numpy(), {key: detector.score(part).numpy() for key, part in ood.items()}
        thresholds[name] = calibrate(id_scores).value
        average = grouped[name, AVERAGE]
        notes[name] = f"average FPR95 {average.mean('fpr95'):.1f} %, AUROC {average.mean('auroc'):.1f} %"
    return score_histograms(scores, thresholds, notes)
