"""The Open Inference Protocol, version 2: what Triton and KServe speak too."""

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Depends, Header, HTTPException, Request, Response

from oodles import __version__
from oodles.deploy.artefact import Arrays, rows_of
from oodles.deploy.exported import OUTPUTS
from oodles.records.text import printable
from oodles.serve.bodies import (
    BINARY,
    ERRORS,
    NULL,
    InferenceBody,
    InferenceRequest,
    ModelBody,
    Parameters,
    RequestTensor,
    ServerBody,
    TensorBody,
    describe_body,
)
from oodles.serve.guards import Version
from oodles.serve.inputs import guard_arrays, nested_shape, number_array, room, text_arrays
from oodles.serve.reading import parse_json
from oodles.serve.service import Serving
from oodles.serve.settings import Settings

health = APIRouter(prefix="/v2")  # needs no token
models = APIRouter()
TYPES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
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
TEXT = "text"  # the input of a guard with a tokenizer, of the datatype BYTES
WRITTEN_AT_ONCE = 1 << 14  # numbers; other threads have their turn in between
LENGTH = "Inference-Header-Content-Length"
VERSION_DIGITS = 12
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


@models.get("", summary="A guard's inputs and outputs")
async def model(service: Serving, name: str) -> ModelBody:
    """Their names, types and shapes; -1 is a size that may differ from request to request."""
    version = service.guard(name).version
    inputs = [
        TensorBody(
            name=each["name"],
            datatype=NAMES[each["dtype"]],
            shape=[-1 if size is None else size for size in each["shape"]],
        )
        for each in version.guard.record["inputs"]
    ]
    if version.tokenizer is not None:
        inputs = [TensorBody(name=TEXT, datatype="BYTES", shape=[-1])]
    outputs = [
        TensorBody(name=each, datatype=DATATYPES.get(each, "FP32"), shape=[-1, -1] if each == "logits" else [-1])
        for each in OUTPUTS
    ]
    shown = version.guard.version[:VERSION_DIGITS]
    return ModelBody(name=name, versions=[shown], platform="onnx_onnxv1", inputs=inputs, outputs=outputs)


@models.get("/ready", summary="Whether a guard answers")
async def model_ready(service: Serving, name: str) -> dict[str, str | bool]:
    """200, or 404 if there is none of this name."""
    service.guard(name)
    return {"name": name, "ready": True}


@models.post(
    "/infer",
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

    A guard of images takes `pixels`: UINT8 `[n, height, width, channels]`. A guard with a tokenizer takes `text`: BYTES
    `[n]`. Ask for some outputs by naming them.
    """
    served = service.guard(name)
    version = served.version

    async def answer(body: bytes) -> Response:
        with served.counting_refusals():
            asked, arrays = await service.in_thread(inference_arrays, body, header_length, version, service.settings)
            with served.admit(rows_of(arrays)):
                verdict = await service.judge(served, version, arrays)
        request.state.about = {"guard": name, "inputs": rows_of(arrays)}
        about = {"model_name": name, "model_version": version.guard.version[:VERSION_DIGITS]}
        about |= {} if asked.id is None else {"id": asked.id}
        content, length = await service.in_thread(write_inference, verdict._asdict(), asked.outputs, about)
        if length is None:
            return Response(content, media_type="application/json")
        return Response(content, headers={LENGTH: str(length)}, media_type="application/octet-stream")

    return await service.respond(request, answer, json=header_length is None)


async def _check_version(service: Serving, name: str, version: str) -> None:
    """Raise unless the guard's version is the one that is asked for."""
    served = service.guard(name).version.guard.version[:VERSION_DIGITS]
    if version != served:
        raise HTTPException(404, f"{name} has no version {printable(version)!r:.100}; it has {served}")


router = APIRouter(prefix="/v2", responses=ERRORS)
router.include_router(models, prefix="/models/{name}")
router.include_router(models, prefix="/models/{name}/versions/{version}", dependencies=[Depends(_check_version)])


# Tensors: as JSON, and as bytes after the JSON ----------------------------------------------------


class Inference(NamedTuple):
    """A request: its inputs by name, and the outputs that are asked for, with whether each is wanted as bytes."""

    id: str | None
    inputs: dict[str, Array]
    outputs: dict[str, bool]


def inference_arrays(
    body: bytes, header_length: int | None, version: Version, settings: Settings
) -> tuple[Inference, Arrays]:
    """Read a request, and make arrays of its tensors as the guard takes them."""
    with room(len(body)):
        asked = read_inference(body, header_length, OUTPUTS)
        texts = asked.inputs.get(TEXT)
        if texts is not None and texts.dtype == object:
            if len(asked.inputs) > 1:
                raise HTTPException(400, f"{TEXT} is the only input of a guard with a tokenizer")
            return asked, text_arrays(texts.ravel().tolist(), version.guard, version.tokenizer, settings)
    return asked, guard_arrays(version.guard, asked.inputs, settings)


def read_inference(body: bytes, header_length: int | None, outputs: Sequence[str]) -> Inference:
    """Read a request; ``header_length`` is where its JSON ends and bytes begin, ``outputs`` what there is."""
    end = len(body) if header_length is None else header_length
    if end > len(body):
        raise HTTPException(400, f"{LENGTH} {end} is not a length within the body of {len(body)}")
    whole = memoryview(body)
    request, rest = parse_json(whole[:end], InferenceRequest), whole[end:]
    arrays: dict[str, Array] = {}
    for tensor in request.inputs:
        if tensor.name in arrays:
            raise HTTPException(400, f"the input {printable(tensor.name)!r:.100} is given twice")
        arrays[tensor.name], rest = _array(tensor, rest)
    if len(rest):
        raise HTTPException(400, f"{len(rest)} bytes after the last tensor belong to no input")
    always = (request.parameters or Parameters()).binary_data_output
    given = {each.name: (each.parameters or Parameters()).binary_data for each in request.outputs or []}
    wanted = {name: always if binary is None else binary for name, binary in given.items()}
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
        output: dict[str, Any] = {"name": name, "datatype": NAMES[str(value.dtype)], "shape": value.shape}
        if binary:
            tail.append(np.ascontiguousarray(value).tobytes())
            output["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            output["data"] = msgspec.Raw(_numbers(value.ravel()))
        described.append(output)
    head = msgspec.json.encode({**about, "outputs": described})
    return b"".join([head, *tail]), len(head) if tail else None


def _numbers(values: Array) -> bytes:
    """Write numbers as JSON, null for what is not finite."""
    parts = [values[start : start + WRITTEN_AT_ONCE] for start in range(0, len(values), WRITTEN_AT_ONCE)]
    return b"[" + b",".join(msgspec.json.encode(part.tolist())[1:-1] for part in parts) + b"]"


def _array(tensor: RequestTensor, rest: memoryview) -> tuple[Array, memoryview]:
    """Make the array of one tensor, of strings if it has BYTES; returns it and the bytes that are left."""
    name, shape = printable(tensor.name)[:100], tensor.shape
    kind = TYPES.get(tensor.datatype)
    if kind is None and tensor.datatype != "BYTES":
        shown = printable(tensor.datatype)[:20]
        raise HTTPException(400, f"{name} has the datatype {shown}, not one of BYTES, {', '.join(TYPES)}")
    count = math.prod(shape)
    stated = None if tensor.parameters is None else tensor.parameters.binary_data_size
    if (tensor.data == NULL) == (stated is None):
        raise HTTPException(400, f"{name} needs either data or binary_data_size")
    if stated is not None:
        size = stated if kind is None else count * np.dtype(kind).itemsize
        if stated != size or not 0 <= size <= len(rest):
            facts = f"takes {size} bytes; {stated} are stated, {len(rest)} are left"
            raise HTTPException(400, f"{name} of {tensor.datatype} {shape} {facts}")
        if kind is not None:
            found = np.frombuffer(rest[:size], np.dtype(kind).newbyteorder("<")).astype(kind, copy=False)
            return found.reshape(shape), rest[size:]
    elif kind is not None:
        nested = nested_shape(name, tensor.data)
        if math.prod(nested) != count:
            raise HTTPException(400, f"{name} has {math.prod(nested)} numbers, but its shape {shape} takes {count}")
        return number_array(name, tensor.data, nested, kind).reshape(shape), rest
    try:
        texts = msgspec.json.decode(tensor.data, type=list[str]) if stated is None else _texts(bytes(rest[:stated]))
    except (msgspec.MsgspecError, struct.error, UnicodeDecodeError):
        raise HTTPException(400, f"{name} of BYTES must be a list of texts in UTF-8") from None
    if len(texts) != count:
        raise HTTPException(400, f"{name} has {len(texts)} texts, but its shape {shape} takes {count}")
    return np.array(texts, object).reshape(shape), rest[stated or 0 :]


def _texts(content: bytes) -> list[str]:
    """Read texts, each after its length in four bytes."""
    found, at = [], 0
    while at < len(content):
        (size,) = struct.unpack_from("<I", content, at)
        (text,) = struct.unpack_from(f"{size}s", content, at + 4)
        found.append(text.decode())
        at += 4 + size
    return found
