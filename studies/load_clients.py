"""Clients of the service, many at once.

They send images over connections that stay open: each client sends as soon as it has the last answer, whatever that is.
"""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

BOUNDARY = "----images"


@dataclass
class Outcome:
    """What became of the requests."""

    images: int
    statuses: Counter[int] = field(default_factory=Counter)
    accepted: list[float] = field(default_factory=list)  # seconds of each
    live: Counter[int] = field(default_factory=Counter)
    slowest_live: float = 0.0  # on a new connection, as probes come

    def add(self, status: int, seconds: float) -> None:
        """Count one answer."""
        self.statuses[status] += 1
        if status == 200:
            self.accepted.append(seconds)

    def as_record(self, seconds: float) -> dict[str, Any]:
        """Rates and percentiles, as plain values."""
        quantiles = np.quantile(self.accepted, [0.5, 0.99]).tolist() if self.accepted else [None, None]
        return {
            "seconds": seconds,
            "images_per_second": self.images * self.statuses[200] / seconds,
            "statuses": dict(self.statuses),
            "p50": quantiles[0],
            "p99": quantiles[1],
            "live": dict(self.live),
            "slowest_live": self.slowest_live,
        }


class Connection:
    """One connection that is used again and again, and opened again if it is closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> int:
        """Send a request and read its answer; returns the status."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(request)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        if b"connection: close" in head:
            writer.close()
            self._streams = None
        return int(head[9:12])


def score_request(images: list[bytes]) -> bytes:
    """One image as the body, or several as a form."""
    if len(images) == 1:
        kind, body = "image/jpeg", images[0]
    else:
        kind = f"multipart/form-data; boundary={BOUNDARY}"
        part = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.jpg"\r\n\r\n'.encode()
        body = b"".join(part + image + b"\r\n" for image in images) + f"--{BOUNDARY}--\r\n".encode()
    head = f"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def closed_loop(port: int, requests: list[bytes], clients: int, seconds: float, outcome: Outcome) -> None:
    """Each client sends its next request when it has the answer to the last one."""
    end = time.perf_counter() + seconds

    async def client(number: int) -> None:
        connection, count = Connection(port), number
        while (began := time.perf_counter()) < end:
            outcome.add(await connection.ask(requests[count % len(requests)]), time.perf_counter() - began)
            count += clients

    await asyncio.gather(*map(client, range(clients)))


async def watch_live(port: int, outcome: Outcome) -> None:
    """Ask every 100 ms whether the service is alive, each time on a new connection."""
    probe = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    while True:
        began = time.perf_counter()
        outcome.live[await Connection(port).ask(probe)] += 1
        outcome.slowest_live = max(outcome.slowest_live, time.perf_counter() - began)
        await asyncio.sleep(0.1)


def send(images: str, port: int, seconds: float, size: int, clients: int) -> dict[str, Any]:
    """Send requests with ``size`` images each, and count; called in a process of its own."""
    return asyncio.run(_send(sorted(Path(images).iterdir()), port, seconds, size, clients))


async def _send(paths: list[Path], port: int, seconds: float, size: int, clients: int) -> dict[str, Any]:
    files = [path.read_bytes() for path in paths]
    requests = [
        score_request([files[(start + place) % len(files)] for place in range(size)]) for start in range(len(files))
    ]
    outcome = Outcome(size)
    watcher = asyncio.create_task(watch_live(port, outcome))
    began = time.perf_counter()
    await closed_loop(port, requests, clients, seconds, outcome)
    elapsed = time.perf_counter() - began
    watcher.cancel()
    return outcome.as_record(elapsed)
