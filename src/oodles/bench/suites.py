"""Suites: the paper's experiments as records, run on those of their datasets that are present."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from oodles.data.readers import ImageSet, first_per_class, open_images, path_exists
from oodles.data.transforms import CIFAR, IMAGENET, Transform
from oodles.errors import ArgumentError, DataError

Places = tuple[str, ...]
"""Possible locations below the data folder; the first that exists is used, since archives unpack in different ways."""

CIFAR_ODIN = "odin(epsilon=0.004, std=(0.2023, 0.1994, 0.201))"
DENSENET_MAHALANOBIS = "mahalanobis(layers=('conv1', 'trans1', 'trans2'))"
RESNET_MAHALANOBIS = "mahalanobis(layers=('maxpool', 'layer1', 'layer2', 'layer3'), epsilon=0.001)"


@dataclass(frozen=True)
class Suite:
    """One experiment: its network, the locations of its ID and OOD images, the transform, the paper's settings.

    ``detectors`` are those of the paper's main table with its hyperparameters, ``p`` its sparsity for DICE and the
    ablations. ``extra`` sets are used if present, but are not the paper's. ``per_class`` limits sets to their first
    images of each class.
    """

    name: str
    model: str
    classes: int
    train: Places
    test: Places
    ood: Mapping[str, Places]
    transform: Transform
    detectors: tuple[str, ...]
    p: float
    extra: Mapping[str, Places] = field(default_factory=dict)
    per_class: Mapping[str, int] = field(default_factory=dict)

    def found(self, data: Path) -> dict[str, Path | None]:
        """The path of ``train``, ``test`` and every OOD set; None if it is not there."""
        parts = {"train": self.train, "test": self.test, **self.ood, **self.extra}
        return {name: _find(data, places) for name, places in parts.items()}

    def missing(self, data: Path) -> list[str]:
        """The names of the paper's OOD sets that are not there."""
        return [name for name, places in self.ood.items() if _find(data, places) is None]

    def open_id(self, data: Path) -> tuple[ImageSet, ImageSet]:
        """ID training and test images, after checking that their classes are the suite's."""
        paths = [(_find(data, places), places) for places in (self.train, self.test)]
        for path, places in paths:
            if path is None:
                raise DataError(f"{data} has no {' or '.join(places)}, which the suite {self.name} needs")
        train, test = (self._open_labelled(path) for path, _ in paths if path is not None)
        if train.classes != test.classes:
            odd = min({*train.classes} ^ {*test.classes})
            raise DataError(
                f"{data}: the training and test images of {self.name} have different class folders "
                f"(only one of the two has {odd}), so their labels would not agree"
            )
        return train, test

    def open_ood(self, data: Path) -> dict[str, ImageSet]:
        """The OOD sets that are there, the paper's and the extra ones."""
        paths = {name: _find(data, places) for name, places in {**self.ood, **self.extra}.items()}
        sets = {name: open_images(path) for name, path in paths.items() if path is not None}
        return {
            name: first_per_class(images, self.per_class[name]) if name in self.per_class else images
            for name, images in sets.items()
        }

    def _open_labelled(self, path: Path) -> ImageSet:
        images = open_images(path)
        if images.labels is None:
            raise DataError(f"{path} has no labels; put the images of each class in a folder of its own")
        if images.classes and len(images.classes) != self.classes:
            folders = f"{len(images.classes)} class folders"
            raise DataError(f"{path} has {folders}, but {self.name} has {self.classes} classes")
        low, high = int(images.labels.min()), int(images.labels.max())
        if low < 0 or high >= self.classes:
            raise DataError(
                f"{path} has labels from {low} to {high}, but {self.name} has {self.classes} classes; "
                "is it another dataset?"
            )
        return images


def suite(name: str) -> Suite:
    """A suite by name."""
    if name not in SUITES:
        raise ArgumentError(f"suite {name!r} must be one of {', '.join(SUITES)}")
    return SUITES[name]


def _find(data: Path, places: Places) -> Path | None:
    return next((data / place for place in places if path_exists(data / place)), None)


def _cifar(classes: int, train: str, test: str) -> Suite:
    """The two CIFAR experiments differ only in their ID images and the number of classes."""
    return Suite(
        name=f"cifar{classes}",
        model=f"oodles.models:densenet101(num_classes={classes})",
        classes=classes,
        train=(train,),
        test=(test,),
        ood={
            "svhn": ("svhn/test_32x32.mat", "svhn/selected_test_32x32.mat"),
            "lsun_crop": ("LSUN/test", "LSUN"),
            "lsun_resize": ("LSUN_resize",),
            "isun": ("iSUN/iSUN_patches", "iSUN"),
            "textures": ("dtd/images",),
            "places365": ("places365/test_subset", "places365/images", "places365"),
        },
        transform=CIFAR,
        detectors=("msp", CIFAR_ODIN, DENSENET_MAHALANOBIS, "energy", "react(90)", "dice(0.9)"),
        p=0.9,
        extra={"places_crop": ("places_crop/images",)},
        per_class={"svhn": 1000},
    )


_IMAGENET = Suite(
    name="imagenet",
    model="oodles.models:resnet50()",
    classes=1000,
    train=("imagenet/train", "imagenet/train.zip", "imagenet.zip/train"),
    test=("imagenet/val", "imagenet/val.zip", "imagenet.zip/val"),
    ood={
        "inaturalist": ("iNaturalist/images", "iNaturalist"),
        "sun": ("SUN/images", "SUN"),
        "places": ("Places/images", "Places"),
        "textures": ("dtd/images",),
    },
    transform=IMAGENET,
    detectors=(
        *("msp", "odin(epsilon=0.0)", RESNET_MAHALANOBIS, "energy"),
        *("react(threshold=1.0)", "dice(0.7)", "react(threshold=1.0)+dice(0.1)"),
    ),
    p=0.7,
)

SUITES = {
    record.name: record
    for record in (
        _cifar(10, "cifar-10-batches-py", "cifar-10-batches-py/test_batch"),
        _cifar(100, "cifar-100-python/train", "cifar-100-python/test"),
        _IMAGENET,
    )
}
