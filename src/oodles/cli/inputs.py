"""The inputs of ``oodles score`` as batches, in order: files, folders, archives, arrays, features, patterns, a list."""

import glob
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain, groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from oodles.cli.checks import is_store
from oodles.cli.common import report_ignored
from oodles.cli.guards import name_by_path
from oodles.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from PIL import Image

    from oodles.data.readers import ImageSet
    from oodles.features import Features

LIST = Path("-")  # the argument that stands for a list on standard input
MAX_BYTES = 1 << 16  # of a line in it


class ImageBatch(NamedTuple):
    """Some images: their names, and functions that open them, which fail for what cannot be read."""

    names: list[str]
    openers: list[Callable[[], AbstractContextManager["Image.Image"]]]


class FeatureBatch(NamedTuple):
    """Some rows of a feature store and their names."""

    names: list[str]
    features: "Features"


Batch = ImageBatch | FeatureBatch


class InputSequence:
    """The inputs that were named: those in files are known now, those on a list as it is read.

    A path that does not exist, a pattern that matches nothing and a folder without images are refused at once. A file
    that cannot be read is one input with an error; so is anything of that kind on a list.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        if paths.count(LIST) > 1:
            raise ArgumentError("- stands for standard input, which can be read only once; give it once")
        if LIST in paths and (sys.stdin is None or sys.stdin.isatty()):
            raise ArgumentError("- stands for a list of paths on standard input; pipe one in, e.g. find . | oodles ...")
        # images, folders of features, and perhaps LIST
        self._sources = [source for path in paths for source in _open(path)]

    @property
    def stores(self) -> list[Path]:
        """The folders of features among them."""
        return [source for source in self._sources if isinstance(source, Path) and _is_store(source)]

    @property
    def has_images(self) -> bool:
        """Whether images are among them, or may be."""
        return len(self.stores) < len(self._sources)

    @property
    def total(self) -> int | None:
        """How many inputs there are; None if that is not known yet."""
        if any(isinstance(source, Path) for source in self._sources):
            return None
        return sum(len(source) for source in self._sources if not isinstance(source, Path))

    def batches(self, size: int) -> Iterator[Batch]:
        """Batches in order; neighbouring images share batches of at most ``size``."""
        for stored, group in groupby(self._sources, key=_is_store):
            if stored:
                yield from chain.from_iterable(map(_feature_batches, group))
                continue
            images = chain.from_iterable(map(_images, group))
            while part := list(islice(images, size)):
                yield ImageBatch([name for name, _ in part], [opener for _, opener in part])


def _is_store(source: "ImageSet | Path") -> bool:
    return isinstance(source, Path) and source != LIST


def _open(path: Path) -> "list[ImageSet | Path]":
    """What an argument names."""
    if path == LIST or is_store(path):
        return [path]
    try:
        found = os.path.lexists(path)
    except (OSError, ValueError):  # a name that no file can have
        found = False
    if not found and glob.has_magic(str(path)):
        # Path.glob treats a pattern that begins with a folder or "/" differently in every version of Python
        matches = map(Path, sorted(glob.glob(str(path), recursive=True)))  # noqa: PTH207
        sources = [source for match in matches for source in _matched(match)]
        if not sources:
            raise DataError(f"{path} does not exist, and as a pattern it matches no file")
        return sources
    return [_open_images(path) if path.is_dir() or not path.is_file() else open_or_error(path)]


def _matched(path: Path) -> "list[ImageSet | Path]":
    """What a pattern has found; folders are left out, since ``**`` matches those of the files too."""
    if is_store(path):
        return [path]
    return [] if path.is_dir() else [open_or_error(path)]


def _open_images(path: Path) -> "ImageSet":
    from oodles.data.arrays import read_array
    from oodles.data.readers import open_images

    if path.suffix.lower() == ".npy" and path.is_file():
        return read_array(path)
    images = name_by_path(path, open_images(path))
    report_ignored(images)
    return images


def open_or_error(path: Path) -> "ImageSet":
    """The images at ``path``; if it cannot be read, one image that cannot be opened."""
    from oodles.data.readers import ImageSet

    try:
        return _open_images(path)
    except (DataError, OSError, ValueError) as error:
        problem = DataError(str(error).removeprefix(f"{path} "))

    def refuse(_: int) -> AbstractContextManager["Image.Image"]:
        raise problem

    return ImageSet(path.name, [str(path)], refuse)


def _images(
    source: "ImageSet | Path",
) -> Iterator[tuple[str, Callable[[], AbstractContextManager["Image.Image"]]]]:
    """Name and opener of every image."""
    for images in _listed() if isinstance(source, Path) else (source,):
        for row, name in enumerate(images.names):
            yield name, partial(images.open, row)


def _listed() -> "Iterator[ImageSet]":
    """What the lines of standard input name, each read when its turn comes."""
    while line := sys.stdin.buffer.readline(MAX_BYTES):
        name = os.fsdecode(line.removesuffix(b"\n").removesuffix(b"\r"))
        if name:
            yield open_or_error(Path(name))


def _feature_batches(source: "ImageSet | Path") -> Iterator[FeatureBatch]:
    from oodles.features import Features

    folder, start = Path(str(source)), 0
    for features in Features.load(folder).batches():
        yield FeatureBatch([f"{folder}[{row}]" for row in range(start, start + len(features))], features)
        start += len(features)
