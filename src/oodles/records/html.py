"""Small tables for notebooks: no scripts, and everything in them is escaped."""

from collections.abc import Iterable, Sequence
from html import escape


def html_table(caption: str, rows: Iterable[Sequence[object]], *header: str, more: str = "") -> str:
    """Return a table; ``more`` follows the caption, and a row that is text is a heading of those below it.

    >>> html_table("a < b", [("x", 1)])
    '<table><caption><code>a &lt; b</code></caption><tr><td>x</td><td>1</td></tr></table>'
    """
    lines = [_line("th", header)] if header else []
    lines += [_line("th", (row, "")) if isinstance(row, str) else _line("td", row) for row in rows]
    return f"<table><caption><code>{escape(caption)}</code>{escape(more)}</caption>{''.join(lines)}</table>"


def _line(kind: str, cells: Sequence[object]) -> str:
    return f"<tr>{''.join(f'<{kind}>{escape(str(cell))}</{kind}>' for cell in cells)}</tr>"
