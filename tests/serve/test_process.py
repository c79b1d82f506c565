"""The process under load and at its end, and guards whose files are damaged, replaced or given another threshold."""

import json
import os
import shutil
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.disks import obey_permissions
from support.exported_guards import GRAPH, forged, parts_of, record_of, write
from support.serving import AUTHORISED, JPEG, TOKEN, in_parallel, photo, serving, until

from oodles.calibration import Threshold
from oodles.deploy import artefact
from oodles.deploy.artefact import read_artefact
from oodles.deploy.exported import ExportedGuard
from oodles.errors import FileError


@pytest.fixture
def own(guards, tmp_path):
    """A copy of a small guard of images that a test may change."""
    return Path(shutil.copy(guards / "images.zip", tmp_path / "images.zip"))


def test_a_full_queue_and_the_end_under_load(guards):
    """With four inputs in progress others get 503; after SIGTERM what has begun is answered, and the exit code is 0."""
    arguments = ("--queue", 4, "--max-images", 4, "--max-wait-ms", 6000, "--drain", 1)
    with serving(guards / "images.zip", *arguments) as server, ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(server.score, photo(number)) for number in range(4)]
        until(lambda: server.metric("oodles_inputs_in_progress") == 4)
        refused = server.score(photo())
        assert refused.refuses(503, "4 inputs wait")
        assert int(refused.headers["retry-after"]) >= 1
        assert server.get("/v2/health/ready").status == 200
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining")
        assert [server.get(f"/v2/health/{path}").status for path in ("ready", "live")] == [503, 200]
        assert [answer.result().status for answer in answers] == [200] * 4
        server.wait_for("ended")
        assert server.process.wait(60) == 0


def test_too_many_requests_at_once(guards):
    """Two that wait for a batch to fill take both places; once their clients are gone, the places are free."""
    arguments = ("--max-batch", 3, "--max-wait-ms", 100_000)
    with serving(guards / "images.zip", *arguments, OODLES_SERVE_CONCURRENCY="2") as server:
        with ExitStack() as waiting:
            content = photo()
            for _ in range(2):
                connection = waiting.enter_context(server.connect())
                head = f"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
                connection.sendall(head.encode() + content)
            until(lambda: server.metric("oodles_inputs_in_progress") == 2)
            reply = server.score(content)
            assert reply.refuses(503, "2 requests are in progress")
            assert reply.headers["retry-after"] == "1"
            assert server.get("/v2/health/ready").status == 200
        until(lambda: server.metric("oodles_inputs_in_progress") == 0)
        assert server.score_files([(f"{n}.png", content) for n in range(3)]).status == 200


def test_one_bad_input_in_a_batch_fails_alone(guards):
    with serving(guards / "tokens.zip", "--max-wait-ms", 1000) as server:
        rows = [[1, 2, 3, 4, 5, last] for last in (0, 1, 2, 10**6, 4, 5)]
        replies = in_parallel(6, lambda number: server.score_json({"inputs": {"input_ids": [rows[number]]}}))
        assert replies.pop(3).refuses(400, "cannot be run on these inputs")
        assert server.metric("oodles_batch_rows_count") >= 5, "tried together, then each alone"
        del rows[3]
        expected = ExportedGuard.open(guards / "tokens.zip")(rows).score.tolist()
        assert [reply.result["score"] for reply in replies] == pytest.approx(expected, abs=1e-6)


@pytest.fixture
def workspace(tmp_path):
    return tmp_path


def test_mistakes_are_named(guards, tmp_path, oodles_run):
    """Whatever is found before the service begins to log."""
    guard = guards / "images.zip"
    (tmp_path / "cut.zip").write_bytes(guard.read_bytes()[:-3000])
    parts = parts_of(guard)
    content = parts[GRAPH]
    write({**parts, GRAPH: content[:500] + bytes([content[500] ^ 1]) + content[501:]}, tmp_path / "altered.zip")
    (tmp_path / "pickle.zip").write_bytes(b"\x80\x04cos\nsystem\n(S'touch ran'\ntR.")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for given, words in [
            ((guard, "--port", taken.getsockname()[1]), "cannot listen on 127.0.0.1"),
            ((guard, "--host", "nowhere.invalid"), "cannot listen on nowhere.invalid"),
            ((guard, "--port", 70_000), "--port"),
            (("altered.zip",), f"altered.zip: {GRAPH} was altered"),
            (("cut.zip",), "cut.zip is not an exported guard"),
            (("pickle.zip",), "pickle.zip is not an exported guard"),
            (("nowhere.zip",), "nowhere.zip is not an exported guard"),
            ((guard, guard), "images is given twice"),
            ((f"a b={guard}",), "needs a name"),
            ((guard, "--queue", 1), "never fit a queue"),
            ((guard, "--tokenizer", "other=t.json"), "other is not one of the guards images"),
            ((guard, "--token-file", "nowhere"), "nowhere does not exist; give a file with a token"),
            ((guard, "--max-mb", "nan"), "--max-mb"),
            ((guard, "--log-level", "loud"), "log_level"),
            ((guard, "--device", "cuda"), "CUDAExecutionProvider"),
            ((guard, "--device", "tpu"), "cpu, cuda"),
            ((guard, "--root-path", "ood/"), "root_path='ood/'"),
        ]:
            code, out, said = oodles_run("serve", *given)
            assert (code, out) == (2, "")
            assert said.startswith("error ")
            assert words in said
            assert len(said.splitlines()) == 1
    assert not (tmp_path / "ran").exists()


def test_a_new_version_is_taken_over_and_a_broken_one_is_not(own, guards, tmp_path):
    content, ended, statuses = photo(), threading.Event(), set()

    def load():
        while not ended.is_set():
            statuses.add(server.score(content).status)

    with serving(own, "--reload", 0.1, prepare=obey_permissions) as server, ThreadPoolExecutor() as pool:
        first = server.score(content).json
        loaded = pool.submit(load)
        try:
            (tmp_path / "broken").write_bytes(own.read_bytes()[:-1000])
            (tmp_path / "broken").replace(own)
            server.wait_for("reload refused")
            assert server.score(content).json == first
            assert server.metric('oodles_failures_total{kind="reload"}') >= 1
            assert "images.zip" in server.get("/guards").json["guards"][0]["reload_error"]
            shutil.copy(guards / "vectors.zip", tmp_path / "other kind")
            parts = parts_of(guards / "ensemble.zip")
            write(forged(parts, {**record_of(parts), "class_names": ["a", "b", "c"]}), tmp_path / "new").chmod(0)
            for name, words in (("other kind", "takes other inputs"), ("new", "Permission denied")):
                known = len(server.log)
                (tmp_path / name).replace(own)
                assert words in server.wait_for("reload refused", known=known)["error"]
            own.chmod(0o644)
            version = server.wait_for("version")["version"]
            second = server.score(content).json
            assert second["version"] == version == ExportedGuard.open(own).version != first["version"]
            assert second["results"][0]["score"] != first["results"][0]["score"]
            guard = server.get("/guards").json["guards"][0]
            assert guard["reload_error"] is None
            assert guard["members"]
            assert server.metric("oodles_guard_info") == 1
            assert f'version="{version[:12]}"' in server.get("/metrics").body.decode()
            inputs = server.get("/guards/images/monitor").json["inputs"]
            os.utime(own)  # the same guard again: what is known of the stream stays
            known = len(server.log)
            until(lambda: server.get("/guards/images/monitor").json["inputs"] > inputs)
            assert not [line for line in server.log[known:] if line["event"] in ("version", "reload refused")]
            own.unlink()
            server.wait_for("reload refused", known=known)
            assert server.score(content).status == 200
        finally:
            ended.set()
        loaded.result()
    assert statuses == {200}, "nobody noticed"


def test_a_threshold_is_changed_and_kept(own):
    content = photo()
    put = ("PUT", "/guards/images/threshold")
    with serving(own, OODLES_TOKEN=TOKEN, OODLES_ADMIN_TOKEN=TOKEN) as server:
        headers = {**AUTHORISED, **JPEG}
        result = server.score(content, "", headers).result
        assert server.get("/guards", **AUTHORISED).json["can_save"] is True
        assert server.ask(*put, b'{"value": 1}', {"Authorization": "Bearer no"}).status == 401
        for value in (b'"1"', b"1e39", b"1e400", b"NaN"):
            assert server.ask(*put, b'{"value": %s}' % value, AUTHORISED).status == 400, value[:50]
        for body, status in ((b"", 400), (b"{}", 400), (b"[" * 5000, 400), (b" " * 20_000, 400)):
            assert server.ask(*put, body, AUTHORISED).status == status, body[:50]
        assert server.ask("PUT", "/guards/other/threshold", b'{"value": 1}', AUTHORISED).status == 404
        for value, is_id in ((result["score"] + 1, False), (result["score"] - 1, True)):
            changed = server.ask(*put, json.dumps({"value": value}).encode(), AUTHORISED).json
            assert changed["threshold"]["value"] == pytest.approx(value)
            assert server.get("/guards/images/monitor", **AUTHORISED).json["inputs"] == 0, "it begins anew"
            again = server.score(content, "", headers).json
            assert again["version"] == changed["version"] == ExportedGuard.open(own).version
            assert again["threshold"] == pytest.approx(value)
            assert again["results"][0]["is_id"] is is_id
            assert again["results"][0]["score"] == result["score"]
        assert server.stop() == 0
    with serving(own) as server:
        assert server.score(content).json["threshold"] == pytest.approx(value)
        assert server.ask(*put, b'{"value": 1}').refuses(403, "--admin-token-file")
        assert server.get("/guards").json["can_save"] is False
    assert read_artefact(own).record["threshold"]["value"] == pytest.approx(value)


def test_saving_a_threshold_never_undoes_a_deployment(own, guards, monkeypatch):
    """The new version arrives before the file is read, and between reading and replacing it."""
    opened = ExportedGuard.open(own)
    new = Path(shutil.copy(guards / "ensemble.zip", own.with_name("new")))
    pack, version = artefact._zipped, read_artefact(new).version

    def deploy(parts):
        new.replace(own)
        return pack(parts)

    monkeypatch.setattr(artefact, "_zipped", deploy)
    for words in ("was replaced by somebody else", "holds a guard other than"):
        with pytest.raises(FileError, match=words):
            opened.save_threshold(Threshold(0.5, 0.9, 100))
        assert read_artefact(own).version == version
    assert [each.name for each in own.parent.iterdir()] == ["images.zip"]


def test_clients_change_nothing_and_changes_are_logged(own, tmp_path):
    """Changes have a token of their own, and are logged as warnings, so at any level."""
    put, admin = ("PUT", "/guards/images/threshold"), {"Authorization": "bearer another-token"}
    acknowledge = ("POST", "/guards/images/monitor/acknowledge")
    (tmp_path / "admin.txt").write_text("another-token")
    arguments = (own, "--admin-token-file", tmp_path / "admin.txt", "--false-alarm-every", 1)
    with serving(*arguments, OODLES_TOKEN=TOKEN) as server:
        for asked in ((*put, b'{"value": -1e30}'), (*acknowledge, b"")):
            assert server.ask(*asked, AUTHORISED).refuses(403, "the admin token")
            assert server.ask(*asked).status == 401
        assert server.metric('oodles_monitor_rate_limit{guard="images"}') > 0, "before the first input"
        assert server.metric('oodles_inputs_total{guard="images",verdict="ood"}') == 0
        assert server.metric("process_resident_memory_bytes") > 1e6
        assert server.ask(*put, b'{"value": 1e9}', admin).status == 200
        changed = server.wait_for("threshold changed", level="warning", after=1e9, client="127.0.0.1")
        server.wait_for("request", request_id=changed["request_id"], client="127.0.0.1")
        for number in range(150):
            assert server.score(photo(number), "", {**AUTHORISED, **JPEG}).status == 200
        assert server.metric('oodles_monitor_alarm{guard="images"}') == 1
        assert server.ask(*acknowledge, b"", admin).json["acknowledged"] is True
        assert server.metric('oodles_monitor_alarm{guard="images"}') == 0
        server.wait_for("alarm acknowledged", level="warning", client="127.0.0.1")
        assert server.ask(*put, b'{"value": -1e9}', admin).status == 200
        assert server.get("/guards/images/monitor", **AUTHORISED).json["alarm"] is None


def test_refused_tensors_are_counted(guards):
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
    with serving(guards / "vectors.zip") as server:
        name = server.get("/v2/models/vectors").json["inputs"][0]["name"]
        assert server.score_json({"inputs": {name: [[1, 2]]}}).status == 400
        body["inputs"][0]["name"] = name
        reply = server.ask("POST", "/v2/models/vectors/infer", json.dumps(body).encode())
        assert reply.status == 400
        assert server.metric('oodles_inputs_total{guard="vectors",verdict="error"}') == 2
        assert server.get("/guards/vectors/monitor").json["errors"] == 2


def test_replicas_keep_states_of_their_own(own, tmp_path, oodles_run):
    """Three processes share a folder; a fourth with a name that is taken does not start."""
    shared = (own, "--state", tmp_path / "state")
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(*shared, "--replica", f"pod-{number}")) for number in range(3)]
        for number, server in enumerate(servers):
            for seed in range(number + 1):
                assert server.score(photo(seed)).status == 200
        code, _, said = oodles_run("serve", *shared, "--replica", "pod-1", "--port", 0)
        assert (code, "is the state of another process; give each a name with --replica" in said) == (2, True)
        assert [server.stop() for server in servers] == [0] * 3
    states = sorted((tmp_path / "state").glob("*.json"))
    assert [each.name for each in states] == [f"images@pod-{number}.monitor.json" for number in range(3)]
    code, out, _ = oodles_run("monitor", *states, "--guard", own, "--json")
    assert (code, json.loads(out)["inputs"]) == (0, 6)


def test_a_threshold_in_a_folder_that_cannot_be_written(own):
    before = own.read_bytes()
    own.parent.chmod(0o555)
    try:
        with serving(own, prepare=obey_permissions, OODLES_TOKEN=TOKEN, OODLES_ADMIN_TOKEN=TOKEN) as server:
            first = server.score(photo(), "", {**AUTHORISED, **JPEG}).json
            reply = server.ask("PUT", "/guards/images/threshold", b'{"value": 1}', AUTHORISED)
            assert reply.refuses(503, "cannot be saved")
            assert server.score(photo(), "", {**AUTHORISED, **JPEG}).json == first
    finally:
        own.parent.chmod(0o755)
    assert own.read_bytes() == before
    assert [each.name for each in own.parent.iterdir()] == ["images.zip"]
