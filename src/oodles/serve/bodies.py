"""The bodies of requests and answers: what is read and written, and what /docs and /openapi.json describe."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from pydantic import BaseModel, ConfigDict, Field

from oodles.monitor import Alert

MAX_DIMENSIONS = 8
NULL = msgspec.Raw(b"null")


# Requests: by msgspec, which skips what is not asked for and leaves numbers as text until their shape is known ------


class ScoreRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Either the model's inputs by name, as nested lists of numbers, or texts."""

    inputs: dict[str, msgspec.Raw] | None = None
    texts: Annotated[list[str], Meta(min_length=1)] | None = None


class ThresholdRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A new threshold."""

    value: float


# those of the Open Inference Protocol may have fields that are not used here
class Parameters(msgspec.Struct):
    """Which tensors are bytes after the JSON."""

    binary_data_size: int | None = None
    binary_data: bool | None = None
    binary_data_output: bool = False


class RequestTensor(msgspec.Struct):
    """An input with its numbers or texts, or with the number of its bytes after the JSON (`binary_data_size`)."""

    name: str
    shape: Annotated[list[Annotated[int, Meta(ge=1)]], Meta(max_length=MAX_DIMENSIONS)]
    datatype: str
    data: msgspec.Raw = msgspec.field(default_factory=lambda: NULL)
    parameters: Parameters | None = None


class RequestOutput(msgspec.Struct):
    """An output that is asked for; as bytes after the JSON with `binary_data`."""

    name: str
    parameters: Parameters | None = None


class InferenceRequest(msgspec.Struct):
    """Tensors to run a guard on."""

    inputs: Annotated[list[RequestTensor], Meta(min_length=1)]
    id: str | None = None
    outputs: list[RequestOutput] | None = None
    parameters: Parameters | None = None


REQUESTS = (ScoreRequest, ThresholdRequest, InferenceRequest)
REFERENCE = "#/components/schemas/{name}"
BINARY = {"type": "string", "format": "binary"}


def describe_body(kind: type[msgspec.Struct], **others: Any) -> dict[str, Any]:
    """Describe what a route takes that reads its body itself: JSON of this kind, or ``others`` by content type.

    FastAPI would read a body before the token is checked, and without limits.
    """
    content = {"application/json": {"$ref": REFERENCE.format(name=kind.__name__)}, **others}
    described = {each: {"schema": schema} for each, schema in content.items()}
    return {"requestBody": {"required": True, "content": described}}


# Answers ------------------------------------------------------------------------------------------


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorBody(_Strict):
    """Why a request was refused."""

    error: str = Field(description="One line: the object, the fact and the remedy.")
    request_id: str


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text}
    for status, text in {
        400: "The body is empty, malformed, or has other inputs than the guard takes.",
        401: "The token is missing or wrong.",
        403: "Changes need the admin token.",
        404: "There is no guard of this name.",
        408: "The body did not arrive in time.",
        413: "The body, an image or the number of inputs is too large.",
        415: "The body is not an image, or has another content type.",
        422: "An image is damaged or has 16 bits per channel, or values are not finite.",
        503: "Too much is in progress, or the service is ending.",
    }.items()
}


class InputError(_Strict):
    """Why one of several inputs has no result."""

    status: int = Field(description="The status that the input alone would have been answered with.")
    message: str


class Result(_Strict):
    """What the guard says about one input."""

    name: str | None = Field(description="The file name that was sent, if any.")
    label: int | None = None
    class_name: str | None = None
    probability: float | None = Field(default=None, description="Of the label, by the model's softmax or sigmoid.")
    score: float | None = Field(default=None, description="Larger is more in-distribution.")
    p_value: float | None = Field(default=None, description="Fraction of calibration scores that are at most as large.")
    is_id: bool = Field(description="Whether the score reaches the threshold; false if there is an error.")
    error: InputError | None = None
    explanation: dict[str, Any] | None = Field(
        default=None, description="With explain=1: what the decision is based on."
    )


class ScoreBody(_Strict):
    """The results of one request, in the order of its inputs."""

    guard: str
    version: str
    threshold: float
    results: list[Result]


class ThresholdBody(BaseModel):
    """A guard's threshold."""

    value: float
    id_rate: float = Field(description="Fraction of calibration inputs that are accepted.")
    calibration_size: int


class CalibrationBody(_Strict):
    """The scores of the calibration set in short: 101 quantiles and a histogram."""

    quantiles: list[float]
    edges: list[float]
    counts: list[int]


class InputBody(_Strict):
    """An input of the guard; null is a size that may differ from request to request."""

    name: str
    dtype: str
    shape: list[int | None]


class GuardBody(_Strict):
    """A guard that is served."""

    name: str
    version: str
    detector: str
    takes: str = Field(description="images, files or arrays")
    texts: bool = Field(description="Whether texts are taken too.")
    inputs: list[InputBody]
    class_names: list[str]
    threshold: ThresholdBody
    calibration: CalibrationBody | None
    members: list[str] = Field(description="Of an ensemble.")
    reload_error: str | None = Field(description="Why the newest version of its files is not served.")


class LimitsBody(_Strict):
    """What one request may contain."""

    body_bytes: int
    pixels: int
    side: int
    images: int
    formats: list[str]


class GuardsBody(_Strict):
    """All guards."""

    guards: list[GuardBody]
    can_save: bool = Field(description="Whether thresholds can be changed, with the admin token.")
    limits: LimitsBody


class ExpectedBody(_Strict):
    """Rejection rate of ID inputs, expected from calibration."""

    rate: float
    upper: float = Field(description="Largest rejection rate that the calibration explains.")


class WindowBody(_Strict):
    """The rejection rate of some inputs in a row, with its control limits."""

    first: int
    last: int
    rate: float
    low: float
    high: float


class EvidenceBody(_Strict):
    """How much speaks for a change of the stream; an alarm is raised at `alarm_at`."""

    rejections: float
    p_values: float | None
    alarm_at: float


class WholeStreamBody(EvidenceBody):
    """The largest wealth of each test so far; the stream differs if one has reached `alarm_at`."""

    differs: bool


class ClassBody(_Strict):
    """How often a class was predicted."""

    name: str
    count: int
    expected: float | None = Field(default=None, description="Its share of the calibration set, if that is known.")


class ScoresBody(_Strict):
    """The scores so far beside those of the calibration set, as histograms with the same edges."""

    edges: list[float]
    expected: list[float]
    counts: list[int]
    not_finite: int
    distance: float | None = Field(description="Largest difference of the two distribution functions.")
    limit: float | None = Field(description="What the distance rarely exceeds without a change.")


class MonitorBody(_Strict):
    """What is known about the inputs so far: :meth:`oodles.monitor.Monitor.status`."""

    inputs: int
    rejected: int
    errors: int = Field(description="Inputs that could not be scored.")
    rate: float | None
    expected: ExpectedBody
    windows: list[WindowBody] = Field(description="Oldest first, at most 200.")
    alarm: Alert | None = Field(description="The one that stands.")
    alarms: int = Field(description="Alarms so far.")
    acknowledged: bool = Field(description="Whether somebody has seen the one that stands.")
    evidence: EvidenceBody
    whole_stream: WholeStreamBody
    scores: ScoresBody | None
    classes: list[ClassBody]
    class_distance: float | None = Field(description="Half the sum of differences between shares of classes.")


class ServerBody(_Strict):
    """The server, as the inference protocol describes it."""

    name: str
    version: str
    extensions: list[str]


class TensorBody(_Strict):
    """An input or output; -1 is a size that may differ from request to request."""

    name: str
    datatype: str
    shape: list[int]


class ModelBody(_Strict):
    """A guard, as the inference protocol describes it."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorBody]
    outputs: list[TensorBody]


class OutputBody(TensorBody):
    """An output with its numbers, or with the number of its bytes after the JSON."""

    data: list[Any] | None = None
    parameters: dict[str, int] | None = None


class InferenceBody(_Strict):
    """The answer to an inference request."""

    id: str | None = None
    model_name: str
    model_version: str
    outputs: list[OutputBody]
