"""``train``: a classifier from images, by the paper's recipes."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from oodles.cli.base import (
    MeanOption,
    ResizeOption,
    SizeOption,
    SkipOption,
    StdOption,
    app,
    notices,
    plain,
    transform,
)
from oodles.errors import ArgumentError, DataError

ARCHITECTURES = {"densenet101": "oodles.models:densenet101", "small": "oodles.models:small_resnet"}
CIFAR_MEAN, CIFAR_STD = "0.4914,0.4822,0.4465", "0.2023,0.1994,0.2010"


@app.command()
def train(
    arch: Annotated[str, typer.Argument(help="densenet101 (the paper's), small, or your own package.module:factory.")],
    data: Annotated[
        Path, typer.Option(help="Training images: a folder or .zip of class folders, or a CIFAR folder as published.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for checkpoints, weights and metrics.jsonl.")],
    test: Annotated[Path | None, typer.Option(help="Labelled images to report accuracy on after each epoch.")] = None,
    recipe: Annotated[
        str, typer.Option(help="paper (100 epochs), godin (200), or one-cycle (24; for small machines).")
    ] = "paper",
    head: Annotated[
        str, typer.Option(help="linear, or deconf: the cosine head that the godin detector needs.")
    ] = "linear",
    epochs: Annotated[int | None, typer.Option(help="Instead of the recipe's; the schedule stretches along.")] = None,
    batch: Annotated[int | None, typer.Option(help="Images an update, over all processes together.")] = None,
    rate: Annotated[float | None, typer.Option(help="Learning rate instead of the recipe's.")] = None,
    seed: Annotated[int, typer.Option(help="Decides the first weights, the order and the crops.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last whole epoch in --out.")] = False,
    limit: Annotated[int | None, typer.Option(help="Only so many training images, chosen at random.")] = None,
    size: SizeOption = 32,
    resize: ResizeOption = None,
    mean: MeanOption = CIFAR_MEAN,
    std: StdOption = CIFAR_STD,
    device: Annotated[str | None, typer.Option(help="e.g. cuda; the CPU unless given.")] = None,
    skip_bad: SkipOption = False,
) -> None:
    """Train a classifier with SGD, flips and padded crops; a checkpoint each epoch.

    The weights in OUT/weights.safetensors are what --checkpoint takes everywhere else. Under torchrun
    the same command trains on all its processes, --batch being the images of all of them together.

    Example: oodles train densenet101 --data cifar-10-batches-py --out runs/densenet
    """
    import torch

    from oodles.bench.datasets import open_images, read_pixels
    from oodles.models import build_model
    from oodles.models.deconf import with_head
    from oodles.recipes import RECIPES
    from oodles.training import train as run

    if recipe not in RECIPES:
        raise ArgumentError(f"--recipe {recipe!r} is none of {', '.join(RECIPES)}")
    usual = RECIPES[recipe]
    chosen = replace(
        usual,
        epochs=usual.epochs if epochs is None else epochs,
        batch=usual.batch if batch is None else batch,
        rate=usual.rate if rate is None else rate,
    )
    how = transform(size, resize, mean, std)
    source = open_images(data)
    if source.labels is None:
        raise DataError(f"{data} has no labels; put the images of each class in a folder of its own")
    classes = len(source.classes) or int(source.labels.max()) + 1
    torch.manual_seed(seed)
    network = with_head(build_model(arch if ":" in arch else _factory(arch, classes)), head)
    images = read_pixels(source.sample(limit), how, skip_bad=skip_bad)
    held_out = None if test is None else read_pixels(open_images(test), how, skip_bad=skip_bad)
    if held_out is not None and held_out.classes != images.classes:
        odd = min({*held_out.classes} ^ {*images.classes})
        raise DataError(f"only one of {data} and {test} has a class folder {odd}, so their labels would not agree")
    notices.print(plain(f"{arch}: {len(images):,} images of {classes} classes, {chosen}"))
    metrics = run(network, images, out=out, test=held_out, recipe=chosen, seed=seed, resume=resume, device=device)
    last = metrics[-1]
    judged = f", {100 * last['test_accuracy']:.2f} % right on {test}" if "test_accuracy" in last else ""
    notices.print(plain(f"loss {last['loss']:.4f}{judged}; weights in {out / 'weights.safetensors'}"))


def _factory(arch: str, classes: int) -> str:
    if arch not in ARCHITECTURES:
        raise ArgumentError(f"{arch!r} is none of {', '.join(ARCHITECTURES)}, and no package.module:factory")
    return f"{ARCHITECTURES[arch]}(num_classes={classes})"
