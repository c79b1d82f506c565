"""``oodles monitor`` on results that ``oodles score`` wrote and on made-up ones, with saved and exported guards."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from support.command_line import NETWORK, loader, network
from support.scored import failed, scored, write_scored

import oodles
from oodles.calibration import calibrate
from oodles.cli.monitor import COOLDOWN, ERROR, EVERY, MINIMUM, WINDOW
from oodles.deploy.saving import load_guard, save_threshold
from oodles.monitor import AlertRule, Monitor

EXAMPLE = ["--false-alarm-every", "1000", "--error", "0.1"]


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
    assert "agree with the calibration set" in text
    assert text.splitlines()[-1] == "alarms       0"


def test_contamination_is_an_alarm_with_a_chart_and_exit_code_3(oodles_run, guard, results, tmp_path):
    chart = tmp_path / "chart.svg"
    code, text, err = oodles_run("monitor", *results, "--guard", guard, *EXAMPLE, "--out", chart, "--check")
    assert code == 3
    alarm, failure = err.splitlines()
    assert alarm.startswith("alarm at input 1,2")
    assert failure == "check failed: 1 alarm"
    assert "alarms       1, one stands since input 1,2" in text
    assert "differ from the calibration set" in text
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
    arguments = "monitor", "results.csv", "--guard", "guard.zip", "--out", "chart.png"
    subprocess.run([sys.executable, "-c", script, *arguments], cwd=tmp_path, check=True, timeout=120)
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_an_alarm_that_cannot_be_sent_is_one_warning(oodles_run, guard, results):
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
    assert oodles_run("monitor", results[0], "--guard", guard, "--state", state)[0] == 0
    message = refused("monitor", results[0], "--guard", guard, "--state", state, "--error", "0.2")
    assert "was begun with error=0.01" in message
    assert "has windows of 200" in refused("monitor", results[0], "--guard", guard, "--state", state, "--window", "9")
    state.write_text("{}")
    assert "not a record of kind 'monitor'" in refused("monitor", results[0], "--guard", guard, "--state", state)


def test_mistakes_are_refused_in_one_line(refused, guard, results, tmp_path):
    (tmp_path / "bad.csv").write_text("a,b\n")
    (tmp_path / "scores.npy").write_text("")
    base = ["monitor", results[0], "--guard", guard]
    assert "results" in refused("monitor", "--guard", guard)
    assert "--guard" in refused("monitor", results[0])
    assert "does not exist" in refused("monitor", tmp_path / "none.csv", "--guard", guard)
    assert "must end in .jsonl" in refused("monitor", tmp_path / "scores.npy", "--guard", guard)
    assert "does not hold results" in refused("monitor", tmp_path / "bad.csv", "--guard", guard)
    assert "does not exist" in refused("monitor", results[0], "--guard", tmp_path / "none")
    assert "is not a guard" in refused("monitor", results[0], "--guard", tmp_path)
    assert "must end in one of" in refused(*base, "--out", tmp_path / "chart.txt")
    assert "is a folder" in refused(*base, "--out", tmp_path)
    assert "is a folder" in refused(*base, "--state", tmp_path)
    assert "begins with http" in refused(*base, "--webhook", "file:///x")
    assert "error=0.9" in refused(*base, "--error", "0.9")
    assert "false_alarm_every=0" in refused(*base, "--false-alarm-every", "0")
    assert "window=0" in refused(*base, "--window", "0")
    assert "none does not exist; give a file with a key" in refused(*base, "--key", tmp_path / "none")
