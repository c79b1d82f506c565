"""What is in a folder or an archive: its images, the other files, and whether its folders are classes."""

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

import numpy as np
import numpy.typing as npt

METADATA = ("thumbs.db", "desktop.ini")
SPLITS = frozenset({"train", "training", "val", "valid", "validation", "test", "testing"})


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
