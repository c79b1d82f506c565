"""What routes have in common: the service, JSON, and refusals."""

from typing import Any

import msgspec
from fastapi import Request, Response

from oodles.serve.bodies import ErrorBody
from oodles.serve.problems import Problem
from oodles.serve.service import Service

REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "The body is empty, malformed, or has other inputs than the guard takes."},
    401: {"model": ErrorBody, "description": "The token is missing or wrong."},
    404: {"model": ErrorBody, "description": "There is no guard of this name."},
    408: {"model": ErrorBody, "description": "The body did not arrive in time."},
    413: {"model": ErrorBody, "description": "The body, an image or the number of inputs is too large."},
    415: {"model": ErrorBody, "description": "The body is not an image, or has another content type."},
    422: {
        "model": ErrorBody,
        "description": "An image is damaged or has 16 bits per channel, or values are not finite.",
    },
    503: {"model": ErrorBody, "description": "Too much is in progress, or the service is starting or ending."},
}
NO_GUARD: dict[int | str, dict[str, Any]] = {status: REFUSALS[status] for status in (401, 404, 503)}
"""The refusals of routes that are about one guard and take no body."""
BINARY = {"type": "string", "format": "binary"}


def service_of(request: Request) -> Service:
    """The service that a request is for."""
    service: Service = request.app.state.service
    return service


def json_answer(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Plain values as JSON; a number that is not finite is null."""
    return Response(msgspec.json.encode(content), status, headers, media_type="application/json")


def refusal(request: Request, problem: Problem) -> Response:
    """A refused request as JSON, with what its client should do next."""
    headers = {} if problem.retry_after is None else {"Retry-After": str(problem.retry_after)}
    if problem.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if problem.status in (408, 413):
        headers["Connection"] = "close"  # the rest of the body is not worth reading
    body = {"error": problem.message, "request_id": request.state.request_id}
    return json_answer(body, problem.status, headers)
