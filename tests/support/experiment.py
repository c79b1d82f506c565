"""A small experiment as features: training and test rows of one kind, OOD sets of other kinds, one head."""

from typing import Any

from oodles.features import Features, Head
from oodles.testing import example_features


def ood_features(head: Head, seed: int, rows: int = 110) -> Features:
    return Features(example_features(rows, head.width, head.classes, seed=seed).embedding, head=head)


def experiment() -> dict[str, Any]:
    """The arguments ``train``, ``test`` and ``ood`` of a benchmark."""
    whole = example_features(420, 18, 5, seed=1)
    assert whole.head is not None
    ood = {"near": ood_features(whole.head, 2), "far": ood_features(whole.head, 3, rows=70)}
    return {"train": whole[:300], "test": whole[300:], "ood": ood}
