"""Fetching the suites' image sets from where their makers published them: checked, resumed, whole or not at all."""

import contextlib
import gzip
import hashlib
import os
import re
import shutil
import ssl
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from filelock import FileLock, Timeout

from oodles.errors import ArgumentError, DataError
from oodles.files import sha256, write_record

PIECE = 1 << 20
PATIENCE = 30.0
ATTEMPTS = 5

Progress = Callable[[int, int | None], None]
"""Called with the bytes that are here and the bytes there are in all, None where the host does not say."""


@dataclass(frozen=True)
class Download:
    """A set that its makers let anybody download: a ``.tar.gz`` to unpack, or one file to keep.

    ``place`` is what is there afterwards, below the data folder. ``md5`` is the published checksum;
    where there is none, what arrived is trusted and its SHA-256 written down.
    """

    name: str
    title: str
    url: str
    place: str
    md5: str | None = None

    @property
    def host(self) -> str:
        """The machine it comes from."""
        return urlsplit(self.url).netloc


@dataclass(frozen=True)
class ByHand:
    """A set that has to be asked for: where it belongs below the data folder, and how to get it."""

    name: str
    title: str
    place: str
    how: str


Source = Download | ByHand


@dataclass(frozen=True)
class Fetched:
    """What :func:`fetch` did: where the set is, and, if it was fetched just now, its SHA-256.

    ``checked`` says whether the download agreed with a published checksum.
    """

    name: str
    path: Path
    sha256: str | None = None
    checked: bool = False


def fetch(what: str | Source, data: Path, *, progress: Progress | None = None) -> Fetched:
    """Bring a set into the folder ``data``, unless it is there already.

    The download grows in ``NAME.part`` and goes on where it stopped, in this call or a later one. It is
    compared with its checksum before anything is unpacked, and a set appears under its own name only
    when it is whole.
    """
    record = source(what) if isinstance(what, str) else what
    home = data / record.place
    if home.exists():
        return Fetched(record.name, home)
    if isinstance(record, ByHand):
        raise DataError(f"{record.title} cannot be fetched for you: {record.how}; put it at {home}")
    with _alone(record, data):
        part = data / f"{record.name}.part"
        _download(record, part, progress)
        seen = _check(record, part)
        if record.url.partition("?")[0].endswith(".tar.gz"):
            _unpack(record, part, home)
        else:
            home.parent.mkdir(parents=True, exist_ok=True)
            part.replace(home)
        note = {"kind": "fetched", "schema": 1, "url": record.url, "sha256": seen, "md5": record.md5}
        write_record(data / f"{record.name}.fetched.json", note)
    return Fetched(record.name, home, seen, record.md5 is not None)


def source(name: str) -> Source:
    """Where a set comes from, by the name it has in the suites."""
    if name not in SOURCES:
        raise ArgumentError(f"{name!r} is no set that can be fetched; there are {', '.join(SOURCES)}")
    return SOURCES[name]


@contextlib.contextmanager
def _alone(record: Download, data: Path) -> Iterator[None]:
    """Nobody else fetches this set into this folder meanwhile."""
    data.mkdir(parents=True, exist_ok=True)
    lock = data / f".{record.name}.lock"
    try:
        with FileLock(lock, timeout=0):
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
    except Timeout:
        raise DataError(f"{record.name} is being fetched into {data} by another process; wait for it") from None


def _download(record: Download, part: Path, progress: Progress | None) -> None:
    """Fill ``part``, going on from what it holds; a connection that is cut is opened again a few times."""
    for _ in range(ATTEMPTS):
        total = None
        try:
            with _open(record, part) as (response, start, total):
                if response is not None:
                    _save(response, part, start, total, progress)
        except HTTPError as error:
            error.close()
            raise DataError(f"{record.host} answered {error.code} {error.reason} for {record.url}") from None
        except URLError as error:
            raise DataError(
                f"{record.host} cannot be reached ({error.reason}); is there a network? "
                f"Or get {record.url} elsewhere and unpack it as {part.parent / record.place}"
            ) from None
        except (HTTPException, ConnectionError, TimeoutError, ssl.SSLError):
            continue
        if total is None or _size(part) == total:
            return
    raise DataError(
        f"{record.host} broke off {record.url} at {_size(part):,} bytes, {ATTEMPTS} times; "
        f"{part} is kept, fetch again to go on from there"
    )


@contextlib.contextmanager
def _open(record: Download, part: Path) -> Iterator[tuple[HTTPResponse | None, int, int | None]]:
    """The answer, the byte it starts from, and the bytes of the whole file; no answer where all is here."""
    if urlsplit(record.url).scheme not in ("http", "https"):
        raise ArgumentError(f"{record.url} is neither http nor https")
    have = _size(part)
    headers = {"User-Agent": "oodles", "Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response = urlopen(Request(record.url, headers=headers), timeout=PATIENCE)  # noqa: S310
    except HTTPError as error:
        if error.code != 416 or not have:
            raise
        error.close()
        total = _number(r"bytes \*/(\d+)", error.headers.get("Content-Range"))
        if total != have:
            part.unlink()  # longer than the file itself: it is not a beginning of it
            raise ConnectionError from None
        yield None, have, total
        return
    with response:
        if response.status == 206:
            span = response.headers.get("Content-Range")
            if _number(r"bytes (\d+)-", span) != have:
                raise ConnectionError(span)
            yield response, have, _number(r"bytes \d+-\d+/(\d+)", span)
        else:
            yield response, 0, _number(r"(\d+)", response.headers.get("Content-Length"))


def _save(response: HTTPResponse, part: Path, start: int, total: int | None, progress: Progress | None) -> None:
    with part.open("ab" if start else "wb") as file:
        done = start
        while piece := response.read(PIECE):
            file.write(piece)
            done += len(piece)
            if progress is not None:
                progress(done, total)
        file.flush()
        os.fsync(file.fileno())


def _check(record: Download, part: Path) -> str:
    """The SHA-256 of what arrived, after its MD5 was compared with the published one."""
    if record.md5 is not None:
        with part.open("rb") as file:
            md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if md5 != record.md5:
            part.unlink()
            raise DataError(
                f"{record.url} has MD5 {md5}, not the published {record.md5}; nothing was unpacked, fetch it again"
            )
    return sha256(part)


def _unpack(record: Download, part: Path, home: Path) -> None:
    """Unpack beside ``home`` and move it there in one step; what is no image set's archive leaves no trace."""
    workshop = Path(tempfile.mkdtemp(prefix=f".{record.name}.", dir=part.parent))
    content = workshop / "content"
    try:
        content.mkdir()
        with gzip.open(part) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            archive.extractall(content, filter=_files_only)  # noqa: S202
            while stream.read(PIECE):  # to the end, where gzip keeps a checksum of its own
                pass
        if not any(content.iterdir()):
            raise tarfile.ReadError("it is empty")
        inner = content / home.name
        home.parent.mkdir(parents=True, exist_ok=True)
        (inner if inner.is_dir() else content).rename(home)
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError) as error:
        part.unlink()
        raise DataError(f"{record.url} is no archive that is safe and whole ({error}); nothing was unpacked") from None
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
    part.unlink()


def _files_only(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """Python's own rules for data, and no links at all: image sets need none, and tricks are made of them."""
    if not (member.isfile() or member.isdir()):
        raise tarfile.FilterError(f"{member.name!r} is a link or a device")
    return tarfile.data_filter(member, folder)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _number(pattern: str, text: str | None) -> int | None:
    found = re.match(pattern, text or "")
    return int(found[1]) if found else None


_TORONTO = "https://www.cs.toronto.edu/~kriz"
_WISCONSIN = "http://pages.cs.wisc.edu/~huangrui/imagenet_ood_dataset"
_DROPBOX = "https://www.dropbox.com/s"

SOURCES: dict[str, Source] = {
    record.name: record
    for record in (
        Download(
            "cifar10",
            "CIFAR-10",
            f"{_TORONTO}/cifar-10-python.tar.gz",
            "cifar-10-batches-py",
            "c58f30108f718f92721af3b95e74349a",
        ),
        Download(
            "cifar100",
            "CIFAR-100",
            f"{_TORONTO}/cifar-100-python.tar.gz",
            "cifar-100-python",
            "eb9058c3a382ffc7106e4002c42a8d85",
        ),
        ByHand(
            "imagenet",
            "ImageNet-1k",
            "imagenet",
            "with an account at image-net.org download the ILSVRC 2012 training and validation images, and sort "
            "them into train/<class>/ and val/<class>/, the classes being the 1,000 names n01440764, n01443537, ...",
        ),
        Download(
            "svhn",
            "SVHN, cropped test digits",
            "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
            "svhn/test_32x32.mat",
            "eb5a983be6a315427106f1b164d9cef3",
        ),
        Download("lsun_crop", "LSUN, cropped", f"{_DROPBOX}/fhtsw1m3qxlwj6h/LSUN.tar.gz?dl=1", "LSUN"),
        Download("lsun_resize", "LSUN, resized", f"{_DROPBOX}/moqh2wh8696c3yl/LSUN_resize.tar.gz?dl=1", "LSUN_resize"),
        Download("isun", "iSUN", f"{_DROPBOX}/ssz7qxfqae0cca5/iSUN.tar.gz?dl=1", "iSUN"),
        Download(
            "textures",
            "Describable Textures (DTD)",
            "https://www.robots.ox.ac.uk/~vgg/data/dtd/download/dtd-r1.0.1.tar.gz",
            "dtd",
            "fff73e5086ae6bdbea199a49dfb8a4c1",
        ),
        ByHand(
            "places365",
            "Places365",
            "places365",
            "agree to the terms at places2.csail.mit.edu, download the small (256 x 256) test or validation images "
            "and unpack them into the folder images/ (the paper took 10,000 test images at random)",
        ),
        Download("inaturalist", "iNaturalist, 10,000 plants", f"{_WISCONSIN}/iNaturalist.tar.gz", "iNaturalist"),
        Download("sun", "SUN, 10,000 scenes", f"{_WISCONSIN}/SUN.tar.gz", "SUN"),
        Download("places", "Places, 10,000 scenes", f"{_WISCONSIN}/Places.tar.gz", "Places"),
    )
}
"""Where every set of the paper comes from, by its name in the suites."""
