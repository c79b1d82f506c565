"""``oodles serve``."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from oodles.cli.checks import MAX_WORKERS, check_number
from oodles.cli.guards import SHIPPED, GuardOptions, load_with_model
from oodles.errors import ArgumentError
from oodles.records.text import printable

if TYPE_CHECKING:
    from oodles.serve.guards import Source

NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
MAX_NAME = 64
TOKEN = "OODLES_TOKEN"  # noqa: S105  # the name of a variable


def serve(
    guards: Annotated[
        list[str] | None,
        Argument(
            metavar="[GUARD]...",
            help="Exported guards, folders or .zip files, each as PATH or NAME=PATH. Without any: a small CIFAR-10 "
            "network that comes with oodles, to try it (needs PyTorch).",
        ),
    ] = None,
    host: Annotated[
        str, Option(help="Address to listen on. 0.0.0.0 lets other machines in: then use a token.")
    ] = "127.0.0.1",
    port: Annotated[int, Option(help="0 chooses a free one.")] = 8000,
    token_file: Annotated[
        Path | None,
        Option(
            help="File with a secret that clients must send as Authorization: Bearer SECRET; also needed to change "
            f"thresholds. Default: the variable {TOKEN}, if it is set."
        ),
    ] = None,
    tokenizer: Annotated[
        list[str] | None,
        Option(
            help="tokenizer.json of a text model, as FILE or NAME=FILE: its guard then takes texts. May be repeated."
        ),
    ] = None,
    max_batch: Annotated[int, Option(help="Inputs that the network is given at once.")] = 32,
    max_wait_ms: Annotated[
        float, Option(help="How long an input waits for others to be run with it, in milliseconds.")
    ] = 2.0,
    queue: Annotated[int, Option(help="Inputs per guard in progress; more are refused with 503.")] = 256,
    concurrency: Annotated[int, Option(help="Requests in progress; more are refused with 503.")] = 64,
    max_images: Annotated[int, Option(help="Inputs in one request.")] = 64,
    max_mb: Annotated[float, Option(help="Size of a request in megabytes.")] = 20.0,
    max_megapixels: Annotated[float, Option(help="Size of an image, at most 50.")] = 50.0,
    max_side: Annotated[int, Option(help="Width and height of an image in pixels.")] = 16_384,
    timeout: Annotated[
        float, Option(help="Seconds that a client has to send a request, and that the service has to answer it.")
    ] = 30.0,
    drain: Annotated[
        float, Option(help="Seconds after SIGTERM during which requests are still taken, but it is not ready.")
    ] = 1.0,
    reload: Annotated[
        float, Option(help="Seconds between looks at whether a guard's files have changed; 0: never.")
    ] = 2.0,
    threads: Annotated[int | None, Option(help="Threads that each network runs on. Default: one per core.")] = None,
    state: Annotated[
        Path | None, Option(help="Folder that keeps what is known of the inputs so far, over restarts. Default: none.")
    ] = None,
    false_alarm_every: Annotated[
        int, Option(help="At most one false alarm in this many inputs on average, see oodles monitor.")
    ] = 1_000_000,
    alert_webhook: Annotated[
        str | None, Option(help="Send each alarm as JSON to this address, http:// or https://.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        Option(help="Origin of web pages that may call the service, e.g. https://example.org. May be repeated."),
    ] = None,
    log_level: Annotated[str, Option(help="info logs every request; warning, only what went wrong.")] = "info",
) -> None:
    """Serve exported guards over HTTP, with a page to look at: http://127.0.0.1:8000

    POST /score takes images, /v2/... the Open Inference Protocol, /metrics is for Prometheus, /docs describes all.
    Logs are lines of JSON on standard error. SIGTERM ends the service after what has begun, with exit code 0. A guard
    whose files are replaced is taken over without a restart, if it passes its checks.

    Example: oodles serve guard.zip --token-file token.txt --state state
    """
    check_number("--threads", threads, most=MAX_WORKERS)
    if not 0 <= port <= 65535:
        raise ArgumentError(f"--port {port} must lie between 0 and 65535")
    if log_level not in ("info", "warning"):
        raise ArgumentError(f"--log-level {printable(log_level)[:20]} must be info or warning")
    paths = _named_paths("guards", guards or [])
    tokenizers = _named_paths("tokenizers", tokenizer or [], tuple(paths))

    from oodles.deploy.artefact import is_exported

    for path in paths.values():
        if not is_exported(path):
            raise ArgumentError(f"{path} is not an exported guard; write one with oodles export")

    from oodles.monitor import AlertRule
    from oodles.serve.server import serve as run
    from oodles.serve.settings import Settings

    settings = Settings(
        max_batch=max_batch,
        max_wait_ms=max_wait_ms,
        queue=queue,
        concurrency=concurrency,
        body_bytes=_millions("--max-mb", max_mb),
        pixels=_millions("--max-megapixels", max_megapixels),
        side=max_side,
        images=max_images,
        seconds=timeout,
        drain_seconds=drain,
        reload_seconds=reload,
        threads=threads,
        token=_token(token_file),
        origins=tuple(cors_origin or ()),
        state=state,
        rule=AlertRule(false_alarm_every=false_alarm_every),
        webhook=alert_webhook,
    )
    with _sources(paths, tokenizers) as sources:
        run(sources, settings, host, port, log_level)


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


def _millions(option: str, value: float) -> int:
    if not 0 < value <= 1e6:
        raise ArgumentError(f"{option} {value:g} must be a positive number of millions")
    return max(1, round(1e6 * value))


def _token(path: Path | None) -> str | None:
    from oodles.serve.settings import checked_token, read_token

    if path is not None:
        return read_token(path)
    given = os.environ.get(TOKEN)
    return None if given is None else checked_token(given, f"the variable {TOKEN}")
