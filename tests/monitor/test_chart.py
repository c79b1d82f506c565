"""The chart shows what the monitor knows."""

import numpy as np
import pytest
from support.streams import said_of

from oodles.calibration import Threshold, calibrate
from oodles.errors import DataError
from oodles.monitor import AlertRule, Monitor
from oodles.monitor.chart import draw


@pytest.mark.parametrize("known", [True, False])
def test_rates_limits_evidence_and_alarms_are_drawn(known):
    threshold = calibrate(np.random.default_rng(0).normal(size=500))
    if not known:
        threshold = Threshold(**threshold.as_record())
    monitor = Monitor(threshold, rule=AlertRule(false_alarm_every=1000, minimum=50), window=50)
    scores = np.random.default_rng(1).normal(size=620)
    scores[300:] -= 4
    monitor.observe(**said_of(scores, threshold))
    above, below = draw(monitor).axes
    limits, rates = above.patches
    assert rates.get_data().edges.tolist() == [*range(0, 601, 50), 620]
    np.testing.assert_allclose(rates.get_data().values, [100 * each["rate"] for each in monitor.status()["windows"]])
    assert (limits.get_data().values >= limits.get_data().baseline).all()
    assert len(below.patches) == 1 + known
    verticals = [line for line in above.lines if len({*line.get_xdata()}) == 1]
    assert [line.get_xdata()[0] for line in verticals] == [monitor.alerts[0].since]


def test_an_empty_stream_cannot_be_drawn():
    with pytest.raises(DataError, match="nothing to draw"):
        draw(Monitor(Threshold(0.0, 0.95, 100)))
