"""What the tests of the commands share: a tiny network, images of one colour, and the options that describe them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import nn

from oodles.data.loaders import ImageLoader
from oodles.data.readers import open_images
from oodles.data.transforms import Transform
from oodles.models import build_model, load_checkpoint

MODEL, WATCHED = "tiny_net_of_the_cli_tests:net", "tiny_net_of_the_cli_tests:watched"
SIZE = ["--size", "8", "--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25"]
WEIGHTS = ["--model", MODEL, "--checkpoint", "one.pt"]
NETWORK = [*WEIGHTS, *SIZE]

MODULE = """
    import torch
    from torch import nn

    def net(classes=2, channels=3):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return nn.Sequential(
                nn.Conv2d(channels, 12, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, classes)
            )

    class Watched(nn.Sequential):
        "Remembers how many images it was given at a time; NaN for images that are black."

        sizes = []

        def forward(self, images):
            self.sizes.append(len(images))
            dark = images.amax(dim=(1, 2, 3), keepdim=True) <= -2
            return super().forward(torch.where(dark, torch.nan, images))

    def watched():
        return Watched(*net())
"""


def paint(folder: Path, count: int, colour: tuple[int, int, int], seed: int) -> None:
    """Small images of one colour with noise."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(seed)
    for number in range(count):
        pixels = np.clip(np.array(colour) + generator.normal(0, 40, (8, 8, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03}.png")


def network(folder: Path) -> nn.Module:
    """The network that the options in ``NETWORK`` describe."""
    model = build_model(MODEL)
    load_checkpoint(model, folder / "one.pt")
    return model


def loader(path: Path, **options: Any) -> ImageLoader:
    """Images with the preprocessing that the options in ``SIZE`` describe."""
    return ImageLoader(open_images(path), Transform(8, 8, (0.5,) * 3, (0.25,) * 3), **options)


def bench_arguments(*more: object, checkpoint: str = "one.pt") -> list[object]:
    """``oodles bench`` on the small sets."""
    sets = ["--train", "train", "--test", "test", "--ood", "green=green", "--ood", "grey=grey"]
    return ["bench", "--model", MODEL, "--checkpoint", checkpoint, *sets, *SIZE, *more]


def complete_stores(folder: Path) -> list[Path]:
    """The manifests below ``folder`` of feature stores that are complete."""
    return [path for path in folder.rglob("manifest.json") if json.loads(path.read_text())["complete"]]
