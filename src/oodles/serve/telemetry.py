"""What the service counts for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
P_VALUES = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class Telemetry:
    """The metrics of one service, in a registry of their own; names begin with ``oodles_``."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "oodles_requests", "Requests by route and status.", ["route", "status"], registry=registry
        )
        self.seconds = Histogram(
            "oodles_request_seconds",
            "Time from the first byte of a request to the last of its answer.",
            ["route"],
            buckets=SECONDS,
            registry=registry,
        )
        self.inputs = Counter(
            "oodles_inputs", "Inputs by verdict: id, ood, error.", ["guard", "verdict"], registry=registry
        )
        self.p_values = Histogram(
            "oodles_p_value", "p-values of scored inputs.", ["guard"], buckets=P_VALUES, registry=registry
        )
        self.batches = Histogram(
            "oodles_batch_rows",
            "Inputs that the network was given at once.",
            ["guard"],
            buckets=ROWS,
            registry=registry,
        )
        self.inference = Histogram(
            "oodles_inference_seconds",
            "Time of one batch in the network.",
            ["guard"],
            buckets=SECONDS,
            registry=registry,
        )
        self.waiting = Gauge(
            "oodles_inputs_in_progress", "Inputs accepted and not yet answered.", ["guard"], registry=registry
        )
        self.alarm = Gauge("oodles_monitor_alarm", "1 while an alarm stands.", ["guard"], registry=registry)
        self.rate = Gauge("oodles_monitor_rate", "Share of inputs rejected so far.", ["guard"], registry=registry)
        self.rate_limit = Gauge(
            "oodles_monitor_rate_limit", "Largest share that the calibration explains.", ["guard"], registry=registry
        )
        self.guards = Gauge(
            "oodles_guard_info",
            "1 for the version that is served.",
            ["guard", "version", "detector"],
            registry=registry,
        )
        self.failures = Counter(
            "oodles_failures",
            "What went wrong beside requests: reload (a new version was refused), state (monitoring could not be "
            "saved), log (a line could not be written), webhook.",
            ["kind"],
            registry=registry,
        )
        for kind in ("reload", "state", "log", "webhook"):
            self.failures.labels(kind)

    def text(self) -> bytes:
        """Everything in Prometheus' format."""
        return generate_latest(self._registry)
