"""Download the suites' datasets from their original sites: resumed if interrupted, verified, installed atomically."""

import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import ssl
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage, HTTPResponse
from importlib.resources import files
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from filelock import FileLock, Timeout

from oodles.data.limits import unpacked_limit
from oodles.errors import ArgumentError, DataError
from oodles.records.files import sha256, write_record

CHUNK = 1 << 20
TIMEOUT = 30.0
ATTEMPTS = 5
PAUSE = 2.0
"""Seconds before a busy host is asked again, longer each time."""
BUSY = (408, 409, 425, 429, 500, 502, 503, 504)
MAX_DOWNLOAD = 50_000_000_000

Progress = Callable[[int, int | None], None]
"""Called with the bytes downloaded so far and the total, which is None if the host does not say."""


@dataclass(frozen=True)
class Download:
    """A dataset that anybody can download: a ``.tar.gz`` to unpack, or a single file.

    ``place`` is where it goes below the data folder. ``md5`` is the published checksum; if there is none, the
    download is trusted and its SHA-256 recorded.
    """

    name: str
    title: str
    url: str
    place: str
    md5: str | None = None

    @property
    def host(self) -> str:
        """The host it is downloaded from."""
        return urlsplit(self.url).netloc


@dataclass(frozen=True)
class ByHand:
    """A dataset that has to be requested: where it goes below the data folder, and how to get it."""

    name: str
    title: str
    place: str
    how: str


Source = Download | ByHand


@dataclass(frozen=True)
class Fetched:
    """The result of :func:`fetch`: where the dataset is and, if it was just downloaded, its SHA-256.

    ``checked`` is true if the download matched a published checksum.
    """

    name: str
    path: Path
    sha256: str | None = None
    checked: bool = False


def fetch(what: str | Source, data: Path, *, progress: Progress | None = None) -> Fetched:
    """Download a dataset into the folder ``data``, unless it is already there.

    The download goes into ``NAME.part`` and is resumed where it stopped, in this call or a later one. Its checksum
    is verified before anything is unpacked, and the dataset appears under its own name only when it is complete.
    """
    record = source(what) if isinstance(what, str) else what
    target = data / record.place
    if target.exists():
        return Fetched(record.name, target)
    if isinstance(record, ByHand):
        raise DataError(f"{record.title} cannot be downloaded automatically: {record.how}; put it at {target}")
    with _locked(record, data):
        if target.exists():  # another process was faster
            return Fetched(record.name, target)
        part = data / f"{record.name}.part"
        _download(record, part, progress)
        digest = _check(record, part)
        if record.url.partition("?")[0].endswith(".tar.gz"):
            _unpack(record, part, target)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            part.replace(target)
        note = {"kind": "fetched", "schema": 1, "url": record.url, "sha256": digest, "md5": record.md5}
        write_record(data / f"{record.name}.fetched.json", note)
    return Fetched(record.name, target, digest, record.md5 is not None)


def source(name: str) -> Source:
    """The source of a dataset, by its name in the suites."""
    if name not in SOURCES:
        raise ArgumentError(f"dataset {name!r} must be one of {', '.join(SOURCES)}")
    return SOURCES[name]


@contextlib.contextmanager
def _locked(record: Download, data: Path) -> Iterator[None]:
    """Keep other processes from downloading the same dataset into the same folder."""
    data.mkdir(parents=True, exist_ok=True)
    lock = data / f".{record.name}.lock"
    try:
        with FileLock(lock, timeout=0):
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
    except Timeout:
        raise DataError(
            f"{record.name} is being downloaded into {data} by another process; wait for it to finish"
        ) from None


def _download(record: Download, part: Path, progress: Progress | None) -> None:
    """Download into ``part``, resuming from what it holds; an interrupted connection is reopened a few times."""
    for attempt in range(1, ATTEMPTS + 1):
        total = None
        try:
            with _open(record, part) as (response, start, total):
                if response is not None:
                    _save(response, part, start, total, progress)
        except HTTPError as error:
            error.close()
            if error.code not in BUSY or attempt == ATTEMPTS:
                raise DataError(f"{record.host} answered {error.code} {error.reason} for {record.url}") from None
            time.sleep(PAUSE * attempt)
            continue
        except URLError as error:
            raise DataError(
                f"{record.host} cannot be reached ({error.reason}); is there a network connection? "
                f"Or download {record.url} on another machine and put its content at {part.parent / record.place}"
            ) from None
        except (HTTPException, ConnectionError, TimeoutError, ssl.SSLError):
            continue
        if total is None or _size(part) == total:
            return
    raise DataError(
        f"{record.host} interrupted {record.url} {ATTEMPTS} times, last at {_size(part):,} bytes; "
        f"{part} is kept: fetch again to resume"
    )


@contextlib.contextmanager
def _open(record: Download, part: Path) -> Iterator[tuple[HTTPResponse | None, int, int | None]]:
    """The response, the byte it starts at, and the size of the file; no response if ``part`` is already complete."""
    if urlsplit(record.url).scheme not in ("http", "https"):
        raise ArgumentError(f"{record.url} must be an http or https address")
    have = _size(part)
    headers = {"User-Agent": "oodles", "Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response = build_opener(_SafeRedirects).open(Request(record.url, headers=headers), timeout=TIMEOUT)  # noqa: S310
    except HTTPError as error:
        if error.code != 416 or not have:
            raise
        error.close()
        total = _number(r"bytes \*/(\d+)", error.headers.get("Content-Range"))
        if total != have:
            part.unlink()  # longer than the file: not a prefix of it, so start over
            raise ConnectionError from None
        yield None, have, total
        return
    with response:
        if response.status == 206:
            span = response.headers.get("Content-Range")
            if _number(r"bytes (\d+)-", span) != have:
                part.unlink()  # the host cannot resume it, and would send the same again
                raise ConnectionError(span)
            yield response, have, _number(r"bytes \d+-\d+/(\d+)", span)
        else:
            yield response, 0, _number(r"(\d+)", response.headers.get("Content-Length"))


class _SafeRedirects(HTTPRedirectHandler):
    """Follows redirects, but not from an encrypted connection to a plain one or to another protocol."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        if urlsplit(newurl).scheme not in ("https", req.type):
            fp.close()
            raise DataError(f"{req.full_url} redirects to {newurl}, which is not https; nothing was downloaded")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _save(response: HTTPResponse, part: Path, start: int, total: int | None, progress: Progress | None) -> None:
    with part.open("ab" if start else "wb") as file:
        done = start
        while chunk := response.read(CHUNK):
            file.write(chunk)
            done += len(chunk)
            if done > MAX_DOWNLOAD:
                file.truncate(0)
                raise DataError(f"{response.url} has more than {MAX_DOWNLOAD:,} bytes, which no dataset here has")
            if progress is not None:
                progress(done, total)
        file.flush()
        os.fsync(file.fileno())


def _check(record: Download, part: Path) -> str:
    """Compare the MD5 with the published one; returns the SHA-256."""
    if record.md5 is not None:
        with part.open("rb") as file:
            md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if md5 != record.md5:
            part.unlink()
            raise DataError(
                f"{record.url} has MD5 {md5}, not the published {record.md5}; nothing was unpacked; fetch it again"
            )
    return sha256(part)


def _unpack(record: Download, part: Path, target: Path) -> None:
    """Unpack into a temporary folder and rename it to ``target``; an invalid archive leaves nothing behind."""
    temporary = Path(tempfile.mkdtemp(prefix=f".{record.name}.", dir=part.parent))
    content = temporary / "content"
    try:
        content.mkdir()
        with gzip.open(part) as packed:
            stream = _Limited(packed, unpacked_limit(_size(part)))
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                archive.extractall(content, filter=_files_only)  # noqa: S202
            while stream.read(CHUNK):  # to the end, so that gzip verifies its own checksum
                pass
        if not any(content.iterdir()):
            raise tarfile.ReadError("it is empty")
        inner = content / target.name
        target.parent.mkdir(parents=True, exist_ok=True)
        (inner if inner.is_dir() else content).rename(target)
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError) as error:
        part.unlink()
        raise DataError(f"{record.url} is not a safe and complete archive ({error}); nothing was unpacked") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    part.unlink()


class _Limited(io.RawIOBase):
    """Reads a stream up to a limit, so that a small archive cannot fill the disk."""

    def __init__(self, stream: gzip.GzipFile, limit: int) -> None:
        self.stream, self.limit = stream, limit
        self.left = limit

    def read(self, size: int = -1) -> bytes:
        content = self.stream.read(min(size, CHUNK) if size >= 0 else CHUNK)
        self.left -= len(content)
        if self.left < 0:
            raise tarfile.ReadError(f"it unpacks to more than {self.limit:,} bytes")
        return content


def _files_only(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """Python's filter for data, and no links or holes: datasets need none, and attacks are built on them."""
    if not (member.isfile() or member.isdir()) or member.issparse():
        raise tarfile.FilterError(f"{member.name!r} is a link, a device or a sparse file")
    return tarfile.data_filter(member, folder)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _number(pattern: str, text: str | None) -> int | None:
    found = re.match(pattern, text or "")
    return int(found[1]) if found else None


# the sources of the paper's datasets, by their names in the suites
SOURCES: dict[str, Source] = {
    name: Download(name, **record) if "url" in record else ByHand(name, **record)
    for name, record in json.loads((files("oodles.data") / "sources.json").read_text()).items()
}
