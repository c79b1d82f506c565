"""Networks whose weights are part of the package."""

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
    """A trained classifier whose weights are part of the package, in eval mode; nothing is downloaded.

    >>> load("cifar10-small").fc.out_features
    10
    """
    folder = shipped_folder(name)
    model = SHIPPED[name]()
    load_checkpoint(model, folder / WEIGHTS)
    return model.eval()


def read_card(name: str) -> dict[str, Any]:
    """The model card of a shipped network: data, recipe, seed, command, accuracy, classes.

    >>> read_card("cifar10-small")["classes"][3]
    'cat'
    """
    card: dict[str, Any] = json.loads((shipped_folder(name) / CARD).read_text())
    return card


def shipped_folder(name: str) -> Path:
    """The folder with a shipped network's files."""
    if name not in SHIPPED:
        raise ArgumentError(f"network {name!r} must be one of {', '.join(SHIPPED)}")
    return Path(str(files("oodles.models"))) / name
