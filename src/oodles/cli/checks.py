"""Checks of arguments that do not import torch, so that a mistyped one is reported at once."""

from collections.abc import Sequence
from pathlib import Path

from oodles.errors import ArgumentError, DataError, FileError

MAX_BYTES = 10_000_000  # of a file with names of classes


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise unless the value is one of those that are allowed."""
    if value not in choices:
        raise ArgumentError(f"{name} {value!r} must be one of {', '.join(choices)}")


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
