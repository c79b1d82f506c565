"""Suites: the paper's experiments find their data however it was unpacked, and reject other data."""

import pickle
import shutil
from dataclasses import replace

import numpy as np
import pytest
from scipy.io import savemat
from support.images import write_image, write_zip

from oodles.bench import SUITES, suite
from oodles.data.loaders import ImageLoader
from oodles.data.transforms import CIFAR
from oodles.detectors import parse
from oodles.errors import ArgumentError, DataError
from oodles.paper.published import METHODS, tables


def batch(path, labels, key="labels"):
    path.parent.mkdir(exist_ok=True)
    content = {"data": np.zeros((len(labels), 3072), dtype=np.uint8), key: list(labels)}
    path.write_bytes(pickle.dumps(content, protocol=2))


@pytest.fixture
def cifar10_data(tmp_path):
    batch(tmp_path / "cifar-10-batches-py" / "data_batch_1", range(6))
    batch(tmp_path / "cifar-10-batches-py" / "data_batch_2", [9, 9])
    batch(tmp_path / "cifar-10-batches-py" / "test_batch", [0, 1, 9])
    return tmp_path


# The records ------------------------------------------------------------------------------------


def test_the_suites_are_the_papers():
    for name, one in SUITES.items():
        published = next(iter(tables()[name].values()))
        assert set(one.ood) == set(published) - {"average"}
        assert not set(one.extra) & set(published)
        specs = [parse(text).spec for text in one.detectors]
        assert f"dice({one.p})+energy" in specs
        assert specs[0] == "msp"
        named = [METHODS[name].get(spec) for spec in specs]
        assert {"MSP", "ODIN", "Mahalanobis", "Energy", "ReAct", "DICE"} <= set(named)
    with pytest.raises(ArgumentError, match="suite 'mnist' must be one of cifar10, cifar100, imagenet"):
        suite("mnist")


# Locating the data ------------------------------------------------------------------------------


def test_a_suite_opens_the_sets_that_exist_and_names_the_missing_ones(cifar10_data):
    write_image(cifar10_data / "iSUN" / "a.png")
    write_image(cifar10_data / "places_crop" / "images" / "a.png")
    cifar10 = suite("cifar10")
    train, test, *_ = cifar10.open_sets(cifar10_data).values()
    assert (len(train), len(test)) == (8, 3)
    assert list(cifar10.open_ood(cifar10_data)) == ["isun", "places_crop"]
    assert set(cifar10.missing(cifar10_data)) == set(cifar10.ood) - {"isun"}
    assert "places_crop" not in cifar10.ood, "a set that is not the paper's is never reported as missing"
    with pytest.raises(DataError, match=r"has no cifar-100-python/train"):
        suite("cifar100").open_sets(cifar10_data)


def test_found_gives_the_path_of_every_part(cifar10_data):
    write_image(cifar10_data / "dtd" / "images" / "banded" / "a.png")
    found = suite("cifar10").found(cifar10_data)
    home = cifar10_data / "cifar-10-batches-py"
    assert list(found) == ["train", "test", *suite("cifar10").ood, "places_crop"]
    assert {name: path for name, path in found.items() if path} == {
        "train": home,
        "test": home / "test_batch",
        "textures": cifar10_data / "dtd" / "images",
    }
    assert set(suite("imagenet").found(cifar10_data / "nowhere").values()) == {None}


@pytest.mark.parametrize(
    ("name", "part", "files", "place"),
    [
        ("cifar10", "lsun_crop", ["LSUN/test/1.png", "LSUN/readme.png"], "LSUN/test"),
        ("cifar10", "lsun_crop", ["LSUN/1.png"], "LSUN"),
        ("cifar10", "lsun_resize", ["LSUN_resize/LSUN_resize/1.png"], "LSUN_resize"),
        ("cifar10", "isun", ["iSUN/iSUN_patches/1.png"], "iSUN/iSUN_patches"),
        ("cifar10", "isun", ["iSUN/1.png"], "iSUN"),
        ("cifar100", "places365", ["places365/test_subset/x/1.png"], "places365/test_subset"),
        ("cifar100", "places365", ["places365/images/1.png"], "places365/images"),
        ("cifar100", "places365", ["places365/1.png"], "places365"),
        ("imagenet", "textures", ["dtd/images/banded/1.png", "dtd/images/dotted/1.png"], "dtd/images"),
        ("imagenet", "inaturalist", ["iNaturalist/images/1.png"], "iNaturalist/images"),
        ("imagenet", "inaturalist", ["iNaturalist/1.png"], "iNaturalist"),
        ("imagenet", "sun", ["SUN/images/1.png"], "SUN/images"),
        ("imagenet", "places", ["Places/1.png"], "Places"),
    ],
)
def test_archives_may_be_unpacked_in_different_ways(tmp_path, name, part, files, place):
    for file in files:
        write_image(tmp_path / file)
    one = suite(name)
    assert one.found(tmp_path)[part] == tmp_path / place
    sets = one.open_ood(tmp_path)
    assert list(sets) == [part]
    inside = [file for file in files if file.startswith(f"{place}/")]
    assert len(sets[part]) == len(inside)
    assert len(next(iter(ImageLoader(sets[part], CIFAR, labels=False)))) == len(inside)


def test_svhn_is_limited_to_a_thousand_images_of_each_digit(tmp_path):
    labels = np.array([1] * 1200 + [10] * 3 + [2] * 1001, dtype=np.uint8)[:, None]
    (tmp_path / "svhn").mkdir()
    savemat(tmp_path / "svhn" / "test_32x32.mat", {"X": np.zeros((32, 32, 3, len(labels)), np.uint8), "y": labels})
    digits = suite("cifar10").open_ood(tmp_path)["svhn"]
    assert np.bincount(digits.labels).tolist() == [3, 1000, 1000]


# The classes ------------------------------------------------------------------------------------


def test_a_batch_of_another_dataset_is_refused(cifar10_data):
    batch(cifar10_data / "cifar-10-batches-py" / "test_batch", [0, 57, 99], key="fine_labels")
    with pytest.raises(DataError, match=r"labels from 0 to 99, but cifar10 has 10 classes") as caught:
        suite("cifar10").open_sets(cifar10_data)
    assert "\n" not in str(caught.value)
    batch(cifar10_data / "cifar-10-batches-py" / "test_batch", [0, -1])
    with pytest.raises(DataError, match=r"test_batch has labels from -1 to 0"):
        suite("cifar10").open_sets(cifar10_data)


IMAGENET_OF_THREE = replace(suite("imagenet"), classes=3)
WNIDS = ("n03", "n01", "n02")


def class_folders(folder, wnids=WNIDS):
    for seed, wnid in enumerate(wnids):
        write_image(folder / wnid / f"{wnid}_1.png", seed=seed)


def test_imagenet_has_the_same_sorted_classes_in_both_parts(tmp_path):
    class_folders(tmp_path / "imagenet" / "train")
    class_folders(tmp_path / "imagenet" / "val")
    train, test, *_ = IMAGENET_OF_THREE.open_sets(tmp_path).values()
    assert train.classes == test.classes == ("n01", "n02", "n03")
    assert train.labels.tolist() == test.labels.tolist() == [0, 1, 2]
    with pytest.raises(DataError, match=r"train has 3 class folders, but imagenet has 1000 classes"):
        suite("imagenet").open_sets(tmp_path)


def test_imagenet_inside_a_zip(tmp_path):
    for part in ("train", "val"):
        class_folders(tmp_path / "raw" / part)
    write_zip(tmp_path / "raw", tmp_path / "imagenet.zip")
    train, test, *_ = IMAGENET_OF_THREE.open_sets(tmp_path).values()
    assert train.labels.tolist() == test.labels.tolist() == [0, 1, 2]
    assert IMAGENET_OF_THREE.found(tmp_path)["train"] == tmp_path / "imagenet.zip" / "train"


def test_imagenet_folders_that_do_not_agree_or_are_missing_are_refused(tmp_path):
    class_folders(tmp_path / "imagenet" / "train")
    with pytest.raises(DataError, match=r"has no imagenet/val or .*, which the suite imagenet needs"):
        IMAGENET_OF_THREE.open_sets(tmp_path)
    class_folders(tmp_path / "imagenet" / "val", ("n01", "n02", "n04"))
    with pytest.raises(DataError, match=r"different class folders \(only one of the two has n03\)"):
        IMAGENET_OF_THREE.open_sets(tmp_path)
    shutil.rmtree(tmp_path / "imagenet" / "val")  # as it is distributed, it has no class folders
    write_image(tmp_path / "imagenet" / "val" / "ILSVRC2012_val_00000001.png")
    with pytest.raises(DataError, match=r"val has no labels"):
        IMAGENET_OF_THREE.open_sets(tmp_path)


# Real data --------------------------------------------------------------------------------------


@pytest.mark.realdata
@pytest.mark.parametrize(("name", "rows"), [("cifar10", (8336, 1017)), ("cifar100", (1117, 916))])
def test_the_real_suites(data, name, rows):
    one = suite(name)
    assert tuple(map(len, one.open_sets(data).values()))[:2] == rows
    sizes = {part: len(images) for part, images in one.open_ood(data).items()}
    assert sizes == {"svhn": 5000, "textures": 1200, "places365": 3000, "places_crop": 3000}
    assert one.missing(data) == ["lsun_crop", "lsun_resize", "isun"]
