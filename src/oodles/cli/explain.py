"""``oodles explain``."""

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer import Argument, Option

from oodles.cli import common
from oodles.cli.checks import check_checkpoints, check_store, image_options
from oodles.cli.common import notices, say
from oodles.cli.guards import ModelOptions, is_exported_guard, load_saved, network_inputs, open_inputs, split_paths
from oodles.cli.verdicts import print_json
from oodles.errors import ArgumentError
from oodles.records.text import printable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from oodles.data.decoding import ImageDecoder
    from oodles.data.transforms import Transform
    from oodles.deploy.exported import ExportedGuard
    from oodles.explanation.findings import Explanation
    from oodles.guard import Guard

    Pixels = npt.NDArray[np.uint8]  # (n, 3, size, size)

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
    given = ModelOptions(model, checkpoint, device, key, image_options(size, resize, mean, std))
    guard, inputs = split_paths("explain", paths, model)
    sources = open_inputs(inputs)
    stored = next((source for source in sources if isinstance(source, Path)), None)
    if stored is not None:
        raise ArgumentError(f"{stored} holds features; explain needs the images themselves")

    (images,) = (source for source in sources if not isinstance(source, Path))

    from oodles.data.decoding import ImageDecoder

    if guard is not None and is_exported_guard(guard):
        explainer = _exported(guard, given, train)
    else:
        explainer = _saved(guard, given, train)
    if not as_json:
        explainer.guard.class_names = tuple(map(printable, explainer.guard.class_names))
    decoder = ImageDecoder(images, explainer.transform, skip_bad=skip_bad, batch_size=BATCH_SIZE)
    batches = _explained(decoder, explainer.explain)
    if as_json:
        about = {"detector": explainer.detector, "threshold": explainer.guard.threshold.value}
        skipped: list[dict[str, str]] = []
        print_json(_records(batches, skipped), about, "explanations", {"skipped": skipped})
        return
    for batch in batches:
        for each in batch:
            say(f"skipped  {each.input}: {each.problem}" if each.problem else f"{each.input}:")
            if not each.problem:
                typer.echo(indent(str(each.explanation), "  "))


class Explainer(NamedTuple):
    """A guard with the text of its detector, how it takes images, and how it explains their pixels."""

    guard: "Guard | ExportedGuard"
    detector: str
    transform: "Transform"
    explain: "Callable[[Pixels], list[Explanation]]"


def _exported(path: Path, given: ModelOptions, train: Path | None) -> Explainer:
    """An exported guard, which has its model but no training rows."""
    from oodles.deploy.exported import ExportedGuard

    given.refuse_for(path)
    if train is not None:
        raise ArgumentError(f"{path} is exported and has no training rows to compare with; leave out --train")
    guard = ExportedGuard.open(path, device=given.device or "cpu")
    if guard.transform is None:
        raise ArgumentError(f"{path} guards a model whose inputs are not images; call it from Python")
    return Explainer(guard, guard.detector, guard.transform, lambda pixels: guard.judge(pixels, explain=True)[1])


def _saved(path: Path | None, given: ModelOptions, train: Path | None) -> Explainer:
    """A saved guard with its model, and perhaps with the features that it was fitted on."""
    from oodles.features import Features

    saved = load_saved(path, given.key)
    if train is not None:
        saved.check_features(train)
    compared, transform = None if train is None else Features.load(train), saved.preprocessing(given.images)
    guard = saved.with_model(given)

    def explain(pixels: "Pixels") -> "list[Explanation]":
        return guard.explain(network_inputs(pixels, transform, given.device), train=compared)

    return Explainer(guard, saved.detector.spec, transform, explain)


def _explained(decoder: "ImageDecoder", explain: "Callable[[Pixels], list[Explanation]]") -> Iterator[list[Explained]]:
    """What is printed of the images, batch by batch and in their order, also of those that cannot be read."""
    from rich.progress import Progress

    order = iter(decoder.images.names)
    seen = skipped = 0
    # lines on a terminal show the progress themselves
    hidden = not notices.is_terminal or sys.stdout.isatty()
    with Progress(console=notices, transient=True, disable=hidden, redirect_stdout=False) as bar:
        for batch in bar.track(decoder.decoded(), total=len(decoder), description="images"):
            names, problems = decoder.names[seen:], decoder.skipped[skipped:]
            seen, skipped = seen + len(names), skipped + len(problems)
            found = {name: Explained(name, each) for name, each in zip(names, explain(batch.pixels), strict=True)}
            found |= {name: Explained(name, problem=problem) for name, problem in problems}
            yield [found[name] for name in islice(order, len(names) + len(problems))]
    if decoder.skipped[skipped:]:
        yield [Explained(name, problem=problem) for name, problem in decoder.skipped[skipped:]]


def _records(batches: Iterable[list[Explained]], skipped: list[dict[str, str]]) -> Iterator[list[dict[str, Any]]]:
    """The explanations as plain data; what has none is added to ``skipped``."""
    for batch in batches:
        skipped += [{"input": each.input, "problem": each.problem} for each in batch if each.problem]
        yield [each.as_record() for each in batch if not each.problem]
