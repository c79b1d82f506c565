"""What is known of the stream of inputs survives a kill, and a full disk stops nothing."""

import http.client
import json
import resource
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from support.serving import Server, command, environment, photo, serving, until

from oodles.deploy.exported import ExportedGuard
from oodles.monitor import Monitor

MONITOR = "/guards/images/monitor"


def load(server):
    """How many requests are answered until the server is killed."""
    answered = 0
    with suppress(OSError, http.client.HTTPException):
        while True:
            answered += server.score(photo(answered % 7)).status == 200
    return answered


@pytest.mark.slow
def test_killed_under_load_and_started_again(guards, tmp_path):
    """The state is a valid file, with at least what the last flush had and at most what was sent."""
    state = tmp_path / "state" / "images.monitor.json"
    arguments = (guards / "images.zip", "--state", state.parent)
    with ThreadPoolExecutor(3) as pool, serving(*arguments) as server:
        clients = [pool.submit(load, server) for _ in range(3)]
        until(state.exists)
        flushed = json.loads(state.read_text())["inputs"]
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    assert flushed > 0
    guard = ExportedGuard.open(guards / "images.zip")
    kept = Monitor.load(state, threshold=guard.threshold, classes=guard.class_names, guard=guard.identity)
    assert flushed <= kept.inputs <= sum(client.result() for client in clients) + len(clients)
    with serving(*arguments) as server:
        known = server.get(MONITOR).json
        assert (known["inputs"], known["rejected"]) == (kept.inputs, kept.rejected)
        assert server.score(photo()).status == 200
        assert server.stop() == 0, "and what is new is saved at the end"
    assert json.loads(state.read_text())["inputs"] == kept.inputs + 1
    state.write_bytes(state.read_bytes()[:-40])
    with serving(*arguments) as server:
        assert server.wait_for("monitor reset", level="warning")["guard"] == "images"
        assert server.get(MONITOR).json["inputs"] == 0


@pytest.mark.slow
def test_a_full_disk_for_the_state(guards, tmp_path):
    """Every file may have 0 bytes: serving goes on, and says what it cannot keep."""

    def full():
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    with serving(guards / "images.zip", "--state", tmp_path / "state", prepare=full) as server:
        assert server.score(photo()).status == 200
        assert "cannot be written" in server.wait_for("state not saved")["error"]
        assert server.metric('oodles_failures_total{kind="state"}') >= 1
        assert server.get("/v2/health/ready").status == 200
        assert server.score(photo()).status == 200
        assert server.get(MONITOR).json["inputs"] == 2
        assert server.stop() == 0
    assert not list((tmp_path / "state").glob("*.json"))


@pytest.mark.parametrize("name", ["full", "closed"])
def test_a_log_that_cannot_be_written(guards, name):
    """Standard error is a full disk, or a pipe that nobody reads any more."""
    arguments = command(guards / "images.zip", "--port", 0)
    with Path("/dev/full").open("w") as full:
        log = full if name == "full" else subprocess.PIPE
        process = subprocess.Popen(arguments, stderr=log, env=environment(), text=True)
    if process.stderr is not None:
        process.stderr.close()
    server = Server(process)
    try:
        server.address = f"http://127.0.0.1:{until(lambda: listening_port(process.pid))}"
        before = server.metric('oodles_failures_total{kind="log"}')
        for _ in range(5):
            assert server.score(photo()).status == 200
        assert server.metric('oodles_failures_total{kind="log"}') >= before + 5
        assert server.stop() == 0
    finally:
        server.stop(signal.SIGKILL)


def listening_port(pid):
    """The port that a process listens on, as Linux knows it; None before that."""
    own = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            own.add(str(path.readlink()).removeprefix("socket:[").rstrip("]"))
    lines = (line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:])
    return next((int(parts[1].partition(":")[2], 16) for parts in lines if parts[3] == "0A" and parts[9] in own), None)
