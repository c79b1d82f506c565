"""DenseNet-BC for 32x32 images, with the parameter names of the DICE paper's checkpoints."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oodles.models.deconf import with_head


class Bottleneck(nn.Module):
    """BN-ReLU-1x1, then BN-ReLU-3x3; the output is concatenated to the input."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        inner = 4 * growth
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, inner, kernel_size=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, growth, kernel_size=3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps ``(n, c, h, w)`` to feature maps."""
        out = self.conv1(F.relu(self.bn1(x)))
        out = self.conv2(F.relu(self.bn2(out)))
        return torch.cat([x, out], dim=1)


class Block(nn.Module):
    """A sequence of bottlenecks, named ``layer`` as in the checkpoints."""

    def __init__(self, channels: int, growth: int, depth: int) -> None:
        super().__init__()
        self.layer = nn.Sequential(*(Bottleneck(channels + i * growth, growth) for i in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps ``(n, c, h, w)`` to feature maps."""
        out: Tensor = self.layer(x)
        return out


class Transition(nn.Module):
    """BN-ReLU-1x1, then average pooling to half the height and width."""

    def __init__(self, channels: int, reduced: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, reduced, kernel_size=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps ``(n, c, h, w)`` to feature maps."""
        return F.avg_pool2d(self.conv1(F.relu(self.bn1(x))), 2)


class DenseNet(nn.Module):
    """Three dense blocks, ReLU, global average pooling, one linear layer.

    >>> DenseNet(num_classes=10, depth=10, growth=4).fc
    Linear(in_features=9, out_features=10, bias=True)
    """

    def __init__(self, num_classes: int, *, depth: int = 100, growth: int = 12, reduction: float = 0.5) -> None:
        super().__init__()
        per_block = (depth - 4) // 6
        width = 2 * growth
        self.conv1 = nn.Conv2d(3, width, kernel_size=3, padding=1, bias=False)
        self.block1 = Block(width, growth, per_block)
        width += per_block * growth
        reduced = int(width * reduction)
        self.trans1 = Transition(width, reduced)
        self.block2 = Block(reduced, growth, per_block)
        width = reduced + per_block * growth
        reduced = int(width * reduction)
        self.trans2 = Transition(width, reduced)
        self.block3 = Block(reduced, growth, per_block)
        width = reduced + per_block * growth
        self.bn1 = nn.BatchNorm2d(width)
        self.fc = nn.Linear(width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``(n, num_classes)`` of normalised images ``(n, 3, 32, 32)``."""
        x = self.trans1(self.block1(self.conv1(images)))
        x = self.block3(self.trans2(self.block2(x)))
        x = F.relu(self.bn1(x)).mean(dim=(2, 3))
        logits: Tensor = self.fc(x)
        return logits


def densenet101(num_classes: int = 10, head_type: str = "linear") -> nn.Module:
    """The network of the paper's CIFAR tables: depth 100, growth 12, reduction 0.5, embedding width 342.

    ``head_type="deconf"`` gives it the head of Generalized ODIN.

    >>> densenet101(10).fc.in_features
    342
    """
    return with_head(DenseNet(num_classes), head_type)
