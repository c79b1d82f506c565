"""Bodies of requests: read within limits, unpacked, divided into files, and parsed."""

import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec
from fastapi import HTTPException, Request
from python_multipart.multipart import parse_options_header

from oodles.records.text import printable

Body = TypeVar("Body", bound=msgspec.Struct)
Upload = tuple[str | None, bytes | memoryview]
"""A file: its name, if it has one, and its content."""
MAX_FIELDS = 100  # of a form, beside its files
MAX_PART_HEADERS = 8192


class BodyBudget:
    """The memory of all bodies in progress. When little is left, the largest body is the first to be refused."""

    def __init__(self, size: int) -> None:
        self._free = size

    @contextmanager
    def hold(self, weight: int = 1) -> Iterator[Callable[[int], None]]:
        """Give a function that takes so many more bytes for a body, until the block ends.

        It raises if less is left for others than the body would have. So bodies that never end cannot take
        everything, and nobody waits for anybody.
        """
        held = 0

        def take(size: int) -> None:
            nonlocal held
            amount = weight * size
            if held + amount > self._free:
                message = "the bodies of other requests take the memory that this one needs; try again later"
                raise HTTPException(503, message, {"Retry-After": "1", "Connection": "close"})
            held += amount
            self._free -= amount

        try:
            yield take
        finally:
            self._free += held


async def read_body(request: Request, limit: int, take: Callable[[int], None]) -> bytes:
    """Read the whole body into one buffer; raises if it is empty or has more than ``limit`` bytes."""
    stated = request.headers.get("content-length", "")
    if stated.isdigit() and int(stated) > limit:
        raise _too_large(limit)
    buffer = io.BytesIO()
    async for chunk in request.stream():
        if buffer.tell() + len(chunk) > limit:  # the length may be missing
            raise _too_large(limit)
        take(len(chunk))
        buffer.write(chunk)
    if not buffer.tell():
        raise HTTPException(400, "the request has no body; send an image, a form with images, or JSON")
    return buffer.getvalue()  # the buffer itself: nothing is copied


def unpack(body: bytes, encoding: str, limit: int) -> bytes:
    """Undo the content encoding of a body, up to ``limit`` bytes."""
    if encoding not in ("gzip", "deflate"):
        raise HTTPException(415, f"the content encoding {printable(encoding)!r:.50} is not gzip or deflate")
    packed = zlib.decompressobj(wbits=47)  # either of the two
    try:
        content = packed.decompress(body, limit + 1)
    except zlib.error as error:
        raise HTTPException(400, f"the body cannot be unpacked: {error}") from None
    if len(content) > limit:
        raise _too_large(limit)
    if not packed.eof:
        raise HTTPException(400, f"the body ends before its {encoding} data do")
    return content


def _too_large(limit: int) -> HTTPException:
    return HTTPException(413, f"the body has more than {limit:,} bytes; send less at a time")


def split_form(body: bytes, content_type: str, max_files: int) -> list[Upload]:
    """Return the names and contents of the files of a form; the contents are parts of ``body``, not copies."""
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise HTTPException(400, "the form cannot be read: its content type has no boundary")
    line, files, fields = b"\r\n--" + boundary, list[Upload](), 0
    at = 0 if body.startswith(line[2:]) else body.find(line) + 2
    while not body.startswith(b"--", at := at + len(line) - 2):
        begin = body.find(b"\r\n\r\n", at, at + MAX_PART_HEADERS)
        end = body.find(line, begin + 2)
        if not body.startswith(line[2:], at - len(line) + 2) or begin < 0 or end < 0:
            raise HTTPException(400, "the form cannot be read: a part of it has no end")
        name = _file_name(body[at:begin])
        if name is None:
            fields += 1
        else:
            files.append((name, memoryview(body)[begin + 4 : end]))
        if len(files) > max_files or fields > MAX_FIELDS:
            raise HTTPException(413, f"more than {max_files} files in one request; send them in several")
        at = end + 2
    if not files:
        raise HTTPException(400, "the form has no files; add images as files, under any name")
    return files


def _file_name(headers: bytes) -> str | None:
    """Return the name of the file in a part of a form, None if the part is a plain field."""
    for header in headers.split(b"\r\n"):
        name, _, value = header.partition(b":")
        if name.strip().lower() == b"content-disposition":
            given = parse_options_header(value.strip())[1].get(b"filename")
            return None if given is None else given.decode("utf-8", "replace")
    return None


def parse_json(body: bytes | memoryview, kind: type[Body]) -> Body:
    """Parse a body of JSON."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise HTTPException(400, f"the body is not as /docs describes it: {printable(str(error))[:200]}") from None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from None
