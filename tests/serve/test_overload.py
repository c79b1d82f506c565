"""Load and attacks on the real server: the client that causes the load is slowed down, and probes always answer."""

import asyncio
import http.client
import json
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from support.images import noise
from support.serving import JPEG, JSON, encoded, form, in_parallel, photo, serving, until

from oodles.data.limits import MAX_PIXELS
from oodles.serve.inputs import room
from oodles.serve.service import Service
from oodles.serve.settings import Settings
from oodles.serve.telemetry import Telemetry

DEPLOYMENT = next(yaml.safe_load_all((Path(__file__).parents[2] / "deploy" / "kubernetes.yaml").read_text()))
CONTAINER = DEPLOYMENT["spec"]["template"]["spec"]["containers"][0]
PROBES = ("/v2/health/live", "/v2/health/ready")


def begin_upload(server, stack, size=5000, sent=b"x"):
    """A connection with a request whose body stops half-way."""
    connection = stack.enter_context(server.connect())
    head = f"POST /score HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: {size}\r\n\r\n"
    with suppress(OSError):  # if it is refused before all of it is sent
        connection.sendall(head.encode() + sent)
    return connection


def test_memory_stays_under_the_limit_of_the_example(guards, text_guard):
    """Every kind of large body within the limits, many at once; on a slow machine some get 408 or 503."""
    assert CONTAINER["resources"]["limits"]["memory"] == "2Gi"
    picture = encoded(Image.new("RGB", (7000, 7000)))
    numbers = b'{"inputs": {"pixels": ' + b"[" * 3
    junk = encoded(Image.new("L", (4000, 4000)))[:100] + np.random.default_rng(0).bytes(19_900_000)
    text = json.dumps({"texts": ["good film " * 780_000]}).encode()
    tensors = json.dumps({"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["x" * 7_800_000]}]})
    nested = {b: numbers + (b * (7_900_000 // len(b)))[:-1] + b"]" * 3 + b"}}" for b in (b"[],", b"[1],", b"[1,2,3],")}
    nested[b"0.5,"] = b'{"inputs": {"pixels": [' + b"0.5," * 1_950_000 + b"1]}}"
    cases = [
        ("/score?guard=images", junk, JPEG, 64),
        ("/score?guard=images", *form([(f"{n}.png", picture) for n in range(3)]), 3),
        *[("/score?guard=images", body, JSON, 8) for body in nested.values()],
        ("/score?guard=tokens", text, JSON, 8),
        ("/v2/models/tokens/infer", tensors.encode(), JSON, 8),
    ]
    with serving(guards / "images.zip", *text_guard) as server:
        for path, body, headers, count in cases:
            replies = in_parallel(count, lambda _, p=path, b=body, h=headers: status(server, p, b, h))
            assert {*replies} <= {200, 400, 408, 413, 422, 503, None}, (path, replies)
            assert server.memory("VmHWM") < 2048, path
            assert [server.get(probe).status for probe in PROBES] == [200, 200]


def status(server, path, body, headers):
    """The status of an answer, or None if the server closed the connection before it had the whole body."""
    try:
        return server.ask("POST", path, body, headers).status
    except (OSError, http.client.HTTPException):
        return None


def test_a_long_text_is_cut_before_it_is_read(text_guard):
    with serving(*text_guard) as server:
        long, short = (server.score_json({"texts": ["good film " * count]}).result for count in (700_000, 300))
        assert long["score"] == short["score"]
        assert server.score_json({"texts": ["x" * 7_000_000]}).refuses(413, "7,000,000 characters")
        before = server.memory("VmHWM")
        assert before < 1000, "megabytes; reading it whole takes 1,200"


def test_idle_connections_and_uploads_hinder_nobody(guards):
    """More idle connections than there may be, then more idle uploads than there are places."""
    with serving(guards / "images.zip", "--concurrency", 8) as server, ExitStack() as stack:
        for _ in range(600):
            stack.enter_context(server.connect())
        assert [server.get(probe).status for probe in PROBES] == [200, 200]
        assert server.metric("oodles_connections_dropped_total") >= 80
        for _ in range(16):
            begin_upload(server, stack)
        assert [server.score(photo(number)).status for number in range(20)] == [200] * 20


def test_the_largest_bodies_are_refused_first(guards):
    """Uploads that stop half-way hold most of the memory for bodies; a small request still gets through."""
    refused = 'oodles_requests_total{route="/score",status="503"}'
    with serving(guards / "images.zip", "--max-mb", 1) as server, ExitStack() as stack:
        for _ in range(12):
            begin_upload(server, stack, 999_999, b"x" * 900_000)
        until(lambda: server.metric(refused) >= 1)
        assert server.score(photo()).status == 200
        assert server.metric(refused) < 12


def test_heavy_inputs_leave_threads_to_others():
    """However many inputs need much memory, and however long they take, small ones are read meanwhile."""
    service, ended = Service([], Settings(), Telemetry()), threading.Event()

    def heavy():
        with room(MAX_PIXELS):
            assert ended.wait(60)

    async def work():
        tasks = [asyncio.create_task(service.in_thread(heavy)) for _ in range(40)]
        assert [await service.in_thread(int, number) for number in ("1", "2", "3")] == [1, 2, 3]
        assert not any(task.done() for task in tasks)
        ended.set()
        await asyncio.gather(*tasks)

    asyncio.run(work())
    service.close()


def test_large_pictures_and_small_ones(guards):
    """A form of pictures of 49 megapixels, with small requests beside it: all are answered."""
    body, kind = form([(f"{n}.png", encoded(Image.new("L", (7000, 7000)))) for n in range(3)])
    with serving(guards / "images.zip", "--timeout", 300) as server, ThreadPoolExecutor() as pool:
        large = pool.submit(server.score, body, "", kind)
        until(lambda: server.metric("oodles_inputs_in_progress") >= 3 or large.done())
        assert [server.score(photo(number)).status for number in range(20)] == [200] * 20
        assert [each["error"] for each in large.result().json["results"]] == [None] * 3


def test_a_batch_is_never_larger_than_allowed(guards):
    with serving(guards / "images.zip", "--max-batch", 4) as server:
        assert len(server.score_files([(f"{n}.png", photo(n)) for n in range(10)]).json["results"]) == 10
        pixels = noise(10, 4, 4, 3)
        assert len(server.score_json({"inputs": {"pixels": pixels.tolist()}}).json["results"]) == 10
        batches = 'oodles_batch_rows_bucket{guard="images",le="%s"}'
        assert server.metric(batches % "4.0") == server.metric(batches % "+Inf") >= 6
        assert server.metric("oodles_batch_rows_sum") == 20


def test_a_client_that_left_is_not_scored(guards):
    with serving(guards / "images.zip", "--max-batch", 2, "--max-wait-ms", 100_000) as server:
        picture = photo()
        with ExitStack() as stack:
            begin_upload(server, stack, len(picture), picture)
            until(lambda: server.metric("oodles_inputs_in_progress") == 1)
        server.wait_for("request", status=499)
        until(lambda: server.metric("oodles_inputs_in_progress") == 0)
        assert [reply.status for reply in in_parallel(2, lambda number: server.score(photo(number)))] == [200, 200]
        assert server.metric("oodles_batch_rows_sum") == 2


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_drains_and_saves(guards, tmp_path, sign):
    """Kept connections are told to close while requests are still answered, and the state is saved."""
    arguments = ("--drain", 600, "--state", tmp_path, "--reload", 0)
    with serving(guards / "images.zip", *arguments, prepare=hear_hangups) as server:
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as kept:
            for closes in (None, "close"):
                kept.request("POST", "/score", photo(), JPEG)
                answer = kept.getresponse()
                answer.read()
                assert (answer.status, answer.headers["connection"]) == (200, closes)
                if closes is None:
                    server.process.send_signal(sign)
                    server.wait_for("draining", signal=sign.name)
        server.process.send_signal(sign)  # the second one ends it at once
        server.wait_for("ended")
        assert server.process.wait(60) == 0
    assert json.loads((tmp_path / "images.monitor.json").read_text())


def hear_hangups():
    """Undo what nohup does, in case the tests run under it."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_the_example_gives_probes_time():
    assert CONTAINER["readinessProbe"]["timeoutSeconds"] >= 2
