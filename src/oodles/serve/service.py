"""``Service``: the guards that are served, and what their requests share: threads, limits, a token."""

import asyncio
import hmac
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

from oodles.deploy.artefact import Arrays, rows_of
from oodles.errors import ArgumentError
from oodles.records.text import printable
from oodles.serve.guards import Answer, ServedGuard, Version
from oodles.serve.logs import LOGGER, log
from oodles.serve.problems import Problem
from oodles.serve.settings import Settings
from oodles.serve.telemetry import Telemetry

Value = TypeVar("Value")
DECODERS = min(16, max(2, os.cpu_count() or 2))
TICK = 0.5  # seconds between looks at what is due


class Service:
    """Several guards by name behind one port."""

    def __init__(self, guards: Sequence[ServedGuard], settings: Settings, telemetry: Telemetry) -> None:
        names = [guard.name for guard in guards]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ArgumentError(f"two guards are called {twice}; give them names: NAME=GUARD")
        self.guards = {guard.name: guard for guard in guards}
        self.settings = settings
        self.telemetry = telemetry
        self.draining = False
        self._threads = ThreadPoolExecutor(DECODERS, thread_name_prefix="decoding")
        self._requests = 0

    @property
    def ready(self) -> bool:
        """Whether requests are answered: every guard has been run once, and the service is not about to end."""
        return not self.draining and all(guard.ready for guard in self.guards.values())

    def guard(self, name: str | None) -> ServedGuard:
        """The guard of that name, or the only one."""
        if name is None:
            if len(self.guards) > 1:
                raise Problem(400, f"there are several guards; name one: {', '.join(self.guards)}")
            name = next(iter(self.guards))
        found = self.guards.get(name)
        if found is None:
            raise Problem(404, f"there is no guard {printable(name)!r:.100}; there are: {', '.join(self.guards)}")
        if not found.ready:
            raise Problem(503, f"{name} is still warming up; try again later", retry_after=1)
        return found

    def check_token(self, header: str | None) -> None:
        """Raise unless an ``Authorization`` header has the service's token, if it has one."""
        token = self.settings.token
        if token is None:
            return
        given = (header or "").encode("latin-1", "replace")
        if not hmac.compare_digest(given, f"Bearer {token}".encode()):
            raise Problem(401, "the token is missing or wrong; send the header Authorization: Bearer TOKEN")

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request during the block; raises if there are too many, before anything of it is read."""
        if self._requests >= self.settings.concurrency:
            raise Problem(503, f"{self._requests} requests are in progress; try again later", retry_after=1)
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    @asynccontextmanager
    async def in_time(self) -> AsyncGenerator[None, None]:
        """Give up on an answer that takes longer than the settings allow."""
        try:
            async with asyncio.timeout(self.settings.seconds):
                yield
        except TimeoutError:
            raise Problem(
                503, f"there was no answer within {self.settings.seconds:g} seconds; try again later", retry_after=5
            ) from None

    async def answer(self, served: ServedGuard, version: Version, arrays: Arrays, *, explain: bool = False) -> Answer:
        """What a version of a guard says about some rows, if there is room for them and the answer comes in time."""
        with served.admit(rows_of(arrays)):
            async with self.in_time():
                return await asyncio.wrap_future(served.submit(version, arrays, explain=explain))

    async def in_thread(self, function: Callable[..., Value], *arguments: Any) -> Value:
        """Call something that takes a while without holding up other requests."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    async def look_after(self) -> None:
        """Warm up, then follow the guards' files and save what monitors know, until it is cancelled."""
        for guard in self.guards.values():
            await self._safely(guard.warm_up)
        if self.ready:
            log("ready", guards=list(self.guards))
        loop = asyncio.get_running_loop()
        reload_at = save_at = loop.time()
        while True:
            await asyncio.sleep(TICK)
            now = loop.time()
            if self.settings.reload_seconds and now - reload_at >= self.settings.reload_seconds:
                reload_at = now
                for guard in self.guards.values():
                    await self._safely(guard.reload)
            if now - save_at >= self.settings.state_seconds:
                save_at = now
                for guard in self.guards.values():
                    await self._safely(guard.save_state)

    async def _safely(self, function: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(function)
        except Exception:  # of any kind: what looks after the guards must not end
            LOGGER.exception("unexpected error")

    def close(self) -> None:
        """Answer what waits, save the monitors' states, end the threads."""
        for guard in self.guards.values():
            with suppress(Exception):  # the others are closed all the same
                guard.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
