"""``benchmark``: every detector on every set, from features that were extracted once."""

from collections.abc import Callable, Mapping, Sequence

from oodles.detectors import Detector
from oodles.errors import DataError
from oodles.features import Features
from oodles.metrics import Row, evaluate


def benchmark(
    detectors: Sequence[Detector] | Mapping[str, Detector],
    *,
    train: Features,
    test: Features,
    ood: Mapping[str, Features],
    id_set: str = "id",
    bootstrap: int = 0,
    done: Callable[[str], None] | None = None,
) -> list[Row]:
    """Fit each detector on ``train`` and tell ID ``test`` rows from each OOD set; one row a pair.

    Rows carry the detector's spec, or the name it is given under. ``bootstrap`` resamples add 95 %
    intervals. ``done`` is called with each detector's name when its rows are there.
    """
    if not ood:
        raise DataError("there is no OOD set to tell the ID rows from; give at least one")
    named = detectors if isinstance(detectors, Mapping) else {detector.spec: detector for detector in detectors}
    rows = []
    for name, detector in named.items():
        id_scores = detector.fit(train).score(test)
        rows += [
            evaluate(
                id_scores,
                detector.score(features),
                detector=name,
                id_set=id_set,
                ood_set=ood_set,
                bootstrap=bootstrap,
            )
            for ood_set, features in ood.items()
        ]
        if done is not None:
            done(name)
    return rows
