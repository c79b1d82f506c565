"""The progress bar of an extraction."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Advance = Callable[[int], None]
"""Called after each batch with its number of inputs."""


@contextmanager
def progress_bar(total: int | None, wanted: bool) -> Iterator[Advance]:
    """Show a progress bar over ``total`` batches, if the output is a terminal."""
    console = Console(stderr=True)
    counts = TextColumn("{task.fields[inputs]:,} inputs {task.fields[rate]:,.0f} inputs/s")
    columns = (TextColumn("{task.description}"), BarColumn(), counts, TimeElapsedColumn(), TimeRemainingColumn())
    hidden = not (wanted and console.is_terminal)
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        bar.add_task("extract", total=total, inputs=0, rate=0.0)
        (task,) = bar.tasks

        def advance(inputs: int) -> None:
            done = task.fields["inputs"] + inputs
            bar.update(task.id, advance=1, inputs=done, rate=done / (task.elapsed or math.inf))

        yield advance
