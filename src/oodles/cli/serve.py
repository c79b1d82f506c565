"""``oodles serve``."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from oodles.cli.guards import SHIPPED, load_with_model
from oodles.cli.options import GuardOptions
from oodles.errors import ArgumentError
from oodles.records.text import printable
from oodles.serve.settings import Settings

if TYPE_CHECKING:
    from oodles.serve.guards import Source

NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
MAX_NAME = 64


def serve(
    settings: Settings,
    guards: Annotated[
        list[str] | None,
        Argument(
            metavar="[GUARD]...",
            help="Exported guards, each as PATH or NAME=PATH. Without any: a small CIFAR-10 "
            "network that comes with oodles, to try it (needs PyTorch).",
        ),
    ] = None,
    tokenizer: Annotated[
        list[str] | None,
        Option(
            help="tokenizer.json of a text model, as FILE or NAME=FILE: its guard then takes texts. May be repeated."
        ),
    ] = None,
) -> None:
    """Serve exported guards over HTTP, with a web UI: http://127.0.0.1:8000

    POST /score takes images, /v2/... the Open Inference Protocol, /metrics is for Prometheus, /docs describes all.
    Logs are lines of JSON on standard error. SIGTERM ends the service after what has begun, with exit code 0. A guard
    whose files are replaced is taken over without a restart, if it passes its checks.

    Example: oodles serve guard.zip --token-file token.txt --state state
    """
    paths = _named_paths("guards", guards or [])
    tokenizers = _named_paths("tokenizers", tokenizer or [], tuple(paths))

    from oodles.deploy.artefact import is_exported
    from oodles.serve.server import serve as run

    for path in paths.values():
        if not is_exported(path):
            raise ArgumentError(f"{path} is not an exported guard; write one with oodles export")
    with _sources(paths, tokenizers) as sources:
        run(sources, settings)


def _named_paths(kind: str, given: Sequence[str], names: Sequence[str] = ()) -> dict[str, Path]:
    """``NAME=PATH`` or ``PATH`` as paths by name: the name of a guard, of those in ``names`` if there are any."""
    found: dict[str, Path] = {}
    for text in given:
        name, sign, path = text.partition("=")
        if not sign or "/" in name:
            path = text
            name = Path(text).name.removesuffix(".zip") if not names else names[0]
        if not (0 < len(name) <= MAX_NAME and NAME_CHARACTERS.issuperset(name)):
            raise ArgumentError(
                f"{printable(text)[:100]} needs a name of letters, digits, '.', '_' and '-', at most {MAX_NAME}; "
                "give NAME=PATH"
            )
        if name in found or (names and name not in names):
            reason = "is given twice" if name in found else f"is not one of the guards {', '.join(names)}"
            raise ArgumentError(f"{name} {reason}; give the {kind} as NAME=PATH")
        found[name] = Path(path)
    return found


@contextmanager
def _sources(paths: dict[str, Path], tokenizers: dict[str, Path]) -> "Iterator[list[Source]]":
    """The guards to serve; without any, that of the network that comes with oodles, exported for the occasion."""
    from oodles.serve.guards import Source

    if paths:
        yield [Source(name, path, tokenizers.get(name)) for name, path in paths.items()]
        return
    with tempfile.TemporaryDirectory(prefix="oodles-serve-") as folder:
        path = Path(folder) / f"{SHIPPED}.zip"
        load_with_model(None, GuardOptions()).export(path)
        yield [Source(SHIPPED, path)]
