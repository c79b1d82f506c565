"""Suites: the experiments of the paper and of OpenOOD as records, run on those of their datasets that are present."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from oodles.data.image_lists import is_unpacked, read_image_list
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

    OpenOOD's suites average over ``groups`` of OOD sets and leave ``detectors`` empty, which stands for all of them.
    ``lists`` are their image lists, each with the folder that its paths are relative to; a set is read by its list if
    both are there. ``other_transform`` is for another network than ``model``, if that needs a different one.

    >>> paper = suite("cifar10")
    >>> paper.classes, paper.p, list(paper.ood)[:2]
    (10, 0.9, ['svhn', 'lsun_crop'])
    >>> paper.missing(Path("nowhere")) == list(paper.ood)
    True
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
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lists: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    other_transform: Transform | None = None

    def found(self, data: Path) -> dict[str, Path | None]:
        """The path of ``train``, ``test`` and every OOD set; None if it is not there."""
        return {name: self._locate(data, name) for name in ("train", "test", *self.ood, *self.extra)}

    def missing(self, data: Path) -> list[str]:
        """The names of the suite's OOD sets that are not there; the extra ones are not missed."""
        return [name for name in self.ood if self._locate(data, name) is None]

    def open_sets(self, data: Path) -> dict[str, ImageSet]:
        """Open ``train``, ``test`` and the OOD sets that are there; raise unless the ID classes are the suite's."""
        train, test = (self._open_labelled(data, part) for part in ("train", "test"))
        if train.classes != test.classes:
            odd = min({*train.classes} ^ {*test.classes})
            raise DataError(
                f"{data}: the training and test images of {self.name} have different class folders "
                f"(only one of the two has {odd}), so their labels would not agree"
            )
        return {"train": train, "test": test, **self.open_ood(data)}

    def open_ood(self, data: Path) -> dict[str, ImageSet]:
        """Open the OOD sets that are there, the suite's and the extra ones."""
        sets = {}
        for name in (*self.ood, *self.extra):
            path = self._locate(data, name)
            if path is not None:
                images = self._open(data, name, path)
                sets[name] = first_per_class(images, self.per_class[name]) if name in self.per_class else images
        return sets

    def unlisted(self, data: Path) -> list[str]:
        """The sets that are there, but are read without the suite's image list."""
        paths = {name: path for name, path in self.found(data).items() if path is not None}
        return [name for name in self.lists if name in paths and paths[name] != data / self.lists[name][0]]

    def _locate(self, data: Path, name: str) -> Path | None:
        """Where a set is: its image list if that can be used, else the first of its places that exists."""
        if name in self.lists:
            path, root = (data / place for place in self.lists[name])
            if path.is_file() and is_unpacked(path, root):
                return path
        return next((data / place for place in self._places(name) if path_exists(data / place)), None)

    def _places(self, name: str) -> Places:
        return {"train": self.train, "test": self.test, **self.ood, **self.extra}[name]

    def _open(self, data: Path, name: str, path: Path, classes: int | None = None) -> ImageSet:
        if name in self.lists and path == data / self.lists[name][0]:
            return read_image_list(path, data / self.lists[name][1], classes)
        return open_images(path)

    def _open_labelled(self, data: Path, part: str) -> ImageSet:
        path = self._locate(data, part)
        if path is None:
            listed = ["{} with its images in {}".format(*self.lists[part])] if part in self.lists else []
            places = " or ".join([*listed, *self._places(part)])
            raise DataError(f"{data} has no {places}, which the suite {self.name} needs")
        images = self._open(data, part, path, self.classes)
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
    """A suite by name, the paper's or OpenOOD's.

    >>> suite("cifar100").model
    'oodles.models:densenet101(num_classes=100)'
    """
    if name not in ALL_SUITES:
        raise ArgumentError(f"suite {name!r} must be one of {', '.join(ALL_SUITES)}")
    return ALL_SUITES[name]


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
    model="torchvision.models:resnet50()",  # the paper used its IMAGENET1K_V1 weights, resnet50-0676ba61.pth
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


def _openood(paper: Suite, id_set: str, near: Mapping[str, Places], far: Mapping[str, Places], **changes: Any) -> Suite:
    """OpenOOD's suite (version 1.5) for an ID set, from the paper's suite with the same kind of images."""
    cifar = id_set.startswith("cifar")
    home, small, large = f"benchmark_imglist/{id_set}", "images_classic", "images_largescale"
    lists = {part: (f"{home}/{part}_{id_set}.txt", small if cifar else large) for part in ("train", "test")}
    for name in (*near, *far):
        listed = "texture" if cifar and name == "textures" else name
        lists[name] = f"{home}/test_{listed}.txt", small if cifar or name == "textures" else large
    changes |= {"groups": {"near": tuple(near), "far": tuple(far)}, "lists": lists}
    return replace(
        paper, name=f"openood-{id_set}", ood={**near, **far}, detectors=(), extra={}, per_class={}, **changes
    )


def _openood_cifar(paper: Suite, other: Suite, transform: Transform) -> Suite:
    """The two CIFARs are near OOD for each other; ``transform`` is that of OpenOOD's own networks."""
    near = {other.name: other.test, "tin": ("tiny-imagenet-200/val/images",)}
    far = {"mnist": ("mnist/images",), **{name: paper.ood[name] for name in ("svhn", "textures", "places365")}}
    return _openood(paper, paper.name, near, far, other_transform=transform)


def _openood_imagenet(id_set: str, **changes: Any) -> Suite:
    near = {"ssb_hard": ("ssb_hard",), "ninco": ("ninco",)}
    far = {**{name: _IMAGENET.ood[name] for name in ("inaturalist", "textures")}, "openimage_o": ("openimage_o",)}
    return _openood(_IMAGENET, id_set, near, far, **changes)


OPENOOD = {
    record.name: record
    for record in (
        _openood_cifar(
            *(SUITES["cifar10"], SUITES["cifar100"]),
            Transform(32, 32, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        ),
        _openood_cifar(
            *(SUITES["cifar100"], SUITES["cifar10"]),
            Transform(32, 32, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
        ),
        _openood_imagenet(
            "imagenet200",
            model="torchvision.models:resnet18(num_classes=200)",
            classes=200,
            train=("imagenet200/train",),
            test=("imagenet200/val",),
        ),
        _openood_imagenet("imagenet"),
    )
}
"""OpenOOD's suites, beside the paper's in ``SUITES``."""

ALL_SUITES = SUITES | OPENOOD
