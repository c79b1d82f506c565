"""Bets beside slow loops, whatever the batches; and what makes them supermartingales."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oodles.monitor.evidence import EXCESS, Bets, Evidence

BOUNDS = st.lists(st.floats(0.02, 0.95), min_size=1, max_size=3).map(tuple)


def slow(bounds, stream, line, minimum):
    """Values after each input, alarms and the largest wealth, one number at a time."""
    pairs = [(event, b, b + e * (1 - b)) for event, b in enumerate(bounds) for e in EXCESS if b < 1]
    values, wealth, since = [0.0] * len(pairs), [1.0] * len(pairs), 0
    trace, alarms, best = [], [], 1.0
    for place, happened in enumerate(stream):
        since += 1
        for at, (event, b, q) in enumerate(pairs):
            stake = (q - b) / (b * (1 - b))
            factor = 1 + stake * (happened[event] - b)
            values[at] = (values[at] + 1) * factor
            wealth[at] *= factor
        trace.append(sum(values) / len(pairs))
        best = max(best, sum(wealth) / len(pairs))
        if trace[-1] >= line and since >= minimum:
            alarms.append(place)
            values, since = [0.0] * len(pairs), 0
    return trace, alarms, math.log(best)


@st.composite
def streams(draw):
    bounds = draw(BOUNDS)
    generator = np.random.default_rng(draw(st.integers(0, 10**6)))
    rate = draw(st.floats(0, 1))
    return bounds, generator.random((draw(st.integers(1, 150)), len(bounds))) < rate


@settings(max_examples=30, deadline=None)
@given(case=streams(), line=st.floats(1.5, 1e6), minimum=st.integers(1, 40))
def test_evidence_is_that_of_a_slow_loop(case, line, minimum):
    bounds, stream = case
    evidence = Evidence(Bets(bounds))
    trace, alarms = evidence.observe(stream, line, minimum)
    expected, at, best = slow(bounds, stream.tolist(), line, minimum)
    assert alarms == at
    np.testing.assert_allclose(trace, expected, rtol=1e-9)
    assert evidence.best == pytest.approx(best, abs=1e-9)
    assert evidence.inputs == len(stream)


@settings(max_examples=30, deadline=None)
@given(case=streams(), cuts=st.lists(st.integers(0, 150), max_size=6), line=st.floats(1.5, 1e6))
def test_batches_make_no_difference_to_a_single_bit(case, cuts, line):
    bounds, stream = case
    whole, parts, single = (Evidence(Bets(bounds)) for _ in range(3))
    trace, alarms = whole.observe(stream, line, 5)
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [parts.observe(stream[a:b], line, 5)[0] for a, b in pairwise(places)]
    rows = [single.observe(row[None], line, 5) for row in stream]
    assert np.concatenate(pieces).tobytes() == trace.tobytes() == np.concatenate([each for each, _ in rows]).tobytes()
    assert [place for place, (_, found) in enumerate(rows) if found] == alarms
    for other in (parts, single):
        assert other.values.tobytes() == whole.values.tobytes()
        assert (other.best, other.since, other.inputs) == (whole.best, whole.since, whole.inputs)


@settings(max_examples=30, deadline=None)
@given(bounds=BOUNDS, share=st.floats(0, 1))
def test_no_bet_is_expected_to_win_if_events_are_as_rare_as_their_bounds(bounds, share):
    bets = Bets(bounds)
    rates = share * np.array(bounds)[bets.event]
    expected = rates * bets.win + (1 - rates) * bets.lose
    assert (expected <= 1 + 1e-12).all()
    assert (bets.lose > 0).all()


def test_nothing_is_bet_on_what_is_certain_to_be_allowed():
    evidence = Evidence(Bets((1.0,)))
    trace, alarms = evidence.observe(np.ones((500, 1), dtype=bool), 2.0, 1)
    assert not trace.any()
    assert alarms == []
    assert evidence.best == evidence.value == 0.0


def test_evidence_does_not_overflow_while_it_waits_for_the_minimum():
    evidence = Evidence(Bets((1e-5,)))
    assert evidence.observe(np.ones((400, 1), dtype=bool), 1e6, 1000)[1] == []
    assert np.isfinite(evidence.values).all()
    assert evidence.observe(np.ones((700, 1), dtype=bool), 1e6, 1000)[1] == [599]
