"""Text for messages, on one line: names of files and classes, errors of other libraries, how two records differ."""

from typing import Any

from oodles.errors import OodlesError

MAX_LENGTH = 200  # of a message of other libraries
MAX_SHOWN = 60  # of a value that differs


def printable(text: str) -> str:
    """The text on one line, with line ends, control characters and what is not valid text as escapes such as ``\\n``.

    Names of files are data: one with a line end in it must not look like two lines of ours.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def one_line(error: BaseException, *, kind: bool = False) -> str:
    """Return an error's message on one line, or its type if it has no message; with ``kind``, both.

    Of another library's message only the first line is kept, shortened.

    >>> one_line(ValueError("a\\nb")), one_line(ValueError()), one_line(ValueError("a"), kind=True)
    ('a', 'ValueError', 'ValueError: a')
    """
    name, message = type(error).__name__, str(error).strip()
    if not isinstance(error, OodlesError):
        message = message.partition("\n")[0][:MAX_LENGTH]
    message = printable(message)
    return f"{name}: {message}" if kind and message else message or name


def first_difference(stored: Any, asked: Any, name: str = "") -> tuple[str, str, str] | None:
    """The name of the first part that differs, such as ``preprocessing.mean``, and both values in short; else None."""
    if stored == asked:
        return None
    if isinstance(stored, dict) and isinstance(asked, dict):
        keys = sorted(stored.keys() | asked.keys())
        pairs = [(stored.get(key), asked.get(key), f"{name}.{key}" if name else key) for key in keys]
    elif isinstance(stored, list) and isinstance(asked, list) and len(f"{stored}{asked}") > 2 * MAX_SHOWN:
        if len(stored) != len(asked):
            return name, f"{len(stored)} entries", str(len(asked))
        pairs = [(*pair, f"{name}[{index}]") for index, pair in enumerate(zip(stored, asked, strict=True))]
    else:
        return name, _shorten(stored), _shorten(asked)
    return next(filter(None, (first_difference(*pair) for pair in pairs)), None)


def _shorten(value: Any) -> str:
    text = str(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN // 4]}..."
