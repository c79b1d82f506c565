"""What every request gets: an id, a line in the log, its place in the metrics, and headers that browsers heed."""

import re
import secrets
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oodles.serve.logs import log
from oodles.serve.problems import CLIENT_GONE
from oodles.serve.telemetry import Telemetry

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
HEADERS = [(b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"), (b"x-frame-options", b"DENY")]
QUIET = ("/v2/health/live", "/v2/health/ready", "/metrics")  # asked every few seconds by machines
UNKNOWN = "other"


class Envelope:
    """Wraps the application; it adds headers and looks at the status, and changes nothing else."""

    def __init__(self, app: ASGIApp, telemetry: Telemetry) -> None:
        self.app = app
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        request_id = given if REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id
        status = CLIENT_GONE  # unless an answer begins

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode()), *HEADERS]
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        finally:
            self._record(scope, request_id, status, time.perf_counter() - began)

    def _record(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", UNKNOWN)  # never the address itself, of which there are many
        self._telemetry.requests.labels(route, str(status)).inc()
        self._telemetry.seconds.labels(route).observe(seconds)
        if route in QUIET and status < 400:
            return
        about: dict[str, Any] = scope["state"].get("about", {})
        log(
            "request",
            request_id=request_id,
            method=scope["method"],
            path=scope["path"][:200],
            status=status,
            ms=round(1000 * seconds, 1),
            **about,
        )
