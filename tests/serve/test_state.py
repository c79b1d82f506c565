"""What is known of the stream of inputs survives a kill, and a full disk stops nothing."""

import http.client
import json
import resource
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from support.serving import Server, command, environment, photo, serving, until

from oodles.deploy.exported import ExportedGuard
from oodles.monitor import Monitor

MONITOR = "/guards/images/monitor"


def load(server, ends, answered):
    while not ends.is_set():
        try:
            if server.score(photo(len(answered) % 7)).status == 200:
                answered.append(True)
        except (OSError, http.client.HTTPException):  # it was killed
            return


@pytest.mark.slow
def test_killed_under_load_and_started_again(guards, tmp_path):
    """The state is a valid file, with at least what the last flush had and at most what was sent."""
    state = tmp_path / "state" / "images.monitor.json"
    arguments = (guards / "images.zip", "--state", state.parent)
    ends, answered = threading.Event(), []
    with serving(*arguments) as server:
        threads = [threading.Thread(target=load, args=(server, ends, answered)) for _ in range(3)]
        for thread in threads:
            thread.start()
        until(state.exists)
        flushed = json.loads(state.read_text())["inputs"]
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
        for thread in threads:
            thread.join()
    assert flushed > 0
    guard = ExportedGuard.open(guards / "images.zip")
    kept = Monitor.load(state, threshold=guard.threshold, classes=guard.class_names, guard=guard.identity)
    assert flushed <= kept.inputs <= len(answered) + len(threads)
    with serving(*arguments) as server:
        known = server.get(MONITOR).json
        assert known["inputs"] == kept.inputs
        assert known["rejected"] == kept.rejected
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
        line = server.wait_for("state not saved")
        assert "cannot be written" in line["error"]
        assert server.metric('oodles_failures_total{kind="state"}') >= 1
        assert server.get("/v2/health/ready").status == 200
        assert server.score(photo()).status == 200
        assert server.get(MONITOR).json["inputs"] == 2
        assert server.stop() == 0
    assert not list((tmp_path / "state").iterdir())


@pytest.mark.parametrize("name", ["/dev/full", "closed"])
def test_a_log_that_cannot_be_written(guards, name):
    """Standard error is a full disk, or a pipe that nobody reads any more."""
    arguments = command(guards / "images.zip", "--port", 0)
    if name == "closed":
        process = subprocess.Popen(arguments, stderr=subprocess.PIPE, env=environment(), text=True)
        process.stderr.close()
    else:
        with open(name, "w") as full:  # noqa: PTH123
            process = subprocess.Popen(arguments, stderr=full, env=environment(), text=True)
    server = Server(process, read_log=False)
    try:
        server.address = f"http://127.0.0.1:{until(lambda: listening_port(process.pid))}"
        before = server.metric('oodles_failures_total{kind="log"}')
        for _ in range(5):
            assert server.score(photo()).status == 200
        assert server.metric('oodles_failures_total{kind="log"}') >= before + 5
        assert server.stop() == 0
    finally:
        process.kill()
        process.wait()


def listening_port(pid):
    """The port that a process listens on, as Linux knows it; None before that."""
    own = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            own.add(str(path.readlink()).removeprefix("socket:[").rstrip("]"))
    lines = (line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:])
    return next((int(parts[1].partition(":")[2], 16) for parts in lines if parts[3] == "0A" and parts[9] in own), None)
