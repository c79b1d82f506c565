"""Text from elsewhere on one line: names of files and classes, and the errors of other libraries."""


def printable(text: str) -> str:
    """The text on one line, with line ends, control characters and what is not valid text as escapes such as ``\\n``.

    Names of files are data: one with a line end in it must not look like two lines of ours.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type if there is no message.

    >>> first_line(ValueError())
    'ValueError'
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]
