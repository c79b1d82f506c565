"""Nested lists of numbers, as JSON gives them."""

from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_DIMENSIONS = 8
NUMBERS = {bool, int, float}


def nested_numbers(value: Any) -> npt.NDArray[Any] | None:
    """Nested lists of numbers as an array; None if they are anything else, or of unequal lengths.

    NumPy is given nothing but numbers: of strings it would make an array with room for the longest of them everywhere.
    """
    level = [value]
    for _ in range(MAX_DIMENSIONS + 1):
        kinds = set(map(type, level))
        if kinds <= NUMBERS:
            break
        if kinds != {list}:
            return None
        level = list(chain.from_iterable(level))
    else:
        return None
    try:
        found = np.asarray(value)
    except (ValueError, OverflowError):
        return None
    return found if found.dtype.kind in "biuf" else None
