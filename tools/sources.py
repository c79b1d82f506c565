"""The networks and images that several pages are measured on."""

import io
from dataclasses import replace
from pathlib import Path

from PIL import Image
from torch import nn

from oodles.bench.suites import SUITES, Suite
from oodles.data.readers import ImageSet, open_images
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


def sets_of(suite: Suite, data: Path) -> dict[str, ImageSet]:
    """``train``, ``test`` and the OOD sets that are there."""
    return dict(zip(("train", "test"), suite.open_id(data), strict=True)) | suite.open_ood(data)


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
