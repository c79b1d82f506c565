"""Where two records differ, for messages: the first part that is not the same, and both values in short."""

from typing import Any

SHORT = 60


def first_difference(stored: Any, asked: Any, name: str = "") -> tuple[str, str, str] | None:
    """The name of the first part that differs, such as ``preprocessing.mean``, and both values in short; else None."""
    if stored == asked:
        return None
    if isinstance(stored, dict) and isinstance(asked, dict):
        keys = sorted(stored.keys() | asked.keys())
        pairs = [(stored.get(key), asked.get(key), f"{name}.{key}" if name else key) for key in keys]
    elif isinstance(stored, list) and isinstance(asked, list) and len(f"{stored}{asked}") > 2 * SHORT:
        if len(stored) != len(asked):
            return name, f"{len(stored)} entries", str(len(asked))
        pairs = [(*pair, f"{name}[{index}]") for index, pair in enumerate(zip(stored, asked, strict=True))]
    else:
        return name, *_shorten(str(stored), str(asked))
    return next(filter(None, (first_difference(*pair) for pair in pairs)), None)


def _shorten(first: str, second: str) -> tuple[str, str]:
    """Two different texts; of a long one, only a piece that shows the difference."""
    shared = min(len(first), len(second))
    differs = next((place for place in range(shared) if first[place] != second[place]), shared)
    start = 0 if differs < SHORT // 4 else differs - 5
    before = "..." if start else ""

    def piece(text: str) -> str:
        return text if len(text) <= SHORT else f"{before}{text[start : start + SHORT // 4]}..."

    return piece(first), piece(second)
