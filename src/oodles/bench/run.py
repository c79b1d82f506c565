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
    """Fit each detector on ``train`` and tell ID ``test`` rows from each OOD set; one row a pair.

    All detectors learn in one pass over ``train``. Rows carry the detector's spec, or the name it is given
    under. ``bootstrap`` resamples add 95 % intervals. ``run`` names the checkpoint where several are compared.
    """
    if not ood:
        raise DataError("there is no OOD set to tell the ID rows from; give at least one")
    named = detectors if isinstance(detectors, Mapping) else {detector.spec: detector for detector in detectors}
    fit_together(list(named.values()), train)
    return judge(named, test=test, ood=ood, id_set=id_set, run=run, bootstrap=bootstrap)


def judge(
    detectors: Mapping[str, Detector],
    *,
    test: Features,
    ood: Mapping[str, Features],
    id_set: str = "id",
    run: str = "",
    bootstrap: int = 0,
) -> list[Row]:
    """The rows of detectors that are fitted already."""
    rows = []
    for name, detector in detectors.items():
        id_scores = detector.score(test)
        for ood_set, features in ood.items():
            names = Names(detector=name, id_set=id_set, ood_set=ood_set, run=run)
            rows.append(evaluate(id_scores, detector.score(features), **names, bootstrap=bootstrap))
    return rows
