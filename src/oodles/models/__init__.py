"""Networks that come with the house, and loading any other ``nn.Module`` classifier by name."""

from oodles.models.densenet import DenseNet, densenet101
from oodles.models.loading import build_model, load_checkpoint
from oodles.models.resnet import resnet50

__all__ = ["DenseNet", "build_model", "densenet101", "load_checkpoint", "resnet50"]
