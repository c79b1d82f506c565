"""Names of files, classes and sets: data of the user's, shown so that they cannot pass for anything else."""

SHORT = 28  # letters of a name in a figure


def printable(text: str) -> str:
    """The text on one line, with line ends, control characters and what is not valid text as escapes such as ``\\n``.

    Names of files are data: one with a line end in it must not look like two lines of ours.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def shortened(text: str, most: int = SHORT) -> str:
    """A printable name of at most ``most`` letters, its middle left out if it is longer.

    >>> shortened("abcdefghij", 7)
    'abc…hij'
    """
    name = printable(text)
    if len(name) <= most:
        return name
    half = (most - 1) // 2
    return f"{name[: most - 1 - half]}…{name[-half:]}"
