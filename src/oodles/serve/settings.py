"""Settings of the service, declared once for Python, the command line and the environment."""

import os
import re
import sys
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Annotated

from typer import Option

from oodles.data.limits import MAX_PIXELS
from oodles.errors import ArgumentError, FileError
from oodles.records.files import read_regular

TOKEN, ADMIN_TOKEN = "OODLES_TOKEN", "OODLES_ADMIN_TOKEN"  # the names of variables
REPLICA = re.compile(r"[A-Za-z0-9._-]{1,64}")
MAX_TOKEN_BYTES, MIN_TOKEN_CHARACTERS = 4096, 8
MAX_JSON_BYTES = 8_000_000
"""The largest body of JSON: its numbers take many times as much memory once they are read."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the service allows and does; each setting is an option of ``oodles serve`` and a variable ``OODLES_SERVE_``.

    What exceeds ``queue`` and ``concurrency`` gets 503, so that memory and waiting times stay bounded.
    """

    host: Annotated[str, Option(help="Address to listen on. 0.0.0.0 lets other machines in: then use a token.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Option(help="0 chooses a free one.", min=0, max=65535)] = 8000
    token_file: Annotated[
        Path | None,
        Option(
            help="File with a secret that clients must send as Authorization: Bearer SECRET. "
            f"Default: the variable {TOKEN}, if it is set."
        ),
    ] = None
    admin_token_file: Annotated[
        Path | None,
        Option(
            help="File with a secret that is needed to change thresholds and acknowledge alarms. "
            f"Default: the variable {ADMIN_TOKEN}; without either, nothing can be changed."
        ),
    ] = None
    max_batch: Annotated[int, Option(help="Inputs that the network is given at once.", min=1)] = 32
    max_wait_ms: Annotated[
        float, Option(help="Milliseconds that an input waits for others to be run with it.", min=0)
    ] = 2.0
    queue: Annotated[int, Option(help="Inputs per guard in progress; more are refused with 503.", min=1)] = 256
    concurrency: Annotated[int, Option(help="Requests in progress; more are refused with 503.", min=1)] = 64
    max_images: Annotated[int, Option(help="Inputs in one request.", min=1)] = 64
    max_mb: Annotated[float, Option(help="Size of a request in megabytes.", min=1e-6)] = 20.0
    max_megapixels: Annotated[float, Option(help="Size of an image.", min=1e-6, max=MAX_PIXELS / 1e6)] = 50.0
    max_side: Annotated[int, Option(help="Width and height of an image in pixels.", min=1)] = 16_384
    timeout: Annotated[
        float,
        Option(
            help="Seconds from the first byte of a request to its answer; also for a client to read that.",
            min=1e-3,
        ),
    ] = 30.0
    drain: Annotated[
        float,
        Option(
            help="Seconds after SIGTERM during which requests are still taken, but it is not ready.",
            min=0,
        ),
    ] = 1.0
    reload: Annotated[float, Option(help="Seconds between checks for changed files of guards; 0: never.", min=0)] = 2.0
    threads: Annotated[
        int | None, Option(help="Threads that each network runs on. Default: one per core.", min=1, max=256)
    ] = None
    device: Annotated[str, Option(help="Where networks run: cpu, or cuda with onnxruntime-gpu.")] = "cpu"
    state: Annotated[
        Path | None, Option(help="Folder that keeps what is known of the inputs so far, over restarts. Default: none.")
    ] = None
    replica: Annotated[
        str | None, Option(help="Name of this process among several that share --state, in alarms and states.")
    ] = None
    false_alarm_every: Annotated[
        int,
        Option(help="At most one false alarm in this many inputs on average, see oodles monitor.", min=1),
    ] = 1_000_000
    alert_webhook: Annotated[
        str | None, Option(help="Send each alarm as JSON to this address, http:// or https://.")
    ] = None
    cors_origin: Annotated[
        list[str] | None,
        Option(help="Origin of web pages that may call the service, e.g. https://example.org. May be repeated."),
    ] = None
    root_path: Annotated[str, Option(help="Prefix of all addresses behind a proxy, e.g. /ood.")] = ""
    log_level: Annotated[str, Option(help="info logs every request; warning, only what went wrong.")] = "info"

    def __post_init__(self) -> None:
        for name, parameter in signature(Settings).parameters.items():
            (option,) = parameter.annotation.__metadata__
            value = getattr(self, name)
            most = sys.maxsize if option.max is None else option.max
            if option.min is not None and value is not None and not option.min <= value <= most:
                raise ArgumentError(f"{name}={value} must be a number from {option.min:g} to {most:g}")
        if self.log_level not in ("info", "warning"):
            raise ArgumentError(f"log_level={self.log_level!r:.30} must be info or warning")
        if self.root_path and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", self.root_path):
            raise ArgumentError(f"root_path={self.root_path!r:.50} must begin with / and not end with it, e.g. /ood")
        if self.replica is not None and not REPLICA.fullmatch(self.replica):
            raise ArgumentError(f"replica={self.replica!r:.80} must be 1 to 64 letters, digits, '.', '_' and '-'")
        if self.max_images > self.queue:
            raise ArgumentError(f"max_images={self.max_images} inputs in one request never fit a queue of {self.queue}")

    @property
    def max_bytes(self) -> int:
        """The largest body of a request."""
        return round(1e6 * self.max_mb)

    @property
    def max_json_bytes(self) -> int:
        """The largest body of JSON."""
        return min(self.max_bytes, MAX_JSON_BYTES)

    @property
    def max_pixels(self) -> int:
        """The largest image."""
        return round(1e6 * self.max_megapixels)

    @cached_property
    def token(self) -> str | None:
        """The secret that clients must send; raises if there is one that cannot be sent or is easily guessed."""
        return _secret(self.token_file, TOKEN)

    @cached_property
    def admin_token(self) -> str | None:
        """The secret that changes need."""
        return _secret(self.admin_token_file, ADMIN_TOKEN)


def _secret(file: Path | None, variable: str) -> str | None:
    if file is None:
        origin, content = f"the variable {variable}", os.environ.get(variable, "").encode()
        if variable not in os.environ:
            return None
    else:  # which may be a link: Kubernetes mounts secrets so
        origin, content = str(file), read_regular(file, MAX_TOKEN_BYTES, links=True, remedy="give a file with a token")
    text = content.decode("ascii", "replace").strip()
    if len(text) < MIN_TOKEN_CHARACTERS or not text.isascii() or not text.isprintable() or " " in text:
        raise FileError(
            f"{origin} does not hold a token of at least {MIN_TOKEN_CHARACTERS} letters, digits and punctuation; "
            'make one with: python -c "import secrets; print(secrets.token_urlsafe())"'
        )
    return text


for _name, _parameter in signature(Settings).parameters.items():
    _parameter.annotation.__metadata__[0].envvar = f"OODLES_SERVE_{_name.upper()}"
