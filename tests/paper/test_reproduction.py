"""`oodles bench` on the authors' networks and real images gives the numbers of an independent computation."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from oodles.detectors import parse
from oodles.features import Features

pytestmark = [pytest.mark.slow, pytest.mark.realdata]

ROWS = 1200
"""Images per set: enough for a tolerance of three points, few enough for a test."""

# FPR95 / AUROC in percent of an independent computation on these networks and images (plain PyTorch, the authors' mean
# activation and their rule for FPR95), as given in the README of the data folder.
EXPECTED = {
    "cifar10": {
        "msp": {"svhn": (49.9, 92.5), "textures": (64.8, 87.8), "places365": (61.9, 88.8)},
        "energy": {"svhn": (41.2, 93.8), "textures": (57.8, 87.0), "places365": (38.2, 92.6)},
        "dice(0.9)+energy": {"svhn": (30.2, 94.7), "textures": (46.6, 87.9), "places365": (46.6, 91.1)},
    },
    "cifar100": {
        "msp": {"svhn": (79.1, 76.6), "textures": (83.5, 72.8), "places365": (77.4, 76.6)},
        "energy": {"svhn": (89.6, 81.4), "textures": (84.1, 72.7), "places365": (76.5, 79.9)},
        "dice(0.9)+energy": {"svhn": (63.2, 87.1), "textures": (62.4, 78.2), "places365": (81.4, 78.6)},
    },
}
ACCURACY = {"cifar10": 0.9410, "cifar100": 0.7369}


@pytest.fixture(scope="module", params=["cifar10", "cifar100"])
def run(request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """One run of `oodles bench` on samples of a suite's real sets, with its features stored."""
    suite = request.param
    folder = tmp_path_factory.mktemp(suite)
    command = [sys.executable, "-m", "oodles", "bench", suite, "--data", str(data), "--limit", str(ROWS)]
    command += ["--checkpoint", str(data / "checkpoints" / f"densenet101-{suite}.pth.tar")]
    command += ["--store", str(folder / "store"), "--out", str(folder / "tables"), "--without", "places_crop"]
    for detector in EXPECTED[suite]:
        command += ["--detector", detector]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # the other tests read the features that bench stored
    (folder / "features").symlink_to(folder / "store" / suite / f"densenet101-{suite}-{ROWS}")
    return suite, folder


def test_bench_gives_the_expected_numbers(run: tuple[str, Path]) -> None:
    suite, folder = run
    rows = json.loads((folder / "tables" / "rows.json").read_text())
    measured = {(row["detector"], row["ood_set"]): row for row in rows}
    for detector, cells in EXPECTED[suite].items():
        for ood_set, (fpr95, auroc) in cells.items():
            row = measured[detector, ood_set]
            # with about a thousand images of each kind, one standard error is 1.5 points of FPR95 and 0.7 of AUROC
            assert 100 * row["auroc"] == pytest.approx(auroc, abs=2.0), (detector, ood_set)
            assert 100 * row["fpr95"] == pytest.approx(fpr95, abs=5.0), (detector, ood_set)


def test_the_accuracy_is_that_of_the_network(run: tuple[str, Path]) -> None:
    suite, folder = run
    test = Features.load(folder / "features" / "test")
    assert test.labels is not None
    accuracy = float(test.logits.argmax(dim=1).eq(test.labels).double().mean())
    assert accuracy == pytest.approx(ACCURACY[suite], abs=5e-5)


def test_the_authors_rule_for_fpr95_on_complete_sets(run: tuple[str, Path]) -> None:
    # Textures and the ID test set are complete, so only the training mean differs from the independent computation
    suite, folder = run
    train, test, textures = (Features.load(folder / "features" / name) for name in ("train", "test", "textures"))
    for spec, cells in EXPECTED[suite].items():
        detector = parse(spec).fit(train)
        id_scores = np.sort(detector.score(test).numpy())
        accepted = detector.score(textures).numpy() > id_scores[round(0.05 * len(id_scores))]
        tolerance = 0.11 if spec != "dice(0.9)+energy" else 1.5
        assert 100 * accepted.mean() == pytest.approx(cells["textures"][0], abs=tolerance), spec
