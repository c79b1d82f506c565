"""``Monitor``: batches and restarts make no difference; alarms follow their rule; bad input is refused."""

import json
from datetime import datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.streams import said_of

from oodles.calibration import Threshold, calibrate
from oodles.errors import ArgumentError, DataError, FileError
from oodles.monitor import AlertRule, Monitor
from oodles.monitor.replicas import merge
from oodles.records.files import write_record

CLASSES = ("cat", "dog\n", "ship")
QUICK = AlertRule(false_alarm_every=500, minimum=20, cooldown=300, error=0.1)
KEYS = ("inputs", "rejected", "rate", "expected", "windows", "alarm", "evidence", "classes")


def threshold_of(size=400, seed=0, **changes):
    made = calibrate(np.random.default_rng(seed).normal(size=size).astype(np.float32))
    return Threshold(**{**made.as_record(), "id_scores": made.id_scores, **changes})


THRESHOLD, LARGE = threshold_of(), threshold_of(2000)


def stream(inputs, contamination=0.0, seed=1, threshold=THRESHOLD):
    """What a guard says about a stream, as the arguments of ``observe``."""
    generator = np.random.default_rng(seed)
    score = generator.normal(size=inputs) - 4 * (generator.random(inputs) < contamination)
    score[generator.random(inputs) < 0.002] = np.nan
    return {**said_of(score, threshold), "label": generator.integers(0, 3, inputs)}


def part(batch, start, stop):
    return {name: values[start:stop] for name, values in batch.items()}


def monitor_of(threshold=THRESHOLD, rule=QUICK, **options):
    return Monitor(threshold, classes=CLASSES, guard="a" * 64, rule=rule, **{"window": 50, **options})


def load(path, threshold=THRESHOLD, guard="a" * 64, **options):
    return Monitor.load(path, threshold=threshold, guard=guard, **options)


def observe_all(monitor, batch, size):
    found = []
    for start in range(0, len(batch["score"]), size):
        found += monitor.observe(**part(batch, start, start + size))
    return found


def test_the_example_of_the_service():
    monitor = Monitor(THRESHOLD, classes=CLASSES, guard="g", rule=AlertRule())
    assert monitor.status()["rate"] is None
    assert monitor.observe(**stream(1000)) == []
    monitor.count_errors(3)
    status = json.loads(json.dumps(monitor.status(), allow_nan=False))
    assert {*KEYS} <= {*status}
    assert (status["inputs"], status["errors"], status["alarm"]) == (1000, 3, None)
    assert status["rate"] == status["rejected"] / 1000
    assert status["expected"]["rate"] < status["expected"]["upper"] < 0.2
    assert {*status["windows"][0]} == {"first", "last", "rate", "low", "high"}
    assert [window["first"] for window in status["windows"]] == [1, 201, 401, 601, 801]
    assert status["windows"][-1]["last"] == 1000
    assert {*status["evidence"]} == {"rejections", "p_values", "alarm_at"}
    assert sum(each["count"] for each in status["classes"]) == 1000
    assert {each["name"] for each in status["classes"]} == {"cat", "dog\\n", "ship"}
    assert sum(status["scores"]["counts"]) + status["scores"]["not_finite"] == 1000
    assert status["scores"]["distance"] < status["scores"]["limit"]


@settings(max_examples=20, deadline=None)
@given(size=st.integers(1, 400), contamination=st.sampled_from([0.0, 0.2, 0.6]), seed=st.integers(0, 99))
def test_batches_make_no_difference(size, contamination, seed):
    batch = stream(400, contamination, seed)
    whole, parts = monitor_of(), monitor_of()
    alarms = whole.observe(**batch)
    assert observe_all(parts, batch, size) == alarms
    assert parts.status() == whole.status()
    assert parts.windows == whole.windows


@settings(max_examples=10, deadline=None)
@given(cut=st.integers(0, 600), contamination=st.sampled_from([0.0, 0.2]), seed=st.integers(0, 99))
def test_a_restart_makes_no_difference(tmp_path_factory, cut, contamination, seed):
    path = tmp_path_factory.mktemp("state") / "monitor.json"
    batch = stream(600, contamination, seed)
    whole, before = monitor_of(), monitor_of()
    alarms = whole.observe(**batch)
    found = before.observe(**part(batch, 0, cut))
    before.count_errors(2)
    before.save(path)
    after = load(path, classes=CLASSES)
    assert after.status() == before.status()
    assert found + after.observe(**part(batch, cut, 600)) == alarms
    assert after.status() == {**whole.status(), "errors": 2}
    assert (after.rule, after.alerts, after.windows) == (whole.rule, whole.alerts, whole.windows)


def test_the_state_is_a_few_kilobytes_however_long_the_stream(tmp_path):
    monitor = monitor_of(threshold_of(10_000), window=20)
    observe_all(monitor, stream(9000, 0.1, threshold=monitor.threshold), 500)
    monitor.save(tmp_path / "monitor.json")
    assert len(monitor.status()["windows"]) == 200
    assert (tmp_path / "monitor.json").stat().st_size < 12_000


def test_contamination_raises_one_alarm_that_stands_until_the_stream_has_been_quiet():
    monitor = monitor_of(LARGE, AlertRule(false_alarm_every=50_000, minimum=20, cooldown=300, error=0.1))

    def observe(inputs, contamination=0.0):
        return monitor.observe(**stream(inputs, contamination, threshold=LARGE))

    assert observe(1000) == []
    alarms = observe(2000, 0.5)
    assert len(alarms) == 1
    assert 1000 < alarms[0].since < 1100, "at the beginning of the contamination"
    assert monitor.status()["alarm"] == alarms[0].as_record() == monitor.alert.as_record()
    assert monitor.status()["alarms"] == 1
    observe(250)
    assert monitor.alert == alarms[0]
    observe(100)
    assert monitor.alert is monitor.status()["alarm"] is None
    assert len(observe(200, 0.5)) == 1, "and then a new one"
    assert monitor.raised == 2


def test_an_alarm_is_acknowledged_until_the_next(tmp_path):
    monitor = monitor_of(LARGE, AlertRule(false_alarm_every=50_000, minimum=20, cooldown=300, error=0.1))
    monitor.acknowledge()
    assert not monitor.acknowledged, "there is none"
    monitor.observe(**stream(500, 0.5, threshold=LARGE))
    monitor.acknowledge()
    monitor.save(tmp_path / "m.json")
    again = load(tmp_path / "m.json", LARGE)
    assert again.status()["acknowledged"]
    assert again.alert is not None
    assert again.observe(**stream(100, 0.5, threshold=LARGE)) == []
    assert again.acknowledged, "the same alarm"
    again.observe(**stream(700, threshold=LARGE))
    assert not again.acknowledged
    again.observe(**stream(200, 0.5, threshold=LARGE))
    assert again.alert is not None
    assert not again.acknowledged


def test_replicas_together_alarm_as_soon_as_one_monitor_would():
    """Merged at the end of each slot, 30 inputs: within 1.3 times the inputs that a single monitor needs."""
    ratios = []
    for seed in range(11):
        generator = np.random.default_rng(seed)
        score = generator.normal(size=3000) - 3 * ((generator.random(3000) < 0.1) & (np.arange(3000) >= 1500))
        replica = generator.integers(0, 3, 3000)
        (first, *_), monitors = Monitor(LARGE).observe(**said_of(score, LARGE)), [Monitor(LARGE) for _ in range(3)]
        for slot, start in enumerate(range(0, 3000, 30)):
            for number, monitor in enumerate(monitors):
                part = score[start : start + 30][replica[start : start + 30] == number]
                monitor.observe(**said_of(part, LARGE), time=60.0 * slot)
        merged = merge({str(number): each for number, each in enumerate(monitors)})
        slots = datetime.fromisoformat(merged["alarm"]).timestamp() / 60
        ratios.append((30 * slots - 1500) / (first.since - 1500))
    assert 1 <= np.median(ratios) <= 1.3


def test_merged_evidence_of_id_inputs_raises_no_alarm():
    peaks = []
    for seed in range(40):
        monitors = {str(number): Monitor(LARGE) for number in range(3)}
        for slot in range(30):
            for number, monitor in enumerate(monitors.values()):
                score = np.random.default_rng([seed, slot, number]).normal(size=10)
                monitor.observe(**said_of(score, LARGE), time=60.0 * slot)
        peaks.append(merge(monitors, now=20 * 60 + 10)["peak"])
        assert merge(monitors)["alarm"] is None
    assert np.mean(peaks) <= 600, "at most the number of inputs, of 20 complete slots"


def test_no_alarm_before_the_minimum():
    monitor = monitor_of(LARGE, AlertRule(false_alarm_every=10, minimum=150, cooldown=0, error=0.1))
    places = [alarm.since for alarm in monitor.observe(**stream(1000, 1.0, threshold=LARGE))]
    assert {place % 150 for place in places if place <= 150} == {0}
    for kind in ("rejections", "p_values"):
        found = [each.since for each in monitor.alerts if each.kind == kind]
        assert (np.diff([0, *found]) >= 150).all()


def test_low_scores_above_the_threshold_are_seen_by_p_values_alone():
    threshold = threshold_of(5000)
    score = np.random.default_rng(5).uniform(threshold.value, np.median(threshold.id_scores), 2000)
    monitor = monitor_of(threshold)
    alarms = monitor.observe(**said_of(score, threshold))
    assert monitor.rejected == 0
    assert [alarm.kind for alarm in alarms] == ["p_values"]
    assert monitor.differs
    scores = monitor.status()["scores"]
    assert scores["distance"] > scores["limit"]


def test_without_calibration_scores_only_rejections_are_watched():
    monitor = monitor_of(Threshold(**LARGE.as_record()))
    batch = stream(2000, 0.5, threshold=monitor.threshold)
    assert np.isnan(batch["p_value"]).all()
    assert [alarm.kind for alarm in monitor.observe(**batch)] == ["rejections"]
    status = monitor.status()
    assert status["evidence"]["p_values"] is status["scores"] is None
    assert status["evidence"]["alarm_at"] == QUICK.false_alarm_every
    assert monitor_of().alarm_at == 2 * QUICK.false_alarm_every, "the two kinds share the promise"


def test_an_unknown_p_value_is_no_evidence():
    batch = stream(300, 1.0)
    batch["p_value"][:] = np.nan
    monitor = monitor_of()
    monitor.observe(**batch)
    assert monitor.status()["evidence"]["p_values"] == 0
    assert monitor.raised == 1


def test_predicted_classes_are_compared_with_counts_if_there_are_any():
    monitor = monitor_of(class_counts={0: 50, 1: 50})
    monitor.observe(**{**stream(100), "label": np.full(100, 7)})
    assert monitor.status()["classes"] == [{"name": "class 7", "count": 100, "expected": 0.0}]
    assert monitor.status()["class_distance"] == 1.0
    assert monitor_of().status()["class_distance"] is None


@pytest.mark.parametrize("label", [-5, 10**12])
def test_labels_may_be_anything_and_memory_is_bounded(label, tmp_path):
    monitor = monitor_of()
    monitor.observe(**{**stream(20_000), "label": np.arange(20_000) + label})
    assert len(monitor.status()["classes"]) == 100
    assert monitor.status()["classes"][0]["name"] == "others"
    monitor.save(tmp_path / "m.json")
    assert load(tmp_path / "m.json").inputs == 20_000


def test_a_state_of_another_guard_threshold_or_error_is_refused(tmp_path):
    path = tmp_path / "m.json"
    monitor_of().save(path)
    for change in ({"guard": "b" * 64}, {"threshold": threshold_of(seed=3)}, {"threshold": threshold_of(value=0.0)}):
        with pytest.raises(FileError, match=r"m\.json is the state of another guard or threshold"):
            load(path, **change)
    with pytest.raises(FileError, match=r"was begun with error=0\.1"):
        load(path, rule=AlertRule(error=0.2))
    assert load(path, rule=AlertRule(false_alarm_every=7, error=0.1)).alarm_at == 14, (
        "what evidence does not depend on may change"
    )


def test_a_damaged_state_is_refused(tmp_path):
    monitor, path = monitor_of(), tmp_path / "m.json"
    monitor.observe(**stream(100, 0.4))
    monitor.save(path)
    content = path.read_text()
    with pytest.raises(FileError, match="does not exist"):
        load(tmp_path / "none.json")
    for damaged in (content[:-40], content.replace('"rejected": ', '"rejected": 1'), "", "[]"):
        path.write_text(damaged)
        with pytest.raises(FileError, match=r"m\.json"):
            load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": -1},
        {"rejected": 10**9},
        {"windows": [[0, 0, 0.0, 0.0]]},
        {"windows": [[5, 1, 0.0, 0.0]] * 201},
        {"scores": [1]},
        {"stands": True, "alerts": []},
        {"evidence": {}},
        {"classes": {"x": 1}},
        {"rule": {"false_alarm_every": 1, "minimum": 1, "cooldown": 0, "error": 2.0}},
        {"surprise": 1},
    ],
)
def test_a_forged_state_is_refused(tmp_path, change):
    path = tmp_path / "m.json"
    monitor_of().save(path)
    record = json.loads(path.read_text())
    del record["seal"]
    write_record(path, {**record, **change})
    with pytest.raises(FileError, match=r"m\.json"):
        load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"score": np.zeros(3)}, "one score, p-value, label and decision per input"),
        ({"is_id": np.ones(2)}, "is_id must be true or false"),
        ({"label": np.zeros(2)}, "labels must be whole numbers"),
        ({"score": np.zeros((2, 1))}, "one score"),
    ],
)
def test_batches_that_do_not_fit_are_refused(change, message):
    monitor, batch = monitor_of(), stream(2)
    with pytest.raises(DataError, match=message):
        monitor.observe(**{**batch, **change})
    assert monitor.status()["inputs"] == 0
    assert monitor.observe(**part(batch, 0, 0)) == [], "an empty batch is none"


@pytest.mark.parametrize(
    "values",
    [{"false_alarm_every": 0}, {"minimum": 0}, {"cooldown": -1}, {"error": 0.0}, {"error": 1}, {"minimum": 1.5}],
)
def test_arguments_that_mean_nothing_are_refused(values):
    with pytest.raises(ArgumentError, match=next(iter(values))):
        AlertRule(**values)
    with pytest.raises(ArgumentError, match="-1 inputs"):
        monitor_of().count_errors(-1)
