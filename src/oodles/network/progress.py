"""The progress bar of an extraction."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Advance:
    """Advances the progress bar by one batch of the given number of inputs."""

    def __init__(self, bar: Progress | None, total: int | None) -> None:
        self._bar = bar
        self._task = bar.add_task("extract", total=total, inputs=0) if bar else None
        self._inputs = 0

    def __call__(self, inputs: int) -> None:  # noqa: D102
        if self._bar is not None and self._task is not None:
            self._inputs += inputs
            self._bar.update(self._task, advance=1, inputs=self._inputs)


class _Rate(ProgressColumn):
    def render(self, task: Any) -> str:
        elapsed = task.elapsed or 0.0
        return f"{task.fields['inputs'] / elapsed:,.0f} inputs/s" if elapsed else ""


@contextmanager
def progress_bar(total: int | None, wanted: bool) -> Iterator[Advance]:
    """A progress bar if the output is a terminal, else nothing."""
    console = Console(stderr=True)
    if not wanted or not console.is_terminal:
        yield Advance(None, total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[inputs]:,} inputs"),
        _Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        yield Advance(bar, total)
