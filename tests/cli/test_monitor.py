"""``oodles monitor`` on results that ``oodles score`` wrote and on made-up ones, with saved and exported guards."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from support.command_line import NETWORK, loader, network
from support.scored import failed, scored, write_scored
from support.streams import said_of

import oodles
from oodles.calibration import calibrate
from oodles.cli.monitor import COOLDOWN, ERROR, EVERY, MINIMUM, WINDOW
from oodles.deploy.saved import SavedGuard
from oodles.deploy.saving import load_guard, save_threshold
from oodles.monitor import AlertRule, Monitor

EXAMPLE = ["--in-order", "--false-alarm-every", "1000", "--error", "0.1"]


@pytest.fixture(scope="module")
def guard(fitted, tmp_path_factory):
    """A guard with a calibration set of 2,000 scores."""
    folder = shutil.copytree(fitted / "guard", tmp_path_factory.mktemp("monitored") / "guard")
    save_threshold(folder, calibrate(np.random.default_rng(0).normal(size=2000).astype(np.float32)))
    return folder


def test_the_defaults_in_the_help_are_those_that_are_used(guard):
    assert AlertRule() == AlertRule(EVERY, MINIMUM, COOLDOWN, ERROR)
    assert Monitor(load_guard(guard)[1]).windows.size == WINDOW


def rows_of(guard, inputs, contamination=0.0, seed=1):
    """Results of a made-up stream."""
    threshold, generator = load_guard(guard)[1], np.random.default_rng(seed)
    scores = generator.normal(size=inputs) - 4 * (generator.random(inputs) < contamination)
    values = zip(scores.tolist(), threshold.p_values(scores).tolist(), threshold.is_id(scores).tolist(), strict=True)
    return [
        scored(f"{place}.png", score, p_value=p, is_id=accepted, label=place % 2, class_name=None)
        for place, (score, p, accepted) in enumerate(values)
    ]


@pytest.fixture
def results(guard, tmp_path):
    """Files in the three formats: nothing unusual in the first, the last is contaminated."""
    quiet = [*rows_of(guard, 700), failed("broken.png")]
    return [
        write_scored(tmp_path / "monday.jsonl", quiet),
        write_scored(tmp_path / "tuesday.csv", rows_of(guard, 500, seed=2)),
        write_scored(tmp_path / "wednesday.parquet", rows_of(guard, 400, 0.3, seed=3)),
    ]


def test_what_oodles_score_wrote_is_replayed(oodles_run, fitted, tmp_path):
    out = tmp_path / "results.jsonl"
    assert oodles_run("score", fitted / "guard", "test", "damaged", *NETWORK, "--out", out)[0] == 0
    code, text, err = oodles_run("monitor", out, "--guard", fitted / "guard", "--check")
    assert (code, err) == (0, "")
    assert text.splitlines()[0] == "inputs       53, 1 with an error"
    assert text.splitlines()[-1].startswith("verdict      agree with the calibration set: p-value ")


def test_rows_in_the_order_of_classes_are_one_set(oodles_run, guard, tmp_path):
    """As a folder is scored: one class has low scores, and all together are like the calibration set."""
    differ = {"ordered": 0, "set": 0, "contaminated": 0}
    for seed in range(10):
        rows = rows_of(guard, 1500, seed=seed)
        path = write_scored(tmp_path / "r.csv", sorted(rows, key=lambda row: row["score"]))
        differ["ordered"] += oodles_run("monitor", path, "--guard", guard, "--in-order", "--check")[0] == 3
        code, text, err = oodles_run("monitor", path, "--guard", guard, "--check")
        differ["set"] += code == 3
        assert "alarm" not in text + err
        path = write_scored(tmp_path / "r.csv", sorted(rows_of(guard, 500, 0.1, seed), key=lambda row: row["score"]))
        code, text, err = oodles_run("monitor", path, "--guard", guard, "--check", "--json")
        differ["contaminated"] += json.loads(text)["differs"] is (code == 3) is True
    assert differ == {"ordered": 10, "set": 0, "contaminated": 10}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"label": 10**30}, "label=1000"),
        ({"label": 7}, "label=7"),
        ({"label": -1}, "label=-1"),
        ({"score": None, "is_id": True}, "score=None"),
        ({"p_value": -5.0}, "p_value=-5.0"),
        ({"p_value": 2.0}, "p_value=2.0"),
        ({"score": None, "error": "torn", "is_id": True}, "is_id=True"),
    ],
)
def test_a_row_that_cannot_be_is_refused_with_its_place(refused, guard, tmp_path, change, words):
    rows = rows_of(guard, 5)
    path = write_scored(tmp_path / "r.csv", [*rows[:2], {**rows[2], **change}, *rows[3:]])
    assert f"row 3: {words}" in refused("monitor", path, "--guard", guard)


def test_states_of_replicas_are_merged(oodles_run, refused, guard, tmp_path):
    """Three monitors have a third of the stream each: none has enough inputs for an alarm, all together have."""
    threshold, identity = load_guard(guard)[1], SavedGuard(guard).identity
    states = [tmp_path / f"images@{replica}.monitor.json" for replica in range(3)]
    score = np.random.default_rng(4).normal(size=270) - 3 * (np.arange(270) % 5 == 0)
    for place, path in enumerate(states):
        monitor = Monitor(threshold, guard=identity)
        for minute in range(10):
            part = score[27 * minute + place : 27 * minute + 27 : 3]
            monitor.observe(**said_of(part, threshold), time=60.0 * minute)
        assert monitor.raised == 0
        monitor.save(path)
    code, text, _ = oodles_run("monitor", *states, "--guard", guard, "--check", "--json")
    merged = json.loads(text)
    assert (code, merged["inputs"], merged["replicas"]) == (3, 270, 3)
    assert merged["alarm"].startswith("1970-01-01T00:")
    assert "verdict      alarm since 1970-01-01T00:" in oodles_run("monitor", *states, "--guard", guard)[1]
    assert "give one kind" in refused("monitor", states[0], tmp_path / "r.csv", "--guard", guard)
    Monitor(threshold, guard="0" * 64).save(states[0])
    assert "state of another guard" in refused("monitor", *states, "--guard", guard)


def test_contamination_is_an_alarm_with_a_chart_and_exit_code_3(oodles_run, guard, results, tmp_path):
    chart = tmp_path / "chart.svg"
    code, text, err = oodles_run("monitor", *results, "--guard", guard, *EXAMPLE, "--out", chart, "--check")
    assert code == 3
    alarm, failure = err.splitlines()
    assert alarm.startswith("alarm at input 1,2")
    assert failure == "check failed: the inputs differ from the calibration set"
    assert "verdict      differ from the calibration set: an alarm at input 1,2" in text
    assert re.search(r"evidence     at most [0-9.e+]+, inputs 1,201 to 1,400; an alarm at 2e\+03", text)
    assert text.splitlines()[-1] == f"chart        {chart}"
    assert chart.read_text().startswith("<?xml")
    assert oodles_run("monitor", *results, "--guard", guard, *EXAMPLE)[0] == 0, "without --check"
    assert oodles_run("monitor", *results[:2], "--guard", guard, *EXAMPLE, "--check")[0] == 0, "nothing unusual"


def test_json_is_the_status_and_a_state_is_continued_day_by_day(oodles_run, guard, results, tmp_path):
    state, options = tmp_path / "state.json", ["--guard", guard, *EXAMPLE, "--window", "100", "--json"]
    whole = json.loads(oodles_run("monitor", *results, *options)[1])
    assert (whole["inputs"], whole["errors"], whole["alarms"], len(whole["windows"])) == (1600, 1, 1, 16)
    assert whole["raised"] == [whole["alarm"]]
    assert sum(each["count"] for each in whole["classes"]) == 1600
    for path in results:
        code, out, err = oodles_run("monitor", path, "--state", state, *options)
        assert code == 0, err
    assert json.loads(out) == whole
    _, threshold, _ = load_guard(guard)
    assert Monitor.load(state, threshold=threshold, guard=json.loads(state.read_text())["guard"]).inputs == 1600


def test_predicted_classes_are_compared_with_a_reference(oodles_run, guard, results, tmp_path):
    reference = write_scored(tmp_path / "reference.csv", [{**row, "label": 0} for row in rows_of(guard, 100)])
    _, out, _ = oodles_run("monitor", results[0], "--guard", guard, "--reference", reference)
    assert "classes      shares differ from the reference by 50.0% in all" in out


def test_an_exported_guard_is_monitored_without_torch(oodles_run, workspace, tmp_path):
    sets = loader(workspace / "train"), loader(workspace / "test")
    made = oodles.Guard.fit(network(workspace), sets[0], calibration=sets[1], detector="energy")
    made.export(tmp_path / "guard.zip")
    assert oodles_run("score", tmp_path / "guard.zip", "test", "green", "--out", tmp_path / "results.csv")[0] == 0
    script = "import sys; from oodles.cli import app; app(standalone_mode=False); sys.exit('torch' in sys.modules)"
    arguments = "monitor", "results.csv", "--guard", "guard.zip", "--in-order", "--out", "chart.png"
    subprocess.run([sys.executable, "-c", script, *arguments], cwd=tmp_path, check=True, timeout=120)
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_an_alarm_that_cannot_be_sent_is_one_warning(oodles_run, guard, results, monkeypatch):
    monkeypatch.setattr("oodles.monitor.alerts.PAUSES", (0.0,))
    code, _, err = oodles_run("monitor", *results, "--guard", guard, *EXAMPLE, "--webhook", "http://127.0.0.1:9/x")
    assert code == 0
    assert [line.partition(" ")[0] for line in err.splitlines()] == ["alarm", "warning"]
    assert "the alarm could not be sent to 127.0.0.1: " in err


def test_results_of_another_guard_or_threshold_are_refused(oodles_run, refused, fitted, guard, results, tmp_path):
    out = tmp_path / "results.jsonl"
    assert oodles_run("score", fitted / "guard", "test", *NETWORK, "--out", out)[0] == 0
    assert "was made with another guard" in refused("monitor", out, "--guard", guard)
    other = shutil.copytree(guard, tmp_path / "other")
    save_threshold(other, replace(load_guard(guard)[1], value=0.5))
    assert "was not made with this guard's threshold" in refused("monitor", results[0], "--guard", other)
    state = tmp_path / "state.json"
    continued = ["monitor", results[0], "--guard", guard, "--in-order", "--state", state]
    assert oodles_run(*continued)[0] == 0
    assert "was begun with error=0.01" in refused(*continued, "--error", "0.2")
    assert "has windows of 200" in refused(*continued, "--window", "9")
    state.write_text("{}")
    assert "not a record of kind 'monitor'" in refused(*continued)


def test_mistakes_are_refused_in_one_line(refused, guard, results, tmp_path):
    (tmp_path / "bad.csv").write_text("a,b\n")
    (tmp_path / "scores.npy").write_text("")
    base = ["monitor", results[0], "--guard", guard, "--in-order"]
    for option in ("--state", "--out", "--window", "--webhook", "--cooldown"):
        assert f"{option} is for rows that are in the order" in refused(*base[:-1], option, "9")
    assert "results" in refused("monitor", "--guard", guard)
    assert "--guard" in refused("monitor", results[0])
    assert "does not exist" in refused("monitor", tmp_path / "none.csv", "--guard", guard)
    assert "must end in .jsonl" in refused("monitor", tmp_path / "scores.npy", "--guard", guard)
    assert "does not hold results" in refused("monitor", tmp_path / "bad.csv", "--guard", guard)
    assert "does not exist" in refused("monitor", results[0], "--guard", tmp_path / "none")
    assert "is not a guard" in refused("monitor", results[0], "--guard", tmp_path)
    assert "must end in one of" in refused(*base, "--out", tmp_path / "chart.txt")
    assert "Is a directory" in refused(*base, "--state", tmp_path)
    assert "begins with http" in refused(*base, "--webhook", "file:///x")
    assert "error=0.9" in refused(*base, "--error", "0.9")
    assert "false_alarm_every=0" in refused(*base, "--false-alarm-every", "0")
    assert "window=0" in refused(*base, "--window", "0")
    assert "none does not exist; give a file with a key" in refused(*base, "--key", tmp_path / "none")
