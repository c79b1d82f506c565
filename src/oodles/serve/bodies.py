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
