"""Alert rules for Prometheus over the metrics of ``oodles serve``, as a rule file."""

import json
from pathlib import Path

from oodles.errors import ArgumentError
from oodles.records.files import write_bytes

MINIMUM = 100
RATES = "sum by (guard) (increase(oodles_inputs_total{{verdict{verdicts}{guard}}}[{span}]))"


def write_rules(path: str | Path, guard: str | None = None, *, minimum: int = MINIMUM) -> None:
    """Write a rule file for one guard of the service by its name, or for all: give it under ``rule_files``.

    ``minimum`` is the number of inputs in the time span of a rule below which it says nothing.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile(suffix=".yml") as file:
    ...     write_rules(file.name, "digits")
    ...     print(Path(file.name).read_text()[:6])
    groups
    """
    write_bytes(Path(path), rules_text(guard, minimum).encode())


def rules_text(guard: str | None = None, minimum: int = MINIMUM) -> str:
    """The content of the rule file, in YAML."""
    if guard is not None and not (guard and guard.isprintable()):
        raise ArgumentError(f"the name of a guard is text without control characters, got {guard!r:.100}")
    if minimum < 1:
        raise ArgumentError(f"minimum={minimum} must be at least 1 input")
    alone = "" if guard is None else f"{{guard={_quoted(guard)}}}"
    hour = {name: _increase(guard, verdicts, "1h") for name, verdicts in (("ood", '="ood"'), ("all", '=~"id|ood"'))}
    quarter = {name: _increase(guard, verdicts, "15m") for name, verdicts in (("error", '="error"'), ("all", '=~".+"'))}
    limit = f"max by (guard) (oodles_monitor_rate_limit{alone})"
    rules = [
        _rule(
            "OodlesInputsUnlikeCalibration",
            f"max by (guard) (oodles_monitor_alarm{alone}) == 1",
            wait=None,
            severity="warning",
            summary="Inputs of {{ $labels.guard }} are no longer like its calibration set",
            description="The monitor's evidence has reached its alarm line. False alarms are as rare as its rule says.",
        ),
        _rule(
            "OodlesRejectionsAboveLimit",
            f"{hour['ood']} / {hour['all']} > {limit} and {hour['all']} >= {minimum}",
            wait="1h",
            severity="info",
            summary="{{ $labels.guard }} rejects {{ $value | humanizePercentage }} of the inputs of all replicas",
            description="More than its calibration set explains, in one hour and for one hour. This compares a rate "
            "with a limit again and again, so it may be chance: look at the monitor before acting.",
        ),
        _rule(
            "OodlesRateAboveLimit",
            f"oodles_monitor_rate{alone} > oodles_monitor_rate_limit{alone} and on (guard) {hour['all']} >= {minimum}",
            wait="1h",
            severity="info",
            summary="A replica of {{ $labels.guard }} rejects {{ $value | humanizePercentage }} of its inputs",
            description="One replica alone may be given other inputs than the others.",
        ),
        _rule(
            "OodlesInputsUnreadable",
            f"{quarter['error']} / {quarter['all']} > 0.1 and {quarter['all']} >= {minimum}",
            wait="5m",
            severity="warning",
            summary="{{ $value | humanizePercentage }} of the inputs of {{ $labels.guard }} cannot be scored",
            description="Inputs that cannot be read are not in-distribution, and not part of what is monitored.",
        ),
    ]
    return "groups:\n  - name: oodles\n    rules:\n" + "".join(rules)


def _increase(guard: str | None, verdicts: str, span: str) -> str:
    named = "" if guard is None else f",guard={_quoted(guard)}"
    return RATES.format(verdicts=verdicts, guard=named, span=span)


def _rule(name: str, expression: str, *, wait: str | None, severity: str, summary: str, description: str) -> str:
    lines = [f"- alert: {name}", f"  expr: {_quoted(expression)}"]
    lines += [] if wait is None else [f"  for: {wait}"]
    lines += ["  labels:", f"    severity: {severity}", "  annotations:", f"    summary: {_quoted(summary)}"]
    lines += [f"    description: {_quoted(description)}"]
    return "".join(f"      {line}\n" for line in lines)


def _quoted(text: str) -> str:
    """Text in double quotes, as YAML and PromQL alike read it."""
    return json.dumps(text, ensure_ascii=False)
