"""``Service``: the guards that are served, and what their requests share: threads and limits."""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Annotated, Any, TypeVar

from fastapi import Depends, HTTPException, Request

from oodles.deploy.artefact import Arrays, rows_of
from oodles.deploy.exported import ArrayVerdict
from oodles.records.text import printable
from oodles.serve.guards import ServedGuard, Version
from oodles.serve.reading import within
from oodles.serve.settings import Settings
from oodles.serve.telemetry import LOGGER, Telemetry, log

Value = TypeVar("Value")
DECODERS = min(16, max(2, os.cpu_count() or 2))
STATE_SECONDS = 5.0  # between writes of what monitors know


class Service:
    """Several guards by name behind one port."""

    def __init__(self, guards: Sequence[ServedGuard], settings: Settings, telemetry: Telemetry) -> None:
        self.guards = {guard.name: guard for guard in guards}
        self.settings = settings
        self.telemetry = telemetry
        self.draining = False
        self._threads = ThreadPoolExecutor(DECODERS, thread_name_prefix="decoding")
        self._requests = 0

    def guard(self, name: str | None) -> ServedGuard:
        """The guard of that name, or the only one."""
        if name is None:
            if len(self.guards) > 1:
                raise HTTPException(400, f"there are several guards; name one: {', '.join(self.guards)}")
            name = next(iter(self.guards))
        found = self.guards.get(name)
        if found is None:
            raise HTTPException(404, f"there is no guard {printable(name)!r:.100}; there are: {', '.join(self.guards)}")
        return found

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request during the block; raises if there are too many, before anything of it is read."""
        if self._requests >= self.settings.concurrency:
            raise HTTPException(
                503, f"{self._requests} requests are in progress; try again later", {"Retry-After": "1"}
            )
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    def in_time(self) -> AbstractAsyncContextManager[None]:
        """Give up on an answer that takes longer than the settings allow."""
        message = f"there was no answer within {self.settings.timeout:g} seconds; try again later"
        return within(self.settings.timeout, HTTPException(503, message, {"Retry-After": "5"}))

    async def answer(
        self, served: ServedGuard, version: Version, arrays: Arrays, *, explain: bool = False
    ) -> ArrayVerdict:
        """Run a version of a guard on some rows; raises if there is no room for them or no answer in time."""
        with served.admit(rows_of(arrays)):
            async with self.in_time():
                return await asyncio.wrap_future(served.submit(version, arrays, explain=explain))

    async def in_thread(self, function: Callable[..., Value], *arguments: Any) -> Value:
        """Call something that takes a while without holding up other requests."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    async def run_maintenance(self) -> None:
        """Follow the guards' files and save what monitors know, until it is cancelled."""
        log("ready", guards=list(self.guards))
        await asyncio.gather(
            self._repeat(self.settings.reload, ServedGuard.reload), self._repeat(STATE_SECONDS, ServedGuard.save_state)
        )

    async def _repeat(self, seconds: float, function: Callable[[ServedGuard], None]) -> None:
        """Call a function with each guard every so many seconds, or never if they are 0."""
        while seconds:
            await asyncio.sleep(seconds)
            for guard in self.guards.values():
                try:
                    await asyncio.to_thread(function, guard)
                except Exception:  # of any kind: maintenance must not end
                    LOGGER.exception("unexpected error")

    def close(self) -> None:
        """Answer what waits, save the monitors' states, end the threads."""
        for guard in self.guards.values():
            with suppress(Exception):  # the others are closed all the same
                guard.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


async def _service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Serving = Annotated[Service, Depends(_service_of)]
"""The service that a request is for."""
