"""Progress bars on a terminal."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

Item = TypeVar("Item")


def tracked(items: Iterable[Item], what: str, total: int | None = None, *, shown: bool = True) -> Iterator[Item]:
    """Yield the items while a terminal shows how many are done; elsewhere, or if not ``shown``, nothing is."""
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as bar:
        task = bar.add_task(what, total=total)
        for item in items:
            yield item
            bar.advance(task)
