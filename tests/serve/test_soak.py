"""Load on the real server: requests keep no images, random bodies break nothing."""

import http.client
import json
import random
import statistics
from collections import Counter
from contextlib import ExitStack, closing

import pytest
from support.images import noise
from support.serving import JPEG, JSON, form, in_parallel, photo, serving

pytestmark = pytest.mark.soak
RETURN_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "131072"}  # glibc returns freed blocks from this size on
LEAK = 256
"""Megabytes. If requests kept what they decode, a quarter of the load would add 480.

The size of a process says no more than that. Arenas of glibc and onnxruntime grow by tens of megabytes, depending on
which requests run at the same moment.
"""
CLIENTS = 4
LARGE, MANY = 6, 8  # places of two kinds of requests
BUSY = 503  # what a slow machine may answer after --timeout


@pytest.fixture(scope="module")
def server(guards):
    paths = guards / "cifar10-small.zip", guards / "vectors.zip"
    with serving(*paths, "--timeout", 5, "--threads", 1, **RETURN_AT_ONCE) as running:
        # the most that is decoded at the same time, and the most that the network is given
        for costly in (LARGE, MANY):
            run_clients(running, 20 * CLIENTS, lambda chosen, kinds, costly=costly: kinds[costly])
        yield running


def post(connection, path, body, headers):
    """The status of the answer, on a new connection if the server closed this one after a refusal or mid-upload."""
    for _ in range(2):
        try:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()  # and opened again by the next request
        else:
            return answer.status
    return None


def requests_of_all_kinds():
    """Requests as they come in production: images alone and in forms, one of them broken, arrays, and refusals."""
    picture, large = photo(1, (300, 200), "JPEG"), photo(2, (3000, 2000), "JPEG")
    many, kind = form([(f"{n}.jpg", photo(n, (64, 64), "JPEG")) for n in range(16)])
    broken, _ = form([("a.jpg", picture), ("b.jpg", b"no image"), ("c.jpg", picture[:500])])
    pixels = noise(4, 32, 32, 3)
    array = json.dumps({"inputs": {"pixels": pixels.tolist()}}).encode()
    head = {"name": "pixels", "datatype": "UINT8", "shape": list(pixels.shape)}
    text = json.dumps({"inputs": [{**head, "parameters": {"binary_data_size": pixels.size}}]}).encode()
    score, infer = "/score?guard=cifar10-small", "/v2/models/cifar10-small/infer"
    return [
        *[(score, picture, JPEG, {200})] * 6,
        (score, large, JPEG, {200}),
        (score + "&explain=1", picture, JPEG, {200}),
        (score, many, kind, {200}),
        (score, broken, kind, {200}),
        (score, array, JSON, {200}),
        (infer, text + pixels.tobytes(), {"Inference-Header-Content-Length": str(len(text))}, {200}),
        (score, b"no image", JPEG, {415}),
        (score, b"{", JSON, {400}),
        ("/nowhere", picture, JPEG, {404}),
    ]


def run_clients(server, requests, choose):
    """Send the same requests in every run, from several clients at once; what was chosen, its status, the memory."""
    kinds = requests_of_all_kinds()

    def work(number):
        chosen, found = random.Random(number), []
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
            for _ in range(requests // CLIENTS):
                path, body, headers, *expected = choose(chosen, kinds)
                found.append((expected, post(connection, path, body, headers), server.memory()))
        return found

    done = in_parallel(CLIENTS, work)
    assert all(isinstance(each, list) for each in done), done
    return [each for together in zip(*done, strict=True) for each in together]  # nearly in the order of time


def test_memory_stays_flat_under_full_load(server):
    found = run_clients(server, 1_600, lambda chosen, kinds: chosen.choice(kinds))
    assert all(status in {*expected, BUSY} for (expected,), status, _ in found)
    memory = [each for *_, each in found]
    quarter = len(memory) // 4
    begin, end = statistics.median(memory[2 * quarter : 3 * quarter]), statistics.median(memory[-quarter:])
    print(f"{len(found)} requests, {begin:.0f} MB in the third quarter, {end:.0f} MB in the last")
    assert end - begin < LEAK, memory
    assert not server.other_lines


def random_body(chosen, kinds):
    """Random bytes, or a valid request with some of its bytes changed, cut, doubled or called something else."""
    path, body, headers, _ = chosen.choice(kinds)
    if chosen.random() < 0.2:
        body = chosen.randbytes(chosen.randrange(300))
    else:
        changed = bytearray(body[: chosen.randrange(1, 20_000)])
        for _ in range(chosen.randrange(20)):
            changed[chosen.randrange(len(changed))] = chosen.randrange(256)
        body = bytes(changed) * chosen.choice([1, 1, 1, 2])
    if chosen.random() < 0.3:
        types = *headers.values(), "image/png", "application/json", "text/plain", "", form([])[1]["Content-Type"]
        headers = {"Content-Type": chosen.choice(types)}
    if chosen.random() < 0.1:
        headers = {**headers, "Inference-Header-Content-Length": str(chosen.randrange(-5, 400))}
    return chosen.choice([path, "/score?guard=vectors", "/v2/models/vectors/infer"]), body, headers


def test_random_bodies(server):
    statuses = Counter(status for _, status, _ in run_clients(server, 4_000, random_body))
    assert not [status for status in statuses if status is None or (status >= 500 and status != BUSY)]
    assert {200, 400, 415, 422} <= {*statuses}
    assert not server.other_lines
    assert not [line for line in server.log if line["level"] == "error"]


def test_half_open_connections(server):
    """Two hundred connections that say nothing or stop half-way hinder nobody, and are closed."""
    begun = [b"", b"POST /score HTTP/1.1\r\nX: ", b"POST /nowhere HTTP/1.1\r\nContent-Length: 99\r\n\r\nx"]
    with ExitStack() as stack:
        connections = [stack.enter_context(server.connect()) for _ in range(200)]
        for number, connection in enumerate(connections):
            connection.sendall(begun[number % len(begun)])
        for number in range(20):
            assert server.score(photo(number), "?guard=cifar10-small").status == 200
        assert server.get("/v2/health/ready").status == 200
        closed = in_parallel(len(connections), lambda number: connections[number].makefile("rb").read())
        assert all(isinstance(each, bytes) for each in closed), "closed by the server, not by our patience"
