"""Alarms as JSON to a web address."""

import json
import threading
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from oodles.errors import ArgumentError
from oodles.monitor.rules import Alert
from oodles.records.text import printable

SECONDS = 10.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET without its body, perhaps elsewhere: it is an error instead."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow nothing."""


class Webhook:
    """Sends each alarm by POST as ``{"guard", "kind", "since", "message"}``, from a thread of its own.

    Whoever observes a stream never waits and never fails because of it: the first message that cannot be delivered is
    passed to ``report`` in one line, later ones are dropped silently.

    >>> Webhook("ftp://example.org", print)
    Traceback (most recent call last):
    oodles.errors.ArgumentError: a webhook is an address that begins with http:// or https://, got 'ftp://example.org'
    """

    def __init__(self, url: str, report: Callable[[str], object], *, seconds: float = SECONDS) -> None:
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
        self._failed = threading.Lock()  # taken by the first failure and never released
        self._threads: list[threading.Thread] = []

    def send(self, alert: Alert, guard: str) -> None:
        """Deliver an alarm of the guard with this name, sooner or later."""
        body = json.dumps({"guard": guard, **alert.as_record()}).encode()
        thread = threading.Thread(target=self._post, args=(body,), name="oodles webhook", daemon=True)
        self._threads = [*(each for each in self._threads if each.is_alive()), thread]
        thread.start()

    def wait(self) -> None:
        """Wait until everything that was sent is delivered or has failed."""
        for thread in self._threads:
            thread.join(2 * self._seconds)

    def _post(self, body: bytes) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "oodles"}
        request = urllib.request.Request(self.url, data=body, headers=headers, method="POST")  # noqa: S310  # checked
        try:
            with self._opener.open(request, timeout=self._seconds):
                pass
        except Exception as error:  # whatever it is, the stream goes on
            if self._failed.acquire(blocking=False):
                reason = printable(str(error) or type(error).__name__)[:200]
                host = urlsplit(self.url).hostname
                self._report(f"the alarm could not be sent to {host}: {reason}; later failures are not reported")
