"""Connections whose clients take too long to say what they want are closed."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_SECONDS = 10.0


class TimedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which waits for the headers of a request forever, with a limit on that."""

    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of the headers, if a request has begun after another one."""
        idle = self.cycle is None or self.cycle.response_complete
        super().data_received(data)
        if idle and self._header_timer is None and self.parser is not None and self.cycle_is_over():
            self._wait_for_headers()

    def cycle_is_over(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def on_headers_complete(self) -> None:
        """Stop waiting: the request has begun."""
        self._stop_waiting()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting: nobody is there."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_headers(self) -> None:
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self._close)

    def _stop_waiting(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _close(self) -> Any:
        self._header_timer = None
        if not self.transport.is_closing():
            self.transport.close()
