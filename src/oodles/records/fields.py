"""What the records of saved and of exported guards have in common: fields with their types and ranges."""

import sys
from typing import Annotated, Literal

from msgspec import Meta, Struct

Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
MAX_SIDE, MIN_STD, MAX_VALUE = 8192, 1e-6, 1e6  # of preprocessing
MAX_WINDOW, MAX_PADDING = 1 << 20, 1 << 16  # of the bytes of a file
Pixels = Annotated[int, Meta(ge=1, le=MAX_SIDE)]
Channel = Annotated[float, Meta(ge=-MAX_VALUE, le=MAX_VALUE)]
Deviation = Annotated[float, Meta(ge=MIN_STD, le=MAX_VALUE)]
Window = Annotated[int, Meta(ge=0, le=MAX_WINDOW)]


class ThresholdFields(Struct, forbid_unknown_fields=True):
    """What :class:`oodles.Threshold` records."""

    value: Finite
    id_rate: Annotated[float, Meta(gt=0, lt=1)]
    calibration_size: Annotated[int, Meta(ge=0)]


class PreprocessingFields(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What :class:`oodles.data.transforms.Transform` records, or :class:`oodles.data.transforms.FileBytes`."""

    size: Pixels | None = None
    resize: Pixels | None = None
    mean: Annotated[list[Channel], Meta(min_length=1, max_length=64)] | None = None
    std: Annotated[list[Deviation], Meta(min_length=1, max_length=64)] | None = None
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    squash: bool = False
    floor: bool = False
    first: Window | None = None
    last: Window | None = None
    padding: Annotated[int, Meta(ge=0, le=MAX_PADDING)] | None = None

    def __post_init__(self) -> None:
        images, files = {"size", "resize", "mean", "std"}, {"first", "last", "padding"}
        if {name for name in images | files if getattr(self, name) is not None} not in (images, files):
            raise ValueError("images need size, resize, mean and std; files need first, last and padding")
        if self.mean is not None and self.std is not None and len(self.mean) != len(self.std):
            raise ValueError("mean and std need as many values as there are channels")
