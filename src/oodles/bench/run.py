"""``benchmark``: every detector on every set, from features that were extracted once."""

import warnings
from collections.abc import Mapping, Sequence

from oodles.bench.rows import Rows
from oodles.detectors import Detector, fit_together
from oodles.detectors.parsing import as_detector
from oodles.errors import ArgumentError, DataError, FitWarning
from oodles.features import Features
from oodles.metrics import Names, evaluate


def benchmark(
    detectors: Sequence[str | Detector] | Mapping[str, str | Detector],
    *,
    train: Features,
    test: Features,
    ood: Mapping[str, Features],
    id_set: str = "id",
    run: str = "",
    bootstrap: int = 0,
) -> Rows:
    """Fit each detector on ``train`` and compare its scores on the ID set ``test`` with those on each OOD set.

    All detectors are fitted in one pass over ``train``. Returns one row per detector and OOD set, named by the
    detector's spec or key. ``bootstrap`` resamples add 95 % intervals; ``run`` names the checkpoint. Detectors may be
    given as text. Those that learn from labels are left out, with a warning, if ``train`` has none.

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
    named = _applicable(_named(detectors), train)
    fit_together(list(named.values()), train)
    return evaluate_detectors(named, test=test, ood=ood, id_set=id_set, run=run, bootstrap=bootstrap)


def _named(detectors: Sequence[str | Detector] | Mapping[str, str | Detector]) -> dict[str, Detector]:
    if isinstance(detectors, Mapping):
        return {name: as_detector(detector) for name, detector in detectors.items()}
    made = [as_detector(detector) for detector in detectors]
    named = {detector.spec: detector for detector in made}
    if len(named) < len(made):
        twice = next(detector.spec for detector in made if named[detector.spec] is not detector)
        raise ArgumentError(f"two detectors are called {twice!r}; give a mapping, with a name for each")
    return named


def _applicable(named: Mapping[str, Detector], train: Features) -> dict[str, Detector]:
    """Without labels, the detectors that need none."""
    without = [name for name, detector in named.items() if "labels" in detector.learns_from]
    if train.holds("labels") or not without:
        return dict(named)
    if len(without) == len(named):
        raise DataError(f"{without[0]} learns from labels, which {train} does not have; extract them with the features")
    warnings.warn(f"left out, because {train} has no labels: {', '.join(without)}", FitWarning, stacklevel=3)
    return {name: detector for name, detector in named.items() if name not in without}


def evaluate_detectors(
    detectors: Mapping[str, Detector],
    *,
    test: Features,
    ood: Mapping[str, Features],
    id_set: str = "id",
    run: str = "",
    bootstrap: int = 0,
) -> Rows:
    """The rows of detectors that are already fitted."""
    rows = Rows()
    for name, detector in detectors.items():
        id_scores = detector.score(test)
        for ood_set, features in ood.items():
            names = Names(detector=name, id_set=id_set, ood_set=ood_set, run=run)
            rows.append(evaluate(id_scores, detector.score(features), **names, bootstrap=bootstrap))
    return rows
