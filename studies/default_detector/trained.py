"""Small networks that are trained here for the study behind the default detector, in some fifteen minutes each.

Two ViTs, an MLP-Mixer and a ConvNeXt end in a LayerNorm, not in a ReLU, so half of their activations are negative. The
plain convolutional network ends in a ReLU.
"""

import math
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oodles.data.loaders import Pixels
from oodles.models import load_checkpoint
from oodles.records.files import OWNED, write_bytes
from oodles.records.tensors import serialise

WEIGHTS = "weights.safetensors"
WIDTH, DEPTH, SIDE = 128, 4, 4


class Block(nn.Module):
    """One layer: ``mix`` exchanges information between patches, then an MLP works on each of them."""

    def __init__(self, mix: nn.Module) -> None:
        super().__init__()
        self.before_mix, self.mix = nn.LayerNorm(WIDTH), mix
        self.before_mlp = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Linear(3 * WIDTH, WIDTH))

    def forward(self, tokens: Tensor) -> Tensor:
        """Patches in, patches out."""
        tokens = tokens + self.mix(self.before_mix(tokens))
        return tokens + self.mlp(self.before_mlp(tokens))


class Attention(nn.Module):
    """Self-attention with four heads."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """Patches in, patches out."""
        rows, count, _ = tokens.shape
        query, key, value = self.inward(tokens).view(rows, count, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.outward(mixed.transpose(1, 2).reshape(rows, count, WIDTH))


class TokenMixing(nn.Module):
    """An MLP over the patches, the same for every channel."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(SIDE * SIDE, 128), nn.GELU(), nn.Linear(128, SIDE * SIDE))

    def forward(self, tokens: Tensor) -> Tensor:
        """Patches in, patches out."""
        return self.mlp(tokens.transpose(1, 2)).transpose(1, 2)


class PatchNetwork(nn.Module):
    """A convolutional stem to 4x4 patches, blocks, LayerNorm of the mean patch, a linear head."""

    def __init__(self, mixing: type[nn.Module], classes: int = 10) -> None:
        super().__init__()
        widths = (3, WIDTH // 4, WIDTH // 2, WIDTH)
        layers = [nn.Conv2d(before, after, 3, stride=2, padding=1) for before, after in pairwise(widths)]
        self.stem = nn.Sequential(layers[0], nn.GELU(), layers[1], nn.GELU(), layers[2])
        self.position = nn.Parameter(0.02 * torch.randn(1, SIDE * SIDE, WIDTH))
        self.blocks = nn.Sequential(*(Block(mixing()) for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        tokens = self.stem(images).flatten(2).transpose(1, 2) + self.position
        return self.head(self.norm(self.blocks(tokens).mean(dim=1)))


class TokenNetwork(nn.Module):
    """The original vision transformer: patches of 8x8 pixels, and a class token whose LayerNorm is the embedding."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 8, stride=8)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.position = nn.Parameter(0.02 * torch.randn(1, SIDE * SIDE + 1, WIDTH))
        self.blocks = nn.Sequential(*(Block(Attention()) for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        patches = self.stem(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(images), -1, -1), patches], dim=1) + self.position
        return self.head(self.norm(self.blocks(tokens)[:, 0]))


def vit() -> nn.Module:
    """A vision transformer with a convolutional stem and the mean of all patches."""
    return PatchNetwork(Attention)


def vit_token() -> nn.Module:
    """A vision transformer with plain patches and a class token."""
    return TokenNetwork()


def mixer() -> nn.Module:
    """An MLP-Mixer."""
    return PatchNetwork(TokenMixing)


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution, then an MLP on each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(WIDTH, WIDTH, 5, padding=2, groups=WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Linear(3 * WIDTH, WIDTH))

    def forward(self, maps: Tensor) -> Tensor:
        """Maps in, maps out."""
        return maps + self.mlp(self.norm(self.mix(maps).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """Patches of 4x4 pixels, blocks, LayerNorm of the mean over space, a linear head."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.blocks = nn.Sequential(*(ConvNeXtBlock() for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.norm(self.blocks(self.stem(images)).mean(dim=(2, 3))))


def plain() -> nn.Module:
    """Six 3x3 convolutions with BatchNorm and ReLU, halving the resolution three times, as in VGG."""
    layers: list[nn.Module] = []
    for before, after in pairwise((3, 32, 32, 64, 64, 128, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        if before == after:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


TRAINED: dict[str, Callable[[], nn.Module]] = {
    "vit": vit,
    "vit-token": vit_token,
    "mixer": mixer,
    "convnext": ConvNeXt,
    "plain": plain,
}


def trained_with_adam(
    network: nn.Module, images: Callable[[], Pixels], out: Path, epochs: int, seed: int = 0
) -> nn.Module:
    """The network after ``epochs`` of AdamW with flips and shifts, or loaded if that was done before."""
    if not (out / WEIGHTS).exists():
        _train(network, images(), epochs, seed)
        write_bytes(out / WEIGHTS, serialise(network.state_dict()), OWNED)
    load_checkpoint(network, out / WEIGHTS)
    return network.eval()


def _train(network: nn.Module, images: Pixels, epochs: int, seed: int, batch_size: int = 128) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.05)
    per_epoch = len(images) // batch_size
    for epoch in range(epochs):
        start, total, correct = time.monotonic(), 0.0, 0
        order = torch.randperm(len(images), generator=generator)
        for step in range(per_epoch):
            done = (epoch + step / per_epoch) / epochs
            for group in optimiser.param_groups:
                group["lr"] = 1e-3 * min(1.0, 10 * done) * 0.5 * (1 + math.cos(math.pi * done))
            rows = order[step * batch_size : (step + 1) * batch_size]
            batch = _augmented(images.normalise(images.pixels[rows]), generator)
            logits = network(batch)
            loss = F.cross_entropy(logits, images.labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += float(loss.detach())
            correct += int((logits.argmax(dim=1) == images.labels[rows]).sum())
        seconds = time.monotonic() - start
        accuracy = correct / (per_epoch * batch_size)
        print(f"epoch {epoch + 1}: loss {total / per_epoch:.3f}, accuracy {accuracy:.1%}, {seconds:.0f} s", flush=True)


def _augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    """The batch mirrored or not, and shifted by up to four pixels."""
    if torch.rand(1, generator=generator) < 0.5:
        images = images.flip(3)
    down, right = (int(part) for part in torch.randint(0, 9, (2,), generator=generator))
    return F.pad(images, (4, 4, 4, 4))[:, :, down : down + images.shape[2], right : right + images.shape[3]]
