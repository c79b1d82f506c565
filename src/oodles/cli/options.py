"""Options that several commands have, each declared once.

Options that belong together are the fields of a dataclass. A command has a parameter of that class, and ``oodles``
gives typer an option for each field.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from oodles.cli.common import notice
from oodles.errors import ArgumentError

if TYPE_CHECKING:
    from torch import nn

    from oodles.data.transforms import Transform

MAX_BATCH, MAX_OUTLIERS = 100_000, 1_000_000
MAX_SEED = 2**31 - 1  # every random generator takes such a seed
preprocessing_option = partial(Option, rich_help_panel="Preprocessing of images")

CheckpointOption = Annotated[
    Path | None,
    Option(
        help="Its weights: a state dict (.pt, .pth, .safetensors). No code in the file is run.",
        exists=True,
        dir_okay=False,
    ),
]
KeyOption = Annotated[
    Path | None, Option("--key", help="File with a secret of at least 16 bytes: the guard must be signed with it.")
]
ClassesOption = Annotated[
    Path | None, Option(help="File with the names of the model's classes, one per line in the order of its outputs.")
]
DeviceOption = Annotated[str | None, Option(help="For example cuda. Default: cpu.")]
LimitOption = Annotated[int | None, Option(help="Use at most this many images of each set, chosen at random.", min=1)]
SkipOption = Annotated[bool, Option("--skip-bad", help="Skip images that cannot be read instead of stopping.")]
JsonOption = Annotated[bool, Option("--json", help="Print JSON and nothing else.")]
DataOption = Annotated[Path, Option(help="Folder with the datasets, each unpacked as its archive is.")]


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """How images are preprocessed; None where the user gave nothing."""

    size: Annotated[
        int | None,
        preprocessing_option(
            help="Input size: the shorter side becomes --resize, then a centre crop. Default: that of the guard or "
            "suite, or 224."
        ),
    ] = None
    resize: Annotated[int | None, preprocessing_option(help="Shorter side before the crop. Default: --size.")] = None
    mean: Annotated[
        str | None,
        preprocessing_option(
            help="Mean of each channel, 0 to 1, comma-separated. Default: that of the guard or suite, or ImageNet's."
        ),
    ] = None
    std: Annotated[
        str | None,
        preprocessing_option(help="Standard deviation of each channel, comma-separated. Default: likewise."),
    ] = None

    def __post_init__(self) -> None:
        if self.size is None and self.resize is not None:  # a guard may have a smaller size than the default
            replace(self, size=self.resize)
        else:
            self.transform()

    def given(self) -> dict[str, Any]:
        """Return the settings that the user gave."""
        values = {
            "size": self.size,
            "resize": self.resize,
            "mean": _channels("mean", self.mean),
            "std": _channels("std", self.std),
        }
        return {name: value for name, value in values.items() if value is not None}

    def transform(self, default: "Transform | None" = None) -> "Transform":
        """Return the preprocessing; settings that were not given are those of ``default``, or ImageNet's."""
        from oodles.data.transforms import IMAGENET, Transform

        usual, given = default or IMAGENET, self.given()
        size = given.get("size", usual.size)
        return Transform(size, given.get("resize", size), given.get("mean", usual.mean), given.get("std", usual.std))


def _channels(name: str, text: str | None) -> tuple[float, ...] | None:
    """Return comma-separated numbers."""
    if text is None:
        return None
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise ArgumentError(
            f"--{name} {text!r} must be numbers, one for each channel, e.g. 0.485,0.456,0.406"
        ) from None


@dataclass(frozen=True, kw_only=True)
class RunOptions(ImageOptions):
    """How a network is run over images."""

    head: Annotated[str | None, Option(help="Name of the last linear layer, if not found automatically.")] = None
    limit: LimitOption = None
    device: DeviceOption = None
    skip_bad: SkipOption = False


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The user's model."""

    model: Annotated[
        str,
        Option(
            help="Your classifier: [bold]model.onnx[/bold] or [bold]package.module:factory[/bold], with arguments, "
            "e.g. mynets:resnet(num_classes=10). The current folder is searched too. This runs code: name only "
            "what you would run yourself.",
        ),
    ]
    checkpoint: CheckpointOption = None

    def load(self) -> "nn.Module":
        """Return the model with its weights."""
        return load_model(self.model, self.checkpoint)


@dataclass(frozen=True, kw_only=True)
class GuardOptions(ImageOptions):
    """The model that a guard needs, and the file that the guard must be signed with."""

    model: Annotated[
        str | None, Option(help="Needed for images: model.onnx, or package.module:factory, whose code runs.")
    ] = None
    checkpoint: CheckpointOption = None
    key: KeyOption = None


def load_model(factory: str, checkpoint: Path | None) -> "nn.Module":
    """Return the model that the user named, with its weights if there are any."""
    from oodles.network.onnx_model import as_model, is_onnx

    if is_onnx(factory):
        if checkpoint is not None:
            raise ArgumentError(f"--model {factory} contains its weights; leave out --checkpoint")
        model: nn.Module = as_model(factory)
        return model

    from oodles.models import build_model, load_checkpoint

    model = build_model(factory)
    if checkpoint is None:
        notice(f"no --checkpoint: {factory} is used with the weights it comes with")
    else:
        load_checkpoint(model, checkpoint)
    return model.eval()


def one_of(*values: str) -> Callable[[str], list[str]]:
    """Complete an argument to one of the values."""
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]


def complete_detector(incomplete: str) -> list[str]:
    """Complete the last stage of a chain such as ``react(90)+di`` to the names of the built-in detectors.

    The names are read from the source of the registry, since importing it would import torch while the user waits.
    """
    before, plus, name = incomplete.rpartition("+")
    source = (files("oodles") / "detectors" / "registry.py").read_text()
    names = re.findall(r'^    Entry\(\s*"(\w+)"', source, re.MULTILINE)
    return [f"{before}{plus}{each}" for each in names if each.startswith(name)]
