"""What the records of saved and of exported guards have in common: fields with their types and ranges."""

import sys
from typing import Annotated

from msgspec import Meta, Struct

Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
Positive = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
Pixels = Annotated[int, Meta(ge=1, le=1 << 16)]


class ThresholdFields(Struct, forbid_unknown_fields=True):
    """What :class:`oodles.Threshold` records."""

    value: Finite
    id_rate: Annotated[float, Meta(gt=0, lt=1)]
    calibration_size: Annotated[int, Meta(ge=0)]


class PreprocessingFields(Struct, forbid_unknown_fields=True):
    """What :class:`oodles.data.transforms.Transform` records."""

    size: Pixels
    resize: Pixels
    mean: Annotated[list[Finite], Meta(min_length=3, max_length=3)]
    std: Annotated[list[Positive], Meta(min_length=3, max_length=3)]
