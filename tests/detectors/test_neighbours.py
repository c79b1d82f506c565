"""KNN and NNGuide: the neighbours of a loop over all rows, and what happens if there are too few."""

import pytest
import torch
from support.detector_data import active

from oodles.detectors import KNN, neighbours, parse
from oodles.errors import FitWarning
from oodles.testing import example_features


@pytest.mark.parametrize("text", ["knn(7)", "nnguide(7)"])
@pytest.mark.parametrize("chunk", [1, 5, 120])
def test_a_bank_compared_in_chunks_gives_the_same_neighbours(text, chunk, monkeypatch):
    features = active(120, 9, 4, 0)
    detector = parse(text).fit(features)
    want = detector.score(features)
    monkeypatch.setattr(neighbours, "CHUNK", chunk)
    torch.testing.assert_close(detector.score(features), want)


def test_at_most_bank_rows_are_kept() -> None:
    detector = KNN(k=3, bank=40).fit(example_features(300))
    assert detector.bank_.shape == (40, 24)


@pytest.mark.parametrize("text", ["knn", "nnguide"])
def test_with_fewer_rows_than_k_all_are_neighbours(text: str) -> None:
    features = example_features(6)
    with pytest.warns(FitWarning, match=r"\(k=10, bank=10000\): there are only 6 rows, so k is 6"):
        detector = parse(text).fit(features)
    assert torch.equal(detector.score(features), parse(f"{text}(6)").fit(features).score(features))
