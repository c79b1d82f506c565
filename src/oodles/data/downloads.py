"""Download the suites' datasets from their original sites: verified, and installed atomically."""

import gzip
import io
import json
import shutil
import tarfile
import zlib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from oodles.data.limits import unpacked_limit
from oodles.errors import ArgumentError, DataError
from oodles.extras import needed_by
from oodles.records.files import locked, remove, replacing, sha256, write_record
from oodles.records.text import one_line

CHUNK = 1 << 20
TIMEOUT = 30.0
RETRIES = 2
MAX_DOWNLOAD = 50_000_000_000


@dataclass(frozen=True)
class Source:
    """A dataset: where it goes below the data folder (``place``), and where it comes from.

    ``url`` is a ``.tar.gz`` to unpack, or a single file. ``md5`` is the published checksum; if there is none, the
    download is trusted and its SHA-256 recorded. A dataset that has to be requested has no ``url``; ``how`` says how
    to get it.
    """

    name: str
    title: str
    place: str
    url: str = ""
    md5: str | None = None
    how: str = ""


@dataclass(frozen=True)
class Fetched:
    """The result of :func:`fetch`: where the dataset is and, if it was just downloaded, its SHA-256.

    ``checked`` is true if the download matched a published checksum.
    """

    path: Path
    sha256: str | None = None
    checked: bool = False


def fetch(what: str | Source, data: Path, *, progress: Any = False) -> Fetched:
    """Download a dataset into the folder ``data``, unless it is already there.

    Its checksum is verified before anything is unpacked, and the dataset appears under its own name only when it is
    complete. ``progress`` is the progress bar of :class:`pooch.HTTPDownloader`.
    """
    record = source(what) if isinstance(what, str) else what
    target = data / record.place
    if target.exists():
        return Fetched(target)
    if not record.url:
        raise DataError(f"{record.title} cannot be downloaded automatically: {record.how}; put it at {target}")
    folder = data / f".{record.name}.fetching"
    with locked(folder):
        try:
            if not target.exists():  # else another process was faster
                return _install(record, folder, target, progress)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return Fetched(target)


def _install(record: Source, folder: Path, target: Path, progress: Any) -> Fetched:
    """Download a dataset into ``folder``, and rename it to ``target`` when it is complete."""
    packed = whole = _download(record, folder, target, progress)
    digest = sha256(packed)
    if record.url.partition("?")[0].endswith(".tar.gz"):
        whole = _unpacked(record, packed, target.name)
    with replacing(target) as temporary:
        whole.rename(temporary)
    note = {"kind": "fetched", "schema": 1, "url": record.url, "sha256": digest, "md5": record.md5}
    write_record(folder.parent / f"{record.name}.fetched.json", note)
    return Fetched(target, digest, record.md5 is not None)


def source(name: str) -> Source:
    """The source of a dataset, by its name in the suites."""
    if name not in SOURCES:
        raise ArgumentError(f"dataset {name!r} must be one of {', '.join(SOURCES)}")
    return SOURCES[name]


def _download(record: Source, folder: Path, target: Path, progress: Any) -> Path:
    """Return the downloaded file; a connection that breaks is tried again a few times."""
    with needed_by("a download"):
        import pooch
        from requests.exceptions import ConnectionError as Unreachable
        from requests.exceptions import RequestException

    host = urlsplit(record.url).netloc
    known = {"data": None if record.md5 is None else f"md5:{record.md5}"}
    files = pooch.create(folder, "", registry=known, urls={"data": record.url}, retry_if_failed=RETRIES)
    options = {"timeout": TIMEOUT, "headers": {"Accept-Encoding": "identity"}, "hooks": {"response": _check_response}}
    pooch.get_logger().setLevel("ERROR")
    try:
        return Path(files.fetch("data", downloader=pooch.HTTPDownloader(progressbar=progress, **options)))
    except DataError:
        raise
    except Unreachable:
        raise DataError(
            f"{host} cannot be reached; is there a network connection? "
            f"Or download {record.url} on another machine and put its content at {target}"
        ) from None
    except RequestException as error:
        raise DataError(f"{record.url} cannot be downloaded ({one_line(error)}); fetch it again") from None
    except ValueError:  # of pooch
        raise DataError(f"{record.url} has another MD5 than the published {record.md5}; fetch it again") from None


def _check_response(response: Any, **_: Any) -> None:
    """Raise if a host redirects an encrypted connection to a plain one, or sends more than any dataset here has."""
    address, moved = response.url, response.headers.get("Location", "")
    scheme = urlsplit(moved).scheme
    if response.is_redirect and scheme and scheme not in ("https", urlsplit(address).scheme):
        raise DataError(f"{address} redirects to {moved}, which is not https; nothing was downloaded")
    if int(response.headers.get("Content-Length", 0)) > MAX_DOWNLOAD:
        raise DataError(f"{address} has more than {MAX_DOWNLOAD:,} bytes, which no dataset here has")


def _unpacked(record: Source, packed: Path, name: str) -> Path:
    """Unpack an archive beside itself; return its folder ``name``, or that of all its content if it has no such."""
    content = packed.with_name("content")
    remove(content)  # of a download that was killed
    content.mkdir()
    try:
        with gzip.open(packed) as file:
            stream = _Limited(file, unpacked_limit(packed.stat().st_size))
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                archive.extractall(content, filter=_files_only)  # noqa: S202
            while stream.read(CHUNK):  # to the end, so that gzip verifies its own checksum
                pass
        if not any(content.iterdir()):
            raise tarfile.ReadError("it is empty")
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError) as error:
        raise DataError(f"{record.url} is not a safe and complete archive ({error}); nothing was unpacked") from None
    return content / name if (content / name).is_dir() else content


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


# the sources of the paper's datasets, by their names in the suites
SOURCES: dict[str, Source] = {
    name: Source(name, **record)
    for name, record in json.loads((files("oodles.data") / "sources.json").read_text()).items()
}
