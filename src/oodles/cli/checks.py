"""Checks of arguments that do not import torch, so that a mistyped one is reported at once."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oodles.errors import ArgumentError, DataError, FileError

if TYPE_CHECKING:
    from oodles.data.transforms import Transform

MAX_BYTES = 10_000_000  # of a file with names of classes
MAX_NUMBER, MAX_WORKERS, MAX_SEED = 10**9, 256, 2**31 - 1


def image_options(size: int | None, resize: int | None, mean: str | None, std: str | None) -> dict[str, Any]:
    """Return the settings of ``--size``, ``--resize``, ``--mean`` and ``--std`` that the user gave, checked."""
    given = {"size": size, "resize": resize, "mean": _channels("mean", mean), "std": _channels("std", std)}
    known = {name: value for name, value in given.items() if value is not None}
    image_transform({"size": resize, **known} if resize is not None else known)
    return known


def image_transform(given: dict[str, Any], default: "Transform | None" = None) -> "Transform":
    """Return the preprocessing of the options; settings that were not given are those of ``default``, or ImageNet's."""
    from oodles.data.transforms import IMAGENET, Transform

    usual = default or IMAGENET
    size = given.get("size", usual.size)
    return Transform(size, given.get("resize", size), given.get("mean", usual.mean), given.get("std", usual.std))


def _channels(name: str, text: str | None) -> tuple[float, float, float] | None:
    """Return three comma-separated numbers."""
    if text is None:
        return None
    try:
        red, green, blue = map(float, text.split(","))
    except ValueError:
        raise ArgumentError(f"--{name} {text!r} must be three numbers, e.g. 0.485,0.456,0.406") from None
    return red, green, blue


def check_number(name: str, value: int | None, least: int = 1, most: int = MAX_NUMBER) -> None:
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
