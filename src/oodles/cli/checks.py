"""Checks of arguments that do not import torch, so that a mistyped one is reported at once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oodles.cli.common import IMAGENET_MEAN
from oodles.errors import ArgumentError, DataError, FileError

if TYPE_CHECKING:
    from oodles.data.transforms import Transform

MAX_BYTES = 10_000_000  # of a file with names of classes
SMALLEST_STD, MAX_VALUE = 1e-6, 1e6
MOST, MAX_WORKERS, MAX_SIDE, MAX_SEED = 10**9, 256, 8192, 2**31 - 1

Channels = tuple[float, float, float]


@dataclass(frozen=True)
class ImageOptions:
    """What ``--size``, ``--resize``, ``--mean`` and ``--std`` say; None where the user gave nothing."""

    size: int | None = None
    resize: int | None = None
    mean: Channels | None = None
    std: Channels | None = None

    def given(self) -> dict[str, Any]:
        """Return what the user gave, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def transform(self) -> "Transform":
        """The preprocessing that the options describe, which must all be given except ``--resize``."""
        from oodles.data.transforms import Transform

        if self.size is None or self.mean is None or self.std is None:
            raise ArgumentError("--size, --mean and --std are all needed to preprocess images")
        return Transform(self.size, self.size if self.resize is None else self.resize, self.mean, self.std)


def image_options(size: int | None, resize: int | None, mean: str | None, std: str | None) -> ImageOptions:
    """The four options, checked."""
    check_number("--size", size, most=MAX_SIDE)
    check_number("--resize", resize, most=MAX_SIDE)
    if resize is not None and resize < (size or 1):
        least = f"--size {size}" if size else "1"
        raise ArgumentError(f"--resize {resize} must be at least {least}; the crop is taken from the resized image")
    means, deviations = _channels("mean", mean), _channels("std", std)
    if deviations is not None and min(deviations) < SMALLEST_STD:
        raise ArgumentError(f"--std {std} must be positive in every channel, at least {SMALLEST_STD:g}")
    return ImageOptions(size, resize, means, deviations)


def _channels(name: str, text: str | None) -> Channels | None:
    """Three comma-separated numbers."""
    if text is None:
        return None
    try:
        red, green, blue = (float(part) for part in text.split(","))
    except ValueError:
        raise ArgumentError(f"--{name} {text!r} must be three numbers, e.g. {IMAGENET_MEAN}") from None
    if not all(abs(value) <= MAX_VALUE for value in (red, green, blue)):
        raise ArgumentError(f"--{name} {text!r} must be three finite numbers, e.g. {IMAGENET_MEAN}")
    return red, green, blue


def check_number(name: str, value: int | None, least: int = 1, most: int = MOST) -> None:
    """Raise if an option was given a whole number that is too small or too large."""
    if value is not None and value < least:
        raise ArgumentError(f"{name} {value} must be at least {least}")
    if value is not None and value > most:
        raise ArgumentError(f"{name} {value} must be at most {most}")


def check_seed(seed: int) -> None:
    """Raise unless every random generator takes the seed."""
    check_number("--seed", seed, 0, MAX_SEED)


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise unless the value is one of those that are allowed."""
    if value not in choices:
        raise ArgumentError(f"{name} {value!r} must be one of {', '.join(choices)}")


def check_id_rate(id_rate: float) -> None:
    """Raise unless ``--id-rate`` is a fraction."""
    if not 0 < id_rate < 1:
        raise ArgumentError(f"--id-rate {id_rate} must lie strictly between 0 and 1; it is a fraction: 0.95, not 95")


def check_checkpoints(paths: Iterable[Path | None]) -> None:
    """Raise unless every checkpoint that was given is a file."""
    for path in paths:
        if path is not None and not path.is_file():
            raise FileError(f"{path} is a folder, not a state dict" if path.exists() else f"{path} does not exist")


def read_class_names(path: Path) -> list[str]:
    """The names in a file with one class per line."""
    if path.exists() and not path.is_file():
        raise FileError(f"--classes {path} is not a file; give the name of one class per line")
    if path.exists() and path.stat().st_size > MAX_BYTES:
        raise FileError(f"--classes {path} has {path.stat().st_size:,} bytes; give the name of one class per line")
    try:
        names = [line.strip() for line in path.read_text(encoding="utf-8-sig").rstrip().splitlines()]
    except UnicodeDecodeError:
        raise FileError(f"{path} is not a text file in UTF-8; give the name of one class per line") from None
    except OSError as error:
        raise FileError(f"--classes {path} cannot be read ({error.strerror})") from None
    if not names or not all(names):
        raise DataError(f"{path} has no class name in line {[*names, ''].index('') + 1}; give one class per line")
    return names


def check_store(path: Path) -> None:
    """Raise unless ``path`` is a folder of features."""
    from oodles.store.manifest import MANIFEST

    _check_folder(path, MANIFEST, "features", "oodles extract")


def check_guard(path: Path) -> None:
    """Raise unless ``path`` is a guard: the folder of a saved one, or an exported one."""
    from oodles.deploy.artefact import RECORD, is_exported

    if not is_exported(path):
        _check_folder(path, RECORD, "a guard", "oodles fit")


def _check_folder(path: Path, record: str, what: str, command: str) -> None:
    if not path.is_dir():
        state = "is a file" if path.exists() else "does not exist"
        raise FileError(f"{path} {state}; give a folder with {what}, written by `{command}`")
    if not (path / record).is_file():
        raise FileError(
            f"{path / record} does not exist, so {path} does not hold {what}; `{command}` writes such folders"
        )


def check_experiment(folder: Path) -> None:
    """Raise unless ``folder`` has features of training and test images, as ``oodles bench`` writes them."""
    if not folder.is_dir():
        raise FileError(f"{folder} does not exist; give a folder written by `oodles bench`")
    from oodles.store.manifest import is_store

    missing = next((name for name in ("train", "test") if not is_store(folder / name)), None)
    if missing is not None:
        raise DataError(f"{folder} has no {missing}; give a folder written by `oodles bench`, or one with that layout")


def check_out(folder: Path | None) -> None:
    """Raise if the folder to write to is a file."""
    if folder is not None and folder.exists() and not folder.is_dir():
        raise ArgumentError(f"--out {folder} is a file; give a folder")
