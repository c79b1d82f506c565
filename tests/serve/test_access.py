"""Who may call what, names that a client or a guard brings along, and explanations."""

import pytest
from support.serving import AUTHORISED, BOUNDARY, JPEG, TOKEN, form, photo

from oodles.deploy.exported import ExportedGuard

SMALL = "?guard=images"


def test_html_in_names_is_data(server):
    """In file names and class names: JSON carries them as they are, pages and logs cannot be broken by them."""
    name = '<img src=x onerror=alert(1)>"\N{RIGHT-TO-LEFT OVERRIDE}.png'
    reply = server.score_files([(name, photo())], "?guard=ensemble")
    result = reply.result
    assert result["name"] == name.replace('"', "%22").replace("\N{RIGHT-TO-LEFT OVERRIDE}", "\\u202e")
    assert result["class_name"] in ("<script>alert(1)</script>", "b & c", "\N{LATIN SMALL LETTER E WITH ACUTE}")
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-content-type-options"] == "nosniff"
    for path in ("/", "/docs"):
        assert b"alert(1)" not in server.get(path).body
    server.get("/%3Cscript%3Ealert(1)%3C/script%3E%0Aline")
    server.wait_for("request", path="/<script>alert(1)</script>\nline", status=404)


def test_names_in_odd_encodings(server):
    """A charset that makes text out of a name which cannot be sent back as it is."""
    content, _ = form([("\\ud800.png", photo())])
    for charset in ("unicode_escape", "utf-7", "utf-16", "nonsense", "idna", "\xff"):
        kind = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}; charset={charset}"}
        assert server.score(content, SMALL, kind).status in (200, 400)


def test_guards_and_addresses_that_are_not_there(server):
    assert server.score(photo(), "?guard=%3Cb%3E").refuses(404, "there is no guard '<b>'")
    assert server.score(photo()).refuses(400, "several guards")
    assert server.get("/nowhere").refuses(404, "/docs")
    assert server.ask("DELETE", "/score").status == 405


def test_request_ids(server):
    assert server.get("/guards", **{"X-Request-Id": "a.b-c_9"}).headers["x-request-id"] == "a.b-c_9"
    for odd in ("a" * 65, "a b", "<x>", ""):
        assert server.get("/guards", **{"X-Request-Id": odd}).headers["x-request-id"] != odd


def test_explanations(server, guards):
    content = photo(4)
    found = server.score(content, "?guard=ensemble&explain=1").result["explanation"]
    expected = ExportedGuard.open(guards / "ensemble.zip").explain(content)[0].as_record()
    assert found["class_name"] == expected["class_name"]
    assert found["score"] == pytest.approx(expected["score"], abs=1e-5)
    assert [each["spec"] for each in found["findings"]] == [each["spec"] for each in expected["findings"]]
    assert server.score(content, "?guard=ensemble").result["explanation"] is None
    assert server.score(content, "?guard=ensemble&explain=perhaps").refuses(400, "'explain'")


def test_a_token_is_needed(strict):
    for asked in (
        *("POST /score", "GET /guards", "GET /guards/images/monitor", "PUT /guards/images/threshold"),
        *("POST /v2/models/images/infer", "GET /v2/models/images"),
    ):
        method, path = asked.split()
        for header in ({}, *({"Authorization": each} for each in ("Bearer wrong", TOKEN, "\xe9"))):
            reply = strict.ask(method, path, b"x" if method != "GET" else None, header)
            assert reply.status == 401, (method, path, reply)
            assert reply.headers["www-authenticate"] == "Bearer"
    for path in ("/", "/docs", "/metrics", "/openapi.json", "/v2", "/v2/health/live", "/v2/health/ready"):
        assert strict.get(path).status == 200
    assert strict.score(photo(), "", {**AUTHORISED, **JPEG}).status == 200


def test_other_origins(server, strict):
    own, other = "https://example.org", "https://example.com"
    assert strict.get("/v2/health/live", Origin=own).headers["access-control-allow-origin"] == own
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    assert strict.ask("OPTIONS", "/score", headers={"Origin": own, **asks}).status == 200
    assert strict.ask("OPTIONS", "/score", headers={"Origin": other, **asks}).status == 400
    for reply in (strict.get("/v2/health/live", Origin=other), server.get("/v2/health/live", Origin=own)):
        assert "access-control-allow-origin" not in reply.headers
