"""Inputs to score as batches, in order: files, folders, archives, arrays, features, a list."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import chain, groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from oodles.data.arrays import read_array
from oodles.data.readers import ImageSet, open_files, open_images
from oodles.errors import ArgumentError, DataError
from oodles.store import is_store

if TYPE_CHECKING:
    from oodles.features import Features

LIST = Path("-")  # stands for a list of paths on standard input
MAX_LINE_BYTES = 1 << 16
Opener = Callable[[], AbstractContextManager[Image.Image]]


class ImageBatch(NamedTuple):
    """Some images: their names, and functions that open them, which raise if a file cannot be read."""

    names: list[str]
    openers: list[Opener]


class FeatureBatch(NamedTuple):
    """Some rows of a feature store and their names."""

    names: list[str]
    features: "Features"


Batch = ImageBatch | FeatureBatch


class _Below(Sequence[str]):
    """The paths of files in a folder, of which only the names are kept: there may be millions."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder, self._names = folder, names

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, row: Any) -> Any:
        return str(self._folder / self._names[row])


class InputSequence:
    """Inputs in the order of their paths; those on a list are opened as it is read.

    A path that does not exist and a folder without images raise at once. A file that cannot be read is one input with
    an error; so is a path on a list that names nothing. With ``files``, every file is an input, not only images.
    ``notify`` is called with a line about files that are not images.
    """

    def __init__(
        self, paths: Sequence[str | Path], notify: Callable[[str], None] | None = None, *, files: bool = False
    ) -> None:
        self._notify, self._files = notify, files
        given = [Path(path) for path in paths]
        if given.count(LIST) > 1:
            raise ArgumentError("- stands for standard input, which can be read only once; give it once")
        if LIST in given and (sys.stdin is None or sys.stdin.isatty()):
            raise ArgumentError("- stands for a list of paths on standard input; pipe one in, e.g. find . | oodles ...")
        # images, folders of features, and perhaps LIST
        self._sources = [self._open(path) for path in given]

    @property
    def stores(self) -> list[Path]:
        """The folders of features among the inputs."""
        return [source for source in self._sources if isinstance(source, Path) and source != LIST]

    @property
    def image_names(self) -> Iterator[str]:
        """The names of the images that are known before a list is read."""
        return (name for source in self._sources if isinstance(source, ImageSet) for name in source.names)

    @property
    def has_images(self) -> bool:
        """Whether images are among the inputs, or may be on a list."""
        return len(self.stores) < len(self._sources)

    @property
    def total(self) -> int | None:
        """How many inputs there are; None if that is not known yet."""
        if any(isinstance(source, Path) for source in self._sources):
            return None
        return sum(len(source) for source in self._sources if isinstance(source, ImageSet))

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield batches in order; neighbouring images share batches of at most ``size``."""
        for stored, group in groupby(self._sources, key=lambda source: source in self.stores):
            if stored:
                yield from chain.from_iterable(map(_feature_batches, group))
                continue
            images = chain.from_iterable(map(self._images, group))
            while part := list(islice(images, size)):
                yield ImageBatch([name for name, _ in part], [opener for _, opener in part])

    def _open(self, path: Path) -> ImageSet | Path:
        """Open what an argument names."""
        if path == LIST or is_store(path):
            return path
        return self._open_or_error(path) if path.is_file() else self._open_images(path)

    def _open_images(self, path: Path) -> ImageSet:
        """Open images, each named by the path that leads to it, since two folders may hold images of the same name."""
        if path.suffix.lower() == ".npy" and path.is_file() and not self._files:
            return read_array(path)
        images = open_files(path) if self._files else open_images(path)
        if self._notify is not None and images.ignored_summary():
            self._notify(images.ignored_summary())
        if [*images.names] == [str(path)]:
            return images
        folder = path.parent if path.is_file() and path.suffix.lower() != ".zip" else path
        return replace(images, names=_Below(folder, images.names))

    def _open_or_error(self, path: Path) -> ImageSet:
        """Open the images at ``path``; if it cannot be read, return one image that cannot be opened."""
        try:
            return self._open_images(path)
        except (DataError, OSError, ValueError) as error:
            problem = DataError(str(error).removeprefix(f"{path} "))

        def refuse(_: int) -> AbstractContextManager[Image.Image]:
            raise problem

        return ImageSet(path.name, [str(path)], refuse)

    def _images(self, source: ImageSet | Path) -> Iterator[tuple[str, Opener]]:
        """Yield the name and the opener of every image."""
        for images in self._listed() if isinstance(source, Path) else (source,):
            for row, name in enumerate(images.names):
                yield name, partial(images.open, row)

    def _listed(self) -> Iterator[ImageSet]:
        """Open what the lines of standard input name, each when its turn comes."""
        while line := sys.stdin.buffer.readline(MAX_LINE_BYTES):
            name = os.fsdecode(line.removesuffix(b"\n").removesuffix(b"\r"))
            if name:
                yield self._open_or_error(Path(name))


def _feature_batches(source: ImageSet | Path) -> Iterator[FeatureBatch]:
    from oodles.features import Features

    folder, start = Path(str(source)), 0
    for features in Features.load(folder).batches():
        yield FeatureBatch([f"{folder}[{row}]" for row in range(start, start + len(features))], features)
        start += len(features)
