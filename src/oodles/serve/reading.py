"""Bodies of requests: read within limits of size and time, divided into files, and parsed."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar

import msgspec
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from oodles.serve.problems import Problem
from oodles.serve.settings import Settings

Content = TypeVar("Content", bound=msgspec.Struct)
MAX_FIELDS = 64  # of a form, beside its files


class Upload(NamedTuple):
    """A file of a form, or the whole body."""

    name: str | None
    content: bytes


async def read_body(request: Request, settings: Settings, *, limit: int | None = None) -> bytes:
    """The whole body; an empty one, one that is too large and one that takes too long are refused."""
    most = settings.body_bytes if limit is None else limit
    async with _in_time(settings):
        body = b"".join([chunk async for chunk in _chunks(request, most)])
    if not body:
        raise Problem(400, "the request has no body; send an image, a form with images, or JSON")
    return body


async def read_files(request: Request, settings: Settings) -> list[Upload]:
    """The files of a form."""
    parser = MultiPartParser(
        request.headers,
        _chunks(request, settings.body_bytes),
        max_files=settings.images,
        max_fields=MAX_FIELDS,
    )
    parser.spool_max_size = settings.body_bytes + 1  # in memory, which the limit bounds; there may be no disk
    try:
        async with _in_time(settings):
            form = await parser.parse()
            files = [each for _, each in form.multi_items() if isinstance(each, UploadFile)]
            uploads = [Upload(each.filename, await each.read()) for each in files]
            await form.close()
    except MultiPartException as error:
        if error.message.startswith("Too many files"):
            raise Problem(413, f"more than {settings.images} files in one request; send them in several") from None
        raise Problem(400, f"the form cannot be read: {error.message}") from None
    if not uploads:
        raise Problem(400, "the form has no files; add images as files, under any name")
    return uploads


def parse_json(body: bytes, kind: type[Content], wanted: str) -> Content:
    """A body of JSON; ``wanted`` says what one that does not fit should be."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Problem(400, f"the body is not {wanted} in JSON: {error}") from None


async def _chunks(request: Request, limit: int) -> AsyncGenerator[bytes, None]:
    stated = request.headers.get("content-length", "")
    if stated.isdigit() and int(stated) > limit:
        raise _too_large(limit)
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:  # the length may be missing
            raise _too_large(limit)
        yield chunk


def _too_large(limit: int) -> Problem:
    return Problem(413, f"the body has more than {limit:,} bytes; send less at a time")


@asynccontextmanager
async def _in_time(settings: Settings) -> AsyncGenerator[None, None]:
    """Refuse a client that takes longer than the settings allow."""
    try:
        async with asyncio.timeout(settings.seconds):
            yield
    except TimeoutError:
        raise Problem(408, f"the body did not arrive within {settings.seconds:g} seconds; send it faster") from None
