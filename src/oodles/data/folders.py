"""What is in a folder or an archive: its images, the other files, and whether its folders are classes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
import numpy.typing as npt

METADATA = ("thumbs.db", "desktop.ini")
SPLITS = frozenset({"train", "training", "val", "valid", "validation", "test", "testing"})


@dataclass(frozen=True)
class Files:
    """Names relative to a folder, sorted folder by folder: images, other files, and every folder at the top."""

    images: list[str]
    ignored: tuple[str, ...]
    folders: tuple[str, ...]

    @classmethod
    def of(cls, found: Iterable[str], suffixes: tuple[str, ...]) -> "Files":
        """The files and folders (their names end in "/") that are not hidden or metadata; ``suffixes`` of images."""
        visible = sorted(parts for parts in (name.split("/") for name in found) if not _is_metadata(parts))
        names = ["/".join(parts) for parts in visible if parts[-1]]
        images = [name for name in names if name.lower().endswith(suffixes)]
        ignored = tuple(name for name in names if not name.lower().endswith(suffixes))
        return cls(images, ignored, tuple(dict.fromkeys(parts[0] for parts in visible if len(parts) > 1)))

    def classes(self, name: str) -> tuple[npt.NDArray[np.int64] | None, tuple[str, ...], str]:
        """Labels and classes from the top folder of each image, if those are classes, and one line on what is unclear.

        ``name`` is what the line calls the folder; the line is "" if there is nothing to say.
        """
        tops = [image.partition("/")[0] for image in self.images]
        classes = tuple(sorted({top for top, image in zip(tops, self.images, strict=True) if top != image}))
        reason = self._no_classes(name, classes)
        if reason is not None:
            return None, (), reason
        index = {folder: label for label, folder in enumerate(classes)}
        empty = [folder for folder in self.folders if folder not in index]
        note = f"{name}: folders without images are not counted as classes ({first_names(empty)})" if empty else ""
        return np.array([index[top] for top in tops], dtype=np.int64), classes, note

    def _no_classes(self, name: str, folders: Sequence[str]) -> str | None:
        """Why the folders that hold images are not classes ("" if there are none); None if they are."""
        if not folders:
            return ""
        loose = [image for image in self.images if "/" not in image]
        if loose:
            which = f"{len(loose):,} of {len(self.images):,}: {first_names(loose)}"
            return f"{name}: images outside class folders ({which}), so none has a label; move them or give one folder"
        if len(folders) == 1:
            deeper = any(image.count("/") > 1 for image in self.images)
            remedy = f"; if the folders inside are classes, give {name}/{folders[0]}" if deeper else ""
            return f"{name}: all images are in one folder, {folders[0]}, so none has a label{remedy}"
        if SPLITS.issuperset(folder.lower() for folder in folders):
            splits = " and ".join(folders)
            return f"{name}: {splits} are splits and not classes, so no image has a label; for labels, give one split"
        return None


def count_by_suffix(names: Sequence[str]) -> str:
    """Up to three names; of more, how many have each suffix and the first of them."""
    if len(names) <= 3:
        return first_names(names)
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(PurePosixPath(name).suffix.lower(), []).append(name)
    common = sorted(kinds.items(), key=lambda kind: -len(kind[1]))
    shown = [
        same[0] if len(same) == 1 else f"{len(same):,} {suffix or 'without suffix'} ({same[0]}, ...)"
        for suffix, same in common[:4]
    ]
    return ", ".join(shown) + (", ..." if len(common) > 4 else "")


def first_names(names: Sequence[str]) -> str:
    """The first three names, and whether there are more."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _is_metadata(parts: Sequence[str]) -> bool:
    """Whether a path is hidden or was added by an operating system."""
    return parts[0] == "__MACOSX" or parts[-1].lower() in METADATA or any(part.startswith(".") for part in parts)
