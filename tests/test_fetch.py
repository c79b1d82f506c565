"""Fetching against a real server on this machine: whole, cut short, altered, hostile, absent."""

import gzip
import hashlib
import io
import json
import socket
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from filelock import FileLock

from oodles.bench import SUITES
from oodles.bench import fetch as module
from oodles.bench.fetch import SOURCES, ByHand, Download, fetch, source
from oodles.errors import ArgumentError, DataError
from oodles.files import read_record

PICTURES = {"set/images/a/1.jpg": b"one" * 400, "set/images/b/2.jpg": b"two" * 500, "set/readme.txt": b"words"}


class Handler(BaseHTTPRequestHandler):
    """Serves ``server.files``; cuts the next ``server.cuts`` answers off half-way; knows ranges if told to."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server = self.server
        server.requests.append((self.path, self.headers.get("Range")))
        path = self.path.partition("?")[0]
        if path == "/moved.tar.gz":
            self.send_response(302)
            self.send_header("Location", "/set.tar.gz")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = server.files.get(path)
        if body is None:
            self.send_error(404)
            return
        start = 0
        if server.ranges and self.headers.get("Range"):
            start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        if start >= len(body) > 0:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(body)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        rest = body[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if server.cuts:
            server.cuts -= 1
            self.wfile.write(rest[: len(rest) // 2])
            self.close_connection = True
        else:
            self.wfile.write(rest)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as one:
        one.daemon_threads = True
        one.files, one.requests, one.cuts, one.ranges = {}, [], 0, True
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        one.address = f"http://127.0.0.1:{one.server_port}"
        yield one
        one.shutdown()
        thread.join()


def tarball(members=PICTURES, *, extra=()):
    """A .tar.gz of files by name; ``extra`` holds ready-made members without content."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in extra:
            archive.addfile(member)
    return raw.getvalue()


def offer(server, content=None, *, path="/set.tar.gz", md5="right", place="set"):
    """Serve ``content`` and make the record that fetches it."""
    content = tarball() if content is None else content
    server.files[path] = content
    if md5 == "right":
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    return Download("things", "Things", server.address + path, place, md5)


def whole(folder):
    return {
        file.relative_to(folder.parent).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()
    }


def left(folder):
    return sorted(entry.name for entry in folder.iterdir())


# Whole ------------------------------------------------------------------------------------------


def test_an_archive_is_downloaded_checked_and_unpacked(server, tmp_path):
    record, seen = offer(server), []
    data = tmp_path / "new" / "data"
    result = fetch(record, data, progress=lambda done, total: seen.append((done, total)))
    body = server.files["/set.tar.gz"]
    assert result.path == data / "set"
    assert whole(data / "set") == PICTURES
    assert result.checked
    assert result.sha256 == hashlib.sha256(body).hexdigest()
    assert seen[-1] == (len(body), len(body))
    assert left(data) == ["set", "things.fetched.json"]
    note = read_record(data / "things.fetched.json", kind="fetched", schema=1)
    assert note == {"kind": "fetched", "schema": 1, "url": record.url, "sha256": result.sha256, "md5": record.md5}


def test_a_file_is_kept_as_it_is(server, tmp_path):
    record = offer(server, b"digits" * 99, path="/test.mat", place="svhn/test.mat")
    assert fetch(record, tmp_path).path.read_bytes() == b"digits" * 99
    assert left(tmp_path) == ["svhn", "things.fetched.json"]


def test_without_a_published_checksum_what_was_seen_is_written_down(server, tmp_path):
    result = fetch(offer(server, md5=None), tmp_path)
    assert not result.checked
    assert json.loads((tmp_path / "things.fetched.json").read_text())["sha256"] == result.sha256
    assert whole(tmp_path / "set") == PICTURES


def test_an_archive_without_the_outer_folder_ends_in_the_same_place(server, tmp_path):
    bare = {name.removeprefix("set/"): content for name, content in PICTURES.items()}
    fetch(offer(server, tarball(bare)), tmp_path)
    assert whole(tmp_path / "set") == PICTURES
    assert (tmp_path / "set").stat().st_mode & 0o077 == (tmp_path / "set" / "images").stat().st_mode & 0o077


def test_redirects_and_queries_are_followed(server, tmp_path):
    offer(server)
    fetch(Download("things", "Things", f"{server.address}/moved.tar.gz?dl=1", "set"), tmp_path)
    assert whole(tmp_path / "set") == PICTURES


def test_what_is_there_is_left_alone(server, tmp_path):
    record = offer(server)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "mine.txt").write_text("mine")
    result = fetch(record, tmp_path)
    assert result.path == tmp_path / "set"
    assert result.sha256 is None
    assert not server.requests
    assert left(tmp_path) == ["set"]
    assert left(tmp_path / "set") == ["mine.txt"]


# Cut short --------------------------------------------------------------------------------------


def test_a_cut_connection_is_taken_up_again_where_it_broke(server, tmp_path):
    record = offer(server)
    server.cuts = 2
    assert fetch(record, tmp_path).checked
    ranges = [wanted for _, wanted in server.requests]
    body = len(server.files["/set.tar.gz"])
    assert ranges[0] is None
    assert ranges[1] == f"bytes={body // 2}-"
    assert len(ranges) == 3
    assert whole(tmp_path / "set") == PICTURES


def test_a_later_call_goes_on_from_the_part(server, tmp_path, monkeypatch):
    record, seen = offer(server), []
    monkeypatch.setattr(module, "ATTEMPTS", 1)
    server.cuts = 1
    with pytest.raises(DataError, match=r"127\.0\.0\.1:\d+ broke off .*things\.part is kept"):
        fetch(record, tmp_path)
    size = (tmp_path / "things.part").stat().st_size
    assert 0 < size < len(server.files["/set.tar.gz"])
    assert left(tmp_path) == ["things.part"]
    fetch(record, tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert server.requests[-1][1] == f"bytes={size}-"
    assert seen[0][0] > size
    assert whole(tmp_path / "set") == PICTURES


def test_a_host_that_keeps_breaking_off_is_given_up(server, tmp_path):
    record = offer(server)
    server.cuts = 99
    with pytest.raises(DataError, match="5 times"):
        fetch(record, tmp_path)
    assert len(server.requests) == 5


def test_a_server_without_ranges_sends_all_again(server, tmp_path):
    record = offer(server)
    server.ranges, server.cuts = False, 1
    fetch(record, tmp_path)
    assert whole(tmp_path / "set") == PICTURES


@pytest.mark.parametrize("extra", [b"", b"and more"])
def test_a_part_that_is_whole_or_too_long(server, tmp_path, extra):
    record = offer(server)
    (tmp_path / "things.part").write_bytes(server.files["/set.tar.gz"] + extra)
    fetch(record, tmp_path)
    assert whole(tmp_path / "set") == PICTURES
    assert len(server.requests) == (2 if extra else 1)


# Altered and hostile ----------------------------------------------------------------------------


def test_a_wrong_checksum_unpacks_nothing(server, tmp_path):
    record = offer(server, md5="0" * 32)
    with pytest.raises(DataError, match=r"has MD5 [0-9a-f]{32}, not the published 0{32}; nothing was unpacked"):
        fetch(record, tmp_path)
    assert left(tmp_path) == []


def link(name, target, kind=tarfile.SYMTYPE):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def device(name):
    member = tarfile.TarInfo(name)
    member.type = tarfile.FIFOTYPE
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
        pytest.param(tarball(extra=[device("set/pipe")]), id="a pipe"),
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
    with pytest.raises(DataError, match=r"is no archive that is safe and whole \(.+\); nothing was unpacked") as caught:
        fetch(offer(server, content), data)
    assert "\n" not in str(caught.value)
    assert left(data) == []
    assert left(tmp_path) == ["deep"]
    assert left(tmp_path / "deep") == ["data"]


def test_an_absolute_path_stays_inside(server, tmp_path):
    outside = tmp_path / "outside.txt"
    fetch(offer(server, tarball({str(outside): b"x"})), tmp_path / "data")
    assert not outside.exists()


# Absent -----------------------------------------------------------------------------------------


def test_a_host_that_cannot_be_reached_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        record = Download("things", "Things", f"http://127.0.0.1:{taken.getsockname()[1]}/set.tar.gz", "set")
        with pytest.raises(
            DataError, match=r"127\.0\.0\.1:\d+ cannot be reached \(.*refused.*is there a network"
        ) as one:
            fetch(record, tmp_path)
    assert "\n" not in str(one.value)
    with pytest.raises(DataError, match=r"nowhere\.invalid cannot be reached"):
        fetch(Download("things", "Things", "http://nowhere.invalid/set.tar.gz", "set"), tmp_path)


def test_a_file_that_is_gone_is_named(server, tmp_path):
    with pytest.raises(DataError, match=r"127\.0\.0\.1:\d+ answered 404 Not Found for http"):
        fetch(Download("things", "Things", f"{server.address}/gone.tar.gz", "set"), tmp_path)


def test_only_the_web_is_fetched_from(tmp_path):
    (tmp_path / "x.tar.gz").write_bytes(tarball())
    with pytest.raises(ArgumentError, match="neither http nor https"):
        fetch(Download("things", "Things", f"file://{tmp_path}/x.tar.gz", "set"), tmp_path / "data")


def test_two_do_not_fetch_the_same_set_at_once(server, tmp_path):
    record = offer(server)
    with (
        FileLock(tmp_path / ".things.lock", timeout=0, is_singleton=False),
        pytest.raises(DataError, match=r"being fetched into .* by another process"),
    ):
        fetch(record, tmp_path)
    assert not server.requests


# The records ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "words"), [("imagenet", "account at image-net.org"), ("places365", "terms at")])
def test_what_must_be_asked_for_says_how(tmp_path, name, words):
    with pytest.raises(DataError, match=rf"cannot be fetched for you: .*{words}.*; put it at .*{name}") as caught:
        fetch(name, tmp_path)
    assert "\n" not in str(caught.value)
    (tmp_path / name).mkdir()
    assert fetch(name, tmp_path).path == tmp_path / name


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="'mnist' is no set that can be fetched; there are cifar10, cifar100"):
        fetch("mnist", tmp_path)


def test_every_set_of_the_paper_has_a_source_that_ends_where_its_suite_looks():
    for suite in SUITES.values():
        parts = {suite.name: (*suite.train, *suite.test), **suite.ood}
        for name, places in parts.items():
            record = source(name)
            assert record.name == name
            assert any(f"{place}/".startswith(f"{record.place}/") for place in places), name


def test_the_records_are_well_formed():
    for record in SOURCES.values():
        assert record.title
        if isinstance(record, ByHand):
            assert "\n" not in record.how
            continue
        assert record.url.startswith(("https://", "http://"))
        assert record.host in record.url
        assert record.md5 is None or len(bytes.fromhex(record.md5)) == 16
        assert record.md5 is not None or ".tar.gz" in record.url, "what has no checksum carries gzip's own"
