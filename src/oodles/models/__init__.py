"""Networks that come with the house; any other ``nn.Module`` classifier works as well."""

from oodles.models.densenet import DenseNet, densenet101

__all__ = ["DenseNet", "densenet101"]
