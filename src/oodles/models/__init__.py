"""Built-in networks, and loading any other ``nn.Module`` classifier by name."""

from oodles.models.deconf import DeConf
from oodles.models.densenet import DenseNet, densenet101
from oodles.models.loading import build_model, load_checkpoint
from oodles.models.shipped import load, read_card
from oodles.models.small import SmallResNet, small_resnet

__all__ = [
    "DeConf",
    "DenseNet",
    "SmallResNet",
    "build_model",
    "densenet101",
    "load",
    "load_checkpoint",
    "read_card",
    "small_resnet",
]
