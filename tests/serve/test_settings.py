"""Limits and tokens, pages with their policies, and lines of the log."""

import base64
import hashlib
import io
import json
import logging
import re
import sys
from urllib.parse import urljoin

import pytest

from oodles.errors import ArgumentError, FileError
from oodles.serve.settings import Settings
from oodles.serve.telemetry import JsonLines, log, start_logging


@pytest.mark.parametrize(
    "given",
    [
        *({name: 0} for name in ("max_batch", "max_mb", "timeout", "threads")),
        {"port": 65_536},
        {"concurrency": -1},
        {"max_megapixels": 50.1},
        {"max_images": 257},
        {"timeout": float("nan")},
        {"reload": float("inf")},
        {"max_wait_ms": -0.1},
        {"log_level": "loud"},
    ],
)
def test_impossible_settings_are_refused(given):
    with pytest.raises(ArgumentError, match=next(iter(given))):
        Settings(**given)


def test_tokens(tmp_path, monkeypatch):
    path = tmp_path / "token"
    monkeypatch.delenv("OODLES_TOKEN", raising=False)
    assert Settings().token is None
    path.write_text("a-secret-token\n")
    (tmp_path / "link").symlink_to(path)  # as Kubernetes mounts secrets
    for name in ("token", "link"):
        settings = Settings(token_file=tmp_path / name)
        assert settings.token == "a-secret-token"  # noqa: S105
        assert "a-secret-token" not in repr(settings)
    for content in ("short", "two words here", "\xe9" * 20, "x" * 5000):
        path.write_text(content)
        with pytest.raises(FileError, match=str(path)):
            _ = Settings(token_file=path).token
        monkeypatch.setenv("OODLES_TOKEN", content)
    assert Settings().token == content


@pytest.mark.parametrize(("path", "styles"), [("/", None), ("/docs", ["'self'", "'unsafe-inline'"])])
def test_a_policy_allows_only_what_the_page_contains(server, path, styles):
    """Each script, and on our own page each style, has its hash in the policy; nothing else is allowed."""
    page = server.get(path)
    html = page.body.decode()
    allowed = {part.split()[0]: part.split()[1:] for part in page.headers["content-security-policy"].split("; ")}
    hashes = {
        tag: [f"'sha256-{base64.b64encode(hashlib.sha256(each.encode()).digest()).decode()}'" for each in contents]
        for tag in ("script", "style")
        for contents in [re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)]
    }
    assert len(hashes["script"]) >= 1
    assert allowed["script-src"] == ([] if styles is None else ["'self'"]) + hashes["script"]
    assert allowed["style-src"] == (styles or hashes["style"])
    assert allowed["default-src"] == ["'none'"]
    assert allowed["connect-src"] == ["'self'"]
    text = re.sub(r"<(script|style)>.*?</\1>", "", html, flags=re.DOTALL)
    assert not re.search(r"\son\w+=|\sstyle=|javascript:|<style|<!-- \w+\.(css|js)|https?://", text)
    for asset in re.findall(r'(?:src|href)="([^"#:]+)"', text):
        assert server.get(urljoin(path, asset)).status == 200, asset


@pytest.fixture
def lines(monkeypatch):
    """What is written to the log of a service, and how many lines were lost."""
    stream, lost = io.StringIO(), []
    monkeypatch.setattr(sys, "stderr", stream)
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    start_logging(lambda: lost.append(1))
    yield stream, lost
    logging.captureWarnings(False)
    root.handlers[:] = before
    root.setLevel(level)


def test_every_line_is_json(lines):
    stream, lost = lines
    log("request", path='/"\n<b>\x1b[31m\udcff', status=200)
    logging.getLogger("a.library").warning("something\nodd")
    logging.getLogger("a.library").info("not worth a line")
    logging.getLogger("uvicorn.error").info("nor is this")
    logging.getLogger("oodles.serve").error("unexpected error", exc_info=ValueError("a\nb"))
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [each["event"] for each in found] == ["request", "something\nodd", "unexpected error"]
    assert found[0]["path"] == '/"\n<b>\x1b[31m\udcff'
    assert found[2]["error"] == "ValueError: a\nb"
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", each["time"]) for each in found)
    assert not lost


def test_a_line_that_cannot_be_written_is_counted(lines):
    stream, lost = lines
    stream.close()
    log("request", status=200)
    assert lost == [1]


def test_milliseconds_have_three_digits():
    record = logging.LogRecord("x", logging.INFO, "x", 1, "event", (), None)
    record.msecs = 999.9
    assert json.loads(JsonLines().format(record))["time"].endswith(".999Z")
