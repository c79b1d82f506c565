"""What the commands share: consoles, options, and how options become models and paths."""

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer import Option

from oodles.errors import ArgumentError
from oodles.records.text import printable

if TYPE_CHECKING:
    from torch import nn

    from oodles.data.loaders import ImageLoader
    from oodles.data.readers import ImageSet

# what is printed contains names of the user's, in which :boom: is no emoji
console = Console(emoji=False)
notices = Console(stderr=True, emoji=False)

CHECK_FAILED = 3  # the exit code of --check
ModelOption = Annotated[
    str,
    Option(
        "--model",
        help="Your classifier: [bold]package.module:factory[/bold], with arguments if it takes any, "
        "e.g. mynets:resnet(num_classes=10). The current folder is searched too. This runs code: name only "
        "what you would run yourself.",
    ),
]
CheckpointOption = Annotated[
    Path | None, Option(help="Its weights: a state dict (.pt, .pth, .safetensors). No code in the file is run.")
]
GuardedModelOption = Annotated[
    str | None, Option("--model", help="Needed for images: package.module:factory. Runs its code.")
]
HeadOption = Annotated[str | None, Option("--head", help="Name of the last linear layer, if not found automatically.")]
SizeOption = Annotated[
    int | None,
    Option(
        help="Input size: the shorter side becomes --resize, then a centre crop. Default: that of the guard or suite, "
        "or 224."
    ),
]
ResizeOption = Annotated[int | None, Option(help="Shorter side before the crop. Default: --size.")]
MeanOption = Annotated[
    str | None,
    Option(help="Mean of each channel, 0 to 1, comma-separated. Default: that of the guard or suite, or ImageNet's."),
]
StdOption = Annotated[
    str | None, Option(help="Standard deviation of each channel, comma-separated. Default: likewise.")
]
KeyOption = Annotated[
    Path | None, Option("--key", help="File with a secret of at least 16 bytes: the guard must be signed with it.")
]
DeviceOption = Annotated[str | None, Option(help="For example cuda. Default: cpu.")]
LimitOption = Annotated[int | None, Option(help="Use at most this many images of each set, chosen at random.")]
SkipOption = Annotated[bool, Option("--skip-bad", help="Skip images that cannot be read instead of stopping.")]
JsonOption = Annotated[bool, Option("--json", help="Print JSON and nothing else.")]
DataOption = Annotated[Path, Option(help="Folder with the datasets, each unpacked as its archive is.")]


def say(text: str) -> None:
    """One line on standard output."""
    typer.echo(printable(text))


def notice(text: str, label: str = "") -> None:
    """One line on standard error, however narrow the terminal, with the text shown as it is; ``label`` is markup.

    Of the processes that torchrun started, only the first says something.
    """
    from rich.text import Text

    if os.environ.get("RANK", "0") != "0":
        return
    line = Text(printable(text.strip()))
    notices.print(Text.from_markup(f"{label} ") + line if label else line, soft_wrap=True, highlight=False)


def print_json(
    batches: Iterable[Sequence[dict[str, Any]]], about: dict[str, Any], name: str, after: dict[str, Any] | None = None
) -> None:
    """Print one JSON document batch by batch: ``about``, the records under ``name``, and what is known ``after``."""
    before = json.dumps(about).removesuffix("}") + f', "{name}": ['
    for batch in batches:
        if batch:
            typer.echo(before + ",\n".join(map(json.dumps, batch)), nl=False)
            before = ",\n"
    last = "".join(f', "{key}": {json.dumps(value)}' for key, value in (after or {}).items())
    typer.echo(("" if before == ",\n" else before) + f"]{last}}}")


def load_model(factory: str, checkpoint: Path | None) -> "nn.Module":
    """The model that the user named, with its weights if there are any."""
    from oodles.models import build_model, load_checkpoint

    model = build_model(factory)
    if checkpoint is None:
        notice(f"no --checkpoint: {factory} is used with the weights it comes with")
    else:
        load_checkpoint(model, checkpoint)
    return model.eval()


def named_paths(
    pairs: list[str], option: str = "--ood", taken: Sequence[str] = ("train", "test", "average")
) -> dict[str, Path]:
    """``NAME=PATH`` options as a mapping; names that are ``taken`` cannot be given."""
    named = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not equals or not path or not re.fullmatch(r"\w[\w.-]*", name) or name in taken:
            other = f" other than {', '.join(taken)}" if taken else ""
            raise ArgumentError(f"{option} {pair!r} must be NAME=PATH; NAME is a word{other}")
        named[name] = Path(path)
    return named


def report_ignored(images: "ImageSet", *, labels: bool = False) -> None:
    """Say which files are not images, and how class folders were understood if ``labels`` are wanted."""
    for line in (images.ignored_summary(), images.label_note if labels else ""):
        if line:
            notice(line)


def report_skipped(loader: "ImageLoader") -> None:
    """Say which images were skipped, if any."""
    if loader.skipped:
        notice(f"skipped: {loader.problem_summary()}")
