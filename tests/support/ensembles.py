"""Features for tests of ensembles, and fitting in parts."""

from collections.abc import Iterable

from torch import Tensor

from oodles.detectors import Detector
from oodles.features import Features
from oodles.testing import example_features


def extracted(rows: int = 240, width: int = 12, classes: int = 4, seed: int = 0) -> Features:
    """Features as ``extract`` gives them, with the network's own logits."""
    made = example_features(rows, width, classes, seed)
    return Features(made.embedding, logits=made.logits, labels=made.labels, head=made.head)


def with_labels(features: Features, labels: Tensor | None) -> Features:
    return Features(features.embedding, logits=features.logits, labels=labels, head=features.head)


def with_predicted_labels(features: Features) -> Features:
    return with_labels(features, features.logits.argmax(dim=1))


def fit_in_parts(detector: Detector, parts: Iterable[Features]) -> Detector:
    for part in parts:
        detector.partial_fit(part)
    return detector.finish()
