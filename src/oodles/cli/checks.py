"""Checks of arguments that do not import torch, so that a mistyped one is reported at once."""

from collections.abc import Sequence
from pathlib import Path

from oodles.errors import ArgumentError, DataError, FileError
from oodles.records.files import read_regular

MAX_BYTES = 10_000_000  # of a file with names of classes


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise unless the value is one of those that are allowed."""
    if value not in choices:
        raise ArgumentError(f"{name} {value!r} must be one of {', '.join(choices)}")


def check_store(path: Path) -> None:
    """Raise unless ``path`` is a folder of features."""
    from oodles.store.manifest import is_store

    if not is_store(path):
        reason = "does not hold features" if path.exists() else "does not exist"
        raise FileError(f"{path} {reason}; give a folder written by `oodles extract`")


def check_guard(path: Path) -> None:
    """Raise unless ``path`` is a guard: the folder of a saved one, or an exported one."""
    from oodles.deploy.artefact import is_guard

    if not is_guard(path):
        reason = "is not a guard" if path.exists() else "does not exist"
        raise FileError(f"{path} {reason}; give a folder written by `oodles fit`, or an exported guard")


def read_class_names(path: Path) -> list[str]:
    """Return the names in a file with one class per line."""
    try:
        text = read_regular(path, MAX_BYTES, links=True, remedy="give a file with one class per line").decode(
            "utf-8-sig"
        )
    except UnicodeDecodeError:
        raise FileError(f"{path} is not a text file in UTF-8; give the name of one class per line") from None
    names = [line.strip() for line in text.rstrip().splitlines()]
    if not names or not all(names):
        raise DataError(f"{path} has no class name in line {[*names, ''].index('') + 1}; give one class per line")
    return names
