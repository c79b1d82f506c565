"""The Open Inference Protocol, version 2: what Triton and KServe speak too."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Header, HTTPException, Request, Response

from oodles import __version__
from oodles.deploy.artefact import rows_of
from oodles.deploy.exported import OUTPUTS
from oodles.records.text import printable
from oodles.serve.bodies import (
    BINARY,
    ERRORS,
    InferenceBody,
    InferenceRequest,
    ModelBody,
    OutputBody,
    RequestTensor,
    ServerBody,
    TensorBody,
    describe_body,
)
from oodles.serve.inputs import guard_arrays, number_array
from oodles.serve.reading import parse_json, read_body
from oodles.serve.service import Serving

router = APIRouter(prefix="/v2", responses=ERRORS)
health = APIRouter(prefix="/v2")  # needs no token
TYPES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
}
NAMES = {kind: name for name, kind in TYPES.items()}
DATATYPES = {"label": "INT64", "is_id": "BOOL"}  # of the outputs that are not FP32
LENGTH = "Inference-Header-Content-Length"
Array = npt.NDArray[Any]


@health.get("", summary="The server")
async def server() -> ServerBody:
    """Its name, version and extensions."""
    return ServerBody(name="oodles", version=__version__, extensions=["binary_tensor_data"])


@health.get("/health/live", summary="Whether the process answers")
async def live() -> dict[str, bool]:
    """Always 200: if there is no answer, restart the process."""
    return {"live": True}


@health.get("/health/ready", summary="Whether requests are answered", responses={503: ERRORS[503]})
async def ready(service: Serving) -> dict[str, bool]:
    """200 until SIGTERM, 503 from then on."""
    if service.draining:
        raise HTTPException(503, "the service is ending", {"Retry-After": "1"})
    return {"ready": True}


@router.get("/models/{name}", summary="A guard's inputs and outputs")
async def model(service: Serving, name: str) -> ModelBody:
    """Their names, types and shapes; -1 is a size that may differ from request to request."""
    guard = service.guard(name).version.guard
    inputs = [
        TensorBody(
            name=each["name"],
            datatype=NAMES[each["dtype"]],
            shape=[-1 if size is None else size for size in each["shape"]],
        )
        for each in guard.record["inputs"]
    ]
    outputs = [
        TensorBody(name=each, datatype=DATATYPES.get(each, "FP32"), shape=[-1, -1] if each == "logits" else [-1])
        for each in OUTPUTS
    ]
    version = guard.identity[:12]
    return ModelBody(name=name, versions=[version], platform="onnx_onnxruntime", inputs=inputs, outputs=outputs)


@router.get("/models/{name}/ready", summary="Whether a guard answers")
async def model_ready(service: Serving, name: str) -> dict[str, str | bool]:
    """200, or 404 if there is none of this name."""
    service.guard(name)
    return {"name": name, "ready": True}


@router.post(
    "/models/{name}/infer",
    summary="Run a guard on tensors",
    response_model=InferenceBody,
    responses={200: {"content": {"application/octet-stream": {"schema": BINARY}}}},
    openapi_extra=describe_body(InferenceRequest, **{"application/octet-stream": BINARY}),
)
async def infer(
    request: Request,
    service: Serving,
    name: str,
    header_length: Annotated[
        int | None, Header(alias=LENGTH, ge=0, description="Where the JSON ends and the tensors' bytes begin.")
    ] = None,
) -> Response:
    """Tensors in and out, as JSON or as bytes after the JSON (the binary tensor data extension).

    A guard of images takes `pixels`: UINT8 `[n, height, width, 3]`. Ask for some outputs by naming them.
    """
    settings = service.settings
    with service.request():
        served = service.guard(name)
        version = served.version
        limit = settings.max_json_bytes if header_length is None else settings.max_bytes
        body = await read_body(request, settings, limit)
        inference = await service.in_thread(read_inference, body, header_length, OUTPUTS)
        arrays = await service.in_thread(guard_arrays, version.guard, inference.inputs, settings)
        verdict = await service.answer(served, version, arrays)
        request.state.about = {"guard": name, "inputs": rows_of(arrays)}
        about = {"id": inference.id, "model_name": name, "model_version": version.guard.identity[:12]}
        content, length = write_inference(verdict._asdict(), inference.outputs, about)
        if length is None:
            return Response(content, media_type="application/json")
        return Response(content, headers={LENGTH: str(length)}, media_type="application/octet-stream")


# Tensors: as JSON, and as bytes after the JSON ----------------------------------------------------


class Inference(NamedTuple):
    """A request: its inputs by name, and the outputs that are asked for, with whether each is wanted as bytes."""

    id: str | None
    inputs: dict[str, Array]
    outputs: dict[str, bool]


def read_inference(body: bytes, header_length: int | None, outputs: Sequence[str]) -> Inference:
    """Read a request; ``header_length`` is where its JSON ends and bytes begin, ``outputs`` what there is."""
    end = len(body) if header_length is None else header_length
    if end > len(body):
        raise HTTPException(400, f"{LENGTH} {end} is not a length within the body of {len(body)}")
    request = parse_json(body[:end], InferenceRequest)
    rest = memoryview(body)[end:]
    arrays: dict[str, Array] = {}
    for tensor in request.inputs:
        if tensor.name in arrays:
            raise HTTPException(400, f"the input {printable(tensor.name)!r:.100} is given twice")
        arrays[tensor.name], rest = _array(tensor, rest)
    if len(rest):
        raise HTTPException(400, f"{len(rest)} bytes after the last tensor belong to no input")
    always = request.parameters.get("binary_data_output") is True
    wanted = {each.name: each.parameters.get("binary_data", always) is True for each in request.outputs or []}
    other = next((name for name in wanted if name not in outputs), None)
    if other is not None:
        raise HTTPException(400, f"there is no output {printable(other)!r:.100}; there are {', '.join(outputs)}")
    return Inference(request.id, arrays, wanted or dict.fromkeys(outputs, always))


def write_inference(
    answers: Mapping[str, Array], outputs: Mapping[str, bool], about: Mapping[str, Any]
) -> tuple[bytes, int | None]:
    """Write the body of an answer; returns it and, if tensors follow as bytes, where its JSON ends."""
    described, tail = [], []
    for name, binary in outputs.items():
        value = answers[name]
        output = OutputBody(name=name, datatype=NAMES[str(value.dtype)], shape=list(value.shape))
        if binary:
            tail.append(np.ascontiguousarray(value).tobytes())
            output.parameters = {"binary_data_size": len(tail[-1])}
        else:
            output.data = value.ravel().tolist()
        described.append(output)
    head = InferenceBody(**about, outputs=described).model_dump_json(exclude_none=True).encode()
    return b"".join([head, *tail]), len(head) if tail else None


def _array(tensor: RequestTensor, rest: memoryview) -> tuple[Array, memoryview]:
    """Make the array of one tensor; returns it and the bytes that are left."""
    name = printable(tensor.name)[:100]
    kind = TYPES.get(tensor.datatype)
    if kind is None:
        shown = printable(tensor.datatype)[:20]
        raise HTTPException(400, f"{name} has the datatype {shown}, not one of {', '.join(TYPES)}")
    count = math.prod(tensor.shape)
    stated = tensor.parameters.get("binary_data_size")
    if (tensor.data is None) == (stated is None):
        raise HTTPException(400, f"{name} needs either data or binary_data_size")
    if tensor.data is not None:
        found = number_array(name, tensor.data, kind)
        if found.size != count:
            raise HTTPException(400, f"{name} has {found.size} numbers, but its shape {tensor.shape} takes {count}")
        return found.reshape(tensor.shape), rest
    size = count * np.dtype(kind).itemsize
    if type(stated) is not int or stated != size or size > len(rest):
        raise HTTPException(
            400,
            f"{name} of {tensor.datatype} {tensor.shape} takes {size} bytes; {stated!r:.50} are stated, {len(rest)} "
            "are left",
        )
    return np.frombuffer(rest[:size], np.dtype(kind).newbyteorder("<")).astype(kind).reshape(tensor.shape), rest[size:]
