"""``OutlierDetector``: any detector that works on embeddings as a scikit-learn estimator."""

import copy
import warnings
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from oodles.detectors.base import Detector
from oodles.detectors.parsing import parse
from oodles.errors import FitWarning
from oodles.extras import needed_by
from oodles.features import Features, Head

with needed_by("oodles.detectors.estimator"):
    from sklearn.base import BaseEstimator, OutlierMixin
    from sklearn.preprocessing import LabelEncoder
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data

Array = npt.NDArray[Any]


class OutlierDetector(OutlierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Fit a detector on rows of embeddings and predict which rows are unlike them, wherever ``IsolationForest`` fits.

    ``y`` are class labels for the detectors that learn from them (Mahalanobis); others ignore it.

    Parameters
    ----------
    detector : str or Detector, default="knn(5)"
        A detector, or its text. It is copied, so an instance can be used again.
    head : Head or pair of arrays, default=None
        The last layer, for detectors that need logits: ``Head(coef, intercept)`` or ``(coef_, intercept_)``.
    id_rate : float, default=0.95
        The share of the training rows that ``predict`` accepts. Training rows score higher than new ones, so set the
        threshold on rows of their own (:func:`oodles.calibrate` of ``score_samples``) if the rate matters.

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal([3.0, 1.0], 0.1, size=(200, 2))
    >>> OutlierDetector("knn(5)").fit(rows).predict([[3.0, 1.0], [1.0, -3.0]])
    array([ 1, -1])
    """

    def __init__(self, detector: str | Detector = "knn(5)", *, head: Any = None, id_rate: float = 0.95) -> None:
        self.detector = detector
        self.head = head
        self.id_rate = id_rate

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: N803  # scikit-learn's names
        """Fit the detector on ID rows ``X``, with class labels ``y`` if the detector learns from them."""
        if not 0 < self.id_rate <= 1:
            raise ValueError(f"id_rate={self.id_rate} must lie in (0, 1]")
        rows = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        detector = parse(self.detector) if isinstance(self.detector, str) else copy.deepcopy(self.detector)
        labels = None
        if "labels" in detector.learns_from and y is not None:
            check_classification_targets(y)
            labels = LabelEncoder().fit_transform(y)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # few rows are ordinary in a grid search
            self.detector_ = detector.fit(self._features(rows, labels)).double()
        scores = self.score_samples(X)
        self.offset_ = float(np.quantile(scores, 1 - self.id_rate, method="lower"))
        return self

    def score_samples(self, X: Any) -> Array:  # noqa: N803
        """Return the scores of rows ``(n,)``, larger = more in-distribution."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=np.float64, reset=False)
        scores: Array = self.detector_.score(self._features(rows, None)).numpy()
        return scores

    def decision_function(self, X: Any) -> Array:  # noqa: N803
        """Return the scores minus the threshold: negative for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return +1 for rows like the training rows and -1 for outliers."""
        return np.where(self.decision_function(X) >= 0, 1, -1)

    def _features(self, rows: Array, labels: Array | None) -> Features:
        head = self.head if self.head is None or isinstance(self.head, Head) else Head(*self.head)
        # without a head, logits only say how many classes there are
        logits = None if head is not None or labels is None else np.zeros((len(rows), labels.max() + 1))
        return Features(np.array(rows), logits=logits, labels=labels, head=head)  # a copy: scikit-learn's may be locked
