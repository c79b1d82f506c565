"""What the commands print, and how ``NAME=PATH`` is read."""

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from oodles.errors import ArgumentError
from oodles.records.text import printable

if TYPE_CHECKING:
    from oodles.data.readers import ImageSet

# what is printed contains names of the user's, in which :boom: is no emoji
console = Console(emoji=False)
notices = Console(stderr=True, emoji=False)

CHECK_FAILED = 3  # an exit code


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


def open_set(path: Path, *, labels: bool = False, files: bool = False) -> "ImageSet":
    """Open images, or all ``files``; say which are no images, and how class folders give ``labels`` if wanted."""
    from oodles.data.readers import open_files, open_images

    images = open_files(path) if files else open_images(path)
    for line in (images.ignored_summary(), images.label_note if labels else ""):
        if line:
            notice(line)
    return images
