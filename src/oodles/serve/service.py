"""``Service``: the guards that are served, and what their requests share: threads and limits."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Annotated, Any, TypeVar

from fastapi import Depends, HTTPException, Request
from starlette.requests import ClientDisconnect

from oodles.deploy.artefact import Arrays, rows_of
from oodles.deploy.verdict import ArrayVerdict
from oodles.records.text import printable
from oodles.serve.guards import ServedGuard, Version
from oodles.serve.inputs import THREAD, HeavyError
from oodles.serve.reading import BodyBudget, read_body, unpack
from oodles.serve.settings import Settings
from oodles.serve.telemetry import LOGGER, Telemetry, log

Value = TypeVar("Value")
DECODERS = min(16, max(2, os.cpu_count() or 2))
MAX_BODIES = 10  # of the largest size, in memory at once
JSON_WEIGHT = 5  # numbers take more memory than their text
SLOWED_SECONDS, MAX_SLOWED = 0.25, 256  # refusals wait so long before they are sent, as long as they are not too many
STATE_SECONDS = 5.0  # between writes of what monitors know


class Service:
    """Several guards by name behind one port."""

    def __init__(self, guards: Sequence[ServedGuard], settings: Settings, telemetry: Telemetry) -> None:
        self.guards = {guard.name: guard for guard in guards}
        self.settings = settings
        self.telemetry = telemetry
        self.draining = False
        self._threads = ThreadPoolExecutor(DECODERS, thread_name_prefix="decoding")
        self._heavy_threads = ThreadPoolExecutor(
            DECODERS, "heavy decoding", initializer=setattr, initargs=(THREAD, "heavy", True)
        )
        self._bodies = BodyBudget(MAX_BODIES * settings.max_bytes)
        self._requests = self._slowed = 0

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

    def without_paths(self, message: str) -> str:
        """Name the guards' files in a message, but not where they are."""
        for guard in self.guards.values():
            message = message.replace(str(guard.path), guard.path.name)
        return message

    async def respond(self, request: Request, work: Callable[[bytes], Awaitable[Value]], *, json: bool) -> Value:
        """Read a request's body and give it to ``work``, within the limits on memory, time and number.

        A request has its place among those that are answered only once its body is there, so that clients that send
        slowly hinder nobody.
        """
        try:
            deadline = asyncio.get_running_loop().time() + self.settings.timeout
            limit = self.settings.max_json_bytes if json else self.settings.max_bytes
            self._check_places()  # before anything is read
            with self._bodies.hold(JSON_WEIGHT if json else 1) as take:
                try:
                    async with asyncio.timeout_at(deadline):
                        body = await read_body(request, limit, take)
                except TimeoutError:
                    message = f"the body did not arrive within {self.settings.timeout:g} seconds; send it faster"
                    raise HTTPException(408, message) from None

                async def answer() -> Value:
                    encoding = request.headers.get("content-encoding", "identity").lower()
                    if encoding == "identity":
                        return await work(body)
                    content = await self.in_thread(unpack, body, encoding, limit)
                    take(len(content))
                    return await work(content)

                with self._place():
                    return await self._answered(request, answer(), deadline)
        except HTTPException as error:
            if error.status_code == 503 and self._slowed < MAX_SLOWED:
                self._slowed += 1  # a client that asks again at once must not keep the service from answering others
                await asyncio.sleep(SLOWED_SECONDS)
                self._slowed -= 1
            raise

    def _check_places(self) -> None:
        if self._requests >= self.settings.concurrency:
            raise HTTPException(
                503, f"{self._requests} requests are in progress; try again later", {"Retry-After": "1"}
            )

    @contextmanager
    def _place(self) -> Iterator[None]:
        """Count a request as in progress during the block; raises if there are too many."""
        self._check_places()
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    async def _answered(self, request: Request, work: Awaitable[Value], deadline: float) -> Value:
        """Wait for an answer until the deadline, and no longer than the client does."""
        answer, gone = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
        try:
            left = deadline - asyncio.get_running_loop().time()
            await asyncio.wait({answer, gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            if gone.done():
                raise ClientDisconnect
            message = f"there was no answer within {self.settings.timeout:g} seconds; try again later"
            raise HTTPException(503, message, {"Retry-After": "5"})
        finally:
            answer.cancel()
            gone.cancel()

    async def judge(
        self, served: ServedGuard, version: Version, arrays: Arrays, *, explain: bool = False
    ) -> ArrayVerdict:
        """Run a version of a guard on rows that were admitted, at most ``max_batch`` at once."""
        size = self.settings.max_batch
        parts = [
            {name: value[start : start + size] for name, value in arrays.items()}
            for start in range(0, rows_of(arrays), size)
        ]
        futures = [asyncio.wrap_future(served.submit(version, part, explain=explain)) for part in parts]
        return ArrayVerdict.joined(await asyncio.gather(*futures))

    async def in_thread(self, function: Callable[..., Value], *arguments: Any) -> Value:
        """Call something that takes a while without holding up other requests."""
        try:
            return await self._run(self._threads, function, *arguments)
        except HeavyError:
            return await self._run(self._heavy_threads, function, *arguments)

    async def _run(self, threads: ThreadPoolExecutor, function: Callable[..., Value], *arguments: Any) -> Value:
        future, loop = threads.submit(function, *arguments), asyncio.get_running_loop()
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancelled():  # a thread cannot be stopped: the request has a place until it ends
                self._requests += 1
                future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._release))
            raise

    def _release(self) -> None:
        self._requests -= 1

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
        for threads in (self._threads, self._heavy_threads):
            threads.shutdown(wait=False, cancel_futures=True)


async def _service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Serving = Annotated[Service, Depends(_service_of)]
"""The service that a request is for."""
