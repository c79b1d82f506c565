"""``oodles train``."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from oodles.cli.checks import check_choice
from oodles.cli.common import notice, open_set
from oodles.cli.options import MAX_BATCH, MAX_SEED, DeviceOption, ImageOptions, LimitOption, SkipOption, one_of
from oodles.errors import ArgumentError, DataError
from oodles.training.recipes import RECIPES

if TYPE_CHECKING:
    from oodles.data.readers import ImageSet

ARCHITECTURES = {"densenet101": "oodles.models:densenet101", "small": "oodles.models:small_resnet"}
HEAD_TYPES = ("linear", "deconf")


def train(
    arch: Annotated[
        str,
        Argument(
            help="densenet101 (the paper's), small, or your own package.module:factory, whose code is run.",
            autocompletion=one_of(*ARCHITECTURES),
        ),
    ],
    given: ImageOptions,
    data: Annotated[Path, Option(help="Training images: a folder or .zip of class folders, or a CIFAR folder.")],
    out: Annotated[Path, Option(help="Folder for checkpoints, weights and metrics.jsonl.", file_okay=False)],
    test: Annotated[Path | None, Option(help="Labelled images to report accuracy on after each epoch.")] = None,
    recipe: Annotated[
        str, Option(help="paper (100 epochs), godin (200), or one-cycle (24).", autocompletion=one_of(*RECIPES))
    ] = "paper",
    head_type: Annotated[
        str, Option(help="linear, or deconf: the cosine head that godin needs.", autocompletion=one_of(*HEAD_TYPES))
    ] = "linear",
    epochs: Annotated[int | None, Option(help="Instead of the recipe's; the schedule is stretched.")] = None,
    batch_size: Annotated[
        int | None, Option(help="Images per update, over all processes together.", min=2, max=MAX_BATCH)
    ] = None,
    learning_rate: Annotated[float | None, Option(help="Instead of the recipe's.")] = None,
    seed: Annotated[int, Option(help="Seed of the initial weights, the order and the crops.", min=0, max=MAX_SEED)] = 0,
    resume: Annotated[bool, Option("--resume", help="Continue after the last complete epoch in --out.")] = False,
    limit: LimitOption = None,
    device: DeviceOption = None,
    skip_bad: SkipOption = False,
) -> None:
    """Train a classifier with SGD, flips and padded crops; a checkpoint each epoch.

    Pass OUT/weights.safetensors as --checkpoint to the other commands. Under torchrun the same command trains on
    all its processes; --batch-size is then the number of images of all of them together.

    Example: oodles train densenet101 --data cifar-10-batches-py --out runs/densenet
    """
    from oodles.data.transforms import CIFAR

    check_choice("--recipe", recipe, tuple(RECIPES))
    check_choice("--head-type", head_type, HEAD_TYPES)
    changes: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
    chosen = replace(RECIPES[recipe], **{name: value for name, value in changes.items() if value is not None})
    preprocessing = given.transform(CIFAR)
    source, classes = _open_labelled(data)
    tested, _ = (None, 0) if test is None else _open_labelled(test)
    if tested is not None and tested.classes != source.classes:
        odd = min({*tested.classes} ^ {*source.classes})
        raise DataError(f"only one of {data} and {test} has a class folder {odd}, so their labels would not agree")
    factory = arch if ":" in arch else _factory(arch, classes)
    source = source.sample(limit)

    import torch

    from oodles.data.loaders import read_pixels
    from oodles.models import build_model
    from oodles.models.deconf import with_head
    from oodles.training import train as run

    torch.manual_seed(seed)
    network = with_head(build_model(factory), head_type)
    images = read_pixels(source, preprocessing, skip_bad=skip_bad)
    held_out = None if tested is None else read_pixels(tested, preprocessing, skip_bad=skip_bad)
    notice(f"{arch}: {len(images):,} images of {classes} classes, {chosen}")
    metrics = run(network, images, out=out, test=held_out, recipe=chosen, seed=seed, resume=resume, device=device)
    last = metrics[-1]
    measured = f", {100 * last['test_accuracy']:.2f} % accuracy on {test}" if "test_accuracy" in last else ""
    notice(f"loss {last['loss']:.4f}{measured}; weights in {out / 'weights.safetensors'}")


def _open_labelled(path: Path) -> tuple["ImageSet", int]:
    """The images at a path, which must have labels, and the number of classes."""
    images = open_set(path, labels=True)
    labels = images.known_labels()
    return images, len(images.classes) or int(labels.max()) + 1


def _factory(arch: str, classes: int) -> str:
    if arch not in ARCHITECTURES:
        raise ArgumentError(f"{arch!r} must be one of {', '.join(ARCHITECTURES)}, or package.module:factory")
    return f"{ARCHITECTURES[arch]}(num_classes={classes})"
