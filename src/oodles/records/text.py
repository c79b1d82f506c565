"""Text from elsewhere on one line: names of files and classes, and the errors of other libraries."""

from oodles.errors import OodlesError

MAX_LENGTH = 200  # of a message of other libraries


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
