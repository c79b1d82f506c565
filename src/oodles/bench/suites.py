"""Suites: the paper's experiments as records, run on whatever of their data is present."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from oodles.bench.datasets import CIFAR, ImageSet, Transform, open_images, read_cifar
from oodles.errors import ArgumentError, DataError


@dataclass(frozen=True)
class Suite:
    """One experiment: the network, where its ID and OOD images lie under the data folder, the transform."""

    name: str
    model: str
    classes: int
    train: str
    test: str
    ood: Mapping[str, str]
    transform: Transform

    def open_id(self, data: Path) -> tuple[ImageSet, ImageSet]:
        """ID training and test images."""
        missing = [part for part in (self.train, self.test) if not (data / part).exists()]
        if missing:
            raise DataError(f"{data} has no {missing[0]}, which the suite {self.name} needs")
        return open_images(data / self.train), read_cifar(data / self.test)

    def open_ood(self, data: Path) -> dict[str, ImageSet]:
        """The OOD sets that are there."""
        return {name: open_images(data / part) for name, part in self.ood.items() if (data / part).exists()}

    def missing(self, data: Path) -> list[str]:
        """The names of the OOD sets that are not there."""
        return [name for name, part in self.ood.items() if not (data / part).exists()]


_CIFAR_OOD = {
    "svhn": "svhn/test_32x32.mat",
    "lsun_crop": "LSUN/test",
    "lsun_resize": "LSUN_resize",
    "isun": "iSUN",
    "textures": "dtd/images",
    "places365": "places365/images",
    "places_crop": "places_crop/images",
}

SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            name="cifar10",
            model="oodles.models:densenet101(num_classes=10)",
            classes=10,
            train="cifar-10-batches-py",
            test="cifar-10-batches-py/test_batch",
            ood=_CIFAR_OOD,
            transform=CIFAR,
        ),
        Suite(
            name="cifar100",
            model="oodles.models:densenet101(num_classes=100)",
            classes=100,
            train="cifar-100-python/train",
            test="cifar-100-python/test",
            ood=_CIFAR_OOD,
            transform=CIFAR,
        ),
    )
}


def suite(name: str) -> Suite:
    """A suite by name."""
    if name not in SUITES:
        raise ArgumentError(f"{name!r} is no suite; there are {', '.join(SUITES)}")
    return SUITES[name]
