"""The ``oodles`` command. Heavy imports wait until a command runs, so that help appears at once."""

import sys

from oodles.cli import choose, compare, train, work
from oodles.cli.base import app, notices, plain
from oodles.errors import OodlesError

__all__ = ["app", "choose", "compare", "main", "train", "work"]


def main() -> None:
    """Run the command; what is wrong with the input ends in one line and exit code 2."""
    try:
        app()
    except OodlesError as error:
        notices.print(f"[bold red]error[/bold red] {plain(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        notices.print("interrupted")
        sys.exit(130)
    except OSError as error:
        notices.print(f"[bold red]error[/bold red] {plain(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(2)
