"""``POST /score``: images, arrays and texts in, verdicts out."""

import asyncio
import math
from typing import Any

from fastapi import APIRouter, Request, Response

from oodles.deploy.artefact import rows_of
from oodles.explanation.findings import name_of
from oodles.records.text import printable
from oodles.serve.answers import BINARY, REFUSALS, json_answer, service_of
from oodles.serve.arrays import arrays_from_json
from oodles.serve.bodies import ScoreBody
from oodles.serve.guards import Answer, ServedGuard, Version
from oodles.serve.images import image_arrays
from oodles.serve.problems import Problem
from oodles.serve.reading import Upload, read_body, read_files
from oodles.serve.service import Service

FORM, JSON = "multipart/form-data", "application/json"
RAW = ("image/", "application/octet-stream", "application/x-www-form-urlencoded")
"""What a body that is an image may be called; the last is what curl says if it is told nothing."""
MAX_NAME = 255

router = APIRouter()
CONTENT: dict[str, Any] = {
    FORM: {
        "schema": {
            "type": "object",
            "properties": {"file": {"type": "array", "items": BINARY}},
        }
    },
    "application/octet-stream": {"schema": BINARY},
    JSON: {
        "schema": {
            "type": "object",
            "properties": {
                "inputs": {"type": "object", "description": "The model's inputs by name, as nested lists."},
                "texts": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            },
            "additionalProperties": False,
        }
    },
}


@router.post(
    "/score",
    summary="Score images, arrays or texts",
    response_model=None,
    responses={200: {"model": ScoreBody}, **REFUSALS},
    openapi_extra={"requestBody": {"required": True, "content": CONTENT}},
)
async def score(request: Request, guard: str | None = None, explain: bool = False) -> Response:
    """Classify and score inputs, and say which are in-distribution.

    The body is one image; or a form with one or many images as files; or JSON: `{"inputs": {name: nested lists}}`, or
    `{"texts": [...]}` if the guard has a tokenizer. With several images, one that cannot be read is a result with an
    error; alone it gets the status itself. `guard` may be left out if there is only one.
    """
    service = service_of(request)
    with service.request():
        served = service.guard(guard)
        version = served.version
        kind = request.headers.get("content-type", "application/octet-stream").partition(";")[0].strip().lower()
        if kind == JSON:
            body = await read_body(request, service.settings, limit=service.settings.json_bytes)
            results = await _score_arrays(service, served, version, body, explain)
        elif kind == FORM:
            results = await _score_images(
                service, served, version, await read_files(request, service.settings), explain
            )
        elif kind.startswith(RAW):
            body = await read_body(request, service.settings)
            results = await _score_images(service, served, version, [Upload(None, body)], explain)
        else:
            raise Problem(415, f"the content type {kind[:100]!r} is not one of {FORM}, {JSON}, image/*")
        request.state.about = {"guard": served.name, "inputs": len(results)}
        guarded = version.guard
        return json_answer(
            {
                "guard": served.name,
                "version": guarded.identity,
                "threshold": guarded.threshold.value,
                "results": results,
            }
        )


async def _score_images(
    service: Service, served: ServedGuard, version: Version, uploads: list[Upload], explain: bool
) -> list[dict[str, Any]]:
    transform = version.guard.transform
    if transform is None:
        raise Problem(415, f"{served.name} takes {', '.join(_input_names(version))} as JSON, not images")

    async def one(upload: Upload) -> Answer:
        arrays = await service.in_thread(image_arrays, upload.content, transform, service.settings)
        return await asyncio.wrap_future(served.submit(version, arrays, explain=explain))

    with served.admit(len(uploads)):
        async with service.in_time():
            answers = await asyncio.gather(*map(one, uploads), return_exceptions=True)
    results = []
    for upload, answer in zip(uploads, answers, strict=True):
        name = None if upload.name is None else printable(upload.name)[:MAX_NAME]
        if isinstance(answer, Answer):
            results.append(_result(answer, 0, name))
        elif not isinstance(answer, Problem):
            raise answer
        else:
            served.count_errors(1)
            results.append(_failed(answer.status, answer.message, name))
    alone = results[0]["error"] if len(results) == 1 else None
    if alone is not None:
        raise Problem(alone["status"], alone["message"])
    return results


async def _score_arrays(
    service: Service, served: ServedGuard, version: Version, body: bytes, explain: bool
) -> list[dict[str, Any]]:
    arrays = await service.in_thread(arrays_from_json, body, version.guard, version.tokenizer, service.settings)
    answer = await service.answer(served, version, arrays, explain=explain)
    return [_result(answer, row, None) for row in range(rows_of(arrays))]


def _result(answer: Answer, row: int, name: str | None) -> dict[str, Any]:
    verdict, names = answer.verdict, answer.version.guard.class_names
    if not math.isfinite(verdict.score[row]):
        return _failed(422, "the network's output is not finite", name)
    label = int(verdict.label[row])
    return {
        "name": name,
        "label": label,
        "class_name": name_of(label, names),
        "probability": float(verdict.probability[row]),
        "score": float(verdict.score[row]),
        "p_value": float(verdict.p_value[row]),
        "is_id": bool(verdict.is_id[row]),
        "error": None,
        "explanation": None if answer.explanations is None else answer.explanations[row].as_record(),
    }


def _failed(status: int, message: str, name: str | None) -> dict[str, Any]:
    nothing = dict.fromkeys(("label", "class_name", "probability", "score", "p_value"))
    error = {"status": status, "message": message}
    return {"name": name, **nothing, "is_id": False, "error": error, "explanation": None}


def _input_names(version: Version) -> list[str]:
    return [each["name"] for each in version.guard.record["inputs"]]
