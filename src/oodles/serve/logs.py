"""Logs as lines of JSON. A line that cannot be written is counted, and nothing else happens."""

import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

LOGGER = logging.getLogger("oodles.serve")
FIELDS = "fields"


def log(event: str, *, level: int = logging.INFO, **fields: Any) -> None:
    """Write one line: what happened, and what is known about it."""
    LOGGER.log(level, event, extra={FIELDS: fields})


class JsonLines(logging.Formatter):
    """A record as one line of JSON; whatever a client sent in a name is escaped by it."""

    def format(self, record: logging.LogRecord) -> str:  # noqa: D102
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        return json.dumps(line, default=str)


class _Lines(logging.StreamHandler[Any]):
    """Writes to standard error; a full disk behind it must not stop the service."""

    def __init__(self, failed: Callable[[], None]) -> None:
        super().__init__(sys.stderr)
        self._failed = failed

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging calls it by this name
        self._failed()


def start_logging(failed: Callable[[], None], *, level: str = "info") -> None:
    """Send what the service logs, and warnings of anything else, to standard error.

    ``failed`` is called for a line that is lost.
    """
    handler = _Lines(failed)
    handler.setFormatter(JsonLines())
    logging.captureWarnings(True)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    LOGGER.setLevel(level.upper())
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # a broken form is a client's, and answered
