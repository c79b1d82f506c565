"""``ImageSet``: images that are read one at a time, wherever they come from, and labels from the names of folders."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, ImageOps

from oodles.data.limits import PIXELS
from oodles.errors import ArgumentError, DataError

METADATA = ("thumbs.db", "desktop.ini")
SPLITS = frozenset({"train", "training", "val", "valid", "validation", "test", "testing"})


@dataclass(frozen=True)
class ImageSet:
    """Images that are read one at a time: their names, a function that opens one, and labels if known.

    ``open`` gives an image that Pillow has not decoded yet, or an open file, as a context manager; ``read`` decodes it.
    ``ignored`` names the other files of the folder or archive. ``label_note`` is one line on how class folders were
    understood: why there are no labels, or which folders are no classes; "" if there is nothing to say. ``file`` is the
    file that an image is read from, or None if there is none.
    """

    name: str
    names: Sequence[str]
    open: Callable[[int], AbstractContextManager[Any]]
    labels: npt.NDArray[np.int64] | None = None
    classes: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    label_note: str = ""
    file: Callable[[int], Path] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def known_labels(self) -> npt.NDArray[np.int64]:
        """Return the labels; raise if there are none."""
        if self.labels is None:
            reason = f" ({self.label_note})" if self.label_note else ""
            raise DataError(f"{self.name} has no labels; put the images of each class in a folder of its own{reason}")
        return self.labels

    def read(self, row: int) -> Image.Image:
        """One image, decoded and upright."""
        with self.open(row) as image, PIXELS.take(image.width * image.height):
            return decode(image)

    def ignored_summary(self) -> str:
        """One line that counts the files that are not read, by their kinds; "" if there are none."""
        if not self.ignored:
            return ""
        one = len(self.ignored) == 1
        count = "1 file is not an image" if one else f"{len(self.ignored):,} files are not images"
        return f"{self.name}: {count} that oodles reads: {count_by_suffix(self.ignored)}"

    def pick(self, rows: Sequence[int]) -> "ImageSet":
        """The images at ``rows``, in that order."""
        opened = self.open
        labels = None if self.labels is None else self.labels[list(rows)]
        names = [self.names[row] for row in rows]
        located = self.file
        file = None if located is None else lambda index: located(rows[index])
        return replace(self, names=names, open=lambda index: opened(rows[index]), labels=labels, file=file)

    def stamps(self) -> list[str] | None:
        """What shows that images have changed without reading them: name, size and times of each one's file.

        None if they do not come from files, or one of them is gone.
        """
        if self.file is None:
            return None
        files = [self.file(row) for row in range(len(self))]
        try:
            states = {file: file.stat() for file in dict.fromkeys(files)}
        except OSError:
            return None
        return [
            f"{name} {states[file].st_size} {states[file].st_mtime_ns} {states[file].st_ctime_ns}"
            for name, file in zip(self.names, files, strict=True)
        ]

    def sample(self, count: int | None, seed: int = 0) -> "ImageSet":
        """A random sample of at most ``count`` images in the original order; all of them if None."""
        if count is None or count >= len(self):
            return self
        if count < 1:
            raise ArgumentError(f"a limit of {count} images leaves none of {self.name}")
        chosen = np.random.default_rng(seed).choice(len(self), size=count, replace=False)
        return self.pick(sorted(chosen.tolist()))


def first_per_class(images: ImageSet, count: int) -> ImageSet:
    """The first ``count`` images of every class, in the original order, as the DICE authors reduced SVHN."""
    if count < 1:
        raise ArgumentError(f"a limit of {count} images per class leaves none of {images.name}")
    if images.labels is None:
        raise DataError(f"{images.name} has no labels, so the first {count} images per class cannot be taken")
    firsts = [np.flatnonzero(images.labels == label)[:count] for label in np.unique(images.labels)]
    return images.pick(np.sort(np.concatenate(firsts)).tolist())


def decode(image: Image.Image) -> Image.Image:
    """The pixels of an image, upright; of an animation or a file of several pages, the first frame."""
    if not isinstance(image, ImageFile.ImageFile):
        return image  # made from an array
    image.load()
    # Pillow warns if a palette with an opacity for each colour becomes RGB, but not on the way over RGBA
    layered = image.mode == "P" and isinstance(image.info.get("transparency"), bytes)
    return ImageOps.exif_transpose(image.convert("RGBA") if layered else image)


def split_names(found: Iterable[str], suffixes: tuple[str, ...]) -> tuple[list[str], tuple[str, ...], list[str]]:
    """Return the images, the other files and the folders at the top, sorted folder by folder.

    The names of folders end in "/", those of images in one of ``suffixes``; hidden files and metadata are left out.
    """
    visible = sorted(parts for parts in (name.split("/") for name in found) if not _is_metadata(parts))
    names = ["/".join(parts) for parts in visible if parts[-1]]
    images = [name for name in names if name.lower().endswith(suffixes)]
    ignored = tuple(name for name in names if not name.lower().endswith(suffixes))
    return images, ignored, list(dict.fromkeys(parts[0] for parts in visible if len(parts) > 1))


def label_by_folder(
    name: str, images: Sequence[str], folders: Sequence[str]
) -> tuple[npt.NDArray[np.int64] | None, tuple[str, ...], str]:
    """Return labels and classes from the top folder of each image, if those are classes, and a line on what is unclear.

    ``name`` is what the line calls the folder; the line is "" if there is nothing to say.
    """
    tops = [image.partition("/")[0] for image in images]
    loose = [image for image in images if "/" not in image]
    classes = tuple(sorted({top for top, image in zip(tops, images, strict=True) if top != image}))
    if not classes:
        return None, (), ""
    if loose:
        which = f"{len(loose):,} of {len(images):,}: {first_names(loose)}"
        reason = f"images outside class folders ({which}), so none has a label; move them or give one folder"
    elif len(classes) == 1:
        deeper = any(image.count("/") > 1 for image in images)
        remedy = f"; if the folders inside are classes, give {name}/{classes[0]}" if deeper else ""
        reason = f"all images are in one folder, {classes[0]}, so none has a label{remedy}"
    elif SPLITS.issuperset(folder.lower() for folder in classes):
        splits = " and ".join(classes)
        reason = f"{splits} are splits and not classes, so no image has a label; for labels, give one split"
    else:
        empty = [folder for folder in folders if folder not in classes]
        note = f"{name}: folders without images are not counted as classes ({first_names(empty)})" if empty else ""
        index = {folder: label for label, folder in enumerate(classes)}
        return np.array([index[top] for top in tops], dtype=np.int64), classes, note
    return None, (), f"{name}: {reason}"


def count_by_suffix(names: Sequence[str]) -> str:
    """Up to three names; of more, how many have each suffix."""
    if len(names) <= 3:
        return first_names(names)
    kinds = Counter(PurePosixPath(name).suffix.lower() or "without suffix" for name in names).most_common()
    return first_names([f"{count:,} {suffix}" for suffix, count in kinds])


def first_names(names: Sequence[str]) -> str:
    """The first three names, and whether there are more."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _is_metadata(parts: Sequence[str]) -> bool:
    """Whether a path is hidden or was added by an operating system."""
    return parts[0] == "__MACOSX" or parts[-1].lower() in METADATA or any(part.startswith(".") for part in parts)
