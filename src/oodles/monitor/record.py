"""What the file of a monitor's state consists of, with types and ranges."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from oodles.monitor.distributions import MAX_CLASSES
from oodles.monitor.rules import MAX_INPUTS
from oodles.monitor.windows import MAX_WINDOW, MAX_WINDOWS
from oodles.records.fields import ThresholdFields
from oodles.records.files import Digest, Fields

KIND, SCHEMA = "monitor", 1
MAX_ALERTS = 50  # that are remembered

Count = Annotated[int, Meta(ge=0, lt=1 << 62)]
Evidence = Annotated[float, Meta(ge=0, le=1e300)]
Label = Annotated[str, Meta(pattern="^(-1|0|[1-9][0-9]{0,17})$")]


class _Threshold(ThresholdFields, forbid_unknown_fields=True):
    id_scores: Digest | None


class _Rule(Struct, forbid_unknown_fields=True):
    false_alarm_every: Annotated[int, Meta(ge=1, le=MAX_INPUTS)]
    minimum: Annotated[int, Meta(ge=1, le=MAX_INPUTS)]
    cooldown: Annotated[int, Meta(ge=0, le=MAX_INPUTS)]
    error: Annotated[float, Meta(ge=1e-9, le=0.5)]


class _Evidence(Struct, forbid_unknown_fields=True):
    inputs: Count
    counts: Annotated[list[Count], Meta(max_length=100)]
    best: Annotated[float, Meta(ge=0, le=1e300)]
    values: Annotated[list[Evidence], Meta(max_length=1000)]
    since: Count


class _Window(Struct, array_like=True, forbid_unknown_fields=True):
    inputs: Annotated[int, Meta(ge=1, lt=1 << 62)]
    rejected: Count
    rejections: Evidence
    p_values: Evidence


class _Alert(Struct, forbid_unknown_fields=True):
    kind: Literal["rejections", "p_values"]
    since: Count
    message: Annotated[str, Meta(max_length=300)]


class MonitorFields(Fields):
    """The record of a :class:`oodles.monitor.Monitor`."""

    guard: str
    threshold: _Threshold
    rule: _Rule
    window: Annotated[int, Meta(ge=1, le=MAX_WINDOW)]
    inputs: Count
    rejected: Count
    errors: Count
    evidence: dict[Literal["rejections", "p_values"], _Evidence]
    windows: Annotated[list[_Window], Meta(max_length=MAX_WINDOWS)]
    scores: Annotated[list[Count], Meta(max_length=1000)]
    not_finite: Count
    classes: Annotated[dict[Label, Count], Meta(max_length=MAX_CLASSES + 1)]
    alerts: Annotated[list[_Alert], Meta(max_length=MAX_ALERTS)]
    raised: Count
    stands: bool
    last: Count
