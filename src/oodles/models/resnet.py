"""ResNet-50 for 224x224 images, built by torchvision so that its checkpoints load."""

from importlib import import_module

from torch import nn

from oodles.extras import needed_by


def resnet50(num_classes: int = 1000) -> nn.Module:
    """The network of the paper's ImageNet tables, with an embedding of width 2,048 and untrained weights.

    The paper used torchvision's ``IMAGENET1K_V1`` weights (the file ``resnet50-0676ba61.pth``); load them with
    :func:`oodles.models.load_checkpoint`. It needs torchvision.

    >>> resnet50(num_classes=10).fc  # doctest: +SKIP
    Linear(in_features=2048, out_features=10, bias=True)
    """
    with needed_by("resnet50"):
        models = import_module("torchvision.models")
    model: nn.Module = models.resnet50(weights=None, num_classes=num_classes)
    return model
