"""What the service allows and does: limits on requests, batches and waiting, who may use it, what it remembers."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from oodles.data.limits import MAX_PIXELS
from oodles.errors import ArgumentError, FileError
from oodles.monitor import AlertRule
from oodles.records.files import read_regular

MAX_TOKEN_BYTES, MIN_TOKEN_CHARACTERS = 4096, 8
JSON_BYTES = 8_000_000
"""The largest body of JSON: its numbers take many times as much memory once they are read."""


@dataclass(frozen=True)
class Settings:
    """The limits of the service; all can be set on the command line.

    ``queue`` counts the inputs that have been accepted and not yet answered, ``concurrency`` the requests that are
    being read or answered. What exceeds them is refused with 503 at once, so memory and waiting times stay bounded.
    ``seconds`` is the time that a client has to send its request, and the service to answer it. ``state`` is the folder
    that keeps what monitors know over restarts, ``webhook`` the address that alarms are sent to.
    """

    max_batch: int = 32
    max_wait_ms: float = 2.0
    queue: int = 256
    concurrency: int = 64
    body_bytes: int = 20_000_000
    pixels: int = MAX_PIXELS
    side: int = 16_384
    images: int = 64
    seconds: float = 30.0
    drain_seconds: float = 1.0
    reload_seconds: float = 2.0
    state_seconds: float = 5.0
    threads: int | None = None
    token: str | None = field(default=None, repr=False)
    origins: tuple[str, ...] = ()
    state: Path | None = None
    rule: AlertRule = field(default_factory=AlertRule)
    webhook: str | None = None

    def __post_init__(self) -> None:
        for name in ("max_batch", "queue", "concurrency", "body_bytes", "pixels", "side", "images"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("max_wait_ms", "seconds", "drain_seconds", "reload_seconds", "state_seconds"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ArgumentError(f"{name}={value} must be a number that is not negative")
        if self.seconds == 0:
            raise ArgumentError("seconds=0 leaves no time for an answer; give a positive number")
        if self.pixels > MAX_PIXELS:
            raise ArgumentError(f"pixels={self.pixels} is more than oodles decodes; give at most {MAX_PIXELS:,}")
        if self.images > self.queue:
            raise ArgumentError(f"images={self.images} inputs in one request never fit a queue of {self.queue}")

    @property
    def json_bytes(self) -> int:
        """The largest body of JSON."""
        return min(self.body_bytes, JSON_BYTES)


def read_token(path: Path) -> str:
    """The secret in a file, without the line end that editors add."""
    # Kubernetes mounts secrets as links
    content = read_regular(path, MAX_TOKEN_BYTES, links=True, remedy="give a file with a token")
    try:
        text = content.decode("ascii").strip()
    except UnicodeDecodeError:
        raise FileError(f"{path} does not hold a token; write letters, digits and punctuation") from None
    return checked_token(text, str(path))


def checked_token(text: str, origin: str) -> str:
    """The text as a token; raises if it cannot be sent in a header or is too easily guessed."""
    if len(text) < MIN_TOKEN_CHARACTERS or not text.isascii() or not text.isprintable() or " " in text:
        raise ArgumentError(
            f"{origin} does not hold a token of at least {MIN_TOKEN_CHARACTERS} characters without spaces; make one "
            'with: python -c "import secrets; print(secrets.token_urlsafe())"'
        )
    return text
