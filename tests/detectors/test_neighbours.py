"""KNN and NNGuide: the neighbours of a loop over all rows, and what happens if there are too few."""

import pytest
import torch
from support.detector_data import active

from oodles.detectors import KNN, neighbours, parse
from oodles.errors import FitWarning
from oodles.features import Features
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


def test_a_large_common_offset_does_not_hide_distances() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = 1000 + torch.randn(400, 64, generator=generator)  # cosines from 0.999998 on
    detector = KNN(k=5).fit(Features(rows[:300]))
    together = detector.score(Features(rows[300:]))
    alone = torch.cat([detector.score(Features(row[None])) for row in rows[300:]])
    unit = torch.nn.functional.normalize(rows.double(), dim=1)
    exact = -torch.cdist(unit[300:], unit[:300]).square().kthvalue(5, dim=1).values / 2
    assert (together - alone).abs().max() < 0.01 * together.std()
    assert (together - exact).abs().max() < 0.01 * exact.std()
