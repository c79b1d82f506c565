"""Networks that come with the house, and loading any other ``nn.Module`` classifier by name."""

from oodles.models.densenet import DenseNet, densenet101
from oodles.models.loading import build_model, load_checkpoint

__all__ = ["DenseNet", "build_model", "densenet101", "load_checkpoint"]
