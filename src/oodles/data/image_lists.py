"""Image lists as OpenOOD has them: text files in which a line is the path of an image and the number of its class."""

import re
from pathlib import Path, PurePosixPath

import numpy as np

from oodles.data.image_sets import first_names
from oodles.data.readers import ImageSet, open_image
from oodles.errors import DataError
from oodles.records.files import read_regular


def read_image_list(path: Path, root: Path, classes: int | None = None) -> ImageSet:
    """The images below ``root`` that a list names, in its order.

    With ``classes`` the labels must lie below that number. Without it they are not used: OOD images have label -1.
    """
    names: list[str] = []
    labels: list[int] = []
    lines: dict[PurePosixPath, int] = {}
    for number, text in enumerate(_lines(path), start=1):
        if not text.strip():
            continue
        where = f"{path}, line {number}:"
        parts = text.split()
        if len(parts) != 2 or not re.fullmatch("-?[0-9]{1,9}", parts[1]):
            raise DataError(f"{where} {text[:80]!r} is not a path without spaces, a space and the number of a class")
        name, label = PurePosixPath(parts[0]), int(parts[1])
        if name.is_absolute() or ".." in name.parts:
            raise DataError(f"{where} {parts[0]!r} leads out of {root}; write the path relative to that folder")
        if classes is not None and not 0 <= label < classes:
            raise DataError(
                f"{where} label {label} must lie between 0 and {classes - 1}; is it the list of another set?"
            )
        if lines.setdefault(name, number) != number:
            raise DataError(f"{where} {parts[0]!r} is in line {lines[name]} too; remove one of the two")
        names.append(str(name))
        labels.append(label)
    if not names:
        raise DataError(f"{path} names no images; a line is a path, a space and the number of a class")
    missing = [name for name in names if not (root / name).is_file()]
    if missing:
        count = f"{len(missing):,} of {len(names):,} images are not below {root}"
        raise DataError(f"{path}: {count} ({first_names(missing)}); unpack the complete archive there")
    known = None if classes is None else np.array(labels, dtype=np.int64)
    return ImageSet(
        path.stem, names, lambda row: open_image(root / names[row]), known, file=lambda row: root / names[row]
    )


def is_unpacked(path: Path, root: Path) -> bool:
    """Whether the top folder of the first image that a list names is below ``root``."""
    first = next((text for text in _lines(path) if text.strip()), "")
    folders = PurePosixPath(first.partition(" ")[0]).parts[:-1]
    return root.joinpath(*folders[:1]).is_dir()


def _lines(path: Path) -> list[str]:
    content = read_regular(path, links=True, remedy="give a list of images")
    try:
        return content.decode("utf-8-sig").split("\n")
    except UnicodeError:
        raise DataError(f"{path} is not a text file in UTF-8") from None
