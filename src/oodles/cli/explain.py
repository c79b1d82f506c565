"""``oodles explain``."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from oodles.cli.checks import check_store
from oodles.cli.common import notice, print_json, say
from oodles.cli.guards import open_for, split_paths
from oodles.cli.options import DeviceOption, GuardOptions, JsonOption, SkipOption
from oodles.errors import ArgumentError, DataError
from oodles.records.text import printable

if TYPE_CHECKING:
    from oodles.explanation.findings import Explanation

    Found = list[tuple[str, Explanation | str]]


def explain(
    paths: Annotated[
        list[Path],
        Argument(
            metavar="[GUARD] IMAGES",
            help="A folder made by oodles fit, or an exported guard, then images or folders of images. Without a "
            "guard: a small CIFAR-10 network that comes with oodles.",
        ),
    ],
    given: GuardOptions,
    train: Annotated[
        Path | None,
        Option(help="The features that the guard was fitted on, to say what is usual there and which rows are near."),
    ] = None,
    device: DeviceOption = None,
    skip_bad: SkipOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say why images are accepted or rejected: how each part of the detector sees them, and what decided.

    Example: oodles explain guard photo.jpg --model mynets:resnet18 --checkpoint r18.pt --train features/train
    """
    if train is not None:
        check_store(train)
    guard, paths = split_paths("explain", paths, given.model)

    from oodles.data.transforms import FileBytes
    from oodles.deploy.scoring import explain_inputs
    from oodles.deploy.sources import InputSequence
    from oodles.store import is_store

    stores = [path for path in paths if is_store(path)]
    if stores:
        raise ArgumentError(f"{stores[0]} holds features; explain needs the images themselves")
    opened = open_for(guard, given, images=True, device=device)
    inputs = InputSequence(paths, notice, files=isinstance(opened.reads, FileBytes))
    if train is not None:
        opened.compare_with(train)
    batches = _checked(explain_inputs(opened, inputs), skip_bad)
    if as_json:
        about = {"detector": opened.detector, "threshold": opened.threshold.value}
        skipped: list[dict[str, str]] = []
        print_json(_records(batches, skipped), about, "explanations", {"skipped": skipped})
        return
    opened.class_names = tuple(map(printable, opened.class_names))
    for name, found in chain.from_iterable(batches):
        say(f"skipped  {name}: {found}" if isinstance(found, str) else f"{name}:")
        if not isinstance(found, str):
            typer.echo(indent(str(found), "  "))


def _checked(batches: "Iterator[Found]", skip_bad: bool) -> "Iterator[Found]":
    """Yield the batches; raise at an image that cannot be read, unless it is skipped."""
    for batch in batches:
        name, problem = next(((name, found) for name, found in batch if isinstance(found, str)), ("", ""))
        if problem and not skip_bad:
            raise DataError(f"{name} cannot be read ({problem}); --skip-bad skips such images")
        yield batch


def _records(batches: "Iterator[Found]", skipped: list[dict[str, str]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the explanations as plain data; images without one are added to ``skipped``."""
    for batch in batches:
        skipped += [{"input": name, "problem": found} for name, found in batch if isinstance(found, str)]
        yield [{"input": name, **found.as_record()} for name, found in batch if not isinstance(found, str)]
