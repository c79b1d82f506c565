"""The ASGI application: routes, refusals, and who may call what."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from oodles import __version__
from oodles.errors import OodlesError
from oodles.serve import guard_routes, protocol_routes, score_routes
from oodles.serve.answers import refusal, service_of
from oodles.serve.docs_page import describe_api
from oodles.serve.envelope import Envelope
from oodles.serve.logs import LOGGER
from oodles.serve.page import read_page
from oodles.serve.problems import CLIENT_GONE, Problem, problem_with_inputs
from oodles.serve.service import Service

DESCRIPTION = "Says of each input whether a classifier should be trusted with it."
HTML = "text/html; charset=utf-8"


class _App(FastAPI):
    """FastAPI, whose description promises an answer of its own to wrong parameters, which here get ours."""

    def openapi(self) -> dict[str, Any]:
        """The description of all routes."""
        if self.openapi_schema is None:
            described = super().openapi()
            for name in ("HTTPValidationError", "ValidationError"):
                described["components"]["schemas"].pop(name, None)
            for about in (about for methods in described["paths"].values() for about in methods.values()):
                if "HTTPValidationError" in str(about["responses"].get("422")):
                    del about["responses"]["422"]
        return super().openapi()


def make_app(service: Service) -> ASGIApp:
    """The application for a service, which is closed when the application ends."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
        task = asyncio.create_task(service.look_after())
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
        description=DESCRIPTION,
        docs_url=None,  # ours needs no script from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    app.include_router(protocol_routes.health)
    for routes in (score_routes, guard_routes, protocol_routes):
        app.include_router(routes.router, dependencies=[Depends(_authorised)])
    _add_pages(app)
    _add_refusals(app)
    if service.settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.settings.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
    return Envelope(app, service.telemetry)


async def _authorised(request: Request) -> None:  # asynchronous, or each call would be sent to a thread
    """Refuse a request without the service's token; probes, metrics and pages without data need none."""
    service_of(request).check_token(request.headers.get("authorization"))


def _add_pages(app: FastAPI) -> None:
    """What is looked at rather than called: the page, the description of the API, and the metrics."""

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        html, policy = read_page("index.html")
        return Response(html, headers={"Content-Security-Policy": policy}, media_type=HTML)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        html, policy = describe_api(app.openapi())
        return Response(html, headers={"Content-Security-Policy": policy}, media_type=HTML)

    @app.get(
        "/metrics",
        summary="Counts for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics(request: Request) -> Response:
        """Requests, inputs by verdict, batches, times, and what monitors know."""
        return Response(service_of(request).telemetry.text(), media_type=CONTENT_TYPE_LATEST)


def _add_refusals(app: FastAPI) -> None:
    """Whatever goes wrong, the client gets one line of JSON."""

    @app.exception_handler(Problem)
    async def refuse(request: Request, problem: Problem) -> Response:
        return refusal(request, problem)

    @app.exception_handler(OodlesError)
    async def refuse_inputs(request: Request, error: OodlesError) -> Response:
        return refusal(request, problem_with_inputs(error))

    @app.exception_handler(RequestValidationError)
    async def refuse_parameter(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return refusal(request, Problem(400, f"the parameter {first['loc'][-1]!r} is wrong: {first['msg']}"))

    @app.exception_handler(HTTPException)
    async def refuse_address(request: Request, error: HTTPException) -> Response:
        message = "there is nothing at this address; GET /docs lists what there is" if error.status_code == 404 else ""
        answer = refusal(request, Problem(error.status_code, message or str(error.detail)))
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(ClientDisconnect)
    async def client_gone(request: Request, _: ClientDisconnect) -> Response:
        return refusal(request, Problem(CLIENT_GONE, "the client is gone"))

    @app.exception_handler(Exception)
    async def fail(request: Request, error: Exception) -> Response:
        LOGGER.error("unexpected error", exc_info=error, extra={"fields": {"request_id": request.state.request_id}})
        return refusal(request, Problem(500, "a bug in oodles; the log of the service has more under the request's id"))
