"""Alarms are delivered to a real server, and what goes wrong there never reaches the stream."""

import json
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from oodles.errors import ArgumentError
from oodles.monitor import Alert, Webhook, alerts

ALERT = Alert("rejections", 12, "text")


@pytest.fixture
def server():
    """A server that remembers what it is sent and answers with ``status``."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.server.received.append((self.path, self.headers["Content-Type"], json.loads(body)))
            self.send_response(self.server.statuses.pop(0) if self.server.statuses else self.server.status)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Handler) as made:
        made.received, made.status, made.statuses = [], 200, []
        threading.Thread(target=made.serve_forever).start()
        yield made
        made.shutdown()


def send(url, times=1):
    reports = []
    webhook = Webhook(url, reports.append, replica="pod-1")
    for _ in range(times):
        webhook.send(ALERT, "photos", version="a" * 64)
        webhook.wait()
    return reports


def test_an_alarm_is_posted(server):
    assert send(f"http://127.0.0.1:{server.server_port}/hook") == []
    ((path, kind, body),) = server.received
    assert (path, kind) == ("/hook", "application/json")
    assert datetime.now(UTC) - datetime.fromisoformat(body.pop("time")) < timedelta(hours=1)
    said = {"guard": "photos", "kind": "rejections", "since": 12, "message": "text"}
    assert body == {**said, "version": "a" * 64, "replica": "pod-1"}


def test_an_alarm_is_sent_again_until_it_is_delivered(server, monkeypatch):
    monkeypatch.setattr(alerts, "PAUSES", (0.0, 0.0, 0.0))
    server.statuses = [500, 503]
    assert send(f"http://127.0.0.1:{server.server_port}/hook") == []
    assert len(server.received) == 3


def test_in_a_hurry_there_are_no_pauses(server, monkeypatch):
    monkeypatch.setattr(alerts, "PAUSES", (3600.0,))
    server.status, reports = 500, []
    webhook = Webhook(f"http://127.0.0.1:{server.server_port}/hook", reports.append)
    webhook.send(ALERT, "photos", version="")
    webhook.wait(hurry=True)
    assert len(reports) == 1


@pytest.mark.parametrize("status", [500, 404, 302])
def test_every_failure_is_reported_and_redirects_are_failures(server, status, monkeypatch):
    monkeypatch.setattr(alerts, "PAUSES", (0.0,))
    server.status = status
    reports = send(f"http://127.0.0.1:{server.server_port}/secret-token", times=3)
    assert len(reports) == 3
    assert all(str(status) in each and "secret-token" not in each for each in reports)
    assert [path for path, *_ in server.received] == ["/secret-token"] * 6


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://a/b",
        "example.org",
        "",
        "http://",
        "http://a b",
        "http://a\n",
        "http://[::1",
        "http://a:x",
    ],
)
def test_other_addresses_are_refused(url):
    with pytest.raises(ArgumentError, match="begins with http"):
        Webhook(url, print)
