"""Bodies and connections with something wrong: too large, too slow, left half-way, or never read."""

import http.client
import socket
from pathlib import Path

import pytest
from PIL import Image
from support.serving import AUTHORISED, BOUNDARY, JPEG, JSON, encoded, form, photo, until

SMALL = "?guard=images"


def post(headers):
    """The head of a request with these headers."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST /score HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode()


def test_a_body_over_the_limit_with_and_without_a_length(strict):
    opening = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n'.encode()
    for kind, begin in ((JPEG, []), (form([])[1], [opening]), (JSON, [])):
        headers = {**AUTHORISED, **kind}
        assert strict.ask("POST", "/score", None, {**headers, "Content-Length": "3000000"}).status == 413
        with strict.connect() as connection:
            connection.sendall(post({**headers, "Transfer-Encoding": "chunked"}))
            try:
                for part in [*begin, *[b"x" * 100_000] * 30]:
                    connection.sendall(b"%x\r\n%s\r\n" % (len(part), part))
            except OSError:
                continue  # the server has closed the connection, and the answer was lost with it
            assert status_of_answer(connection) == 413
    # each of them was answered, whether the client could read it or not
    until(lambda: sum(line.get("status") == 413 for line in strict.log) >= 6)


def test_more_files_and_larger_images_than_the_limits_that_were_set(strict):
    files = [(f"{n}.png", photo(n)) for n in range(5)]
    assert strict.score_files(files, **AUTHORISED).refuses(413, "more than 4 files")
    for size in ((3_001, 1), (1_100, 1_000)):
        reply = strict.score(encoded(Image.new("L", size)), "", {**AUTHORISED, **JPEG})
        assert reply.refuses(413, "3,000 a side and 1,000,000 in all")


def test_forms_that_cannot_be_read(server):
    kind = form([])[1]
    for body, headers in [
        (b"garbage", kind),
        (b"x", {"Content-Type": "multipart/form-data"}),
        (form([])[0], kind),
        (f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n--{BOUNDARY}--\r\n'.encode(), kind),
    ]:
        assert server.score(body, SMALL, headers).refuses(400, "form")
    assert server.score(b"x", SMALL, {"Content-Type": "text/html"}).refuses(415, "text/html")


SLOW = b"POST /score HTTP/1.1\r\nX-Slow: "


@pytest.mark.parametrize(
    ("first", "status", "slow", "answer"),
    [
        (b"", None, SLOW, b""),
        (b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n", 200, SLOW, b""),
        (post({"Content-Length": "900000"}), 401, b"x", b""),
        (b"", None, post({**AUTHORISED, "Content-Type": "image/png", "Content-Length": "5000"}), b"HTTP/1.1 408"),
    ],
    ids=["headers", "headers after an answer", "a body after its refusal", "a body"],
)
def test_a_client_that_sends_slowly(strict, first, status, slow, answer):
    """A byte at a time, perhaps after a request that was answered: closed, a body with an answer."""
    with strict.connect() as connection:
        if first:
            connection.sendall(first)
            assert status_of_answer(connection) == status
        connection.sendall(slow)
        assert answer_while_dripping(connection)[:12] == answer


def status_of_answer(connection):
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer.status


def answer_while_dripping(connection):
    """What the server says to a client that sends a byte now and then; nothing if it just closes."""
    connection.settimeout(0.1)
    for _ in range(300):
        try:
            connection.sendall(b"x")
            return connection.recv(1000)
        except TimeoutError:
            continue
        except OSError:
            return b""
    raise AssertionError("the connection is still open")


@pytest.mark.parametrize("burst", [1, 1000])
@pytest.mark.parametrize("path", ["/", "/v2"])
def test_answers_that_nobody_reads(strict, path, burst):
    with strict.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        asked = f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        connection.settimeout(0.2)
        try:
            for _ in range(2_000):
                connection.sendall(asked * burst)
        except OSError:
            pass  # full, or closed
        until(lambda: sockets_of(strict, connection.getsockname()[1]) == 0, "the connection stays open")


def sockets_of(server, client_port):
    """How many connections from this port the server has, whatever the client does."""
    lines = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    ends = f":{server.port:04X}", f":{client_port:04X}"
    return sum(parts[1].endswith(ends[0]) and parts[2].endswith(ends[1]) and parts[9] != "0" for parts in lines)


def test_endless_headers_take_no_memory(server):
    before = server.memory()
    for begin in (b"GET / HTTP/1.1\r\nX: ", b"GET /" + b"a", b"GET / HTTP/1.1\r\n"):
        with server.connect() as connection:
            connection.sendall(begin)
            sent = (b"a: b\r\n" if begin.endswith(b"\n") else b"a") * 20_000_000
            with pytest.raises(OSError):  # noqa: PT011  # whatever the operating system calls a closed connection
                connection.sendall(sent)
    assert server.memory() - before < 100, "megabytes, of 160 sent"


def test_a_client_that_is_gone_mid_upload(strict):
    """Its place is free again at once, and others are answered meanwhile."""
    gone = 'oodles_requests_total{route="/score",status="499"}'
    before = strict.metric(gone)
    for _ in range(5):
        with strict.connect() as connection:
            connection.sendall(post({**AUTHORISED, **JPEG, "Content-Length": "5000"}) + b"x" * 100)
    assert strict.score(photo(), "", {**AUTHORISED, **JPEG}).status == 200
    until(lambda: strict.metric(gone) == before + 5)


def test_what_is_not_http(server):
    for sent in (
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        b"\xff" * 100 + b"\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ):
        with server.connect() as connection:
            connection.sendall(sent)
            assert connection.recv(1000)[:12] in (b"HTTP/1.1 400", b"")
