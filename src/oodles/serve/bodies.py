"""The bodies of answers as the API describes them at /docs and /openapi.json."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorBody(_Answer):
    """Why a request was refused."""

    error: str = Field(description="One line: the object, the fact and the remedy.")
    request_id: str


class InputError(_Answer):
    """Why one of several inputs has no result."""

    status: int = Field(description="The status that the input alone would have been answered with.")
    message: str


class Result(_Answer):
    """What the guard says about one input."""

    name: str | None = Field(description="The file name that was sent, if any.")
    label: int | None
    class_name: str | None
    probability: float | None = Field(description="Of the label, by the model's softmax or sigmoid.")
    score: float | None = Field(description="Larger is more in-distribution.")
    p_value: float | None = Field(description="Fraction of calibration scores that are at most as large.")
    is_id: bool = Field(description="Whether the score reaches the threshold; false if there is an error.")
    error: InputError | None
    explanation: dict[str, Any] | None = Field(description="With explain=1: what the decision is based on.")


class ScoreBody(_Answer):
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


class CalibrationBody(_Answer):
    """The scores of the calibration set in short: 101 quantiles and a histogram."""

    quantiles: list[float]
    edges: list[float]
    counts: list[int]


class InputBody(_Answer):
    """An input of the guard; null is a size that may differ from request to request."""

    name: str
    dtype: str
    shape: list[int | None]


class GuardBody(_Answer):
    """A guard that is served."""

    name: str
    version: str
    detector: str
    ready: bool
    takes: str = Field(description="images or arrays")
    texts: bool = Field(description="Whether texts are taken too.")
    inputs: list[InputBody]
    class_names: list[str]
    threshold: ThresholdBody
    calibration: CalibrationBody | None
    members: list[str] = Field(description="Of an ensemble.")
    explains: bool = Field(description="Whether it was exported with what explain=1 needs.")
    reload_error: str | None = Field(description="Why the newest version of its files is not served.")


class LimitsBody(_Answer):
    """What one request may contain."""

    body_bytes: int
    pixels: int
    side: int
    images: int
    formats: list[str]


class GuardsBody(_Answer):
    """All guards."""

    guards: list[GuardBody]
    can_save: bool = Field(description="Whether thresholds can be changed, with a token.")
    limits: LimitsBody


class ExpectedBody(_Answer):
    """What the calibration set lets expect."""

    rate: float
    upper: float = Field(description="Largest rejection rate that the calibration explains.")


class WindowBody(_Answer):
    """The rejection rate of some inputs in a row, with its control limits."""

    first: int
    last: int
    rate: float
    low: float
    high: float


class AlarmBody(_Answer):
    """An alarm that stands."""

    kind: str
    since: int
    message: str


class EvidenceBody(_Answer):
    """How much speaks for a change of the stream; an alarm is raised at `alarm_at`."""

    rejections: float
    p_values: float | None
    alarm_at: float


class ClassBody(_Answer):
    """How often a class was predicted."""

    name: str
    count: int
    expected: float | None = Field(None, description="Its share of the calibration set, if that is known.")


class WholeStreamBody(EvidenceBody):
    """The largest wealth of each test so far; the stream differs if one has reached `alarm_at`."""

    differs: bool


class ScoresBody(_Answer):
    """The scores so far beside those of the calibration set, as histograms with the same edges."""

    edges: list[float]
    expected: list[float]
    counts: list[int]
    not_finite: int
    distance: float | None = Field(description="Largest difference of the two distribution functions.")
    limit: float | None = Field(description="What the distance rarely exceeds without a change.")


class MonitorBody(_Answer):
    """What is known about the inputs so far."""

    inputs: int
    rejected: int
    errors: int = Field(description="Inputs that could not be scored.")
    rate: float | None
    expected: ExpectedBody
    windows: list[WindowBody] = Field(description="Oldest first, at most 200.")
    alarm: AlarmBody | None = Field(description="The one that stands.")
    alarms: int = Field(description="Alarms so far.")
    evidence: EvidenceBody
    whole_stream: WholeStreamBody
    scores: ScoresBody | None
    classes: list[ClassBody]
    class_distance: float | None = Field(description="Half the sum of differences between shares of classes.")


class ServerBody(_Answer):
    """The server, as the inference protocol describes it."""

    name: str
    version: str
    extensions: list[str]


class LiveBody(_Answer):
    """The process answers."""

    live: bool


class ReadyBody(_Answer):
    """Requests are answered."""

    ready: bool


class ModelReadyBody(_Answer):
    """Requests for a guard are answered."""

    name: str
    ready: bool


class TensorBody(_Answer):
    """An input or output; -1 is a size that may differ from request to request."""

    name: str
    datatype: str
    shape: list[int]


class ModelBody(_Answer):
    """A guard, as the inference protocol describes it."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorBody]
    outputs: list[TensorBody]


class OutputBody(TensorBody):
    """An output with its numbers, or with the number of its bytes after the JSON."""

    data: list[float | int | bool | None] | None = None
    parameters: dict[str, int] | None = None


class InferenceBody(_Answer):
    """The answer to an inference request."""

    id: str | None = None
    model_name: str
    model_version: str
    outputs: list[OutputBody]
