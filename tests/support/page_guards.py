"""Guards that show every part of the service's page."""

import warnings
from pathlib import Path

from support.exported_guards import export as export_small

import oodles as ood
from oodles.cli.guards import load_with_model
from oodles.cli.options import GuardOptions
from oodles.data.loaders import ImageLoader
from oodles.data.readers import open_images
from oodles.data.transforms import CIFAR
from oodles.models import load

GUARDS = ("small", "dice", "ensemble", "vectors")
ROWS = 800  # of training and of calibration images


def export_guards(data: Path, folder: Path) -> Path:
    """Export the shipped guard, DICE and the default on the shipped network, and one that takes vectors."""
    load_with_model(None, GuardOptions()).export(folder / "small.zip")
    network = load("cifar10-small")
    images = {part: open_images(data / "cifar10-jpeg.zip" / part).sample(ROWS, 0) for part in ("train", "test")}
    train = ood.extract(network, ImageLoader(images["train"], CIFAR))
    held_out = ood.extract(network, ImageLoader(images["test"], CIFAR, labels=False))
    for name, spec in (("dice", "dice(0.9)"), ("ensemble", "default")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ood.FitWarning)  # few rows are enough here
            detector = ood.parse(spec).fit(train)
        threshold = ood.calibrate(detector.score(held_out))
        guard = ood.Guard(network, detector, threshold, preprocessing=CIFAR, classes=train.class_names)
        guard.export(folder / f"{name}.zip")
    export_small("vectors", folder / "vectors.zip")
    return folder
