"""``benchmark``: every detector on every set."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from oodles.bench.rows import Rows
from oodles.bench.sets import ID_SETS, TEST, TRAIN, FeaturesFor, Source, fit_on_sets
from oodles.detectors import Detector
from oodles.detectors.parsing import as_detector
from oodles.distributed.processes import current
from oodles.errors import ArgumentError, DataError
from oodles.metrics import evaluate

Detectors = Sequence[str | Detector] | Mapping[str, str | Detector]


def benchmark(
    detectors: Detectors,
    *,
    model: nn.Module | None = None,
    train: Source,
    test: Source,
    ood: Mapping[str, Source],
    id_set: str = "id",
    run: str = "",
    bootstrap: int = 0,
    **options: Any,
) -> Rows:
    """Fit each detector on ``train`` and compare its scores on the ID set ``test`` with those on each OOD set.

    The sets are ``Features``, or with ``model`` what the network takes: loaders, or image sets with
    ``preprocessing=``. The network then runs once per input, whatever the number of detectors, and once more for each
    input step; detectors that have something to choose on the network are tuned on up to 1,000 inputs of ``train``.
    ``options`` are those of :func:`oodles.extract`; ``store`` is a folder that keeps the features of each set for the
    next benchmark. All detectors are fitted in one pass over ``train``.

    Returns one row per detector and OOD set, named by the detector's spec or key. Detectors may be given as text.
    ``bootstrap`` resamples add 95 % intervals; ``run`` names the checkpoint. Detectors that learn from labels, or from
    layers, that are not there are left out with a warning.

    >>> from oodles.features import Features
    >>> from oodles.testing import example_features
    >>> train, test = example_features().split(0.5)
    >>> other = Features(example_features(seed=1).embedding, head=train.head)
    >>> rows = benchmark(["energy", "knn(5)"], train=train, test=test, ood={"other": other})
    >>> print(rows)
               average other
    ────────────────────────
    energy   80.0/62.5  80.0
    knn(k=5) 13.0/98.2  13.0
    average: FPR95 / AUROC; each set: FPR95. In percent, lower FPR95 and higher AUROC are better
    >>> rows[0].n_id, rows[0].ood_set
    (150, 'other')
    """
    if not ood:
        raise DataError("there is no OOD set to compare with; give at least one")
    if {*ood} & {*ID_SETS}:
        raise ArgumentError(f"an OOD set cannot be called {' or '.join(ID_SETS)}; choose another name")
    named = name_detectors(detectors)
    sets = {TRAIN: train, TEST: test, **ood}
    features = fit_on_sets(list(named.values()), sets, model=model, **options)
    return evaluate_detectors(named, features, id_set=id_set, run=run, bootstrap=bootstrap)


def name_detectors(detectors: Detectors) -> dict[str, Detector]:
    """Make detectors from text, and name them by their spec unless they have names."""
    if isinstance(detectors, Mapping):
        return {name: as_detector(detector) for name, detector in detectors.items()}
    made = [as_detector(detector) for detector in detectors]
    named = {detector.spec: detector for detector in made}
    if len(named) < len(made):
        twice = next(detector.spec for detector in made if named[detector.spec] is not detector)
        raise ArgumentError(f"two detectors are called {twice!r}; give a mapping, with a name for each")
    return named


def evaluate_detectors(
    named: Mapping[str, Detector],
    features: Mapping[str, FeaturesFor],
    *,
    id_set: str = "id",
    run: str = "",
    bootstrap: int = 0,
) -> Rows:
    """Return the rows of fitted detectors; those that were left out of the fit have none.

    Of several processes, which all have all features, the first computes the rows.
    """
    rows = Rows()
    if current().rank:
        return rows
    for name, detector in named.items():
        if detector not in features[TEST]:
            continue
        id_scores = detector.score(features[TEST][detector])
        for ood_set in [each for each in features if each not in ID_SETS]:
            scores = detector.score(features[ood_set][detector])
            row = evaluate(
                id_scores, scores, detector=name, id_set=id_set, ood_set=ood_set, run=run, bootstrap=bootstrap
            )
            rows.append(row)
    return rows
