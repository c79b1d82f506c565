"""The networks and images that several pages are measured on."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from support import torchvision_operators  # noqa: F401  (before anything that imports torchvision)
from torch import nn
from torch.nn import functional as F

from oodles.bench.suites import SUITES, Suite
from oodles.data.readers import ImageSet, open_images
from oodles.features import Features
from oodles.models import build_model, load_checkpoint

QUALITY = 75  # of the JPEG files of CIFAR-10
TRAIN_IMAGES = 10_000


def authors_run(suite: Suite) -> str:
    """The name of the DICE authors' DenseNet for the ID set of a suite, the paper's or OpenOOD's."""
    return f"densenet101-{suite.name.removeprefix('openood-')}"


def authors_network(suite: Suite, data: Path) -> nn.Module:
    """The DICE authors' DenseNet for the ID set of a suite, from ``checkpoints``."""
    network = build_model(suite.model)
    load_checkpoint(network, data / "checkpoints" / f"{authors_run(suite)}.pth.tar")
    return network.eval()


def accuracy_of(features: Features) -> float:
    """Return the fraction of rows whose predicted class is their label."""
    assert features.labels is not None
    return float((features.logits.argmax(dim=1) == features.labels).double().mean())


def jpeg_sets(data: Path) -> dict[str, ImageSet]:
    """CIFAR-10 as JPEG, and OOD sets re-encoded in the same way."""
    archive = data / "cifar10-jpeg.zip"
    sets = {"train": open_images(archive / "train").sample(TRAIN_IMAGES), "test": open_images(archive / "test")}
    return sets | {name: recompressed(images) for name, images in SUITES["cifar10"].open_ood(data).items()}


def recompressed(images: ImageSet) -> ImageSet:
    """The same images, each encoded as JPEG and decoded again, as the ID images were."""

    def opened(row: int) -> Image.Image:
        buffer = io.BytesIO()
        images.read(row).convert("RGB").save(buffer, format="JPEG", quality=QUALITY)
        return Image.open(buffer)

    return replace(images, open=opened)


def resnet50() -> nn.Module:
    """Return a ResNet-50 with random weights."""
    from torchvision.models import resnet50

    model: nn.Module = resnet50()
    return model


def write_jpegs(folder: Path, count: int) -> list[Path]:
    """Images of 500 x 375 pixels with detail at every scale, like photographs; the paths."""
    folder.mkdir(parents=True)
    paths = [folder / f"{number:04d}.jpg" for number in range(count)]
    generator = torch.Generator().manual_seed(0)
    for path in paths:
        image = torch.zeros(1, 3, 375, 500)
        for side in (2, 8, 32, 128):
            noise = torch.randn(1, 3, side, side, generator=generator)
            image += F.interpolate(noise, size=(375, 500), mode="bilinear")
        pixels = (128 + 40 * image[0]).clamp(0, 255).byte().permute(1, 2, 0).numpy()
        Image.fromarray(np.ascontiguousarray(pixels)).save(path, quality=90)
    return paths


def resize_jpeg(original: Path, path: Path, size: tuple[int, int]) -> None:
    """Write a JPEG file in another size; both may be the same file."""
    with Image.open(original) as image:
        resized = image.resize(size, Image.Resampling.BICUBIC)
    resized.save(path, quality=90)
