"""What the file of a monitor's state consists of, with types and ranges."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from oodles.monitor.alerts import Alert, AlertRule
from oodles.monitor.summaries import MAX_CLASSES, MAX_WINDOW, MAX_WINDOWS, Count, Value, Window
from oodles.records.fields import ThresholdFields
from oodles.records.files import Digest, Fields

KIND, SCHEMA = "monitor", 1
MAX_ALERTS = 50  # that are remembered

Label = Annotated[str, Meta(pattern="^(-1|0|[1-9][0-9]{0,17})$")]


class _Threshold(ThresholdFields, forbid_unknown_fields=True):
    id_scores: Digest | None


class _Evidence(Struct, forbid_unknown_fields=True):
    inputs: Count
    counts: Annotated[list[Count], Meta(max_length=100)]
    best: Value
    values: Annotated[list[Value], Meta(max_length=1000)]
    since: Count


class MonitorFields(Fields):
    """The record of a :class:`oodles.monitor.Monitor`."""

    guard: str
    threshold: _Threshold
    rule: AlertRule
    window: Annotated[int, Meta(ge=1, le=MAX_WINDOW)]
    inputs: Count
    rejected: Count
    errors: Count
    evidence: dict[Literal["rejections", "p_values"], _Evidence]
    windows: Annotated[list[Window], Meta(max_length=MAX_WINDOWS)]
    scores: Annotated[list[Count], Meta(max_length=1000)]
    not_finite: Count
    classes: Annotated[dict[Label, Count], Meta(max_length=MAX_CLASSES + 1)]
    alerts: Annotated[list[Alert], Meta(max_length=MAX_ALERTS)]
    raised: Count
    stands: bool
    last: Count
