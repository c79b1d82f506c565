"""``oodles explain``."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer import Argument, Option

from oodles.cli import common
from oodles.cli.checks import check_checkpoints, check_store, image_options
from oodles.cli.common import notice, notices, print_json, say
from oodles.cli.guards import GuardOptions, open_for, split_paths
from oodles.errors import ArgumentError, DataError
from oodles.records.text import printable

if TYPE_CHECKING:
    from oodles.deploy.opening import OpenGuard
    from oodles.deploy.sources import InputSequence
    from oodles.explanation.findings import Explanation


class Explained(NamedTuple):
    """What is printed of one image: why it was accepted or rejected, or the problem for which it was skipped."""

    input: str
    explanation: "Explanation | None" = None
    problem: str = ""

    def as_record(self) -> dict[str, Any]:
        """The explanation as plain data."""
        return {"input": self.input, **(self.explanation.as_record() if self.explanation is not None else {})}


def explain(
    paths: Annotated[
        list[Path],
        Argument(
            metavar="[GUARD] IMAGES",
            help="A folder made by oodles fit, or an exported guard, then images or folders of images. Without a "
            "guard: a small CIFAR-10 network that comes with oodles.",
        ),
    ],
    model: common.GuardedModelOption = None,
    checkpoint: common.CheckpointOption = None,
    train: Annotated[
        Path | None,
        Option(help="The features that the guard was fitted on, to say what is usual there and which rows are near."),
    ] = None,
    size: common.SizeOption = None,
    resize: common.ResizeOption = None,
    mean: common.MeanOption = None,
    std: common.StdOption = None,
    device: common.DeviceOption = None,
    key: common.KeyOption = None,
    skip_bad: common.SkipOption = False,
    as_json: common.JsonOption = False,
) -> None:
    """Say why images are accepted or rejected: how each part of the detector sees them, and what decided.

    Example: oodles explain guard photo.jpg --model mynets:resnet18 --checkpoint r18.pt --train features/train
    """
    check_checkpoints([checkpoint])
    if train is not None:
        check_store(train)
    given = GuardOptions(model, checkpoint, device, key, image_options(size, resize, mean, std))
    guard, paths = split_paths("explain", paths, model)

    from oodles.deploy.sources import InputSequence

    inputs = InputSequence(paths, notice)
    if inputs.stores:
        raise ArgumentError(f"{inputs.stores[0]} holds features; explain needs the images themselves")
    opened = open_for(guard, given, images=True)
    opened.check_images()
    if train is not None:
        opened.compare_with(train)
    if not as_json:
        opened.class_names = tuple(map(printable, opened.class_names))
    batches = _explained(opened, inputs, skip_bad)
    if as_json:
        about = {"detector": opened.detector, "threshold": opened.threshold.value}
        skipped: list[dict[str, str]] = []
        print_json(_records(batches, skipped), about, "explanations", {"skipped": skipped})
        return
    for batch in batches:
        for each in batch:
            say(f"skipped  {each.input}: {each.problem}" if each.explanation is None else f"{each.input}:")
            if each.explanation is not None:
                typer.echo(indent(str(each.explanation), "  "))


def _explained(guard: "OpenGuard", inputs: "InputSequence", skip_bad: bool) -> Iterator[list[Explained]]:
    """Yield what is printed of the images, batch by batch and in their order, also of those that cannot be read."""
    import numpy as np
    from rich.progress import Progress

    from oodles.deploy.scoring import BATCH_SIZE, decode_ahead

    # lines on a terminal show the progress themselves
    hidden = not notices.is_terminal or sys.stdout.isatty()
    with Progress(console=notices, transient=True, disable=hidden, redirect_stdout=False) as bar:
        task = bar.add_task("images", total=inputs.total)
        for batch, images in decode_ahead(inputs.batches(BATCH_SIZE), guard.transform):
            bad = [(name, image.problem) for name, image in zip(batch.names, images, strict=True) if image.problem]
            if bad and not skip_bad:
                raise DataError(f"{bad[0][0]} cannot be read ({bad[0][1]}); --skip-bad skips such images")
            good = [image.pixels for image in images if image.pixels is not None]
            found = iter(guard.explain(guard.batch(np.stack(good))) if good else ())
            yield [
                Explained(name, problem=image.problem) if image.problem else Explained(name, next(found))
                for name, image in zip(batch.names, images, strict=True)
            ]
            bar.advance(task, len(images))


def _records(batches: Iterable[list[Explained]], skipped: list[dict[str, str]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the explanations as plain data; images without one are added to ``skipped``."""
    for batch in batches:
        skipped += [{"input": each.input, "problem": each.problem} for each in batch if each.problem]
        yield [each.as_record() for each in batch if not each.problem]
