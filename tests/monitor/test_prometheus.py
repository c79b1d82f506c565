"""The rule file has the structure that Prometheus reads, over the metrics of the service."""

import re

import pytest
import yaml

from oodles.errors import ArgumentError
from oodles.monitor import write_rules
from oodles.monitor.prometheus import rules_text

METRICS = {"oodles_inputs_total", "oodles_monitor_alarm", "oodles_monitor_rate", "oodles_monitor_rate_limit"}


@pytest.mark.parametrize("guard", [None, "photos", 'a"b\\c: {x} é'])
def test_the_file_is_a_group_of_alert_rules(tmp_path, guard):
    write_rules(tmp_path / "oodles.rules.yml", guard, minimum=250)
    document = yaml.safe_load((tmp_path / "oodles.rules.yml").read_text())
    assert {*document} == {"groups"}
    (group,) = document["groups"]
    assert {*group} == {"name", "rules"}
    used = set()
    for rule in group["rules"]:
        assert {*rule} - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert re.fullmatch(r"[A-Za-z_]\w*", rule["alert"])
        assert rule["labels"]["severity"] in ("info", "warning")
        assert {*rule["annotations"]} == {"summary", "description"}
        assert "for" not in rule or re.fullmatch(r"\d+[smh]", rule["for"])
        text = re.sub(r'"(\\.|[^"\\])*"', '""', rule["expr"])
        assert [text.count(each) for each in "([{"] == [text.count(each) for each in ")]}"]
        used |= {*re.findall(r"oodles_\w+", text)}
        if guard is not None:
            quoted = re.findall(r'guard=("(?:\\.|[^"\\])*")', rule["expr"])
            assert quoted
            assert {yaml.safe_load(each) for each in quoted} == {guard}
    assert used == METRICS
    assert "250" in str(document)


@pytest.mark.parametrize("guard", ["", "a\nb"])
def test_names_that_no_guard_has_are_refused(guard):
    with pytest.raises(ArgumentError, match="name of a guard"):
        rules_text(guard)


def test_the_minimum_is_at_least_one():
    with pytest.raises(ArgumentError, match="minimum=0"):
        rules_text(None, 0)
