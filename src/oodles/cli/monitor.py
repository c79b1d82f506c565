"""``oodles monitor``."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from oodles.cli.checks import check_guard
from oodles.cli.common import CHECK_FAILED, notice, say
from oodles.cli.options import JsonOption, KeyOption
from oodles.errors import ArgumentError

if TYPE_CHECKING:
    from oodles.monitor import Monitor

# the defaults of oodles.monitor, which is imported when the command runs
EVERY, MINIMUM, COOLDOWN, ERROR, WINDOW = 1_000_000, 100, 10_000, 0.01, 200
ORDERED = ("windows", "alarm", "alarms", "acknowledged", "evidence", "whole_stream")  # what means nothing without order


def monitor(
    results: Annotated[
        list[Path],
        Argument(
            help="Files of oodles score (.jsonl, .csv, .parquet); or states of oodles serve (.json), one per replica."
        ),
    ],
    guard: Annotated[Path, Option(help="The guard that scored them: exported, or a folder made by oodles fit.")],
    in_order: Annotated[
        bool,
        Option("--in-order", help="Rows are in the order in which the inputs came: say when they changed."),
    ] = False,
    out: Annotated[Path | None, Option(help="Draw the chart, with --in-order: .png, .svg or .pdf.")] = None,
    state: Annotated[
        Path | None,
        Option(help="Continue from this file if it exists, and write it at the end, with --in-order: for daily files."),
    ] = None,
    reference: Annotated[
        Path | None,
        Option(help="Results of oodles score on the calibration images, to compare the predicted classes with."),
    ] = None,
    false_alarm_every: Annotated[
        int | None,
        Option(help=f"At most one false alarm in this many inputs on average. Default: {EVERY:,}. Fewer: earlier."),
    ] = None,
    minimum: Annotated[int | None, Option(help=f"No alarm before this many inputs. Default: {MINIMUM}.")] = None,
    cooldown: Annotated[
        int | None,
        Option(help=f"An alarm stands until this many inputs bring no new evidence. Default: {COOLDOWN:,}."),
    ] = None,
    error: Annotated[
        float | None,
        Option(help=f"Probability that the calibration set misleads, or the test of all inputs. Default: {ERROR}."),
    ] = None,
    window: Annotated[
        int | None,
        Option(help=f"Inputs per point of the chart. Default: {WINDOW}, or more so that everything fits."),
    ] = None,
    check: Annotated[
        bool,
        Option("--check", help="Exit with code 3 if the inputs differ from the calibration set."),
    ] = False,
    webhook: Annotated[str | None, Option(help="Send each alarm as JSON to this address, http:// or https://.")] = None,
    as_json: JsonOption = False,
    key: KeyOption = None,
) -> None:
    """Say whether inputs are still like the calibration set, from results of oodles score: no labels, no times.

    The rows of a folder have no order, so they are tested once, as a set. With --in-order the stream is followed row by
    row, and an alarm says where it changed; alarms are corrected for looking all the time. States of the replicas of
    oodles serve are merged: their evidence is that of all inputs together. docs/monitoring.md says what is promised.

    Exit codes: 0; 3 if --check fails; 2 if the command is refused.

    Example: oodles monitor monday.jsonl tuesday.jsonl --guard guard.zip --in-order --out chart.png --check
    """
    states = [path for path in results if path.suffix.lower() == ".json"]
    if states and len(states) < len(results):
        raise ArgumentError(f"{states[0]} is a state, and other files are results; give one kind")
    needs = {"--out": out, "--state": state, "--window": window, "--webhook": webhook, "--minimum": minimum}
    needs |= {"--false-alarm-every": false_alarm_every, "--cooldown": cooldown}
    wrong = next((name for name, value in needs.items() if value is not None and (states or not in_order)), None)
    if wrong is not None:
        raise ArgumentError(
            f"{wrong} is for rows that are in the order in which the inputs came; if they are, add --in-order"
        )
    check_guard(guard)

    from oodles.deploy.opening import open_guard
    from oodles.monitor import AlertRule, Webhook
    from oodles.monitor.replay import open_monitor, replay
    from oodles.monitor.replicas import load_states, merge

    if out is not None:
        from oodles.plots import check_picture, save_figure

        check_picture(out)
    given = {"false_alarm_every": false_alarm_every, "minimum": minimum, "cooldown": cooldown, "error": error}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    rule = AlertRule(**changes) if changes else None  # that of the state, or the usual one
    sender = None if webhook is None else Webhook(webhook, lambda text: notice(text, "[yellow]warning[/yellow]"))
    opened = open_guard(guard, key=key)
    about: dict[str, Any] = {"classes": opened.class_names, "guard": opened.identity}
    if states:
        merged = merge(load_states(states, opened.threshold, **about))
        _finish(merged, merged["alarm"] is not None, _merged_summary(merged), as_json, check)
        return
    watched = open_monitor(
        results, opened.threshold, **about, state=state, reference=reference, rule=rule, window=window
    )
    for alert in (alert for path in results for alert in replay(watched, path)):
        if not in_order:
            continue
        notice(f"at input {alert.since:,}: {alert.message}", "[bold red]alarm[/bold red]")
        if sender is not None:
            sender.send(alert, guard.name, version=opened.identity)
    if sender is not None:
        sender.wait()
    if state is not None:
        watched.save(state)
    if out is not None:
        from oodles.monitor.chart import draw

        save_figure(draw(watched), out)
    known, differs = _facts(watched, in_order)
    _finish(known, differs, _summary(known, differs, watched.rule.error, out), as_json, check)


def _facts(watched: "Monitor", in_order: bool) -> tuple[dict[str, Any], bool]:
    """Return what is known, as far as the order of the rows allows, and whether the inputs differ."""
    status = watched.status()
    if in_order:
        peak, first, last = watched.peak()
        known = {"peak": {"evidence": peak, "first": first, "last": last}}
        differs = bool(watched.raised) or watched.differs
        return {**status, **known, "raised": [each.as_record() for each in watched.alerts], "differs": differs}, differs
    p_value = watched.test_set()
    kept = {name: value for name, value in status.items() if name not in ORDERED}
    return {**kept, "p_value": p_value, "differs": p_value <= watched.rule.error}, p_value <= watched.rule.error


def _finish(
    known: dict[str, Any], differs: bool, summary: Iterator[tuple[str, str]], as_json: bool, check: bool
) -> None:
    """Print what is known, and fail if that was asked for."""
    if as_json:
        typer.echo(json.dumps(known, indent=1))
    else:
        for name, text in summary:
            say(f"{name:<12} {text}")
    if check and differs:
        notice("check failed: the inputs differ from the calibration set")
        raise typer.Exit(CHECK_FAILED)


def _merged_summary(merged: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "inputs", f"{merged['inputs']:,} of {merged['replicas']} replicas, {merged['rejected']:,} rejected"
    when = "" if merged["peak_at"] is None else f" (up to {merged['peak_at']})"
    yield "evidence", f"at most {merged['peak']:.3g}{when}; an alarm at {merged['alarm_at']:.3g}"
    yield "verdict", "agree with the calibration set" if merged["alarm"] is None else f"alarm since {merged['alarm']}"


def _summary(known: dict[str, Any], differs: bool, error: float, out: Path | None) -> Iterator[tuple[str, str]]:
    expected, scores = known["expected"], known["scores"]
    yield "inputs", f"{known['inputs']:,}" + (f", {known['errors']:,} with an error" if known["errors"] else "")
    if known["rate"] is not None:
        bounds = f"expected {expected['rate']:.2%}, at most {expected['upper']:.2%} of ID inputs"
        yield "rejected", f"{known['rate']:.2%}; {bounds}"
    if scores is not None and scores["distance"] is not None:
        yield (
            "scores",
            f"distance {scores['distance']:.3f} from the calibration set, by chance up to {scores['limit']:.3f}",
        )
    if known["class_distance"] is not None:
        yield "classes", f"shares differ from the reference by {known['class_distance']:.1%} in all"
    reason = "by the test of all inputs"
    if "peak" in known:
        peak = known["peak"]
        where = f"inputs {peak['first']:,} to {peak['last']:,}; " if peak["evidence"] else ""
        yield "evidence", f"at most {peak['evidence']:.3g}, {where}an alarm at {known['evidence']['alarm_at']:.3g}"
        if known["raised"]:
            reason = f"{known['alarms']} alarms, the last" if known["alarms"] > 1 else "an alarm"
            reason += f" at input {known['raised'][-1]['since']:,}" + (
                "" if known["alarm"] is None else ", which stands"
            )
    else:
        reason = f"p-value {known['p_value']:.2g} of all inputs as one set, and they differ up to {error:g}"
    verdict = "differ from" if differs else "agree with"
    yield "verdict", f"{verdict} the calibration set" + (f": {reason}" if differs or "p_value" in known else "")
    if out is not None:
        yield "chart", f"{out}"
