"""Detectors as scikit-learn estimators, checked by scikit-learn's own suite."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from oodles.detectors import KNN, parse
from oodles.detectors.estimator import OutlierDetector
from oodles.features import Features, Head


@parametrize_with_checks([OutlierDetector(), OutlierDetector("support(of='max')")])
def test_scikit_learn_accepts_it(estimator, check) -> None:
    check(estimator)


def _rows(seed: int = 0, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, 300)
    return generator.normal(0, 1, (300, 6)) + 5 * np.eye(6)[labels] + shift, np.array(["a", "b", "c"])[labels]


@pytest.mark.parametrize("detector", ["mahalanobis", "knn(5)", KNN(k=5), "vim", "dice(0.5)"])
def test_scores_are_the_detectors_own(detector) -> None:
    (rows, names), (test, _) = _rows(), _rows(1)
    model = LogisticRegression().fit(rows, names)
    estimator = OutlierDetector(detector, head=(model.coef_, model.intercept_)).fit(rows, names)
    labels = np.searchsorted(model.classes_, names)
    head = Head(model.coef_, model.intercept_)
    alone = (parse(detector) if isinstance(detector, str) else KNN(k=5)).fit(Features(rows, labels=labels, head=head))
    scores = alone.score(Features(test, head=head)).numpy()
    np.testing.assert_allclose(estimator.score_samples(test), scores, rtol=1e-4, atol=1e-4)
    assert (estimator.predict(rows) == 1).mean() == pytest.approx(0.95, abs=0.01)


def test_it_works_in_a_pipeline_and_a_grid_search() -> None:
    (rows, _), (far, _) = _rows(), _rows(1, shift=40.0)
    both, truth = np.concatenate([rows, far]), np.repeat([1, -1], 300)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), OutlierDetector("mahalanobis")),
        {"outlierdetector__detector": ["knn(5)", "support"], "outlierdetector__id_rate": [0.9, 0.99]},
        scoring=lambda fitted, rows, _=None: float((fitted.predict(rows) == 1).mean()),
        cv=2,
    ).fit(rows)
    assert search.best_params_["outlierdetector__id_rate"] == 0.99
    fitted = make_pipeline(StandardScaler(), OutlierDetector("support")).fit(rows)
    assert (fitted.predict(both) == truth).mean() > 0.95


@pytest.mark.parametrize("wrong", [{"id_rate": 0.0}, {"detector": "no_such"}, {"detector": "energy"}])
def test_what_cannot_be_fitted_is_a_value_error(wrong) -> None:
    with pytest.raises(ValueError, match=r"id_rate|no_such|logits"):
        OutlierDetector(**wrong).fit(_rows()[0])
