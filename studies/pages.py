"""Pages under ``docs/``: studies fill in a Markdown template in ``docs/templates`` with what they measured."""

from collections.abc import Iterable, Sequence
from string import Formatter

from studies import ROOT

DOCS = ROOT / "docs"


def fill(template: str, /, **values: object) -> str:
    """The text of a template with every ``{placeholder}`` replaced; a value without a placeholder is an error."""
    text = (DOCS / "templates" / f"{template}.md").read_text()
    unused = values.keys() - {name for _, name, _, _ in Formatter().parse(text)}
    if unused:
        raise KeyError(f"the template {template} has no placeholder for {', '.join(sorted(unused))}")
    return text.format(**values)


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = ["|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|" for cells in (columns, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(columns), *lines[1:]])


def write_page(name: str, /, **values: object) -> None:
    """Fill in the template of a page and write the page."""
    path = DOCS / f"{name}.md"
    path.write_text(fill(name, **values))
    print(f"written: {path}")
