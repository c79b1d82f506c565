"""``oodles explain``."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer import Argument, Option

from oodles.cli import common
from oodles.cli.checks import check_checkpoints, check_store, image_options
from oodles.cli.common import printable, say
from oodles.cli.guards import load_saved, open_inputs, over_images, split_paths
from oodles.cli.verdicts import print_json
from oodles.errors import ArgumentError

if TYPE_CHECKING:
    from torch import Tensor

    from oodles.explanation import Explanation

BATCH_SIZE = 32


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
            help="A folder made by oodles fit, then images or folders of images. Without a guard: a small CIFAR-10 "
            "network that comes with oodles.",
        ),
    ],
    model: common.GuardedModelOption = None,
    checkpoint: common.CheckpointOption = None,
    train: Annotated[
        Path | None,
        Option(help="The features that the guard was fitted on, to say what is usual there and which rows are near."),
    ] = None,
    size: common.KnownSizeOption = None,
    resize: common.ResizeOption = None,
    mean: common.KnownMeanOption = None,
    std: common.KnownStdOption = None,
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
    options = image_options(size, resize, mean, std)
    guard, inputs = split_paths("explain", paths, model)
    sources = open_inputs(inputs)
    stored = next((source for source in sources if isinstance(source, Path)), None)
    if stored is not None:
        raise ArgumentError(f"{stored} holds features; explain needs the images themselves")

    from oodles.data.loaders import ImageLoader
    from oodles.features import Features

    saved = load_saved(guard, key)
    if train is not None:
        saved.check_features(train)
    compared = None if train is None else Features.load(train)
    (images,) = (source for source in sources if not isinstance(source, Path))
    transform = saved.preprocessing(options)
    loader = ImageLoader(images, transform, labels=False, skip_bad=skip_bad, batch_size=BATCH_SIZE)
    guarded = saved.with_model(model, checkpoint, device)
    if not as_json:
        guarded.class_names = tuple(map(printable, guarded.class_names))

    def judge(names: list[str], batch: "Tensor") -> list[Explained]:
        found = guarded.explain(batch, train=compared)
        return [Explained(name, explanation) for name, explanation in zip(names, found, strict=True)]

    batches = over_images(loader, device, judge, lambda name, problem: Explained(name, problem=problem))
    if as_json:
        about = {"detector": saved.detector.spec, "threshold": saved.threshold.value}
        skipped: list[dict[str, str]] = []
        print_json(_records(batches, skipped), about, "explanations", {"skipped": skipped})
        return
    for batch in batches:
        for each in batch:
            say(f"skipped  {each.input}: {each.problem}" if each.problem else f"{each.input}:")
            if not each.problem:
                typer.echo(indent(str(each.explanation), "  "))


def _records(batches: Iterable[list[Explained]], skipped: list[dict[str, str]]) -> Iterator[list[dict[str, Any]]]:
    """The explanations as plain data; what has none is added to ``skipped``."""
    for batch in batches:
        skipped += [{"input": each.input, "problem": each.problem} for each in batch if each.problem]
        yield [each.as_record() for each in batch if not each.problem]
