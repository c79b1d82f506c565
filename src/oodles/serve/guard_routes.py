"""What the page needs: the guards, their thresholds, and what is known about the stream of inputs."""

import asyncio
import math
from typing import Any

from fastapi import APIRouter, Request, Response
from msgspec import Struct

from oodles.data.readers import FORMATS
from oodles.errors import OodlesError
from oodles.serve.answers import NO_GUARD, REFUSALS, json_answer, service_of
from oodles.serve.bodies import ErrorBody, GuardBody, GuardsBody, MonitorBody
from oodles.serve.guards import ServedGuard
from oodles.serve.problems import Problem
from oodles.serve.reading import parse_json, read_body

router = APIRouter()
SMALL = 10_000  # bytes of a body that holds one number


class _Threshold(Struct, forbid_unknown_fields=True):
    value: float


@router.get(
    "/guards",
    summary="The guards that are served",
    response_model=None,
    responses={200: {"model": GuardsBody}, 401: REFUSALS[401]},
)
async def guards(request: Request) -> Response:
    """Names, inputs, classes, thresholds, and the scores of the calibration sets in short."""
    service = service_of(request)
    settings = service.settings
    limits = {name: getattr(settings, name) for name in ("body_bytes", "pixels", "side", "images")}
    return json_answer(
        {
            "guards": [_described(guard) for guard in service.guards.values()],
            "can_save": settings.token is not None,
            "limits": {**limits, "formats": list(FORMATS)},
        }
    )


@router.get(
    "/guards/{name}/monitor",
    summary="How the inputs so far compare with the calibration set",
    response_model=None,
    responses={200: {"model": MonitorBody}, **NO_GUARD},
)
async def monitor(request: Request, name: str) -> Response:
    """Counts, the rejection rate by windows with its limits, evidence of a change, and the alarm that stands."""
    return json_answer(service_of(request).guard(name).status())


@router.put(
    "/guards/{name}/threshold",
    summary="Change a guard's threshold",
    response_model=None,
    responses={
        200: {"model": GuardBody},
        **{status: REFUSALS[status] for status in (400, 401, 404, 408, 413, 503)},
        403: {"model": ErrorBody, "description": "The service has no token, so nothing can be changed."},
        422: {"model": ErrorBody, "description": "The guard keeps no calibration scores."},
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "properties": {"value": {"type": "number"}},
                        "required": ["value"],
                        "additionalProperties": False,
                    }
                }
            },
        }
    },
)
async def set_threshold(request: Request, name: str) -> Response:
    """Accept what scores at least `value`, from now on and in the guard's files; monitoring begins anew."""
    service = service_of(request)
    if service.settings.token is None:
        raise Problem(403, "thresholds can be changed only if the service was started with a token (--token-file)")
    with service.request():
        guard = service.guard(name)
        body = await read_body(request, service.settings, limit=SMALL)
        value = parse_json(body, _Threshold, '{"value": number}').value
        if not math.isfinite(value):
            raise Problem(400, f"a threshold of {value} cannot decide anything; send a finite number")
        try:
            await asyncio.to_thread(guard.set_threshold, value)
        except OSError as error:  # a file system that is read-only or full
            raise Problem(503, f"the threshold cannot be saved: {error}") from None
        except OodlesError as error:
            raise Problem(400, str(error)) from None
        return json_answer(_described(guard))


def _described(served: ServedGuard) -> dict[str, Any]:
    guard = served.version.guard
    record = guard.record
    return {
        "name": served.name,
        "version": guard.identity,
        "detector": guard.detector,
        "ready": served.ready,
        "takes": "arrays" if guard.transform is None else "images",
        "texts": served.version.tokenizer is not None,
        "inputs": record["inputs"],
        "class_names": record["class_names"],
        "threshold": guard.threshold.as_record(),
        "calibration": guard.calibration,
        "members": list(guard.members),
        "explains": True,
        "reload_error": served.reload_error,
    }
