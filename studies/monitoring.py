"""Write ``docs/monitoring.md``: false alarms and delays of monitoring, simulated and on real images.

The data must include ``cifar10-jpeg.zip``. Streams are simulated by the thousand, then made from real images, which
are scored once by the network that comes with the package.
"""

import math
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri
from scipy.stats import binom
from support.streams import SHIFT, Calibrations, bets_of, calibrations, cusum, ranks_of, run, window_test

from oodles.bench.suites import SUITES
from oodles.calibration import calibrate
from oodles.data.loaders import ImageLoader
from oodles.data.readers import open_images
from oodles.data.transforms import CIFAR
from oodles.deploy.saving import load_guard
from oodles.models import load
from oodles.models.shipped import GUARD, shipped_folder
from oodles.monitor import AlertRule, Monitor
from oodles.monitor.chart import draw
from oodles.monitor.evidence import Bets
from oodles.network.extraction import extract
from oodles.plots import save_figure
from studies import DATA, STORE
from studies.pages import DOCS, write_page
from studies.sources import QUALITY, recompressed

Floats = npt.NDArray[np.float64]

NAME = "cifar10-small"
SIZES, CONTAMINATION = (100, 1_000, 10_000), (0.01, 0.05, 0.2)
OOD_IMAGES = 1_000
WINDOW = 500
RATE = 0.05  # of rejections, if it were known
STREAMS, STEPS, EVERY, ERROR = 2_000, 5_000, 50_000, 0.1  # of the table of false alarms
# of the table of delays: streams, inputs after the change and before it; the change is in the middle of a window
DELAYED, MAX_DELAY, QUIET = 200, 50_000, 750
RULE = AlertRule()
REAL_STREAMS, REAL_LENGTH, REAL_SIZES = 100, 4_000, (100, 1_000, 5_000)


def main(data: Path = DATA, store: Path = STORE) -> None:
    """Simulate, score real images, and write the page."""
    scores = real_scores(data, store / "monitoring")
    write_page(
        "monitoring",
        streams=f"{STREAMS:,}",
        steps=f"{STEPS:,}",
        every=f"{EVERY:,}",
        error=f"{ERROR:g}",
        error_share=f"{ERROR:.0%}",
        milliseconds=f"{milliseconds():.1f}",
        coarse=f"{bets_of(SIZES[0], RULE.error)['rejections'].bounds[0]:.0%}",
        promise=f"{STEPS / EVERY + ERROR / 2:.0%}",
        false_alarms=false_alarms(),
        bounds=bounds(),
        delayed=DELAYED,
        longest=f"{MAX_DELAY:,}",
        quiet=QUIET,
        shift=f"{SHIFT:g}",
        rejected_ood=f"{ndtr(ndtri(RATE) + SHIFT):.0%}",
        window=WINDOW,
        rule=describe(RULE),
        delays=delays(),
        real_streams=REAL_STREAMS,
        real_length=f"{REAL_LENGTH:,}",
        detector=load_guard(shipped_folder(NAME) / GUARD)[0].spec,
        quality=QUALITY,
        accepted=", ".join(f"{name} {share:.0%}" for name, share in accepted(scores).items()),
        real=real_streams(scores),
        **picture(scores),
    )


# Simulated streams ------------------------------------------------------------------------------


def false_alarms() -> str:
    """The share of streams without drift that have an alarm: ours, and with the nominal rate taken as known."""
    lines = []
    for size in SIZES:
        generator = np.random.default_rng(size)
        found, bets = calibrations(size, STREAMS, generator), bets_of(size, ERROR)
        ours = {kind: simulate(bets[kind], found, kind, size, wealth=True) for kind in bets}
        either = np.mean(np.isfinite(np.minimum(*(each.first for each in ours.values()))))
        whole = np.mean(np.maximum(*(each.best for each in ours.values())) >= math.log(4 / ERROR))
        known = np.mean(np.isfinite(simulate(Bets((RATE,)), found, "rejections", size, line=EVERY).first))
        most = int(binom.isf(WINDOW / EVERY, WINDOW, RATE))
        events = stream(found, "rejections", np.random.default_rng(size + 2))
        windows = window_test(
            lambda step, e=events: e(step)[:, 0], streams=STREAMS, steps=STEPS, size=WINDOW, most=most
        )
        cells = [f"{each:.1%}" for each in (either, whole, known, np.mean(np.isfinite(windows)))]
        lines.append(f"| {size:,} | {' | '.join(cells)} |")
        print("false alarms", lines[-1])
    return "\n".join(lines)


def simulate(
    bets: Bets, found: Calibrations, kind: str, seed: int, line: float = 2 * EVERY, wealth: bool = False
) -> Any:
    """One kind of evidence on streams without drift; the same seed gives the same inputs to every kind."""
    events = stream(found, kind, np.random.default_rng(seed + 1))
    return run(bets, events, streams=STREAMS, steps=STEPS, line=line, wealth=wealth)


def stream(
    found: Calibrations, kind: str, generator: np.random.Generator, contamination: float = 0.0, quiet: int = 0
) -> Any:
    """Events of many streams, contaminated after some inputs."""
    cuts = found.rejection if kind == "rejections" else found.small_p

    def events(step: int) -> Any:
        return ranks_of(generator, len(cuts), contamination if step > quiet else 0.0)[:, None] < cuts

    return events


def bounds() -> str:
    """What is known of the rejection rate, by the size of the calibration set."""
    lines = []
    for size in (*SIZES, 100_000):
        bets = bets_of(size, RULE.error)
        margin = bets["p_values"].bounds[0] - 0.05
        lines.append(f"| {size:,} | {bets['rejections'].bounds[0]:.2%} | {margin:.3f} |")
    return "\n".join(lines)


def delays() -> str:
    """Inputs until the alarm for each calibration size and contamination, beside charts that know the rates."""
    lines = []
    for contamination in CONTAMINATION:
        for size in SIZES:
            found = calibrations(size, DELAYED, np.random.default_rng(size))
            bets, firsts = bets_of(size, RULE.error), {}
            for kind in bets:
                events = stream(found, kind, np.random.default_rng(7), contamination, QUIET)
                minimum, line = RULE.minimum, 2 * RULE.false_alarm_every
                firsts[kind] = run(
                    bets[kind],
                    events,
                    streams=DELAYED,
                    steps=QUIET + MAX_DELAY,
                    line=line,
                    minimum=minimum,
                    until_all=True,
                ).first
            firsts["either"] = np.minimum(*firsts.values())
            cells = [delay(first - QUIET) for first in firsts.values()]
            lines.append(f"| {contamination:.0%} | {size:,} | {' | '.join(cells)} |")
            print("delays", lines[-1])
        lines.append(f"| {contamination:.0%} | rates known | {known_rates(contamination)} |")
        print("delays", lines[-1])
    return "\n".join(lines)


def known_rates(contamination: float) -> str:
    """The delays of CUSUM and of windows that know the rates before and after."""
    generator = np.random.default_rng(11)

    def events() -> Callable[[int], npt.NDArray[np.bool_]]:
        return lambda step: ranks_of(generator, DELAYED, contamination if step > QUIET else 0.0) < RATE

    after = float(np.mean(ranks_of(generator, 1_000_000, contamination) < RATE))
    limit = cusum_limit((RATE, after), RULE.false_alarm_every)
    first = cusum(events(), (RATE, after), streams=DELAYED, steps=QUIET + MAX_DELAY, limit=limit)
    most = int(binom.isf(WINDOW / RULE.false_alarm_every, WINDOW, RATE))
    windows = window_test(events(), streams=DELAYED, steps=QUIET + MAX_DELAY, size=WINDOW, most=most)
    return f"CUSUM {delay(first - QUIET)} | | windows {delay(windows - QUIET)}"


def cusum_limit(rates: tuple[float, float], every: float) -> float:
    """The limit of CUSUM with this mean number of inputs to a false alarm.

    The mean grows like the exponential of the limit, so it is simulated where it is small and continued from there.
    """
    generator, streams, limit = np.random.default_rng(13), 500, 2.5
    runs = cusum(lambda _: generator.random(streams) < rates[0], rates, streams=streams, steps=200_000, limit=limit)
    assert np.isfinite(runs).all()
    return limit + math.log(every / float(runs.mean()))


def delay(found: Floats) -> str:
    """The median, and the share of streams with an alarm if it is not all of them."""
    after = found[found > 0]  # others were false alarms before the change
    seen = np.isfinite(after)
    if seen.mean() < 0.5:
        return f"none in {1 - seen.mean():.1%}"
    return f"{np.median(after):,.0f}" + ("" if seen.all() else f" ({seen.mean():.1%})")


def describe(rule: AlertRule) -> str:
    """A rule as one writes it."""
    return f"`AlertRule(false_alarm_every={rule.false_alarm_every:_}, minimum={rule.minimum}, error={rule.error:g})`"


# Real streams -----------------------------------------------------------------------------------


def real_scores(data: Path, store: Path) -> dict[str, Floats]:
    """Scores of real images by the guard of the network that comes with the package."""
    network, detector = load(NAME), load_guard(shipped_folder(NAME) / GUARD)[0]
    sets = {"CIFAR-10": open_images(data / "cifar10-jpeg.zip" / "test")}
    outliers = SUITES["cifar10"].open_ood(data)
    sets |= {name: recompressed(outliers[name].sample(OOD_IMAGES)) for name in ("svhn", "textures")}
    loaders = {name: ImageLoader(images, CIFAR, labels=False) for name, images in sets.items()}
    features = {name: extract(network, loader, store=store / name) for name, loader in loaders.items()}
    return {name: detector.score(each).double().numpy() for name, each in features.items()}


def accepted(scores: dict[str, Floats]) -> dict[str, float]:
    """The share of each OOD set that a threshold at 95 % of ID accepts."""
    threshold = calibrate(scores["CIFAR-10"])
    return {name: float(threshold.is_id(each).mean()) for name, each in scores.items() if name != "CIFAR-10"}


def real_stream(
    scores: dict[str, Floats], size: int, contaminant: str, contamination: float, seed: int, quiet: int = 0
) -> Monitor:
    """A monitor after a stream: test images that are not in its calibration set, some replaced by others."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(scores["CIFAR-10"])
    threshold, rest = calibrate(order[:size]), order[size:]
    inputs = generator.choice(rest, REAL_LENGTH, replace=len(rest) < REAL_LENGTH)
    replaced = (generator.random(REAL_LENGTH) < contamination) & (np.arange(REAL_LENGTH) >= quiet)
    inputs[replaced] = generator.choice(scores[contaminant], int(replaced.sum()))
    monitor = Monitor(threshold, guard=NAME, rule=RULE, window=100)
    labels = np.zeros(REAL_LENGTH, dtype=np.int64)
    monitor.observe(score=inputs, p_value=threshold.p_values(inputs), label=labels, is_id=threshold.is_id(inputs))
    return monitor


def real_streams(scores: dict[str, Floats]) -> str:
    """Alarms on real streams, with and without contamination, each with a calibration set of its own."""
    lines = []
    cases = [("none", 0.0), *((name, share) for name in scores if name != "CIFAR-10" for share in CONTAMINATION)]
    for name, share in cases:
        cells = []
        for size in REAL_SIZES:
            contaminant = "CIFAR-10" if name == "none" else name
            made = [real_stream(scores, size, contaminant, share, seed) for seed in range(REAL_STREAMS)]
            places = np.array([each.alerts[0].since if each.alerts else math.inf for each in made])
            seen = np.isfinite(places)
            median = f", after {np.median(places[seen]):,.0f}" if seen.mean() >= 0.5 else ""
            cells.append(f"{seen.mean():.0%}{median}")
        shown = "no contamination" if name == "none" else f"{share:.0%} {name}"
        lines.append(f"| {shown} | {' | '.join(cells)} |")
        print("real", lines[-1])
    return "\n".join(lines)


def picture(scores: dict[str, Floats]) -> dict[str, object]:
    """The chart of one real stream, and what can be seen on it."""
    path = DOCS / "images" / "monitoring.png"
    monitor = real_stream(scores, 5_000, "svhn", 0.1, seed=1, quiet=REAL_LENGTH // 2)
    save_figure(draw(monitor), path)
    windows = monitor.status()["windows"]
    outside = sum(not window["low"] <= window["rate"] <= window["high"] for window in windows)
    return {"picture": f"images/{path.name}", "outside": outside, "windows": len(windows)}


def milliseconds() -> float:
    """What a batch of 32 costs, of processor time."""
    generator = np.random.default_rng(0)
    threshold, scores = calibrate(generator.normal(size=1000)), generator.normal(size=32)
    monitor = Monitor(threshold)
    values: dict[str, Any] = {"p_value": threshold.p_values(scores), "is_id": threshold.is_id(scores)}
    start = process_time()
    for _ in range(200):
        monitor.observe(score=scores, label=np.zeros(32, dtype=np.int64), **values)
    return (process_time() - start) / 200 * 1000
