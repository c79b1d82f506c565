"""The ASGI application: routes, pages, errors, who may call what, and what every request gets."""

import asyncio
import re
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteError
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oodles import __version__
from oodles.errors import FileError, OodlesError
from oodles.serve import protocol, routes
from oodles.serve.access import authorise
from oodles.serve.bodies import REFERENCE, REQUESTS, ErrorBody
from oodles.serve.pages import add_pages
from oodles.serve.service import Service
from oodles.serve.telemetry import LOGGER, log

CLIENT_GONE = 499  # the status, in logs and metrics alone, of a request whose client did not wait for the answer
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
HEADERS = [(b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"), (b"x-frame-options", b"DENY")]
QUIET = ("/v2/health/live", "/v2/health/ready", "/metrics")  # asked every few seconds by machines


class _App(FastAPI):
    """FastAPI, with a description of the bodies that routes read by themselves."""

    def openapi(self) -> dict[str, Any]:
        """Describe all routes."""
        if self.openapi_schema is None:
            _, bodies = msgspec.json.schema_components(REQUESTS, ref_template=REFERENCE)
            super().openapi()["components"]["schemas"] |= bodies
        return super().openapi()


def make_app(service: Service) -> ASGIApp:
    """Make the application for a service, which is closed when the application ends."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
        task = asyncio.create_task(service.run_maintenance())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await asyncio.to_thread(service.close)

    app = _App(
        title="oodles",
        version=__version__,
        description="Tells you when not to trust a prediction.",
        docs_url=None,  # FastAPI's would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        root_path=service.settings.root_path,
        lifespan=lifespan,
    )
    app.state.service = service
    app.include_router(protocol.health)
    app.include_router(routes.metrics)
    for router in (routes.router, protocol.router):
        app.include_router(router, dependencies=[Depends(authorise)])
    add_pages(app)
    _add_error_handlers(app)
    if service.settings.cors_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.settings.cors_origin,
            allow_methods=["GET", "POST", "PUT"],
            allow_headers=["Authorization", "Content-Type", "Content-Encoding", "X-Request-Id", protocol.LENGTH],
            expose_headers=["X-Request-Id", "Retry-After", protocol.LENGTH],
        )
    return RequestLog(app, service)


def _add_error_handlers(app: FastAPI) -> None:
    """Answer whatever goes wrong with one line of JSON."""

    def answer(request: Request, status: int, message: str, headers: dict[str, str] | None = None) -> Response:
        body = ErrorBody(error=message, request_id=request.state.request_id)
        # after 408 and 413 the rest of the body is not worth reading
        closing = {"Connection": "close"} if status in (408, 413) else {}
        return Response(body.model_dump_json(), status, {**closing, **(headers or {})}, media_type="application/json")

    @app.exception_handler(StarletteError)
    async def refuse(request: Request, error: StarletteError) -> Response:
        unknown = error.status_code == 404 and error.detail == "Not Found"
        message = "there is nothing at this address; GET /docs lists what there is" if unknown else error.detail
        return answer(request, error.status_code, message, dict(error.headers or {}))

    @app.exception_handler(OodlesError)
    async def refuse_inputs(request: Request, error: OodlesError) -> Response:
        # of inputs that the guard does not take, or that ask too much of its files
        message = request.app.state.service.without_paths(str(error))
        return answer(request, 422 if isinstance(error, FileError) else 400, message)

    @app.exception_handler(RequestValidationError)
    async def refuse_parameter(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return answer(request, 400, f"the parameter {first['loc'][-1]!r} is wrong: {first['msg']}")

    @app.exception_handler(ClientDisconnect)
    async def client_gone(request: Request, _: ClientDisconnect) -> Response:
        return answer(request, CLIENT_GONE, "the client is gone")

    @app.exception_handler(Exception)
    async def fail(request: Request, error: Exception) -> Response:
        request_id = request.state.request_id
        LOGGER.error("unexpected error", exc_info=error, extra={"fields": {"request_id": request_id}})
        return answer(request, 500, f"internal error; search the log for request_id={request_id}")


class RequestLog:
    """Middleware that gives each request an id, headers that browsers heed, a line in the log, and metrics."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app = app
        self._service, self._telemetry = service, service.telemetry

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
                if self._service.draining:  # else the client's next request might meet the end of the connection
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        # uvicorn leaves out the body of an answer to HEAD, which is a GET for the routes
        asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        try:
            await self.app(asked, receive, send_with_headers)
        finally:
            self._record(asked, scope["method"], request_id, status, time.perf_counter() - began)

    def _record(self, scope: Scope, method: str, request_id: str, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")  # never the address itself, of which there are many
        self._telemetry.requests.labels(route, str(status)).inc()
        self._telemetry.seconds.labels(route).observe(seconds)
        if route in QUIET and status < 400:
            return
        log(
            "request",
            request_id=request_id,
            client=(scope.get("client") or (None,))[0],
            method=method,
            path=scope["path"][:200],
            status=status,
            ms=round(1000 * seconds, 1),
            **scope["state"].get("about", {}),
        )
