"""Bodies of requests: read within limits of size and time, divided into files, and parsed."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec
from fastapi import HTTPException, Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from oodles.records.text import printable
from oodles.serve.settings import Settings

Body = TypeVar("Body", bound=BaseModel)


@asynccontextmanager
async def within(seconds: float, refusal: HTTPException) -> AsyncGenerator[None, None]:
    """Raise the refusal if the block takes longer."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise refusal from None


async def read_body(request: Request, settings: Settings, limit: int) -> bytes:
    """Read the whole body; raises if it is empty, has more than ``limit`` bytes, or takes too long."""
    async with within(settings.timeout, _too_slow(settings)):
        body = b"".join([chunk async for chunk in _chunks(request, limit)])
    if not body:
        raise HTTPException(400, "the request has no body; send an image, a form with images, or JSON")
    return body


async def read_files(request: Request, settings: Settings) -> list[tuple[str | None, bytes]]:
    """Read the names and contents of the files of a form."""
    chunks = _chunks(request, settings.max_bytes)
    parser = MultiPartParser(request.headers, chunks, max_files=settings.max_images)
    parser.spool_max_size = settings.max_bytes + 1  # in memory, which the limit bounds; there may be no disk
    try:
        async with within(settings.timeout, _too_slow(settings)):
            form = await parser.parse()
            files = [each for _, each in form.multi_items() if isinstance(each, UploadFile)]
            uploads = [(each.filename, await each.read()) for each in files]
            await form.close()
    except MultiPartException as error:
        if error.message.startswith("Too many files"):
            message = f"more than {settings.max_images} files in one request; send them in several"
            raise HTTPException(413, message) from None
        raise HTTPException(400, f"the form cannot be read: {error.message}") from None
    if not uploads:
        raise HTTPException(400, "the form has no files; add images as files, under any name")
    return uploads


def parse_json(body: bytes, kind: type[Body]) -> Body:
    """Parse a body of JSON. msgspec reads numbers up to three times as fast as pydantic, which then checks them."""
    try:
        return kind.model_validate(msgspec.json.decode(body), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(printable(str(part)) for part in first["loc"])
        raise HTTPException(400, f"the body is not as /docs describes it: {place[:100]}: {first['msg']}") from None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from None


async def _chunks(request: Request, limit: int) -> AsyncGenerator[bytes, None]:
    too_large = HTTPException(413, f"the body has more than {limit:,} bytes; send less at a time")
    stated = request.headers.get("content-length", "")
    if stated.isdigit() and int(stated) > limit:
        raise too_large
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:  # the length may be missing
            raise too_large
        yield chunk


def _too_slow(settings: Settings) -> HTTPException:
    return HTTPException(408, f"the body did not arrive within {settings.timeout:g} seconds; send it faster")
