"""Bodies and connections with something wrong: too large, too slow, left half-way, or never read."""

import http.client
import socket
from pathlib import Path

import pytest
from PIL import Image
from support.serving import AUTHORISED, BOUNDARY, JPEG, JSON, encoded, form, photo, until

SMALL = "?guard=images"


def test_a_body_over_the_limit_with_and_without_a_length(strict):
    parts = [b"x" * 100_000] * 30
    for headers in (JPEG, form([])[1], JSON):
        stated = {"Content-Length": "3000000"}
        assert strict.ask("POST", "/score", None, {**AUTHORISED, **headers, **stated}).status == 413
        with strict.connect() as connection:
            head = "".join(f"{name}: {value}\r\n" for name, value in {**AUTHORISED, **headers}.items())
            connection.sendall(f"POST /score HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n{head}\r\n".encode())
            if "multipart" in head:
                opening = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n'.encode()
                connection.sendall(b"%x\r\n%s\r\n" % (len(opening), opening))
            try:
                for part in parts:
                    connection.sendall(b"%x\r\n%s\r\n" % (len(part), part))
            except OSError:
                continue  # the server has closed the connection, and the answer was lost with it
            assert read_answer(connection).startswith(b"HTTP/1.1 413")
    # each of them was answered, whether the client could read it or not
    until(lambda: sum(line.get("status") == 413 for line in strict.log) >= 6)


def test_more_files_than_allowed(strict):
    reply = strict.score_files([(f"{n}.png", photo(n)) for n in range(5)], **AUTHORISED)
    assert (reply.status, "more than 4 files" in reply.error) == (413, True)


def test_images_over_the_limits_that_were_set(strict):
    for width, height in ((3_001, 1), (1_100, 1_000)):
        reply = strict.score(encoded(Image.new("L", (width, height))), "", {**AUTHORISED, **JPEG})
        assert (reply.status, "3,000 a side and 1,000,000 in all" in reply.error) == (413, True)


def test_forms_that_cannot_be_read(server):
    kind = form([])[1]
    for body, headers in [
        (b"garbage", kind),
        (b"x", {"Content-Type": "multipart/form-data"}),
        (form([])[0], kind),
        (f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n--{BOUNDARY}--\r\n'.encode(), kind),
    ]:
        reply = server.score(body, SMALL, headers)
        assert reply.status == 400, reply
        assert "form" in reply.error
    reply = server.score(b"x", SMALL, {"Content-Type": "text/html"})
    assert (reply.status, "text/html" in reply.error) == (415, True)


def test_a_client_that_sends_its_body_slowly(strict):
    with strict.connect() as connection:
        head = (
            f"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\nAuthorization: {AUTHORISED['Authorization']}"
        )
        connection.sendall(head.encode() + b"\r\nContent-Type: image/png\r\n\r\n")
        assert answer_while_dripping(connection).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("begin", [b"", b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"], ids=["first", "second"])
def test_a_client_that_sends_its_headers_slowly(strict, begin):
    """Nothing, then a byte at a time: closed, also after a request that was answered."""
    with strict.connect() as connection:
        if begin:
            connection.sendall(begin)
            assert read_answer(connection).startswith(b"HTTP/1.1 200")
        connection.sendall(b"POST /score HTTP/1.1\r\nX-Slow: ")
        assert answer_while_dripping(connection) == b""


def read_answer(connection):
    """A whole answer with a short body."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    answer.read()
    return b"HTTP/1.1 %d" % answer.status


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


def test_a_body_that_goes_on_after_the_answer(strict):
    """The request is refused at once for its missing token; its body drips on, and the connection is closed."""
    with strict.connect() as connection:
        connection.sendall(b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\nx")
        assert read_answer(connection).startswith(b"HTTP/1.1 401")
        assert answer_while_dripping(connection) == b""


@pytest.mark.parametrize("burst", [1, 1000])
@pytest.mark.parametrize("path", ["/", "/v2"])
def test_answers_that_nobody_reads(strict, path, burst):
    before = strict.memory()
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
        assert strict.memory() - before < 30


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
    assert server.memory() - before < 30


def test_a_client_that_is_gone_mid_upload(strict):
    """Its place is free again at once, and others are answered meanwhile."""
    before = strict.metric('oodles_requests_total{route="/score",status="499"}')
    for _ in range(5):
        connection = http.client.HTTPConnection(strict.host, strict.port, timeout=60)
        connection.putrequest("POST", "/score")
        for name, value in {**AUTHORISED, **JPEG, "Content-Length": "5000"}.items():
            connection.putheader(name, value)
        connection.endheaders()
        connection.send(b"x" * 100)
        connection.close()
    assert strict.score(photo(), "", {**AUTHORISED, **JPEG}).status == 200
    until(lambda: strict.metric('oodles_requests_total{route="/score",status="499"}') == before + 5)


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
