"""Keys of scores: sorting them sorts the scores, ID before OOD where they are equal."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oodles.score_keys import score_keys

KINDS: list[Any] = [np.float16, np.float32, np.float64, np.int64, np.uint8]
VALUES = [0.0, -0.0, 1.0, 5e-324, -5e-324, 1e-45, -1e-45, 3.0, -3.0, 1e-30, 3e38, -3e38, 1.7e308, -1.7e308, -np.inf]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_keys_sort_like_scores(kind: Any, data: st.DataObject) -> None:
    """Also where the range is so wide that the bits of the scores leave none for the label."""
    floats = st.sampled_from(VALUES) | st.floats(-100, 100)
    drawn = st.lists(floats if np.dtype(kind).kind == "f" else st.integers(0, 9), min_size=1, max_size=12)
    with np.errstate(over="ignore"):
        ids, oods = (np.array(data.draw(drawn)).astype(kind) for _ in range(2))
    kept = ids.copy(), oods.copy()
    got = np.argsort(score_keys(ids, oods), kind="stable").tolist()
    both = np.concatenate([ids, oods]).tolist()
    assert got == sorted(range(len(both)), key=lambda place: (both[place], place >= len(ids)))
    assert np.array_equal(ids, kept[0])
    assert np.array_equal(oods, kept[1])
