"""What the service counts for Prometheus, and its logs as lines of JSON."""

import atexit
import io
import json
import logging
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
P_VALUES = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
FAILURES = ("reload", "state", "log", "webhook")
LOGGER = logging.getLogger("oodles.serve")


class Telemetry:
    """The metrics of one service, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        ProcessCollector(registry=registry)
        guard = ["guard"]
        self.requests = counter("oodles_requests", "Requests by route and status.", ["route", "status"])
        time_of_request = "Time from the first byte of a request to the last of its answer."
        self.seconds = histogram("oodles_request_seconds", time_of_request, ["route"], buckets=SECONDS)
        self.dropped = counter("oodles_connections_dropped", "Idle connections closed because there were too many.")
        self.inputs = counter("oodles_inputs", "Inputs by verdict: id, ood, error.", ["guard", "verdict"])
        self.p_values = histogram("oodles_p_value", "p-values of scored inputs.", guard, buckets=P_VALUES)
        self.batches = histogram("oodles_batch_rows", "Inputs that the network was given at once.", guard, buckets=ROWS)
        self.inference = histogram(
            "oodles_inference_seconds", "Time of one batch in the network.", guard, buckets=SECONDS
        )
        self.waiting = gauge("oodles_inputs_in_progress", "Inputs accepted and not yet answered.", guard)
        self.alarm = gauge("oodles_monitor_alarm", "1 while an alarm stands that nobody has acknowledged.", guard)
        self.rate = gauge("oodles_monitor_rate", "Share of inputs rejected so far.", guard)
        self.rate_limit = gauge("oodles_monitor_rate_limit", "Largest share that the calibration explains.", guard)
        self.guards = Info("oodles_guard", "The version and detector that are served.", guard, registry=registry)
        kinds = "a new version was refused, monitoring not saved, a line not logged, an alarm not sent"
        self.failures = counter("oodles_failures", f"Failures outside requests: {kinds}.", ["kind"])
        for kind in FAILURES:
            self.failures.labels(kind)

    def text(self) -> bytes:
        """Give everything in Prometheus' format."""
        return generate_latest(self._registry)


def log(event: str, *, level: int = logging.INFO, **fields: Any) -> None:
    """Write one line: what happened, and what is known about it."""
    LOGGER.log(level, event, extra={"fields": fields})


class JsonLines(logging.Formatter):
    """A record as one line of JSON; whatever a client sent in a name is escaped by it."""

    def format(self, record: logging.LogRecord) -> str:  # noqa: D102
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        return json.dumps(line, default=str)


def _forget_lost_lines() -> None:
    """Keep Python from ending with exit code 120 because of lines that could not be written."""
    try:
        sys.stderr.flush()
    except OSError:
        sys.stderr = io.StringIO()


def start_logging(failed: Callable[[], None], *, level: str = "info") -> None:
    """Send what the service logs, and warnings of anything else, to standard error.

    ``failed`` is called for a line that is lost.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.handleError = lambda record: failed()  # type: ignore[method-assign]  # a full disk must not stop the service
    handler.setFormatter(JsonLines())
    logging.captureWarnings(True)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    LOGGER.setLevel(level.upper())
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # a broken form is a client's, and answered
    atexit.register(_forget_lost_lines)
