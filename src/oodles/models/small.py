"""A compact residual network for 32x32 images: about 2 M parameters, a non-negative embedding of width 256."""

from torch import Tensor, nn
from torch.nn import functional as F

from oodles.models.deconf import with_head

WIDTHS = (32, 64, 128, 256)


class Residual(nn.Module):
    """Two 3x3 convolutions with an identity shortcut, then ReLU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps ``(n, c, h, w)`` to feature maps of the same shape."""
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(out)))


class Stage(nn.Module):
    """A wider map at half the height and width, then a residual block."""

    def __init__(self, channels: int, wider: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, wider, kernel_size=3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(wider)
        self.block = Residual(wider)

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps ``(n, c, h, w)`` to ``(n, wider, h/2, w/2)``."""
        out: Tensor = self.block(F.relu(self.bn(F.max_pool2d(self.conv(x), 2))))
        return out


class SmallResNet(nn.Module):
    """A convolution, three stages, global average pooling, one linear layer.

    >>> SmallResNet(num_classes=10).fc
    Linear(in_features=256, out_features=10, bias=True)
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, WIDTHS[0], kernel_size=3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(WIDTHS[0])
        self.stage1 = Stage(WIDTHS[0], WIDTHS[1])
        self.stage2 = Stage(WIDTHS[1], WIDTHS[2])
        self.stage3 = Stage(WIDTHS[2], WIDTHS[3])
        self.fc = nn.Linear(WIDTHS[3], num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``(n, num_classes)`` of normalised images ``(n, 3, 32, 32)``."""
        x = F.relu(self.bn(self.conv(images)))
        x = self.stage3(self.stage2(self.stage1(x))).mean(dim=(2, 3))
        logits: Tensor = self.fc(x)
        return logits


def small_resnet(num_classes: int = 10, head_type: str = "linear") -> nn.Module:
    """The network behind ``cifar10-small``; ``head_type="deconf"`` is for Generalized ODIN.

    >>> sum(weight.numel() for weight in small_resnet(10).parameters())
    1941546
    """
    return with_head(SmallResNet(num_classes), head_type)
