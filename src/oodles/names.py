"""Names of files and classes as text on one line."""


def printable(text: str) -> str:
    """The text on one line, with line ends, control characters and what is not valid text as escapes such as ``\\n``.

    Names of files are data: one with a line end in it must not look like two lines of ours.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
