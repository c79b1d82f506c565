"""``oodles train``."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from oodles.cli import common
from oodles.cli.common import notice, transform
from oodles.errors import ArgumentError, DataError

ARCHITECTURES = {"densenet101": "oodles.models:densenet101", "small": "oodles.models:small_resnet"}
CIFAR_MEAN, CIFAR_STD = "0.4914,0.4822,0.4465", "0.2023,0.1994,0.2010"


def train(
    arch: Annotated[str, Argument(help="densenet101 (the paper's), small, or your own package.module:factory.")],
    data: Annotated[Path, Option(help="Training images: a folder or .zip of class folders, or a CIFAR folder.")],
    out: Annotated[Path, Option("--out", help="Folder for checkpoints, weights and metrics.jsonl.")],
    test: Annotated[Path | None, Option(help="Labelled images to report accuracy on after each epoch.")] = None,
    recipe: Annotated[str, Option(help="paper (100 epochs), godin (200), or one-cycle (24).")] = "paper",
    head_type: Annotated[str, Option(help="linear, or deconf: the cosine head that godin needs.")] = "linear",
    epochs: Annotated[int | None, Option(help="Instead of the recipe's; the schedule is stretched.")] = None,
    batch_size: Annotated[int | None, Option(help="Images per update, over all processes together.")] = None,
    learning_rate: Annotated[float | None, Option(help="Instead of the recipe's.")] = None,
    seed: Annotated[int, Option(help="Seed of the initial weights, the order and the crops.")] = 0,
    resume: Annotated[bool, Option("--resume", help="Continue after the last complete epoch in --out.")] = False,
    limit: common.LimitOption = None,
    size: common.SizeOption = 32,
    resize: common.ResizeOption = None,
    mean: common.MeanOption = CIFAR_MEAN,
    std: common.StdOption = CIFAR_STD,
    device: common.DeviceOption = None,
    skip_bad: common.SkipOption = False,
) -> None:
    """Train a classifier with SGD, flips and padded crops; a checkpoint each epoch.

    Pass OUT/weights.safetensors as --checkpoint to the other commands. Under torchrun the same command trains on
    all its processes; --batch-size is then the number of images of all of them together.

    Example: oodles train densenet101 --data cifar-10-batches-py --out runs/densenet
    """
    import torch

    from oodles.data.loaders import read_pixels
    from oodles.data.readers import open_images
    from oodles.models import build_model
    from oodles.models.deconf import with_head
    from oodles.training import train as run
    from oodles.training.recipes import RECIPES

    if recipe not in RECIPES:
        raise ArgumentError(f"--recipe {recipe!r} must be one of {', '.join(RECIPES)}")
    given = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    chosen = replace(RECIPES[recipe], **changes)
    preprocessing = transform(size, resize, mean, std)
    source = open_images(data)
    if source.labels is None:
        raise DataError(f"{data} has no labels; put the images of each class in a folder of its own")
    classes = len(source.classes) or int(source.labels.max()) + 1
    torch.manual_seed(seed)
    network = with_head(build_model(arch if ":" in arch else _factory(arch, classes)), head_type)
    images = read_pixels(source.sample(limit), preprocessing, skip_bad=skip_bad)
    held_out = None if test is None else read_pixels(open_images(test), preprocessing, skip_bad=skip_bad)
    if held_out is not None and held_out.classes != images.classes:
        odd = min({*held_out.classes} ^ {*images.classes})
        raise DataError(f"only one of {data} and {test} has a class folder {odd}, so their labels would not agree")
    notice(f"{arch}: {len(images):,} images of {classes} classes, {chosen}")
    metrics = run(network, images, out=out, test=held_out, recipe=chosen, seed=seed, resume=resume, device=device)
    last = metrics[-1]
    tested = f", {100 * last['test_accuracy']:.2f} % accuracy on {test}" if "test_accuracy" in last else ""
    notice(f"loss {last['loss']:.4f}{tested}; weights in {out / 'weights.safetensors'}")


def _factory(arch: str, classes: int) -> str:
    if arch not in ARCHITECTURES:
        raise ArgumentError(f"{arch!r} must be one of {', '.join(ARCHITECTURES)}, or package.module:factory")
    return f"{ARCHITECTURES[arch]}(num_classes={classes})"
