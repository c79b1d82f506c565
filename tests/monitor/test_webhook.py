"""Alarms are delivered to a real server, and what goes wrong there never reaches the stream."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from oodles.errors import ArgumentError
from oodles.monitor import Alert, Webhook

ALERT = Alert("rejections", 12, "text")


@pytest.fixture
def server():
    """A server that remembers what it is sent and answers with ``status``."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.server.received.append((self.path, self.headers["Content-Type"], json.loads(body)))
            self.send_response(self.server.status)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Handler) as made:
        made.received, made.status = [], 200
        threading.Thread(target=made.serve_forever).start()
        yield made
        made.shutdown()


def send(url, times=1):
    reports = []
    webhook = Webhook(url, reports.append, seconds=5.0)
    for _ in range(times):
        webhook.send(ALERT, "photos")
        webhook.wait()
    return reports


def test_an_alarm_is_posted(server):
    assert send(f"http://127.0.0.1:{server.server_port}/hook") == []
    body = {"guard": "photos", "kind": "rejections", "since": 12, "message": "text"}
    assert server.received == [("/hook", "application/json", body)]


@pytest.mark.parametrize("status", [500, 404, 302])
def test_failures_are_reported_once_and_redirects_are_failures(server, status):
    server.status = status
    reports = send(f"http://127.0.0.1:{server.server_port}/secret-token", times=3)
    assert len(reports) == 1
    assert str(status) in reports[0]
    assert "secret-token" not in reports[0]
    assert [path for path, *_ in server.received] == ["/secret-token"] * 3


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
