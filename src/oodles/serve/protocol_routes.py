"""The Open Inference Protocol, version 2: what Triton and KServe speak too."""

from typing import Any

from fastapi import APIRouter, Request, Response

from oodles import __version__
from oodles.deploy.artefact import rows_of
from oodles.deploy.exported import OUTPUTS
from oodles.serve.answers import BINARY, NO_GUARD, REFUSALS, json_answer, service_of
from oodles.serve.arrays import checked
from oodles.serve.bodies import InferenceBody, LiveBody, ModelBody, ModelReadyBody, ReadyBody, ServerBody
from oodles.serve.problems import Problem
from oodles.serve.reading import read_body
from oodles.serve.tensors import NAMES, read_inference, write_inference

router = APIRouter(prefix="/v2")
health = APIRouter(prefix="/v2")  # needs no token
DATATYPES = {"label": "INT64", "is_id": "BOOL"}  # of the outputs that are not FP32
LENGTH = "Inference-Header-Content-Length"
INFER_BODY: dict[str, Any] = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "inputs": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["name", "shape", "datatype"],
                "properties": {
                    "name": {"type": "string"},
                    "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
                    "datatype": {"type": "string", "enum": list(NAMES.values())},
                    "data": {"type": "array", "items": {}},
                    "parameters": {"type": "object"},
                },
            },
        },
        "outputs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string", "enum": list(OUTPUTS)}, "parameters": {"type": "object"}},
            },
        },
        "parameters": {"type": "object"},
    },
}


@health.get("", summary="The server", response_model=None, responses={200: {"model": ServerBody}})
async def server() -> Response:
    """Its name, version and extensions."""
    return json_answer({"name": "oodles", "version": __version__, "extensions": ["binary_tensor_data"]})


@health.get(
    "/health/live",
    summary="Whether the process answers",
    response_model=None,
    responses={200: {"model": LiveBody}},
)
async def live() -> Response:
    """Always 200: if there is no answer, restart the process."""
    return json_answer({"live": True})


@health.get(
    "/health/ready",
    summary="Whether requests are answered",
    response_model=None,
    responses={200: {"model": ReadyBody}, 503: REFUSALS[503]},
)
async def ready(request: Request) -> Response:
    """200 once every guard has been warmed up; 503 before that, and from SIGTERM on."""
    service = service_of(request)
    if not service.ready:
        reason = "is ending" if service.draining else "is warming up"
        raise Problem(503, f"the service {reason}", retry_after=1)
    return json_answer({"ready": True})


@router.get(
    "/models/{name}",
    summary="A guard's inputs and outputs",
    response_model=None,
    responses={200: {"model": ModelBody}, **NO_GUARD},
)
async def model(request: Request, name: str) -> Response:
    """Their names, types and shapes; -1 is a size that may differ from request to request."""
    guard = service_of(request).guard(name).version.guard
    inputs = [
        {
            "name": each["name"],
            "datatype": NAMES[each["dtype"]],
            "shape": [-1 if size is None else size for size in each["shape"]],
        }
        for each in guard.record["inputs"]
    ]
    outputs = [
        {"name": each, "datatype": DATATYPES.get(each, "FP32"), "shape": [-1, -1] if each == "logits" else [-1]}
        for each in OUTPUTS
    ]
    return json_answer(
        {
            "name": name,
            "versions": [guard.identity[:12]],
            "platform": "onnx_onnxruntime",
            "inputs": inputs,
            "outputs": outputs,
        }
    )


@router.get(
    "/models/{name}/ready",
    summary="Whether a guard answers",
    response_model=None,
    responses={200: {"model": ModelReadyBody}, **NO_GUARD},
)
async def model_ready(request: Request, name: str) -> Response:
    """200, or 503 while it is warmed up."""
    service_of(request).guard(name)
    return json_answer({"name": name, "ready": True})


@router.post(
    "/models/{name}/infer",
    summary="Run a guard on tensors",
    response_model=None,
    responses={
        200: {"model": InferenceBody, "content": {"application/octet-stream": {"schema": BINARY}}},
        **{status: about for status, about in REFUSALS.items() if status != 415},
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": INFER_BODY}, "application/octet-stream": {"schema": BINARY}},
        },
        "parameters": [
            {
                "name": LENGTH,
                "in": "header",
                "required": False,
                "schema": {"type": "integer", "minimum": 0},
                "description": "Where the JSON ends and the tensors' bytes begin.",
            }
        ],
    },
)
async def infer(request: Request, name: str) -> Response:
    """Tensors in and out, as JSON or as bytes after the JSON (the binary tensor data extension).

    A guard of images takes `pixels`: UINT8 `[n, height, width, 3]`. Ask for some outputs by naming them.
    """
    service = service_of(request)
    with service.request():
        served = service.guard(name)
        version = served.version
        header = request.headers.get(LENGTH)
        limit = service.settings.json_bytes if header is None else service.settings.body_bytes
        body = await read_body(request, service.settings, limit=limit)
        inference = await service.in_thread(read_inference, body, header, OUTPUTS)
        arrays = await service.in_thread(checked, version.guard, inference.inputs, service.settings)
        answer = await service.answer(served, version, arrays)
        request.state.about = {"guard": name, "inputs": rows_of(arrays)}
        about = {"model_name": name, "model_version": version.guard.identity[:12]}
        about |= {} if inference.id is None else {"id": inference.id}
        content, length = write_inference(answer.verdict._asdict(), inference.outputs, about)
        if length is None:
            return Response(content, media_type="application/json")
        return Response(content, headers={LENGTH: str(length)}, media_type="application/octet-stream")
