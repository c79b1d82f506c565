"""Folders, archives and images that are unusual but valid, or cannot be used."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.images import noise, read_array, write_image

from oodles.data.loaders import ImageLoader
from oodles.data.readers import open_images
from oodles.data.transforms import CIFAR
from oodles.errors import DataError, FileError

# Folders ------------------------------------------------------------------------------------------


def test_hidden_folders_are_not_classes_but_linked_ones_are(tmp_path: Path) -> None:
    write_image(tmp_path / "set" / ".ipynb_checkpoints" / "a.png")
    write_image(tmp_path / "set" / "cat" / "b.png")
    write_image(tmp_path / "elsewhere" / "c.png")
    (tmp_path / "set" / "dog").symlink_to(tmp_path / "elsewhere")
    images = open_images(tmp_path / "set")
    assert images.classes == ("cat", "dog")
    assert list(images.names) == ["cat/b.png", "dog/c.png"]


def test_a_folder_that_is_reached_twice_is_refused(tmp_path: Path) -> None:
    for name in ("cat/a.png", "dog/b.png"):
        write_image(tmp_path / "set" / name)
    for link, target in (("cat/again", "set"), ("itself", "set"), ("cats", "set/cat"), ("cat/dogs", "set/dog")):
        (tmp_path / "set" / link).symlink_to(tmp_path / target)
        with pytest.raises(DataError, match=r"set\S* are the same folder"):
            open_images(tmp_path / "set")
        (tmp_path / "set" / link).unlink()
    assert open_images(tmp_path / "set").names == ["cat/a.png", "dog/b.png"]


def test_links_that_double_the_folders_at_every_level_are_refused(tmp_path: Path) -> None:
    here = tmp_path / "set"
    for _ in range(40):  # two ways into every folder: 2**40 paths
        here.mkdir()
        (here / "b").symlink_to("a")
        here /= "a"
    write_image(here / "x.png")
    with pytest.raises(DataError, match="are the same folder"):
        open_images(tmp_path / "set")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    write_image(folder / "good.png")
    os.mkfifo(folder / "pipe.png")
    (folder / "zero.png").symlink_to("/dev/zero")
    (folder / "loop.png").symlink_to("loop.png")
    (folder / "folder.png").mkdir()
    write_image(folder / "folder.png" / "inside.png")
    loader = ImageLoader(open_images(folder), CIFAR, labels=False, skip_bad=True)
    list(loader)
    assert loader.names == ["folder.png/inside.png", "good.png"]
    skipped = dict(each.split(": ", 1) for each in loader.skipped)
    assert list(skipped) == ["loop.png", "pipe.png", "zero.png"]
    for name in ("pipe.png", "zero.png"):
        assert skipped[name] == f"{folder / name} is not a regular file, but a folder, a pipe or a device"
    for name in ("train", "digits.mat", "pipe.zip", "pipe"):
        os.mkfifo(tmp_path / name)
        with pytest.raises((DataError, FileError), match=r"is not (a regular file|an image set)"):
            open_images(tmp_path / name)


# Archives ---------------------------------------------------------------------------------------


def write_members(path: Path, members: list[tuple[str, Path]], system: int = 3) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, file in members:
            member = zipfile.ZipInfo("placeholder")
            member.filename, member.create_system = name, system  # as it is, which the constructor would not allow
            archive.writestr(member, file.read_bytes())
    return path


@pytest.fixture
def red_and_blue(tmp_path: Path) -> tuple[Path, Path]:
    return write_image(tmp_path / "red.png"), write_image(tmp_path / "blue.png", seed=1)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_different_images_of_one_name_are_refused(tmp_path: Path, red_and_blue: tuple[Path, Path]) -> None:
    red, blue = red_and_blue
    path = write_members(tmp_path / "t.zip", [("a/1.png", red), ("b/2.png", red), ("a/1.png", blue)])
    with pytest.raises(DataError, match=r"t\.zip holds two different images called a/1\.png"):
        open_images(path)
    assert open_images(path / "b").names == ["2.png"]
    same = write_members(tmp_path / "same.zip", [("a/1.png", red), ("b/2.png", red), ("a/1.png", red)])
    assert open_images(same).names == ["a/1.png", "b/2.png"]


def test_names_as_other_programs_write_them_are_understood(tmp_path: Path, red_and_blue: tuple[Path, Path]) -> None:
    red, blue = red_and_blue
    windows = write_members(tmp_path / "w.zip", [("set\\cat\\1.png", red), ("set\\dog\\2.png", blue)], system=0)
    dotted = write_members(tmp_path / "d.zip", [("./set/cat/1.png", red), ("./set//dog/2.png", blue)])
    for path in (windows, dotted):
        images = open_images(path / "set")
        assert images.names == ["cat/1.png", "dog/2.png"]
        assert images.classes == ("cat", "dog")
        assert np.array_equal(read_array(images, 1), noise(8, 8, 3, seed=1))
    unix = write_members(tmp_path / "u.zip", [("a\\b.png", red)])
    assert open_images(unix).names == ["a\\b.png"]


def test_names_in_utf_8_with_or_without_the_mark_are_read(tmp_path: Path, red_and_blue: tuple[Path, Path]) -> None:
    path = write_members(tmp_path / "t.zip", [("XXXXX/1.png", red_and_blue[0]), ("ant/2.png", red_and_blue[1])])
    path.write_bytes(path.read_bytes().replace(b"XXXXX", "möwe".encode()))
    with zipfile.ZipFile(path) as archive:
        assert "möwe/1.png" not in archive.namelist(), "the name is marked as UTF-8"
    marked = write_members(tmp_path / "m.zip", [("möwe/1.png", red_and_blue[0]), ("ant/2.png", red_and_blue[1])])
    assert open_images(path).classes == open_images(marked).classes == ("ant", "möwe")


def test_an_image_too_thin_to_resize_is_reported_and_not_resized(tmp_path: Path) -> None:
    write_image(tmp_path / "thin.png", size=(1, 60_000))
    loader = ImageLoader(open_images(tmp_path), CIFAR)
    with pytest.raises(DataError, match=r"thin\.png: 1 x 60000 pixels would become"):
        list(loader)
