"""The process: a socket, uvicorn, and what SIGTERM means."""

import asyncio
import logging
import signal
import socket
import warnings
from collections.abc import Sequence
from functools import partial
from types import FrameType

import uvicorn
from PIL import Image
from starlette.types import ASGIApp

from oodles.errors import ArgumentError
from oodles.monitor import Webhook
from oodles.serve.app import make_app
from oodles.serve.connections import TimedProtocol
from oodles.serve.guards import ServedGuard, Source
from oodles.serve.service import Service
from oodles.serve.settings import Settings
from oodles.serve.telemetry import Telemetry, log, start_logging

MAX_CONNECTIONS = 512
BACKLOG = 256  # connections that wait to be accepted
KEEP_ALIVE = 15  # seconds that an idle connection stays open


def open_socket(host: str, port: int) -> socket.socket:
    """A socket to listen on, so that a port that is taken is an error before anything is loaded."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ArgumentError(
            f"cannot listen on {host}, port {port} ({reason}); choose others with --host, --port"
        ) from None
    listening.setblocking(False)
    return listening


def serve(sources: Sequence[Source], settings: Settings) -> None:
    """Serve guards until SIGTERM, SIGHUP or SIGINT, then finish what has begun."""
    telemetry, token = Telemetry(), settings.token
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the size is checked, by smaller limits
    with open_socket(settings.host, settings.port) as listening:
        start_logging(telemetry.failures.labels("log").inc, level=settings.log_level)
        url = settings.alert_webhook
        webhook = None if url is None else Webhook(url, partial(_not_sent, telemetry), replica=settings.replica)
        send = None if webhook is None else webhook.send
        guards = [ServedGuard(source, settings, telemetry, send) for source in sources]
        service = Service(guards, settings, telemetry)
        address, number = listening.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        log("listening", address=f"http://{shown}:{number}", guards=[guard.name for guard in guards])
        if token is None and address not in ("127.0.0.1", "::1"):
            log("no token", level=logging.WARNING, reason="other machines may use the service; give --token-file")
        run(make_app(service), service, listening)
        if webhook is not None:
            webhook.wait(hurry=True)
        log("ended")


def _not_sent(telemetry: Telemetry, problem: str) -> None:
    telemetry.failures.labels("webhook").inc()
    log("webhook", level=logging.WARNING, error=problem)


def run(app: ASGIApp, service: Service, listening: socket.socket) -> None:
    """Answer requests until a signal ends the process."""
    limits = {
        "seconds": service.settings.timeout,
        "limit": MAX_CONNECTIONS,
        "dropped": service.telemetry.dropped.inc,
        "waiting": {},
    }
    config = uvicorn.Config(
        app,
        loop="asyncio",  # uvloop leaves new connections waiting for seconds while others keep it busy
        http=type("Protocol", (TimedProtocol,), limits),
        ws="none",
        backlog=BACKLOG,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing here depends on the client's address
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=int(service.settings.timeout) + 5,
    )
    _Server(config, service).run(sockets=[listening])


class _Server(uvicorn.Server):
    """uvicorn's, with a pause in which load balancers notice that it is about to end, and exit code 0 after it."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; from now on SIGHUP ends the process as SIGTERM does."""
        await super().startup(sockets=sockets)
        hangup = getattr(signal, "SIGHUP", signal.SIGTERM)  # Windows has none
        if signal.getsignal(hangup) is signal.SIG_DFL:  # nohup would have it ignored
            signal.signal(hangup, self.handle_exit)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Act once the event loop has its turn: a line of the log may be half-written now, and a second is lost."""
        asyncio.get_running_loop().call_soon_threadsafe(self._drain, sig)

    def _drain(self, sig: int) -> None:
        """Stop being ready, go on for a moment, then end; at the second signal end at once."""
        if self._service.draining:
            self.should_exit = True
            self.force_exit = sig == signal.SIGINT
            return
        self._service.draining = True
        log("draining", signal=signal.Signals(sig).name)
        asyncio.get_running_loop().call_later(self._service.settings.drain, setattr, self, "should_exit", True)
