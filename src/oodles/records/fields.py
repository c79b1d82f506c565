"""What the records of saved and of exported guards have in common: fields with their types and ranges."""

import sys
from typing import Annotated

from msgspec import Meta, Struct

Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
MAX_SIDE, MIN_STD, MAX_VALUE = 8192, 1e-6, 1e6  # of preprocessing
Pixels = Annotated[int, Meta(ge=1, le=MAX_SIDE)]


class ThresholdFields(Struct, forbid_unknown_fields=True):
    """What :class:`oodles.Threshold` records."""

    value: Finite
    id_rate: Annotated[float, Meta(gt=0, lt=1)]
    calibration_size: Annotated[int, Meta(ge=0)]


class PreprocessingFields(Struct, forbid_unknown_fields=True):
    """What :class:`oodles.data.transforms.Transform` records."""

    size: Pixels
    resize: Pixels
    mean: Annotated[list[Annotated[float, Meta(ge=-MAX_VALUE, le=MAX_VALUE)]], Meta(min_length=3, max_length=3)]
    std: Annotated[list[Annotated[float, Meta(ge=MIN_STD, le=MAX_VALUE)]], Meta(min_length=3, max_length=3)]
