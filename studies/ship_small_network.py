"""Make cifar10-small, the network of the package, from a training run.

``--run`` is the folder that the training command on the card wrote; the data must include ``cifar10-jpeg.zip``. Weights
are rounded to float16; accuracy and the guard's threshold are those of the rounded network on the JPEG test split.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from oodles.calibration import calibrate
from oodles.data.loaders import ImageLoader
from oodles.data.readers import open_images
from oodles.data.transforms import CIFAR
from oodles.detectors import default_detector
from oodles.features import Features
from oodles.guard import Guard
from oodles.models.shipped import CARD, GUARD, WEIGHTS, load, shipped_folder
from oodles.network.extraction import extract
from oodles.records.files import OWNED, write_bytes
from oodles.records.tensors import serialise
from oodles.training.trainer import RECORD
from studies import DATA
from studies.sources import TRAIN_IMAGES, accuracy_of

NAME = "cifar10-small"
COMMAND = (
    "oodles train small --data DATA/cifar10-jpeg.zip/train --test DATA/cifar10-jpeg.zip/test "
    "--recipe one-cycle --out runs/cifar10-small"
)


def main(run: Path = Path("runs/cifar10-small"), data: Path = DATA) -> None:
    """Write weights, card and guard."""
    folder = shipped_folder(NAME)
    folder.mkdir(exist_ok=True)
    weights = load_file(run / "weights.safetensors")
    halved = {name: value.half() if value.is_floating_point() else value for name, value in weights.items()}
    write_bytes(folder / WEIGHTS, serialise(halved), OWNED)
    model = load(NAME)
    images = open_images(data / "cifar10-jpeg.zip" / "test")
    preprocessing = CIFAR.as_record()
    test = extract(model, ImageLoader(images, CIFAR))
    accuracy = accuracy_of(test)
    train = extract(model, ImageLoader(open_images(data / "cifar10-jpeg.zip" / "train").sample(TRAIN_IMAGES), CIFAR))
    ship_guard(model, train, test)
    record = json.loads((run / RECORD).read_text())
    last = record["metrics"][-1]
    card = {
        "name": NAME,
        "what": "a compact residual network for CIFAR-10: 32x32 colour images, ten classes",
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "embedding": "256 units, global average of a ReLU map",
        "data": "all 50,000 training images of CIFAR-10, re-encoded as JPEG of quality 75",
        "recipe": record["about"]["recipe"],
        "seed": record["about"]["seed"],
        "command": COMMAND,
        "test accuracy": round(accuracy, 4),
        "tested on": "the 10,000 test images of CIFAR-10, re-encoded as JPEG of quality 75, float16 weights",
        "test accuracy before rounding": last["test_accuracy"],
        "training loss of the last epoch": round(last["loss"], 4),
        "guard": "default, fitted on 10,000 training images; the threshold accepts 95 % of every second test image",
        "classes": list(images.classes),
        "preprocessing": preprocessing,
    }
    (folder / CARD).write_text(json.dumps(card, indent=1) + "\n")
    print(f"{accuracy:.2%} on {len(test):,} images, {(folder / WEIGHTS).stat().st_size / 1e6:.2f} MB in {folder}")


def ship_guard(model: nn.Module, train: Features, test: Features) -> None:
    """Write the guard: the default detector, with a threshold set on every second test image."""
    detector = default_detector().fit(train)
    threshold = calibrate(detector.score(test[torch.arange(0, len(test), 2)]), 0.95)
    guard = Guard(model, detector, threshold, preprocessing=CIFAR, classes=test.class_names)
    guard.save(shipped_folder(NAME) / GUARD)
