"""The ``oodles`` command, one file per subcommand.

Heavy imports wait until a command runs, so that help is fast. A command checks its arguments before it imports torch,
so that a mistyped path is reported at once.
"""

import functools
import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from oodles import __version__
from oodles.cli.analyze import analyze
from oodles.cli.bench import bench
from oodles.cli.common import notice
from oodles.cli.data import fetch, list_datasets
from oodles.cli.demo import demo
from oodles.cli.detectors import detectors
from oodles.cli.explain import explain
from oodles.cli.export import export
from oodles.cli.extract import extract
from oodles.cli.fit import fit
from oodles.cli.monitor import monitor
from oodles.cli.report import report
from oodles.cli.score import score
from oodles.cli.select import select
from oodles.cli.select_p import select_p
from oodles.cli.serve import serve
from oodles.cli.threshold import threshold
from oodles.cli.train import train
from oodles.errors import ArgumentError, FitWarning, OodlesError
from oodles.extras import needed_by
from oodles.records.calls import import_module_here
from oodles.records.text import one_line

__all__ = ["app", "main"]

app = typer.Typer(
    name="oodles",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with [bold]oodles demo[/bold]. Exit codes: 0 success, 2 invalid input (one line says what is "
    "wrong), 3 a check failed (oodles score --max-ood-rate, oodles monitor --check), 130 interrupted, 1 a bug in "
    "oodles (OODLES_DEBUG=1 in the environment shows the traceback).",
)
UsageError: Any = typer.BadParameter.__mro__[1]  # click's, of which newer versions of typer have their own copy


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
    *(demo, extract, fit, threshold, score, explain, export, serve, monitor, bench, report, select, select_p),
    *(detectors, train, analyze),
)
SHARED = ("extract", "fit", "bench")  # what the processes of torchrun do together; train divides its batches itself
RESUMED = {
    "extract": "; run the same command again to continue",
    "bench": "; run the same command again to continue",
    "train": "; run it again with --resume to continue after the last complete epoch",
}


class Interrupted(Exception):  # noqa: N818
    """Ctrl-C during a command; typer would end with a message of its own."""


def _interruptible(command: Callable[..., None], name: str = "") -> Callable[..., None]:
    """Return the command for typer, with one line if it is interrupted or lacks a package.

    A parameter that is a dataclass of options becomes these options. ``name`` is that of the command if not that of its
    function.
    """
    typed = name or command.__name__.replace("_", "-")
    groups: dict[str, Any] = {}
    parameters: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        if is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            parameters += signature(groups[parameter.name]).parameters.values()
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def run(**given: Any) -> None:
        for group, kind in groups.items():
            given[group] = kind(**{option: given.pop(option) for option in signature(kind).parameters})
        try:
            with _with_others(command.__name__), needed_by(f"oodles {typed}"):
                command(**given)
        except KeyboardInterrupt:
            raise Interrupted("interrupted" + RESUMED.get(command.__name__, "")) from None
        except BrokenPipeError:  # nobody reads on, as in `oodles score photos | head`
            _drop_output()
            raise typer.Exit from None

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return run


@contextmanager
def _with_others(command: str) -> Iterator[None]:
    """Run a command together with the other processes that torchrun started, if there are any."""
    if os.environ.get("WORLD_SIZE", "1") == "1" or command == "train":
        yield
        return
    if command not in SHARED:
        raise ArgumentError(f"oodles {command} runs in one process; start it without torchrun")
    from oodles.distributed.processes import join

    processes = None
    try:
        with join() as processes:
            yield
    except Exception as error:
        # the first process reports an error that all have heard of
        if processes is not None and processes.rank and processes.knows(error):
            raise typer.Exit(2) from None
        raise


for _command in COMMANDS:
    app.command()(_interruptible(_command))
datasets = typer.Typer(no_args_is_help=True, help="Get the paper's datasets from their original sites.")
datasets.command()(_interruptible(fetch, "data fetch"))
datasets.command("list")(_interruptible(list_datasets, "data list"))
app.add_typer(datasets, name="data")


def main() -> None:
    """Run the command; invalid input ends with one line and exit code 2, a bug with one line and exit code 1."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.simplefilter("always", FitWarning)
        warnings.showwarning = _print_warning
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be valid text
        try:
            code = app(prog_name="oodles", standalone_mode=False) or 0
            sys.stdout.flush()  # a disk that is full is noticed here
        except Exception as error:
            if os.environ.get("OODLES_DEBUG"):
                traceback.print_exc()
            code = _report(error)
        sys.exit(code)


def _report(error: Exception) -> int:
    """Say in one line what happened; returns the exit code."""
    if isinstance(error, Interrupted):
        notice(str(error))
        return 130
    if isinstance(error, BrokenPipeError):
        _drop_output()
        return 0
    if isinstance(error, UsageError):
        if type(error).__name__ != "NoArgsIsHelpError":  # which has printed the help already
            command = error.ctx.command_path if error.ctx is not None else "oodles"
            notice(f"{error.format_message().rstrip('.')}; see `{command} --help`", "[bold red]error[/bold red]")
        return 2
    if isinstance(error, OodlesError | OSError):
        _drop_output()
        notice(str(error), "[bold red]error[/bold red]")
        return 2
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"in {Path(place.filename).name}, line {place.lineno}"
    notice(f"{one_line(error, kind=True)}, {where}; OODLES_DEBUG=1 shows more", "[bold red]internal error[/bold red]")
    return 1


def _drop_output() -> None:
    """Forget what could not be written to standard output, which would fail again when the interpreter ends."""
    with suppress(OSError):
        try:
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    notice(str(message), "[yellow]warning[/yellow]")
