"""``POST /score``: images, arrays and texts in, verdicts out; and the guards, their thresholds and monitors."""

import asyncio
import logging
import math

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from oodles.data.readers import FORMATS
from oodles.deploy.artefact import rows_of
from oodles.deploy.verdict import ArrayVerdict
from oodles.explanation.findings import name_of
from oodles.records.text import printable
from oodles.serve.access import administer
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
from oodles.serve.inputs import files_arrays, score_arrays
from oodles.serve.reading import Upload, parse_json, split_form
from oodles.serve.service import Service, Serving
from oodles.serve.telemetry import log

router = APIRouter(responses=ERRORS)
metrics = APIRouter()  # needs no token
FORM, JSON = "multipart/form-data", "application/json"
RAW = ("image/", "application/octet-stream", "application/x-www-form-urlencoded")
"""What a body that is an image may be called; the last is what curl says if it is told nothing."""
FILES = {"type": "object", "properties": {"file": {"type": "array", "items": BINARY}}}
MAX_NAME = 255
FILES_AT_ONCE = 4  # of a request, in one thread


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
    served = service.guard(guard)
    version = served.version
    content_type = request.headers.get("content-type", "application/octet-stream")
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in (JSON, FORM) and not kind.startswith(RAW):
        raise HTTPException(415, f"the content type {kind[:100]!r} is not one of {FORM}, {JSON}, image/*")

    async def answer(body: bytes) -> ScoreBody:
        if kind == JSON:
            guarded = version.guard, version.tokenizer, service.settings
            with served.counting_refusals():
                arrays = await service.in_thread(score_arrays, body, *guarded)
                with served.admit(rows_of(arrays)):
                    verdict = await service.judge(served, version, arrays, explain=explain)
            results = [_result(version, verdict, row, None) for row in range(rows_of(arrays))]
        else:
            files: list[Upload] = [(None, body)]
            if kind == FORM:
                files = await service.in_thread(split_form, body, content_type, service.settings.max_images)
            results = await _score_images(service, served, version, files, explain)
        request.state.about = {"guard": served.name, "inputs": len(results)}
        threshold = version.guard.threshold.value
        return ScoreBody(guard=served.name, version=version.guard.version, threshold=threshold, results=results)

    return await service.respond(request, answer, json=kind == JSON)


async def _score_images(
    service: Service, served: ServedGuard, version: Version, files: list[Upload], explain: bool
) -> list[Result]:
    """Decode files, one part of them after another in one thread, and score each part while the next is decoded."""
    if version.guard.reads is None:
        names = ", ".join(each["name"] for each in version.guard.record["inputs"])
        raise HTTPException(415, f"{served.name} takes {names} as JSON, not images")
    errors: list[HTTPException | None] = []
    verdicts: list[asyncio.Future[ArrayVerdict]] = []
    with served.admit(len(files)):
        try:
            for start in range(0, len(files), FILES_AT_ONCE):
                contents = [content for _, content in files[start : start + FILES_AT_ONCE]]
                arrays, failed = await service.in_thread(files_arrays, contents, version.guard, service.settings)
                errors += failed
                if arrays is not None:
                    verdicts.append(asyncio.ensure_future(service.judge(served, version, arrays, explain=explain)))
            answers = await asyncio.gather(*verdicts)
        finally:
            for each in verdicts:
                each.cancel()
    rows = ((verdict, row) for verdict in answers for row in range(len(verdict.score)))
    results = []
    for (given, _), error in zip(files, errors, strict=True):
        name = None if given is None else printable(given)[:MAX_NAME]
        if error is None:
            results.append(_result(version, *next(rows), name))
        else:
            served.count_errors(1)
            results.append(_failed(error.status_code, error.detail, name))
    alone = results[0].error if len(results) == 1 else None
    if alone is not None:
        raise HTTPException(alone.status, alone.message)
    return results


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
    described = [_described(service, guard) for guard in service.guards.values()]
    return GuardsBody(guards=described, can_save=settings.admin_token is not None, limits=limits)


@router.get("/guards/{name}/monitor", summary="How the inputs so far compare with the calibration set")
async def monitor(service: Serving, name: str) -> MonitorBody:
    """Counts, the rejection rate by windows with its limits, evidence of a change, and the alarm that stands."""
    return MonitorBody.model_validate(service.guard(name).status())


@router.post("/guards/{name}/monitor/acknowledge", summary="Acknowledge an alarm", dependencies=[Depends(administer)])
async def acknowledge(request: Request, service: Serving, name: str) -> MonitorBody:
    """Note that somebody has seen the alarm that stands; `oodles_monitor_alarm` is 0 until there is another."""
    guard = service.guard(name)
    guard.acknowledge()
    _log_change("alarm acknowledged", request, guard)
    return MonitorBody.model_validate(guard.status())


@router.put(
    "/guards/{name}/threshold",
    summary="Change a guard's threshold",
    openapi_extra=describe_body(ThresholdRequest),
    dependencies=[Depends(administer)],
)
async def set_threshold(request: Request, service: Serving, name: str) -> GuardBody:
    """Accept what scores at least `value`, from now on and in the guard's files; the monitor is reset."""
    guard = service.guard(name)

    async def answer(body: bytes) -> GuardBody:
        value = parse_json(body, ThresholdRequest).value
        before = guard.version.guard.threshold.value
        try:
            await asyncio.to_thread(guard.set_threshold, value)
        except OSError as error:  # a file system that is read-only or full
            reason = service.without_paths(str(error))
            raise HTTPException(503, f"the threshold cannot be saved: {reason}", {"Retry-After": "5"}) from None
        _log_change("threshold changed", request, guard, before=before, after=value)
        return _described(service, guard)

    return await service.respond(request, answer, json=True)


def _log_change(event: str, request: Request, guard: ServedGuard, **values: float) -> None:
    """Log what somebody changed, at any level."""
    client = None if request.client is None else request.client.host
    about = {"guard": guard.name, "client": client, "request_id": request.state.request_id}
    log(event, level=logging.WARNING, **about, **values)


def _described(service: Service, served: ServedGuard) -> GuardBody:
    guard = served.version.guard
    return GuardBody.model_validate(
        {
            "name": served.name,
            "version": guard.version,
            "detector": guard.detector,
            "takes": "images" if guard.transform else "files" if guard.reads else "arrays",
            "texts": served.version.tokenizer is not None,
            "inputs": guard.record["inputs"],
            "class_names": guard.record["class_names"],
            "threshold": guard.threshold.as_record(),
            "calibration": guard.calibration,
            "members": guard.members,
            "reload_error": served.reload_error and service.without_paths(served.reload_error),
        }
    )
