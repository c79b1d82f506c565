"""Connections whose clients take too long, or whose headers are too long, are closed."""

import asyncio
from collections.abc import Callable
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADER_BYTES = 65_536
"""What a request may have beside its body; chunks and trailers may have as many more as the body has."""
MAX_WAITING = 16
"""Requests of one connection that wait for the answer to an earlier one."""


class TimedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which waits forever for headers to arrive and for answers to be read, with limits on both.

    Nor does uvicorn limit the size of headers. The body is the application's, which has limits of its own. If there
    are too many connections, the one that has kept us waiting longest makes room for the new one.
    """

    seconds: ClassVar = 30.0
    limit: ClassVar = 512
    waiting: ClassVar[dict["TimedProtocol", None]] = {}  # for their clients to send something, the longest first
    dropped: ClassVar[Callable[[], None]]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._unanswered = self._body_bytes = self._other_bytes = 0
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # to be told of whatever a client does not read
        self._start("reading", transport.close)
        self.waiting[self] = None
        longest = next(iter(self.waiting))
        if len(self.connections) > self.limit and longest is not self:
            del self.waiting[longest]
            longest.transport.abort()
            type(self).dropped()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of the headers, if a request has begun after another one."""
        self._other_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._other_bytes > MAX_HEADER_BYTES + self._body_bytes:
            if self._unanswered:
                self.transport.abort()
            else:
                self.send_400_response("The headers are too large.")
        elif "reading" not in self._timers and not self._unanswered:
            self._start("reading", self.transport.close)

    def on_headers_complete(self) -> None:
        """Stop waiting for headers: the request has begun."""
        if self._unanswered > MAX_WAITING:
            raise ValueError("too many requests at once")  # which the parser answers with 400
        self._stop("reading")
        self._unanswered += 1
        self._wait()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count what is not part of the headers."""
        self._other_bytes -= len(body)
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Count anew for the next request."""
        self._body_bytes = self._other_bytes = 0
        if self._unanswered:
            self.waiting.pop(self, None)  # now the client waits for us
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._unanswered -= 1
        if not self._unanswered and not self.transport.is_closing():
            self._wait()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Begin to wait for the client to read its answer."""
        super().pause_writing()
        self._start("writing", self.transport.abort)

    def resume_writing(self) -> None:
        """Stop waiting: the answer is on its way."""
        self._stop("writing")
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting: nobody is there."""
        self._stop("reading")
        self._stop("writing")
        self.waiting.pop(self, None)
        super().connection_lost(exc)

    def _wait(self) -> None:
        self.waiting.pop(self, None)
        self.waiting[self] = None

    def _start(self, waiting: str, give_up: Callable[[], None]) -> None:
        self._timers[waiting] = self.loop.call_later(self.seconds, give_up)

    def _stop(self, waiting: str) -> None:
        timer = self._timers.pop(waiting, None)
        if timer is not None:
            timer.cancel()
