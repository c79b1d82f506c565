"""Shapes: each is its formula, percentiles are of the raw ID activations, and settings are checked."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from reference import detectors as slow
from support.detector_data import Pair, assert_matches, reference_rows, train_and_test

from oodles.detectors import ASHB, VRA, LogitDetector, OptFS, ReAct
from oodles.errors import ArgumentError, DataError
from oodles.features import Features, Head
from oodles.testing import example_features


@pytest.mark.parametrize("percentile", [0, 1, 50, 85, 90, 95, 99.5, 100])
def test_react_clips_at_numpys_percentile(features: Features, percentile: float) -> None:
    detector = ReAct(percentile=percentile).fit(features)
    want = np.percentile(features.embedding.double().numpy(), percentile)
    assert float(detector.threshold_) == float(np.float32(want))


@pytest.mark.parametrize("percentile", [50, 90])
def test_percentiles_of_each_unit_are_numpys(features: Features, percentile: float) -> None:
    raw = features.embedding.double().numpy()
    react = ReAct(percentile=percentile, per="unit").fit(features)
    np.testing.assert_allclose(react.threshold_, np.percentile(raw, percentile, axis=0), rtol=1e-6)


def test_a_chain_of_clips_takes_every_percentile_of_the_raw_activations(features: Features) -> None:
    chain = LogitDetector(shape=[ReAct(percentile=60), ReAct(percentile=80)]).fit(features)
    raw = features.embedding.double().numpy()
    got = [float(shape.threshold_) for shape in chain.shapes]
    assert got == [float(np.float32(np.percentile(raw, percentile))) for percentile in (60, 80)]
    # the lower of the two decides
    assert torch.equal(chain.score(features), ReAct(percentile=60).fit(features).score(features))


# OptFS ------------------------------------------------------------------------------------------


def clear_of_edges(rows: slow.Rows, bins: int) -> bool:
    """Whether no activation is so near the edge of a bin that float32 may put it on the other side."""
    low, high = slow.optfs_ends(rows)
    places = (np.concatenate([rows.h.ravel(), rows.test_h.ravel()]) - low) / (high - low) * bins
    return bool(np.abs(places - places.round()).min() > 3e-5)


@pytest.mark.parametrize("bins", [2, 7, 100])
@pytest.mark.parametrize("shift", [0.0, 1.0])
@settings(max_examples=8, deadline=None)
@given(pair=train_and_test())
def test_optfs_matches_the_reference(bins: int, shift: float, pair: Pair) -> None:
    """Also on embeddings of both signs."""
    train, test = (Features(each.embedding - shift, labels=each.labels, head=each.head) for each in pair)
    rows = reference_rows(train, test)
    assume(clear_of_edges(rows, bins))
    assert_matches(f"optfs({bins})", lambda rows: slow.optfs(rows, bins), (train, test))


def test_optfs_factors_by_hand() -> None:
    """Two rows, one unit each in the lower and the upper half; what lowers the predicted class's logit is negative."""
    embedding = torch.tensor([[0.0, 1.0, 9.0], [1.0, 2.0, 10.0]])
    head = Head(torch.tensor([[-4.0, -4.0, 3.0], [0.0, 0.0, 0.0]]))
    detector = OptFS(bins=2).fit(Features(embedding, head=head))
    # row 0 adds -4 to the lower bin and 27 to the upper, row 1 -12; its 10 is the maximum and so outside
    added = torch.tensor([-4.0 - 12.0, 27.0])
    torch.testing.assert_close(detector.factors_, 1000 * added / added.norm())
    shaped = detector.transform(torch.tensor([[-5.0, 1.0, 9.0], [1e9, 10.0, 5.5]]))
    low, high = detector.factors_.tolist()
    np.testing.assert_allclose(shaped, [[0, low, 9 * high], [0, 0, 5.5 * high]], rtol=1e-6)


def test_optfs_keeps_nan_and_zeroes_what_lies_outside() -> None:
    detector = OptFS().fit(example_features())
    nan, inf = float("nan"), float("inf")
    shaped = detector.transform(torch.tensor([[nan, 1.0], [1e30, -1e30], [0.0, 0.0]]))
    assert torch.isnan(shaped).tolist() == [[True, False], [False, False], [False, False]]
    assert shaped[1:].tolist() == [[0, 0], [0, 0]]
    assert torch.isnan(detector(torch.full((1, 24), nan), torch.zeros(1, 5))).all()
    assert torch.isnan(detector(torch.full((1, 24), inf), torch.zeros(1, 5))).all()


def test_optfs_refuses_activations_that_are_all_equal_and_a_single_bin() -> None:
    features = example_features()
    with pytest.raises(DataError, match=r"all activations are equal \(0\.5\)"):
        OptFS().fit(Features(torch.full_like(features.embedding, 0.5), head=features.head))
    with pytest.raises(ArgumentError, match="bins=1 must be a whole number from 2"):
        OptFS(bins=1)


# Negative activations -----------------------------------------------------------------------------

SIGNED = torch.tensor([[-6.0, 4.0, -1.0, 2.0], [-3.0, -2.0, -5.0, -4.0], [0.0, 0.0, 0.0, 0.0]])


def fitted(detector: LogitDetector, embedding: torch.Tensor = SIGNED) -> LogitDetector:
    return detector.fit(Features(embedding, head=Head(torch.eye(embedding.shape[1]))))


def test_react_clips_negative_activations_only_from_above() -> None:
    assert fitted(ReAct(threshold=1.0)).transform(SIGNED)[:2].tolist() == [[-6, 1, -1, 1], [-3, -2, -5, -4]]
    assert fitted(ReAct(threshold=-2.0)).transform(SIGNED)[1].tolist() == [-3, -2, -5, -4]


def test_vra_zeroes_negative_activations_below_each_units_percentile() -> None:
    vra = fitted(VRA(low=50, high=100), torch.tensor([[-4.0, 1.0], [-2.0, 2.0], [-1.0, 3.0]]))
    assert vra.low_.tolist() == [-2, 2]
    assert vra.transform(torch.tensor([[-4.0, -4.0], [-2.0, 2.0], [5.0, 5.0]])).tolist() == [[0, 0], [-2, 2], [-1, 3]]


def test_ash_b_never_turns_the_largest_activations_into_negative_ones() -> None:
    """The sum of the first row is -1, of its positive part 6."""
    assert fitted(ASHB(percentile=50)).transform(SIGNED).tolist() == [[0, 3, 0, 3], [0, 0, 0, 0], [0, 0, 0, 0]]
