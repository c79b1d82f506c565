"""``benchmark``: every detector on every set, from features that were extracted once."""

from collections.abc import Mapping, Sequence

from oodles.detectors import Detector, fit_together
from oodles.errors import DataError
from oodles.features import Features
from oodles.metrics import Names, Row, evaluate


def benchmark(
    detectors: Sequence[Detector] | Mapping[str, Detector],
    *,
    train: Features,
    test: Features,
    ood: Mapping[str, Features],
    id_set: str = "id",
    run: str = "",
    bootstrap: int = 0,
) -> list[Row]:
    """Fit each detector on ``train`` and compare its scores on the ID set ``test`` with those on each OOD set.

    All detectors are fitted in one pass over ``train``. Returns one row per detector and OOD set, named by the
    detector's spec or key. ``bootstrap`` resamples add 95 % intervals; ``run`` names the checkpoint.
    """
    if not ood:
        raise DataError("there is no OOD set to compare with; give at least one")
    named = detectors if isinstance(detectors, Mapping) else {detector.spec: detector for detector in detectors}
    fit_together(list(named.values()), train)
    return evaluate_detectors(named, test=test, ood=ood, id_set=id_set, run=run, bootstrap=bootstrap)


def evaluate_detectors(
    detectors: Mapping[str, Detector],
    *,
    test: Features,
    ood: Mapping[str, Features],
    id_set: str = "id",
    run: str = "",
    bootstrap: int = 0,
) -> list[Row]:
    """The rows of detectors that are already fitted."""
    rows = []
    for name, detector in detectors.items():
        id_scores = detector.score(test)
        for ood_set, features in ood.items():
            names = Names(detector=name, id_set=id_set, ood_set=ood_set, run=run)
            rows.append(evaluate(id_scores, detector.score(features), **names, bootstrap=bootstrap))
    return rows
