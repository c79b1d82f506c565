"""Thousands of simulated streams: false alarms are as rare as promised, calibration included, and drift is seen."""

import math

import numpy as np
import pytest
from scipy.stats import norm
from support.streams import bets_of, calibrations, cusum, ranks_of, run, said_of, window_test

from oodles.calibration import calibrate
from oodles.monitor import AlertRule, Monitor
from oodles.monitor.evidence import Bets, Evidence

SIZES = (100, 1_000, 10_000)


def margin(probability, streams):
    """Four standard deviations of a share of this many streams."""
    return 4 * math.sqrt(probability * (1 - probability) / streams)


def events_of(found, kind, generator, contamination=0.0):
    cuts = found.rejection if kind == "rejections" else found.small_p
    return lambda _: ranks_of(generator, len(cuts), contamination)[:, None] < cuts


@pytest.mark.parametrize("kind", ["rejections", "p_values"])
@pytest.mark.parametrize("size", SIZES)
def test_without_drift_alarms_are_as_rare_as_promised(size, kind):
    """Each stream has a calibration set of its own, so its randomness is part of it."""
    generator, streams, steps, every, error = np.random.default_rng(size), 2000, 500, 5_000, 0.2
    found = calibrations(size, streams, generator)
    events = events_of(found, kind, generator)
    result = run(bets_of(size, error)[kind], events, streams=streams, steps=steps, line=2 * every, wealth=True)
    promised = error / 4 + steps / (2 * every)  # of this kind: the bound may fail, and then alarms by chance
    assert np.mean(np.isfinite(result.first)) <= promised + margin(promised, streams)
    assert np.mean(result.best >= math.log(4 / error)) <= error / 2 + margin(error / 2, streams), "the whole stream"


@pytest.mark.parametrize("bound", [0.06, 0.4])
def test_at_the_bound_itself_the_number_of_alarms_is_nearly_the_promised_one(bound):
    """The worst case: events are exactly as frequent as allowed. A promise far from the truth would be of no use."""
    generator, streams, steps, line, error = np.random.default_rng(2), 2000, 800, 160.0, 0.1
    result = run(
        Bets((bound,)),
        lambda _: generator.random((streams, 1)) < bound,
        streams=streams,
        steps=steps,
        line=line,
        wealth=True,
    )
    expected = steps / line
    assert expected / 3 <= result.alarms.mean() <= expected + 4 * result.alarms.std() / math.sqrt(streams)
    reached = np.mean(result.best >= math.log(1 / error))
    assert error / 4 <= reached <= error + margin(error, streams)


def test_a_rate_that_is_taken_as_known_breaks_the_promise():
    """The same test with the nominal rate in place of its bound: these tests can fail."""
    generator, size, streams, steps, every = np.random.default_rng(3), 100, 1000, 1000, 10_000
    found = calibrations(size, streams, generator)
    result = run(Bets((0.05,)), events_of(found, "rejections", generator), streams=streams, steps=steps, line=2 * every)
    promised = 0.02 / 4 + steps / (2 * every)
    assert np.mean(np.isfinite(result.first)) > 2 * promised


def test_the_simulation_is_the_monitor():
    """The same stream, input by input and as one of many."""
    generator, size = np.random.default_rng(8), 400
    scores = generator.normal(size=size)
    threshold, rule = calibrate(scores), AlertRule(false_alarm_every=200, minimum=10, cooldown=0, error=0.1)
    stream = generator.normal(size=1500) - 3 * (generator.random(1500) < 0.15)
    monitor = Monitor(threshold, rule=rule)
    said = said_of(stream, threshold)
    monitor.observe(**said)
    levels = np.array([0.05, 0.1, 0.2, 0.35, 0.5])
    events = {"rejections": ~said["is_id"][:, None], "p_values": said["p_value"][:, None] <= levels}
    firsts = []
    for kind, bets in bets_of(size, 0.1).items():
        rows = events[kind]
        found = run(
            bets, lambda step, rows=rows: rows[step - 1][None], streams=1, steps=1500, line=400, minimum=10, wealth=True
        )
        _, places = Evidence(bets).observe(rows, 400, 10)
        assert (found.alarms[0], found.first[0]) == (len(places), places[0] + 1)
        assert monitor._evidence[kind].best == pytest.approx(found.best[0])
        firsts.append(found.first[0])
    assert monitor.alerts[0].since == min(firsts)


def test_contamination_is_found_soon_and_sooner_with_a_larger_calibration_set():
    generator, streams = np.random.default_rng(4), 200
    delays = {}
    for size in SIZES:
        found = calibrations(size, streams, generator)
        result = run(
            bets_of(size, 0.01)["rejections"],
            events_of(found, "rejections", generator, 0.2),
            streams=streams,
            steps=3000,
            line=2e4,
            until_all=True,
        )
        delays[size] = np.median(result.first)
    assert delays[10_000] <= delays[1_000] <= delays[100]
    assert delays[10_000] < 150
    assert delays[100] < 2000


def test_the_charts_that_it_is_compared_with():
    generator, streams = np.random.default_rng(6), 300
    after = norm.cdf(norm.ppf(0.05)) * 0.8 + 0.2 * norm.cdf(norm.ppf(0.05) + 3)

    def events(rate):
        return lambda _: generator.random(streams) < rate

    found = cusum(events(after), (0.05, after), streams=streams, steps=2000, limit=6.0)
    assert np.median(found) < 100
    assert np.mean(np.isfinite(cusum(events(0.05), (0.05, after), streams=streams, steps=300, limit=6.0))) < 0.2
    windows = window_test(events(after), streams=streams, steps=2000, size=100, most=15)
    assert {*np.unique(windows % 100)} == {0.0}
    assert np.median(windows) <= 200
