"""Preprocessing of torchvision, timm and transformers as a :class:`Transform`, read from fields without an import."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from oodles.data.transforms import FileBytes, Transform, file_bytes
from oodles.errors import ArgumentError
from oodles.records.text import one_line

# what the classes of torchvision and timm do, in the order that it must have
ORDER = ("colours", "resize", "crop", "scale", "normalise")
STEPS = {"Grayscale": "colours", "RGB": "colours", "Resize": "resize", "CenterCrop": "crop", "Normalize": "normalise"}
STEPS |= dict.fromkeys(("ToTensor", "MaybeToTensor", "ConvertImageDtype", "ToDtype"), "scale")
STEPS |= dict.fromkeys(("ToImage", "PILToTensor", "MaybePILToTensor"), "tensor")
INTERPOLATIONS = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
TIMM = {"input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode"}
# what an image processor must do, and may do
ALWAYS, OPTIONAL = {"do_resize", "do_rescale", "do_normalize"}, {"do_center_crop", "do_convert_rgb"}


def preprocessing_record(preprocessing: Any, loader: object = None) -> dict[str, Any] | None:
    """Preprocessing as plain values: as given, or as the loader has it; None if unknown."""
    known = getattr(loader, "transform", None) if preprocessing is None else preprocessing
    if isinstance(known, Mapping):
        known = file_bytes(known) or known
    if isinstance(known, Transform | FileBytes):
        return known.as_record()
    return None if preprocessing is None else as_transform(preprocessing).as_record()


def as_transform(given: Any) -> Transform:
    """Return the :class:`Transform` that does the same; raise if there is none.

    ``given`` is a Transform or its record, a ``Compose`` or preset of torchvision (timm's transforms are such), a data
    configuration of timm, or an image processor of transformers.
    """
    if isinstance(given, Transform):
        return given
    library, name = _library(given), type(given).__name__
    try:
        if isinstance(given, Mapping):
            return _from_timm(given) if "input_size" in given else Transform.from_record(given)
        if (library, name) == ("torchvision", "Compose"):
            return _from_steps(given.transforms)
        if (library, name) == ("torchvision", "ImageClassification"):
            return _transform(given.crop_size, given.resize_size, vars(given))
        if library == "transformers" and "ImageProcessor" in name:
            return _from_processor(given)
        problem = "it belongs to none of torchvision, timm and transformers"
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = one_line(error, kind=not isinstance(error, ArgumentError))
    raise ArgumentError(
        f"preprocessing={name} cannot be converted exactly ({problem}); give a Transform of oodles.data.transforms, or "
        "nothing, and prepare images yourself"
    )


def _from_steps(steps: Sequence[Any]) -> Transform:
    """Convert torchvision's transforms, of either version."""
    names = [type(step).__name__ if _library(step) in ("torchvision", "timm") else "" for step in steps]
    kinds = [STEPS.get(name, "") for name in names]
    found: dict[str, Any] = dict(zip(kinds, steps, strict=True))
    if [kind for kind in kinds if kind != "tensor"] != [kind for kind in ORDER if kind in found]:
        raise ArgumentError(f"it must be {', '.join(ORDER)}, in this order, but has {', '.join(map(str, steps))}")
    squash = "resize" in found and isinstance(found["resize"].size, Sequence) and len(found["resize"].size) == 2
    if not {"resize", "scale"} <= found.keys() or not (squash or "crop" in found):
        raise ArgumentError("without Resize, CenterCrop (or Resize with two sides) and ToTensor, the result can vary")
    resize, scale, grey = found["resize"], found["scale"], getattr(found.get("colours"), "num_output_channels", 0)
    smooth = resize.antialias is True or "tensor" not in kinds[: kinds.index("resize")]
    floats = str(getattr(scale, "dtype", "torch.float32")) == "torch.float32" and getattr(scale, "scale", True) is True
    if resize.max_size is not None or not smooth or not floats or grey > 1:
        raise ArgumentError(f"a Transform does not have all settings of {', '.join(map(str, steps))}")
    plain = {"mean": [0.0] * (grey or 3), "std": [1.0] * (grey or 3)}
    about = plain | vars(found.get("normalise", scale)) | vars(resize)
    return _transform(found.get("crop", resize).size, resize.size, about, squash=squash)


def _from_timm(config: Mapping[str, Any]) -> Transform:
    """Convert what ``timm.data.resolve_data_config`` returns."""
    mode = config.get("crop_mode", "center")
    if not config.keys() <= TIMM or mode not in ("center", "squash"):
        raise ArgumentError(f"it may have {', '.join(sorted(TIMM))}, with a crop of the centre, but has {dict(config)}")
    size = _side(config["input_size"][1:])
    return _transform(size, math.floor(size / config["crop_pct"]), config, squash=mode == "squash")


def _from_processor(processor: Any) -> Transform:
    """Convert an image processor, whose fields say all that it does."""
    fields = processor.to_dict()
    does = {name for name, value in fields.items() if name.startswith("do_") and value}
    size, crop, share = fields["size"], "do_center_crop" in does, fields.get("crop_pct")
    usual = math.isclose(fields["rescale_factor"], 1 / 255, rel_tol=1e-6) and not fields.get("rescale_offset")
    if does - OPTIONAL != ALWAYS or not usual or not size.keys() <= {"shortest_edge", "height", "width"}:
        raise ArgumentError(f"it must resize, scale by 1/255 and normalise, and may crop, but it has {fields}")
    cropped = side = _side([*size.values()])
    squash = "shortest_edge" not in size
    if share is not None:  # of ConvNeXt, which crops small images and squashes large ones
        squash, crop = side >= 384, True
        side = side if squash else int(side / share)
    elif crop:
        cropped = _side([*fields["crop_size"].values()])
    if not (squash or crop):
        raise ArgumentError("it resizes the shorter side and does not crop, so the result can vary")
    about = {"mean": fields["image_mean"], "std": fields["image_std"], "interpolation": fields["resample"]}
    return _transform(cropped, side, about, squash=squash, floor=True)


def _transform(size: Any, resize: Any, about: Mapping[str, Any], **others: bool) -> Transform:
    """A Transform with the mean, the standard deviation and the interpolation of ``about``."""
    chosen: Any = getattr(about["interpolation"], "value", about["interpolation"])
    record = {"size": _side(size), "resize": _side(resize), "interpolation": INTERPOLATIONS.get(chosen, chosen)}
    return Transform.from_record(record | {name: _floats(about[name]) for name in ("mean", "std")} | others)


def _library(given: object) -> str:
    return type(given).__module__.partition(".")[0]


def _floats(values: Any) -> list[float]:
    listed = values.tolist() if hasattr(values, "tolist") else values
    return [float(each) for each in (listed if isinstance(listed, Sequence) else [listed])]


def _side(size: Any) -> int:
    """The side of a square."""
    sides = {*size} if isinstance(size, Sequence) else {size}
    if len(sides) != 1:
        raise ArgumentError(f"{size} is not a square")
    return int(sides.pop())
