"""Checks of the numbers that constructors are given, so that a bad one is refused before it is used."""

from numbers import Real
from typing import Any, cast

from oodles.errors import ArgumentError

MOST = 10**9
"""Larger counts of rows, classes or neighbours are mistakes."""


def check_whole(name: str, value: Any, low: int, high: int = MOST) -> int:
    """The value, if it is a whole number from ``low`` to ``high``."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or not low <= value <= high:
        raise ArgumentError(f"{name}={shown(value)} must be a whole number from {low:,} to {high:,}")
    return cast(int, value)


def check_positive(name: str, value: Any, low: float = 1e-6, high: float = 1e6) -> float:
    """The value, if it is a positive number from ``low`` to ``high``, so that single precision can divide by it."""
    number = cast(float, value)
    if isinstance(value, bool) or not isinstance(value, Real) or not low <= number <= high:
        raise ArgumentError(f"{name}={shown(value)} must be positive: a number from {low:g} to {high:g}")
    return number


def shown(value: Any) -> str:
    """A value in a message, shortened."""
    try:
        return repr(value)[:40]
    except ValueError:  # Python refuses to write whole numbers of thousands of digits
        return "(a number of thousands of digits)"
