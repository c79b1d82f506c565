"""``oodles data``: getting the paper's datasets."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from oodles.cli.common import notices, say
from oodles.cli.options import DataOption
from oodles.records.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def fetch(
    name: Annotated[str, Argument(help="A dataset that `oodles data list` shows.")],
    data: DataOption = Path("data"),
) -> None:
    """Download a dataset from its original site; the download is verified.

    For datasets that need an account or an agreement, it says how to get them.

    Example: oodles data fetch cifar10 --data data
    """
    from rich.progress import DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from oodles.data.downloads import fetch as download

    columns = (
        TextColumn("{task.description}", markup=False),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=notices, transient=True, disable=not notices.is_terminal) as bar:
        done = download(name, data, progress=_Bar(bar, bar.add_task(printable(name), total=None)))
    if done.sha256 is None:
        say(f"{done.path} already exists")
    else:
        checked = "checksum as published" if done.checked else f"no published checksum; SHA-256 {done.sha256}"
        say(f"{done.path} ({checked})")


class _Bar:
    """A task of a progress bar, as pooch advances it."""

    def __init__(self, bar: "Progress", task: "TaskID") -> None:
        self.total = 0
        self._bar, self._task = bar, task

    def update(self, count: int) -> None:
        self._bar.update(self._task, advance=count, total=self.total or None)

    def reset(self) -> None:
        self._bar.reset(self._task)

    def close(self) -> None:
        """The bar is closed by its owner."""


def list_datasets(data: DataOption = Path("data")) -> None:
    """Show which datasets can be downloaded, which must be requested, and which are already there."""
    from oodles.data.downloads import SOURCES

    for name, record in SOURCES.items():
        there, by_hand = (data / record.place).exists(), not record.url
        state = "present" if there else "by hand" if by_hand else "downloadable"
        say(f"{name:14} {state:15} {record.title}")
