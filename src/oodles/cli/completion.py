"""What the shell completes after an option; nothing here imports torch, because the user waits for it."""

import re
from collections.abc import Callable
from importlib.resources import files


def one_of(*values: str) -> Callable[[str], list[str]]:
    """Completes to one of the values."""

    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete


def complete_detector(incomplete: str) -> list[str]:
    """Completes the last stage of a chain such as ``react(90)+di`` to the names of the built-in detectors."""
    before, plus, name = incomplete.rpartition("+")
    return [f"{before}{plus}{each}" for each in built_in_detectors() if each.startswith(name)]


def built_in_detectors() -> list[str]:
    """The names in the registry, taken from its source, since importing it would import torch."""
    source = (files("oodles") / "detectors" / "registry.py").read_text()
    return re.findall(r'^    Entry\(\s*"(\w+)"', source, re.MULTILINE)
