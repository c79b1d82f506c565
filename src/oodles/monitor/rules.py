"""When a monitor speaks up: :class:`AlertRule`, and what it then says, :class:`Alert`."""

from dataclasses import asdict, dataclass
from typing import Any

from oodles.errors import ArgumentError

MAX_INPUTS = 10**15


@dataclass(frozen=True)
class AlertRule:
    """How many false alarms are acceptable, and how often an alarm may be repeated.

    ``false_alarm_every``: as long as inputs are like the calibration set, the expected number of alarms in N inputs is
    at most ``N / false_alarm_every``, for every N. ``minimum``: no alarm before this many inputs since the start or
    since the last alarm. ``cooldown``: an alarm stands until this many inputs have passed without new evidence, and
    meanwhile no other is raised. ``error``: the probability, over the calibration set, with which these promises may
    fail; the test of the whole stream is wrong with at most this probability too.

    A smaller ``error`` and a larger ``false_alarm_every`` make alarms later.

    >>> AlertRule(false_alarm_every=100_000)
    AlertRule(false_alarm_every=100000, minimum=100, cooldown=10000, error=0.01)
    """

    false_alarm_every: int = 1_000_000
    minimum: int = 100
    cooldown: int = 10_000
    error: float = 0.01

    def __post_init__(self) -> None:
        for name, least in (("false_alarm_every", 1), ("minimum", 1), ("cooldown", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_INPUTS:
                raise ArgumentError(f"{name}={value!r} must be a whole number of inputs from {least} to {MAX_INPUTS:,}")
        if not isinstance(self.error, float) or not 1e-9 <= self.error <= 0.5:
            raise ArgumentError(
                f"error={self.error!r} must lie between 1e-9 and 0.5; it is a probability, such as 0.01"
            )

    def as_record(self) -> dict[str, Any]:
        """The rule as plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Alert:
    """An alarm when it was raised: after how many inputs, which evidence was too large, and a sentence on it.

    >>> Alert("rejections", 2797, "more inputs are rejected than the calibration set explains").since
    2797
    """

    kind: str
    since: int
    message: str

    def as_record(self) -> dict[str, Any]:
        """The alarm as plain values, for JSON."""
        return asdict(self)
