"""Image folders and images that are unusual but valid, or cannot be used."""

from pathlib import Path

import pytest
from PIL import Image

from oodles.data.loaders import ImageLoader
from oodles.data.readers import open_images
from oodles.data.transforms import CIFAR
from oodles.errors import DataError


def save_image(path: Path, size: tuple[int, int] = (40, 40)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, "red").save(path)


def test_hidden_folders_are_not_classes_but_linked_ones_are(tmp_path: Path) -> None:
    save_image(tmp_path / "set" / ".ipynb_checkpoints" / "a.png")
    save_image(tmp_path / "set" / "cat" / "b.png")
    save_image(tmp_path / "elsewhere" / "c.png")
    (tmp_path / "set" / "dog").symlink_to(tmp_path / "elsewhere")
    images = open_images(tmp_path / "set")
    assert images.classes == ("cat", "dog")
    assert list(images.names) == ["cat/b.png", "dog/c.png"]


def test_an_image_too_thin_to_resize_is_reported_and_not_resized(tmp_path: Path) -> None:
    save_image(tmp_path / "thin.png", (1, 60_000))
    loader = ImageLoader(open_images(tmp_path), CIFAR)
    with pytest.raises(DataError, match=r"thin\.png: 1 x 60000 pixels would become"):
        list(loader)
