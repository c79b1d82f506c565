"""``POST /score``: images, arrays and texts in, verdicts out; and the guards, their thresholds and monitors."""

import asyncio
import math

from fastapi import APIRouter, HTTPException, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from oodles.data.readers import FORMATS
from oodles.deploy.artefact import rows_of
from oodles.deploy.exported import ArrayVerdict
from oodles.explanation.findings import name_of
from oodles.records.text import printable
from oodles.serve.bodies import (
    BINARY,
    ERRORS,
    GuardBody,
    GuardsBody,
    InputError,
    LimitsBody,
    MonitorBody,
    Result,
    ScoreBody,
    ScoreRequest,
    ThresholdRequest,
    describe_body,
)
from oodles.serve.guards import ServedGuard, Version
from oodles.serve.inputs import image_arrays, request_arrays
from oodles.serve.reading import parse_json, read_body, read_files
from oodles.serve.service import Service, Serving

router = APIRouter(responses=ERRORS)
metrics = APIRouter()  # needs no token
FORM, JSON = "multipart/form-data", "application/json"
RAW = ("image/", "application/octet-stream", "application/x-www-form-urlencoded")
"""What a body that is an image may be called; the last is what curl says if it is told nothing."""
FILES = {"type": "object", "properties": {"file": {"type": "array", "items": BINARY}}}
MAX_NAME = 255
MAX_THRESHOLD_BYTES = 10_000


# Scoring ------------------------------------------------------------------------------------------


@router.post(
    "/score",
    summary="Score images, arrays or texts",
    openapi_extra=describe_body(ScoreRequest, **{FORM: FILES, "application/octet-stream": BINARY}),
)
async def score(request: Request, service: Serving, guard: str | None = None, explain: bool = False) -> ScoreBody:
    """Classify and score inputs, and say which are in-distribution.

    The body is one image; or a form with one or many images as files; or JSON: `{"inputs": {name: nested lists}}`, or
    `{"texts": [...]}` if the guard has a tokenizer. With several images, one that cannot be read is a result with an
    error; alone it gets the status itself. `guard` may be left out if there is only one.
    """
    settings = service.settings
    with service.request():
        served = service.guard(guard)
        version = served.version
        kind = request.headers.get("content-type", "application/octet-stream").partition(";")[0].strip().lower()
        if kind == JSON:
            body = await read_body(request, settings, settings.max_json_bytes)
            results = await _score_arrays(service, served, version, body, explain)
        elif kind == FORM:
            uploads = await read_files(request, settings)
            results = await _score_images(service, served, version, uploads, explain)
        elif kind.startswith(RAW):
            body = await read_body(request, settings, settings.max_bytes)
            results = await _score_images(service, served, version, [(None, body)], explain)
        else:
            raise HTTPException(415, f"the content type {kind[:100]!r} is not one of {FORM}, {JSON}, image/*")
        request.state.about = {"guard": served.name, "inputs": len(results)}
        threshold = version.guard.threshold.value
        return ScoreBody(guard=served.name, version=version.guard.identity, threshold=threshold, results=results)


async def _score_images(
    service: Service, served: ServedGuard, version: Version, uploads: list[tuple[str | None, bytes]], explain: bool
) -> list[Result]:
    """Score files, given as names and contents."""
    transform = version.guard.transform
    if transform is None:
        names = ", ".join(each["name"] for each in version.guard.record["inputs"])
        raise HTTPException(415, f"{served.name} takes {names} as JSON, not images")

    async def one(content: bytes) -> ArrayVerdict:
        arrays = await service.in_thread(image_arrays, content, transform, service.settings)
        return await asyncio.wrap_future(served.submit(version, arrays, explain=explain))

    with served.admit(len(uploads)):
        async with service.in_time():
            answers = await asyncio.gather(*(one(content) for _, content in uploads), return_exceptions=True)
    results = []
    for (given, _), answer in zip(uploads, answers, strict=True):
        name = None if given is None else printable(given)[:MAX_NAME]
        if isinstance(answer, ArrayVerdict):
            results.append(_result(version, answer, 0, name))
        elif not isinstance(answer, HTTPException):
            raise answer
        else:
            served.count_errors(1)
            results.append(_failed(answer.status_code, answer.detail, name))
    alone = results[0].error if len(results) == 1 else None
    if alone is not None:
        raise HTTPException(alone.status, alone.message)
    return results


async def _score_arrays(
    service: Service, served: ServedGuard, version: Version, body: bytes, explain: bool
) -> list[Result]:
    given = await service.in_thread(parse_json, body, ScoreRequest)
    arrays = await service.in_thread(request_arrays, given, version.guard, version.tokenizer, service.settings)
    verdict = await service.answer(served, version, arrays, explain=explain)
    return [_result(version, verdict, row, None) for row in range(rows_of(arrays))]


def _result(version: Version, verdict: ArrayVerdict, row: int, name: str | None) -> Result:
    if not math.isfinite(verdict.score[row]):
        return _failed(422, "the network's output is not finite", name)
    label = int(verdict.label[row])
    return Result(
        name=name,
        label=label,
        class_name=name_of(label, version.guard.class_names),
        probability=float(verdict.probability[row]),
        score=float(verdict.score[row]),
        p_value=float(verdict.p_value[row]),
        is_id=bool(verdict.is_id[row]),
        explanation=verdict.explanations[row].as_record() if verdict.explanations else None,
    )


def _failed(status: int, message: str, name: str | None) -> Result:
    return Result(name=name, is_id=False, error=InputError(status=status, message=message))


@metrics.get(
    "/metrics",
    summary="Counts for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def count(service: Serving) -> Response:
    """Requests, inputs by verdict, batches, times, and what monitors know."""
    return Response(service.telemetry.text(), media_type=CONTENT_TYPE_LATEST)


# Guards -------------------------------------------------------------------------------------------


@router.get("/guards", summary="The guards that are served")
async def guards(service: Serving) -> GuardsBody:
    """Names, inputs, classes, thresholds, and the scores of the calibration sets in short."""
    settings = service.settings
    limits = LimitsBody(
        body_bytes=settings.max_bytes,
        pixels=settings.max_pixels,
        side=settings.max_side,
        images=settings.max_images,
        formats=list(FORMATS),
    )
    described = [_described(guard) for guard in service.guards.values()]
    return GuardsBody(guards=described, can_save=settings.token is not None, limits=limits)


@router.get("/guards/{name}/monitor", summary="How the inputs so far compare with the calibration set")
async def monitor(service: Serving, name: str) -> MonitorBody:
    """Counts, the rejection rate by windows with its limits, evidence of a change, and the alarm that stands."""
    return MonitorBody.model_validate(service.guard(name).status())


@router.put(
    "/guards/{name}/threshold", summary="Change a guard's threshold", openapi_extra=describe_body(ThresholdRequest)
)
async def set_threshold(request: Request, service: Serving, name: str) -> GuardBody:
    """Accept what scores at least `value`, from now on and in the guard's files; the monitor is reset."""
    if service.settings.token is None:
        raise HTTPException(
            403, "thresholds can be changed only if the service was started with a token (--token-file)"
        )
    with service.request():
        guard = service.guard(name)
        body = await read_body(request, service.settings, MAX_THRESHOLD_BYTES)
        value = parse_json(body, ThresholdRequest).value
        try:
            await asyncio.to_thread(guard.set_threshold, value)
        except OSError as error:  # a file system that is read-only or full
            raise HTTPException(503, f"the threshold cannot be saved: {error}") from None
        return _described(guard)


def _described(served: ServedGuard) -> GuardBody:
    guard = served.version.guard
    return GuardBody.model_validate(
        {
            "name": served.name,
            "version": guard.identity,
            "detector": guard.detector,
            "takes": "arrays" if guard.transform is None else "images",
            "texts": served.version.tokenizer is not None,
            "inputs": guard.record["inputs"],
            "class_names": guard.record["class_names"],
            "threshold": guard.threshold.as_record(),
            "calibration": guard.calibration,
            "members": guard.members,
            "reload_error": served.reload_error,
        }
    )
