"""What the commands share: the application, options, and turning them into models, transforms and paths."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from oodles.errors import ArgumentError

if TYPE_CHECKING:
    from torch import nn

    from oodles.bench.datasets import ImageLoader, Transform

app = typer.Typer(
    name="oodles",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Tells when a classifier is looking at something it was never trained on, without retraining it.",
    epilog="Start with [bold]oodles demo[/bold]. Exit codes: 0 done, 2 something is wrong with what was given "
    "(one line says what), 130 interrupted.",
)
console = Console()
notices = Console(stderr=True)

ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        help="Your classifier: [bold]package.module:factory[/bold], with arguments if it takes any, "
        "e.g. mynets:resnet(num_classes=10). The current folder is on the path.",
    ),
]
CheckpointOption = Annotated[
    Path | None,
    typer.Option(help="Its weights: a state dict (.pt, .pth, .safetensors). Read so that no code in it can run."),
]
LayerOption = Annotated[
    str | None, typer.Option(help="Name of the last linear layer, where it is not found by itself.")
]
SizeOption = Annotated[int, typer.Option(help="Side of the network's input: shorter side to --resize, centre crop.")]
ResizeOption = Annotated[int | None, typer.Option(help="Shorter side before the crop; --size unless given.")]
MeanOption = Annotated[str, typer.Option(help="Mean of each channel, 0 to 1, comma-separated.")]
StdOption = Annotated[str, typer.Option(help="Standard deviation of each channel, comma-separated.")]
SkipOption = Annotated[bool, typer.Option("--skip-bad", help="Leave unreadable images out instead of stopping.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
DetectorOption = Annotated[
    list[str] | None,
    typer.Option(
        "--detector", help="A name such as knn, or stages joined by +: 'react(90)+dice(0.7)'. May be given again."
    ),
]
IMAGENET_MEAN, IMAGENET_STD = "0.485,0.456,0.406", "0.229,0.224,0.225"


def plain(text: str) -> str:
    """One line, in which brackets are brackets and no markup."""
    from rich.markup import escape

    return escape(" ".join(text.split()))


def load_model(factory: str, checkpoint: Path | None) -> "nn.Module":
    """The model a user named, with its weights if there are any."""
    from oodles.models import build_model, load_checkpoint

    model = build_model(factory)
    if checkpoint is None:
        notices.print(f"no --checkpoint: {factory} is taken as it comes")
    else:
        load_checkpoint(model, checkpoint)
    return model.eval()


def transform(size: int, resize: int | None, mean: str, std: str) -> "Transform":
    """How images become the network's input."""
    from oodles.bench.datasets import Transform

    return Transform(size, resize or size, channels("mean", mean), channels("std", std))


def channels(name: str, text: str) -> tuple[float, float, float]:
    """Three comma-separated numbers."""
    try:
        red, green, blue = (float(part) for part in text.split(","))
    except ValueError:
        raise ArgumentError(f"--{name} {text!r} must be three numbers, e.g. {IMAGENET_MEAN}") from None
    return red, green, blue


def named_paths(pairs: list[str]) -> dict[str, Path]:
    """``NAME=PATH`` options as a mapping."""
    named = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not equals or not path or not re.fullmatch(r"\w[\w.-]*", name) or name in ("train", "test", "average"):
            raise ArgumentError(
                f"--ood {pair!r} must be NAME=PATH, NAME being letters and digits, and none of train, test, average"
            )
        named[name] = Path(path)
    return named


def tell_skipped(loader: "ImageLoader") -> None:
    """Say which images were left out, if any."""
    if loader.bad:
        notices.print(plain(f"left out: {loader.complaint()}"))
