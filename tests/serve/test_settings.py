"""Limits and tokens, pages with their policies, and lines of the log."""

import base64
import hashlib
import io
import json
import logging
import re
import sys

import pytest
from support.pages import Page

from oodles.errors import ArgumentError, FileError
from oodles.serve.docs_page import describe_api
from oodles.serve.logs import JsonLines, log, start_logging
from oodles.serve.page import read_page
from oodles.serve.settings import JSON_BYTES, Settings, read_token


@pytest.mark.parametrize(
    "given",
    [
        {"max_batch": 0},
        {"queue": 0},
        {"concurrency": -1},
        {"body_bytes": 0},
        {"pixels": 50_000_001},
        {"side": 0},
        {"images": 257},
        {"seconds": 0},
        {"seconds": float("nan")},
        {"drain_seconds": -1},
        {"reload_seconds": float("inf")},
        {"max_wait_ms": -0.1},
    ],
)
def test_impossible_limits_are_refused(given):
    with pytest.raises(ArgumentError, match=next(iter(given))):
        Settings(**given)


def test_tokens(tmp_path):
    path = tmp_path / "token"
    path.write_text("a-secret-token\n")
    assert read_token(path) == "a-secret-token"
    (tmp_path / "link").symlink_to(path)
    assert read_token(tmp_path / "link") == "a-secret-token", "as Kubernetes mounts secrets"
    assert "a-secret-token" not in repr(Settings(token="a-secret-token"))  # noqa: S106
    for content, error in (("short", ArgumentError), ("two words here", ArgumentError), ("\xe9" * 20, FileError)):
        path.write_text(content)
        with pytest.raises(error, match="does not hold a token"):
            read_token(path)
    path.write_text("x" * 5000)
    with pytest.raises(FileError, match="5,000 bytes"):
        read_token(path)
    assert Settings(body_bytes=10).json_bytes == 10
    assert Settings().json_bytes == JSON_BYTES


@pytest.mark.parametrize("name", ["index.html", "docs.html"])
def test_a_policy_allows_exactly_what_the_page_contains(name):
    """Each style and script inside the page has its hash in the policy, and nothing else is allowed."""
    html, policy = read_page(name)
    allowed = {part.split()[0]: part.split()[1:] for part in policy.split("; ")}
    for tag in ("script", "style"):
        contents = re.findall(rf"<{tag}>(.*?)</{tag}>", html.decode(), re.DOTALL)
        hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in contents]
        assert allowed[f"{tag}-src"] == ([f"'sha256-{each}'" for each in hashes] or ["'none'"])
    assert allowed["default-src"] == ["'none'"]
    text = re.sub(r"<(script|style)>.*?</\1>", "", html.decode(), flags=re.DOTALL)
    assert not re.search(r"\son\w+=|\sstyle=|javascript:|<script|<style|<!-- \w+\.(css|js)", text)


def test_the_description_is_escaped():
    operation = {"summary": "<script>alert(1)</script>", "responses": {"200": {"description": "a & b"}}}
    html, _ = describe_api({"info": {"title": "t", "version": "1"}, "paths": {"/<b>": {"get": operation}}})
    page = Page(html.decode())
    assert "<script>alert(1)</script>" in page.text
    assert "/<b>" in page.text


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
