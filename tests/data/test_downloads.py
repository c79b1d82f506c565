"""Downloads from a local HTTP server: complete, interrupted, altered, hostile, missing."""

import gzip
import hashlib
import io
import socket
import tarfile
import threading
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests

from oodles.bench import SUITES
from oodles.data import downloads
from oodles.data.downloads import Source, fetch, source
from oodles.errors import ArgumentError, DataError, FileError
from oodles.records.files import locked, read_record

FILES = {"set/images/a/1.jpg": b"one" * 400, "set/images/b/2.jpg": b"two" * 500, "set/readme.txt": b"words"}


class Handler(BaseHTTPRequestHandler):
    """Serves ``server.files``, the next ``server.cuts`` responses only half-way."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server = self.server
        server.requests.append(self.path)
        path = self.path.partition("?")[0]
        if path in server.moved:
            self.send_response(302)
            self.send_header("Location", server.moved[path])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = None if server.busy else server.files.get(path)
        if body is None:
            self.send_error(server.busy.pop(0) if server.busy else 404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = bool(server.cuts)
        server.cuts -= cut
        self.wfile.write(body[: len(body) // (1 + cut)])
        self.close_connection = cut

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(downloads, "RETRIES", 0)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as one:
        one.daemon_threads = True
        one.files, one.requests, one.cuts, one.busy, one.moved = {}, [], 0, [], {}
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        one.address = f"http://127.0.0.1:{one.server_port}"
        yield one
        one.shutdown()
        thread.join()


def tarball(members=FILES, *, extra=()):
    """A .tar.gz of files by name; ``extra`` are members without content."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in extra:
            archive.addfile(member)
    return raw.getvalue()


def offer(server, content=None, *, path="/set.tar.gz", md5="correct", place="set"):
    """Serve ``content`` and return the record that downloads it."""
    content = tarball() if content is None else content
    server.files[path] = content
    if md5 == "correct":
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    return Source("things", "Things", place, server.address + path, md5)


def things(url):
    return Source("things", "Things", "set", url)


def contents(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {file.relative_to(folder.parent).as_posix(): file.read_bytes() for file in files}


def entries(folder):
    return sorted(entry.name for entry in folder.iterdir())


# Complete ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("md5", ["correct", None])
def test_an_archive_is_downloaded_checked_and_unpacked(server, tmp_path, md5):
    record = offer(server, md5=md5)
    data = tmp_path / "new" / "data"
    result = fetch(record, data)
    body = server.files["/set.tar.gz"]
    assert result.path == data / "set"
    assert contents(data / "set") == FILES
    assert result.checked is (md5 is not None)
    assert result.sha256 == hashlib.sha256(body).hexdigest()
    assert entries(data) == ["set", "things.fetched.json"]
    note = read_record(data / "things.fetched.json", kind="fetched", schema=1)
    assert note == {"kind": "fetched", "schema": 1, "url": record.url, "sha256": result.sha256, "md5": record.md5}


def test_a_single_file_is_kept_as_it_is(server, tmp_path):
    record = offer(server, b"digits" * 99, path="/test.mat", place="svhn/test.mat")
    assert fetch(record, tmp_path).path.read_bytes() == b"digits" * 99
    assert entries(tmp_path) == ["svhn", "things.fetched.json"]


def test_an_archive_without_the_outer_folder_is_unpacked_to_the_same_place(server, tmp_path):
    bare = {name.removeprefix("set/"): content for name, content in FILES.items()}
    fetch(offer(server, tarball(bare)), tmp_path)
    assert contents(tmp_path / "set") == FILES
    assert (tmp_path / "set").stat().st_mode & 0o077 == (tmp_path / "set" / "images").stat().st_mode & 0o077


def test_redirects_and_queries_are_followed(server, tmp_path):
    offer(server)
    server.moved["/moved.tar.gz"] = "/set.tar.gz"
    fetch(things(f"{server.address}/moved.tar.gz?dl=1"), tmp_path)
    assert contents(tmp_path / "set") == FILES


def test_an_existing_dataset_is_left_alone(server, tmp_path):
    record = offer(server)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "mine.txt").write_text("mine")
    result = fetch(record, tmp_path)
    assert result.path == tmp_path / "set"
    assert result.sha256 is None
    assert not server.requests
    assert entries(tmp_path) == ["set"]
    assert entries(tmp_path / "set") == ["mine.txt"]


# Interrupted ------------------------------------------------------------------------------------


def test_a_download_that_was_interrupted_is_tried_again(server, tmp_path, monkeypatch):
    record = offer(server)
    server.cuts = 1
    with pytest.raises(DataError, match=r"127\.0\.0\.1:\d+.* cannot be downloaded .*; fetch it again"):
        fetch(record, tmp_path)
    assert entries(tmp_path) == []
    monkeypatch.setattr(downloads, "RETRIES", 1)
    server.busy = [503]
    fetch(record, tmp_path)
    assert len(server.requests) == 3
    assert contents(tmp_path / "set") == FILES


def test_what_another_process_has_just_downloaded_is_left_alone(server, tmp_path, monkeypatch):
    record = offer(server)
    locked = downloads.locked

    @contextmanager
    def later(folder):
        with locked(folder):
            (tmp_path / "set").mkdir()
            (tmp_path / "set" / "theirs.txt").write_text("theirs")
            yield

    monkeypatch.setattr(downloads, "locked", later)
    assert fetch(record, tmp_path).sha256 is None
    assert entries(tmp_path / "set") == ["theirs.txt"]
    assert not server.requests


# Altered and hostile ----------------------------------------------------------------------------


def test_a_download_that_is_refused_leaves_nothing_behind(server, tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, "MAX_DOWNLOAD", 1000)
    server.moved["/moved.tar.gz"] = "ftp://127.0.0.1/set.tar.gz"
    for record, message in (
        (offer(server, md5="0" * 32), r"has another MD5 than the published 0{32}"),
        (offer(server, bytes(5000), path="/endless.tar.gz"), "more than 1,000 bytes, which no dataset here has"),
        (offer(server, path="/moved.tar.gz"), "redirects to ftp"),
        (things(f"{server.address}/gone.tar.gz"), r"127\.0\.0\.1:\d+.*404 .*Not Found"),
    ):
        with pytest.raises(DataError, match=message):
            fetch(record, tmp_path)
        assert entries(tmp_path) == []


def link(name, target, kind=tarfile.SYMTYPE):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(tarball({"../outside.txt": b"x"}), id="a path upwards"),
        pytest.param(tarball({"set/a.jpg": b"x", "set/../../outside.txt": b"x"}), id="a path down and up"),
        pytest.param(tarball(extra=[link("set/out", "../../outside.txt")]), id="a symbolic link out"),
        pytest.param(tarball(extra=[link("set/out", "/etc/passwd")]), id="an absolute link"),
        pytest.param(tarball(extra=[link("set/in", "readme.txt")]), id="any symbolic link"),
        pytest.param(tarball(extra=[link("set/h", "../outside.txt", tarfile.LNKTYPE)]), id="a hard link out"),
        pytest.param(tarball(extra=[link("set/pipe", "", tarfile.FIFOTYPE)]), id="a pipe"),
        pytest.param(tarball(extra=[link("set/holes.jpg", "", tarfile.GNUTYPE_SPARSE)]), id="a sparse file"),
        pytest.param(tarball({}), id="empty"),
        pytest.param(b"<html>gone</html>", id="a web page"),
        pytest.param(b"", id="nothing"),
        pytest.param(gzip.compress(b"no tar at all" * 99), id="not a tar"),
        pytest.param(tarball()[:-60], id="cut short"),
        pytest.param(tarball()[:-8] + b"\0" * 8, id="a wrong checksum inside"),
        pytest.param(tarball()[:40] + b"\xff" * 40 + tarball()[80:], id="scrambled"),
    ],
)
def test_hostile_and_broken_archives_leave_nothing_behind(server, tmp_path, content):
    data = tmp_path / "deep" / "data"
    with pytest.raises(DataError, match=r"is not a safe and complete archive \(.+\)") as caught:
        fetch(offer(server, content), data)
    assert "\n" not in str(caught.value)
    assert entries(data) == []
    assert entries(tmp_path) == ["deep"]
    assert entries(tmp_path / "deep") == ["data"]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(lambda: tarball({"set/a.jpg": bytes(9_000_000)}), id="one large file"),
        pytest.param(lambda: tarball({f"set/{n}.jpg": bytes(500_000) for n in range(18)}), id="many files"),
        pytest.param(lambda: tarball() + gzip.compress(bytes(9_000_000)), id="zeros after the end"),
        pytest.param(lambda: tarball({"x" * 9_000_000: b""}), id="a long name"),
    ],
)
def test_an_archive_that_grows_too_much_leaves_nothing_behind(server, tmp_path, monkeypatch, content):
    monkeypatch.setattr(downloads, "unpacked_limit", lambda packed: 8_000_000)
    with pytest.raises(DataError, match=r"it unpacks to more than 8,000,000 bytes"):
        fetch(offer(server, content()), tmp_path)
    assert entries(tmp_path) == []


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        ("https", "http", False),
        ("https", "ftp", False),
        ("http", "ftp", False),
        ("https", "https", True),
        ("http", "http", True),
        ("http", "https", True),
    ],
)
def test_redirects_never_leave_an_encrypted_connection(old, new, allowed):
    answer = requests.Response()
    answer.url, answer.status_code, answer.headers["Location"] = f"{old}://a.org/x", 302, f"{new}://b.org/y"
    with nullcontext() if allowed else pytest.raises(DataError, match=rf"redirects to {new}://b.org/y, which is not"):
        downloads._check_response(answer)


def test_an_absolute_path_stays_inside(server, tmp_path):
    outside = tmp_path / "outside.txt"
    fetch(offer(server, tarball({str(outside): b"x"})), tmp_path / "data")
    assert not outside.exists()


# Missing ----------------------------------------------------------------------------------------


def test_a_host_that_cannot_be_reached_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(downloads, "RETRIES", 0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening
        record = things(f"http://127.0.0.1:{taken.getsockname()[1]}/set.tar.gz")
        with pytest.raises(DataError, match=r"127\.0\.0\.1:\d+ cannot be reached; is there a network") as one:
            fetch(record, tmp_path)
    assert "\n" not in str(one.value)
    with pytest.raises(DataError, match=r"nowhere\.invalid cannot be reached"):
        fetch(things("http://nowhere.invalid/set.tar.gz"), tmp_path)


def test_only_http_and_https_are_allowed(tmp_path):
    (tmp_path / "x.tar.gz").write_bytes(tarball())
    with pytest.raises(DataError, match="cannot be downloaded"):
        fetch(things(f"file://{tmp_path}/x.tar.gz"), tmp_path / "data")


def test_two_processes_do_not_download_the_same_dataset_at_once(server, tmp_path):
    record = offer(server)
    with locked(tmp_path / ".things.fetching"), pytest.raises(FileError, match="being written by another process"):
        fetch(record, tmp_path)
    assert not server.requests


# The records ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "words"), [("imagenet", "account at image-net.org"), ("places365", "terms at")])
def test_datasets_that_must_be_requested_say_how(tmp_path, name, words):
    message = rf"cannot be downloaded automatically: .*{words}.*; put it at .*{name}"
    with pytest.raises(DataError, match=message) as caught:
        fetch(name, tmp_path)
    assert "\n" not in str(caught.value)
    (tmp_path / name).mkdir()
    assert fetch(name, tmp_path).path == tmp_path / name


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="dataset 'mnist' must be one of cifar10, cifar100"):
        fetch("mnist", tmp_path)


def test_every_dataset_of_the_paper_is_downloaded_to_where_its_suite_looks():
    for suite in SUITES.values():
        parts = {suite.name: (*suite.train, *suite.test), **suite.ood}
        for name, places in parts.items():
            record = source(name)
            assert record.name == name
            assert any(f"{place}/".startswith(f"{record.place}/") for place in places), name
