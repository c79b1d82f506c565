"""The ``oodles`` command, one file per subcommand.

Heavy imports wait until a command runs, so that help is fast. A command checks its arguments before it imports torch,
so that a mistyped path is reported at once.
"""

import functools
import io
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer

from oodles import __version__
from oodles.calls import import_module_here
from oodles.cli.analyze import analyze
from oodles.cli.bench import bench
from oodles.cli.common import notice
from oodles.cli.data import datasets
from oodles.cli.demo import demo
from oodles.cli.detectors import detectors
from oodles.cli.explain import explain
from oodles.cli.extract import extract
from oodles.cli.fit import fit
from oodles.cli.score import score
from oodles.cli.select import select
from oodles.cli.select_p import select_p
from oodles.cli.threshold import threshold
from oodles.cli.train import train
from oodles.errors import FitWarning, OodlesError

__all__ = ["app", "main"]

app = typer.Typer(
    name="oodles",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with [bold]oodles demo[/bold]. Exit codes: 0 success, 2 invalid input (one line says what is "
    "wrong), 130 interrupted.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    plugin: Annotated[
        list[str] | None,
        typer.Option(help="A module to import first, e.g. one that registers your own detectors; may be repeated."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Detects when a classifier is given an input unlike its training data, without retraining it."""
    for module in plugin or []:
        import_module_here(module)


# in the order in which a user meets them
COMMANDS: tuple[Callable[..., None], ...] = (
    *(demo, extract, fit, threshold, score, explain, bench, select, select_p),
    *(detectors, train, analyze),
)
RESUMED = {
    "extract": "; run the same command again to continue",
    "bench": "; run the same command again to continue",
    "train": "; run it again with --resume to continue after the last complete epoch",
}


class Interrupted(Exception):  # noqa: N818
    """Ctrl-C during a command; typer would end with a message of its own."""


def _interruptible(command: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(command)
    def run(*arguments: Any, **named: Any) -> None:
        try:
            command(*arguments, **named)
        except KeyboardInterrupt:
            raise Interrupted("interrupted" + RESUMED.get(command.__name__, "")) from None

    return run


for _command in COMMANDS:
    app.command()(_interruptible(_command))
app.add_typer(datasets, name="data")


def main() -> None:
    """Run the command; invalid input ends with one line and exit code 2."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.simplefilter("always", FitWarning)
        warnings.showwarning = _print_warning
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be valid text
        try:
            app(prog_name="oodles")
        except Interrupted as interrupted:
            notice(str(interrupted))
            sys.exit(130)
        except (OodlesError, OSError) as error:
            notice(str(error), "[bold red]error[/bold red]")
            sys.exit(2)


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    notice(str(message), "[yellow]warning[/yellow]")
