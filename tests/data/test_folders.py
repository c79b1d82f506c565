"""What is in folders and archives: files that are not read are named, and so is the reason for missing labels."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.images import write_image, write_zip

from oodles.data.loaders import read_pixels
from oodles.data.readers import ImageSet, open_images
from oodles.data.transforms import CIFAR
from oodles.errors import DataError


def save_tree(root: Path, *names: str) -> Path:
    """Write a tree: an image where a name ends in .png, an empty folder where it ends in "/", else an empty file."""
    for name in names:
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True)
        elif path.suffix == ".png":
            write_image(path)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    return root


@pytest.fixture(params=["folder", "zip"])
def read_tree(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., ImageSet]:
    """Writes a tree and reads it, as a folder or as an archive of it."""

    def read(*names: str) -> ImageSet:
        root = save_tree(tmp_path / "set", *names)
        if request.param == "folder":
            return open_images(root)
        return open_images(write_zip(root, tmp_path / "set.zip"))

    return read


def line(images: ImageSet, text: str) -> str:
    return text.format(name=images.name) if text else ""


# Files that are not read ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("others", "summary"),
    [
        ([], ""),
        (["notes.txt"], "{name}: 1 file is not an image that oodles reads: notes.txt"),
        (
            ["notes.txt", "b/IMG_1.HEIC", "b/clip.mp4"],
            "{name}: 3 files are not images that oodles reads: b/IMG_1.HEIC, b/clip.mp4, notes.txt",
        ),
        (
            [*(f"a/{number:04}.txt" for number in range(12)), "b/1.heic", "b/2.HEIC", "b/LICENSE", "b/README", "c.svg"],
            "{name}: 17 files are not images that oodles reads: 12 .txt, 2 .heic, 2 without suffix, ...",
        ),
    ],
)
def test_files_that_are_not_read_are_named(read_tree: Callable[..., ImageSet], others: list[str], summary: str) -> None:
    images = read_tree("a/1.png", "b/2.png", *others)
    assert images.names == ["a/1.png", "b/2.png"]
    assert sorted(images.ignored) == sorted(others)
    assert images.ignored_summary() == line(images, summary)
    assert images.sample(1).ignored_summary() == images.ignored_summary()


def test_what_operating_systems_add_is_not_named(read_tree: Callable[..., ImageSet]) -> None:
    images = read_tree(
        "a/1.png", "b/2.png", ".DS_Store", "a/._1.png", "a/Thumbs.db", "b/desktop.ini", "__MACOSX/a/x.txt"
    )
    assert images.ignored == ()
    assert images.classes == ("a", "b")
    assert images.label_note == ""


def test_a_folder_of_other_files_says_what_it_holds(read_tree: Callable[..., ImageSet]) -> None:
    with pytest.raises(DataError, match=r"no images .*; found 5 \.heic, 1 \.txt"):
        read_tree(*(f"{number}.heic" for number in range(5)), "notes.txt")


# Class folders ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "note"),
    [
        (["1.png", "2.png"], ""),
        (
            ["cat/1.png", "dog/2.png", "3.png"],
            "{name}: images outside class folders (1 of 3: 3.png), so none has a label; move them or give one folder",
        ),
        (
            ["cat/1.png", *(f"{number}.png" for number in range(5))],
            "{name}: images outside class folders (5 of 6: 0.png, 1.png, 2.png, ...), so none has a label; move them "
            "or give one folder",
        ),
        (["cat/1.png", "cat/2.png"], "{name}: all images are in one folder, cat, so none has a label"),
        (
            ["photos/cat/1.png", "photos/dog/2.png"],
            "{name}: all images are in one folder, photos, so none has a label; if the folders inside are classes, "
            "give {name}/photos",
        ),
        (
            ["train/cat/1.png", "Test/cat/2.png", "train/dog/3.png"],
            "{name}: Test and train are splits and not classes, so no image has a label; for labels, give one split",
        ),
    ],
)
def test_images_without_labels_say_why(read_tree: Callable[..., ImageSet], names: list[str], note: str) -> None:
    images = read_tree(*names)
    assert images.labels is None
    assert images.classes == ()
    assert images.label_note == line(images, note)
    with pytest.raises(DataError) as caught:
        read_pixels(images, CIFAR)
    reason = f" ({images.label_note})" if note else ""
    assert str(caught.value) == (
        f"{images.name} has no labels; put the images of each class in a folder of its own{reason}"
    )


def test_class_folders_without_images_are_named(read_tree: Callable[..., ImageSet]) -> None:
    images = read_tree("cat/1.png", "dog/2.heic", "emu/", "fox/3.png", ".git/", "__MACOSX/")
    assert images.classes == ("cat", "fox")
    assert images.labels.tolist() == [0, 1]
    assert images.label_note == f"{images.name}: folders without images are not counted as classes (dog, emu)"


def test_the_current_folder_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tree(tmp_path / "set", "1.png", "notes.txt")
    monkeypatch.chdir(tmp_path / "set")
    assert open_images(".").ignored_summary() == "set: 1 file is not an image that oodles reads: notes.txt"
