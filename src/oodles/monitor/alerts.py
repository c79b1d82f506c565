"""When a monitor raises an alarm, what the alarm says, and a web address that it is sent to."""

import json
import socket
import threading
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import urlsplit

from msgspec import Meta

from oodles.errors import ArgumentError
from oodles.records.text import one_line, printable

MAX_INPUTS = 10**15
PAUSES = (1.0, 5.0, 25.0)  # seconds before an alarm that was not delivered is sent again


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


@dataclass(frozen=True)
class Alert:
    """An alarm when it was raised: after how many inputs, which evidence was too large, and a sentence on it.

    >>> Alert("rejections", 2797, "more inputs are rejected than the calibration set explains").since
    2797
    """

    kind: Annotated[str, Meta(pattern="^(rejections|p_values)$")]
    since: Annotated[int, Meta(ge=0, lt=1 << 62)]
    message: Annotated[str, Meta(max_length=300)]

    def as_record(self) -> dict[str, Any]:
        """The alarm as plain values, for JSON."""
        return asdict(self)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET without its body, perhaps elsewhere: it is an error instead."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow nothing."""


class Webhook:
    """Sends each alarm by POST as JSON, from a thread of its own, and again after a pause if it is not delivered.

    The body has ``guard``, ``kind``, ``since``, ``message``, ``time``, ``version`` (of the guard) and ``replica``.
    Observing a stream never waits and never fails because of it: an alarm that cannot be delivered is passed to
    ``report`` in one line.

    >>> Webhook("ftp://example.org", print)
    Traceback (most recent call last):
    oodles.errors.ArgumentError: a webhook is an address that begins with http:// or https://, got 'ftp://example.org'
    """

    def __init__(
        self, url: str, report: Callable[[str], object], *, seconds: float = 10.0, replica: str | None = None
    ) -> None:
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and url.isascii() and url.isprintable()
            _ = parts.port
        except ValueError:
            usable = False
        if not usable or " " in url:
            raise ArgumentError(f"a webhook is an address that begins with http:// or https://, got {printable(url)!r}")
        self.url, self._report, self._seconds = url, report, seconds
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._replica = replica or socket.gethostname()
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []

    def send(self, alert: Alert, guard: str, *, version: str) -> None:
        """Deliver an alarm of the guard with this name and version, sooner or later."""
        about = {"time": datetime.now(UTC).isoformat(), "version": version, "replica": self._replica}
        body = json.dumps({"guard": guard, **alert.as_record(), **about}).encode()
        thread = threading.Thread(target=self._post, args=(body,), name="oodles webhook", daemon=True)
        self._threads = [*(each for each in self._threads if each.is_alive()), thread]
        thread.start()

    def wait(self, *, hurry: bool = False) -> None:
        """Wait until everything that was sent is delivered or has failed; in a hurry without further pauses."""
        if hurry:
            self._ending.set()
        for thread in self._threads:
            thread.join()

    def _post(self, body: bytes) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "oodles"}
        request = urllib.request.Request(self.url, data=body, headers=headers, method="POST")  # noqa: S310  # checked
        for pause in (*PAUSES, None):
            last = pause is None or self._ending.is_set()
            try:
                with self._opener.open(request, timeout=self._seconds):
                    return
            except Exception as error:  # whatever it is, the stream goes on
                if last:
                    host = urlsplit(self.url).hostname
                    self._report(f"the alarm could not be sent to {host}: {one_line(error)}")
                    return
            self._ending.wait(pause)
