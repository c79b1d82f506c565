"""``ServedGuard``: an exported guard with its batches, its monitor, and the version of it that answers now."""

import copy
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fastapi import HTTPException
from filelock import FileLock, Timeout

from oodles.calibration import Threshold
from oodles.deploy.artefact import Arrays, rows_of
from oodles.deploy.exported import INPUT, ExportedGuard
from oodles.deploy.verdict import ArrayVerdict
from oodles.errors import FileError, OodlesError
from oodles.monitor import AlertRule, Monitor
from oodles.records.files import stamp_of
from oodles.serve.batching import Batcher
from oodles.serve.inputs import TextTokenizer
from oodles.serve.settings import Settings
from oodles.serve.telemetry import Telemetry, log

MAX_RETRY = 30  # seconds


class Source(NamedTuple):
    """Where a guard comes from: its name in addresses, its .zip, and its tokenizer if it takes texts."""

    name: str
    path: Path
    tokenizer: Path | None = None


@dataclass(frozen=True, eq=False)
class Version:
    """One version of a guard, with the monitor of what it has answered."""

    guard: ExportedGuard
    monitor: Monitor
    tokenizer: TextTokenizer | None


class BatchKey(NamedTuple):
    """What rows must have in common to be run together."""

    version: Version
    explain: bool
    shapes: tuple[tuple[str, tuple[int, ...]], ...]


class ServedGuard:
    """Answers inputs in batches, watches the stream of answers, and follows its files when they change."""

    def __init__(
        self,
        source: Source,
        settings: Settings,
        telemetry: Telemetry,
        alerted: Callable[..., None] | None = None,
    ) -> None:
        self.name, self.path = source.name, source.path
        self.reload_error: str | None = None
        self._source, self._settings, self._telemetry = source, settings, telemetry
        self._alerted = alerted
        self._rule = AlertRule(false_alarm_every=settings.false_alarm_every)
        self._state = self._own_state(settings)
        self._observing = threading.Lock()
        self._changing = threading.Lock()
        self._in_progress, self._seconds_per_row = 0, 0.0
        self._stamp = stamp_of(self.path)
        self.version = self._open()
        self._batcher: Batcher[BatchKey, ArrayVerdict] = Batcher(
            self._run, max_batch=settings.max_batch, max_wait=settings.max_wait_ms / 1000, name=self.name
        )
        for verdict in ("id", "ood", "error"):
            telemetry.inputs.labels(self.name, verdict)
        self._show_version()
        telemetry.waiting.labels(self.name).set_function(lambda: self._in_progress)

    # Answering ----------------------------------------------------------------------------------

    @contextmanager
    def admit(self, rows: int) -> Iterator[None]:
        """Count rows as in progress during the block; raises if there are too many."""
        if self._in_progress + rows > self._settings.queue:
            seconds = min(MAX_RETRY, max(1, round(self._in_progress * self._seconds_per_row)))
            message = f"{self._in_progress} inputs wait for {self.name} already; try again later"
            raise HTTPException(503, message, {"Retry-After": str(seconds)})
        self._in_progress += rows
        try:
            yield
        finally:
            self._in_progress -= rows

    def submit(self, version: Version, arrays: Arrays, *, explain: bool) -> "Future[ArrayVerdict]":
        """Have rows answered that were prepared for a version."""
        shapes = tuple((name, value.shape[1:]) for name, value in sorted(arrays.items()))
        return self._batcher.submit(BatchKey(version, explain, shapes), arrays)

    def count_errors(self, number: int) -> None:
        """Count inputs that could not be scored."""
        with self._observing:
            self.version.monitor.count_errors(number)
        self._telemetry.inputs.labels(self.name, "error").inc(number)

    @contextmanager
    def counting_refusals(self) -> Iterator[None]:
        """Count an input that cannot be scored if the block refuses it; one that may be sent again is not counted."""
        try:
            yield
        except (HTTPException, OodlesError) as error:
            if getattr(error, "status_code", 400) != 503:
                self.count_errors(1)
            raise

    def _run(self, key: BatchKey, parts: Sequence[Arrays]) -> list[ArrayVerdict]:
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        began = time.perf_counter()
        verdict = key.version.guard.judge(arrays, explain=key.explain)
        seconds = time.perf_counter() - began
        rows = rows_of(arrays)
        self._seconds_per_row += 0.1 * (seconds / rows - self._seconds_per_row)  # a mean of the last batches
        self._telemetry.inference.labels(self.name).observe(seconds)
        self._telemetry.batches.labels(self.name).observe(rows)
        self._observe(key.version, verdict)
        ends = [*accumulate(map(rows_of, parts))]
        return [verdict.part(start, end) for start, end in pairwise([0, *ends])]

    # Monitoring ---------------------------------------------------------------------------------

    def _observe(self, version: Version, verdict: ArrayVerdict) -> None:
        finite = np.isfinite(verdict.score)
        accepted = verdict.is_id & finite
        counts = {"id": accepted.sum(), "ood": (~accepted & finite).sum(), "error": (~finite).sum()}
        for kind, count in counts.items():
            self._telemetry.inputs.labels(self.name, kind).inc(int(count))
        for value in verdict.p_value[finite & np.isfinite(verdict.p_value)]:
            self._telemetry.p_values.labels(self.name).observe(float(value))
        with self._observing:
            alerts = version.monitor.observe(
                score=verdict.score[finite],
                p_value=verdict.p_value[finite],
                label=verdict.label[finite],
                is_id=accepted[finite],
                time=time.time(),
            )
            version.monitor.count_errors(int(counts["error"]))
            self._show_monitor()
        for alert in alerts:
            log("alarm", level=logging.WARNING, guard=self.name, **alert.as_record())
            if self._alerted is not None:
                self._alerted(alert, self.name, version=version.guard.version)

    def _show_monitor(self) -> None:
        monitor = self.version.monitor
        self._telemetry.alarm.labels(self.name).set(monitor.alert is not None and not monitor.acknowledged)
        self._telemetry.rate.labels(self.name).set(monitor.rejected / monitor.inputs if monitor.inputs else 0.0)
        self._telemetry.rate_limit.labels(self.name).set(monitor.upper)

    def acknowledge(self) -> None:
        """Note that somebody has seen the alarm that stands: the metric is 0 until there is another."""
        with self._observing:
            self.version.monitor.acknowledge()
            self._show_monitor()

    def status(self) -> dict[str, Any]:
        """What the monitor knows, for JSON."""
        with self._observing:
            return self.version.monitor.status()

    def save_state(self) -> None:
        """Write the monitor's state; if that fails, the service goes on and says so."""
        if self._state is None:
            return
        try:
            with self._observing:
                now = copy.deepcopy(self.version.monitor)
            now.save(self._state)  # without holding up answers while a disk is slow
        except OodlesError as error:
            self._telemetry.failures.labels("state").inc()
            log("state not saved", level=logging.WARNING, guard=self.name, error=str(error))

    # Versions -----------------------------------------------------------------------------------

    def set_threshold(self, value: float) -> None:
        """Accept what scores at least ``value`` from now on, here and in the guard's files."""
        with self._changing:
            guard = self.version.guard
            scores = guard.threshold.id_scores
            if scores is None:
                raise HTTPException(
                    422, f"{self.name} keeps no calibration scores to tell the ID rate of a threshold; export it again"
                )
            # a rate of 0 or 1 is not one, and the calibration set cannot tell rates closer to them apart
            edge = 1 / (len(scores) + 1)
            rate = min(max(float((scores >= value).mean()), edge), 1 - edge)
            threshold = Threshold(value, rate, guard.threshold.calibration_size)
            changed = guard.with_threshold(threshold)
            guard.save_threshold(threshold)  # the files are looked at again later, and found to be this version
            self.reload_error = None
            self._replace(Version(changed, self._monitor_of(changed), self.version.tokenizer))

    def reload(self) -> None:
        """Take over the files if they have changed and are a guard that passes its checks; otherwise keep the old."""
        with self._changing:
            stamp = stamp_of(self.path)
            if stamp == self._stamp:
                return
            self._stamp = stamp
            try:
                version = self._open()
                if _kind(version.guard) != _kind(self.version.guard):
                    raise FileError(
                        f"{self.path} takes other inputs or has other classes than the guard that is served; restart "
                        "the service to serve it"
                    )
                if version.guard.version != self.version.guard.version:  # else the same files, written again
                    self._replace(version)
                self.reload_error = None
            except OodlesError as error:
                self.reload_error = str(error)
                self._telemetry.failures.labels("reload").inc()
                log("reload refused", level=logging.WARNING, guard=self.name, error=str(error))

    def close(self) -> None:
        """Answer what waits and save the monitor's state."""
        self._batcher.close()
        self.save_state()

    def _open(self) -> Version:
        guard = ExportedGuard.open(self.path, device=self._settings.device, threads=self._settings.threads)
        path = self._source.tokenizer
        tokenizer = None if path is None else TextTokenizer(path, guard)
        if guard.transform is not None:  # run it once as it will be run, so that the first request does not pay for it
            side, channels = guard.transform.resize, guard.transform.channels
            for rows in sorted({1, self._settings.max_batch}):
                guard.judge({INPUT: np.zeros((rows, side, side, channels), np.uint8)})
        return Version(guard, self._monitor_of(guard, self._state), tokenizer)

    def _replace(self, version: Version) -> None:
        self.version = version
        self._show_version()
        log(
            "version",
            level=logging.WARNING,
            guard=self.name,
            version=version.guard.version,
            threshold=version.guard.threshold.value,
        )

    def _show_version(self) -> None:
        guard = self.version.guard
        self._show_monitor()
        self._telemetry.guards.labels(self.name).info({"version": guard.version[:12], "detector": guard.detector})

    def _monitor_of(self, guard: ExportedGuard, state: Path | None = None) -> Monitor:
        """Return the monitor as it was before a restart, or a new one if no state of this version is given."""
        about: dict[str, Any] = {"classes": guard.class_names, "guard": guard.identity, "rule": self._rule}
        if state is not None and state.exists():
            try:
                return Monitor.load(state, threshold=guard.threshold, **about)
            except FileError as error:
                log("monitor reset", level=logging.WARNING, guard=self.name, reason=str(error))
        return Monitor(guard.threshold, **about)

    def _own_state(self, settings: Settings) -> Path | None:
        """Return where the monitor's state is kept; raises if another process keeps its own there."""
        if settings.state is None:
            return None
        replica = "" if settings.replica is None else f"@{settings.replica}"
        path = settings.state / f"{self.name}{replica}.monitor.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=0, thread_local=False)
            self._lock.acquire()
        except Timeout:
            raise FileError(f"{path} is the state of another process; give each a name with --replica") from None
        except OSError as error:
            log("state not locked", level=logging.WARNING, guard=self.name, error=str(error))
        return path


def _kind(guard: ExportedGuard) -> tuple[Any, ...]:
    """Return what clients rely on: the inputs and the classes."""
    return guard.record["inputs"], guard.class_names, guard.transform is None
