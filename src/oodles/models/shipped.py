"""Networks whose weights come with the package."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from torch import nn

from oodles.errors import ArgumentError
from oodles.models.loading import load_checkpoint
from oodles.models.small import small_resnet

SHIPPED = {"cifar10-small": small_resnet}
WEIGHTS, CARD, GUARD = "weights.safetensors", "card.json", "guard"


def load(name: str) -> nn.Module:
    """A trained classifier that comes with the package, in eval mode; nothing is downloaded.

    >>> load("cifar10-small").fc.out_features
    10
    """
    folder = shipped_folder(name)
    model = SHIPPED[name]()
    load_checkpoint(model, folder / WEIGHTS)
    return model.eval()


def read_card(name: str) -> dict[str, Any]:
    """What a shipped network is: data, recipe, seed, command, accuracy, classes."""
    card: dict[str, Any] = json.loads((shipped_folder(name) / CARD).read_text())
    return card


def shipped_folder(name: str) -> Path:
    """Where a shipped network's files lie."""
    if name not in SHIPPED:
        raise ArgumentError(f"{name!r} is no network that comes with oodles; there is {', '.join(SHIPPED)}")
    return Path(str(files("oodles.models"))) / name
