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


def monitor(
    results: Annotated[
        list[Path],
        Argument(help="Files of oodles score (.jsonl, .csv, .parquet), in the order in which the inputs came."),
    ],
    guard: Annotated[Path, Option(help="The guard that scored them: exported, or a folder made by oodles fit.")],
    out: Annotated[Path | None, Option(help="Draw the chart: .png, .svg or .pdf.")] = None,
    state: Annotated[
        Path | None,
        Option(help="Continue from this file if it exists, and write it at the end: one file per day, one state."),
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
        Option("--check", help="Exit with code 3 if there was an alarm, or if all inputs together differ."),
    ] = False,
    webhook: Annotated[str | None, Option(help="Send each alarm as JSON to this address, http:// or https://.")] = None,
    as_json: JsonOption = False,
    key: KeyOption = None,
) -> None:
    """Say whether inputs are still like the calibration set, from results of oodles score: no labels, no times.

    A guard rejects some ID inputs too, and how many is known only as well as its calibration set is large. An alarm
    means that more are rejected, or have low scores, than that explains. Windows of the chart have limits
    for one look each; alarms are corrected for looking all the time. docs/monitoring.md says what is promised.

    Exit codes: 0; 3 if --check fails; 2 if the command is refused.

    Example: oodles monitor monday.jsonl tuesday.jsonl --guard guard.zip --out chart.png --check
    """
    for name, written in (("--out", out), ("--state", state)):
        if written is not None and written.is_dir():
            raise ArgumentError(f"{name} {written} is a folder; give the name of a file")
    check_guard(guard)

    from oodles.deploy.opening import open_guard
    from oodles.monitor import AlertRule, Webhook
    from oodles.monitor.replay import open_monitor, replay

    if out is not None:
        from oodles.plots import check_picture, save_figure

        check_picture(out)
    given = {"false_alarm_every": false_alarm_every, "minimum": minimum, "cooldown": cooldown, "error": error}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    rule = AlertRule(**changes) if changes else None  # that of the state, or the usual one
    sender = None if webhook is None else Webhook(webhook, lambda text: notice(text, "[yellow]warning[/yellow]"))
    opened = open_guard(guard, key=key)
    watched = open_monitor(
        results,
        opened.threshold,
        classes=opened.class_names,
        guard=opened.identity,
        state=state,
        reference=reference,
        rule=rule,
        window=window,
    )
    for alert in (alert for path in results for alert in replay(watched, path)):
        notice(f"at input {alert.since:,}: {alert.message}", "[bold red]alarm[/bold red]")
        if sender is not None:
            sender.send(alert, guard.name)
    if sender is not None:
        sender.wait()
    if state is not None:
        watched.save(state)
    if out is not None:
        from oodles.monitor.chart import draw

        save_figure(draw(watched), out)
    _print(watched, as_json, out)
    if check and (watched.raised or watched.differs):
        found = f"{watched.raised} alarms" if watched.raised != 1 else "1 alarm"
        notice(f"check failed: {found if watched.raised else 'the inputs differ from the calibration set'}")
        raise typer.Exit(CHECK_FAILED)


def _print(watched: "Monitor", as_json: bool, out: Path | None) -> None:
    """The summary."""
    status = watched.status()
    if as_json:
        typer.echo(json.dumps({**status, "raised": [each.as_record() for each in watched.alerts]}, indent=1))
        return
    for name, text in _summary(watched, status):
        say(f"{name:<12} {text}")
    if out is not None:
        say(f"{'chart':<12} {out}")


def _summary(watched: "Monitor", status: dict[str, Any]) -> Iterator[tuple[str, str]]:
    expected, evidence, scores = status["expected"], status["evidence"], status["scores"]
    yield "inputs", f"{status['inputs']:,}" + (f", {status['errors']:,} with an error" if status["errors"] else "")
    if status["rate"] is not None:
        bounds = f"expected {expected['rate']:.2%}, at most {expected['upper']:.2%} of ID inputs"
        yield "rejected", f"{status['rate']:.2%}; {bounds}"
    known = {name.replace("_", "-"): evidence[name] for name in ("rejections", "p_values")}
    shown = [f"{name} {value:.3g}" for name, value in known.items() if value is not None]
    yield "evidence", f"{', '.join(shown)}; an alarm at {evidence['alarm_at']:.3g}"
    verdict = "differ from" if watched.differs else "agree with"
    yield "all inputs", f"{verdict} the calibration set, by a test with an error of at most {watched.rule.error:g}"
    if scores is not None and scores["distance"] is not None:
        yield (
            "scores",
            f"distance {scores['distance']:.3f} from the calibration set, by chance up to {scores['limit']:.3f}",
        )
    if status["class_distance"] is not None:
        yield "classes", f"shares differ from the reference by {status['class_distance']:.1%} in all"
    alert = watched.alert
    yield "alarms", f"{watched.raised}" + ("" if alert is None else f", one stands since input {alert.since:,}")
