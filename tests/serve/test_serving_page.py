"""The page on serving is true: its commands are run against a real server, and its tables and files compared."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.serving import TOKEN, photo, serving
from support.site import DOCS, blocks

from oodles.deploy.exported import OUTPUTS, ExportedGuard
from oodles.serve.bodies import ERRORS
from oodles.serve.service import STATE_SECONDS
from oodles.serve.settings import Settings

PAGE = DOCS / "serving.md"
ADDRESS = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where the commands are run: curl fails there at a status of 400 or more."""
    made = tmp_path_factory.mktemp("page")
    shutil.copy(DOCS / "images" / "demo-scores.png", made / "photo.jpg")
    (made / "other.png").write_bytes(photo())
    (made / "token.txt").write_text(f"{TOKEN}\n")
    (made / "admin.txt").write_text(f"{TOKEN}-of-administrators\n")
    (made / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")
    return made


@pytest.fixture(scope="module")
def servers(guards, folder):
    """One without tokens, and one with both."""
    own = shutil.copy(guards / "cifar10-small.zip", folder / "cifar10-small.zip")
    tokens = ("--token-file", folder / "token.txt", "--admin-token-file", folder / "admin.txt")
    with serving(guards / "cifar10-small.zip") as plain, serving(own, *tokens) as guarded:
        yield plain, guarded


def shell_commands() -> list[tuple[str, str]]:
    """Each block of curl commands, and the JSON that follows it before the next one, if any."""
    found = blocks(PAGE)
    return [
        (block.text, following.text if following.language == "json" else "")
        for block, following in zip(found, [*found[1:], found[-1]], strict=True)
        if block.language == "bash"
    ]


@pytest.mark.parametrize("number", range(len(shell_commands())))
def test_commands(number, folder, servers):
    text, shown = shell_commands()[number]
    server = servers["Authorization" in text]
    assert ADDRESS in text
    done = subprocess.run(
        ["/bin/bash", "-euc", text.replace(ADDRESS, server.address)],
        cwd=folder,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, (text, done.stdout, done.stderr)
    if "/metrics" in text:
        missing = [name for name in re.findall(r"`(oodles_\w+)", PAGE.read_text()) if name not in done.stdout]
        assert missing == []
    elif shown:
        assert_like(json.loads(done.stdout), json.loads(shown))


def test_the_answer_that_is_shown(servers, folder):
    shown = next(block.text for block in blocks(PAGE) if block.language == "json")
    reply = servers[0].score_files([("photo.jpg", (folder / "photo.jpg").read_bytes())])
    assert_like(reply.json, json.loads(shown))


def test_python(servers, folder, monkeypatch):
    monkeypatch.chdir(folder)
    code = next(block.text for block in blocks(PAGE) if block.language == "python")
    given: dict[str, Any] = {}
    exec(code.replace(ADDRESS, servers[0].address), given)  # noqa: S102
    assert given["answer"]["results"][0]["is_id"] is True


def assert_like(found: Any, shown: Any) -> None:
    """The same fields and values, except texts that stand for others, and numbers up to their digits."""
    if isinstance(shown, dict):
        assert found.keys() == shown.keys()
        for name in shown:
            assert_like(found[name], shown[name])
    elif isinstance(shown, list):
        assert len(found) == len(shown)
        for each, other in zip(found, shown, strict=True):
            assert_like(each, other)
    elif isinstance(shown, float):
        assert found == pytest.approx(shown, abs=10.0 ** -len(str(shown).partition(".")[2]))
    elif isinstance(shown, str) and " " in shown:
        assert isinstance(found, str)
    else:
        assert found == shown


def test_every_status_is_in_the_table():
    table = {
        int(number)
        for row in re.findall(r"^\| ([\d, ]+) \|", PAGE.read_text(), re.MULTILINE)
        for number in row.split(",")
    }
    assert table == {*ERRORS}


def test_defaults_are_those_of_the_program():
    text, settings = PAGE.read_text(), Settings()
    rows = re.findall(r"^\| (`--[^|]*) \| ([\d., ]+)(?: s)? \|", text, re.MULTILINE)
    assert len(rows) >= 8
    for names, values in rows:
        for name, value in zip(names.split(", "), values.split(", "), strict=True):
            assert float(value.replace(",", "")) == getattr(settings, name.strip("`-").replace("-", "_")), name
    assert f"within `--reload` seconds ({settings.reload:g})" in text
    assert f"written every {STATE_SECONDS:g} seconds" in text


def test_the_files_for_triton_and_kserve(guards):
    """Names, types and shapes are those of the graph, as onnxruntime reads it."""
    pbtxt = next(block.text for block in blocks(PAGE) if block.language == "protobuf")
    tensors = re.findall(r'name: "(\w+)"\s+data_type: TYPE_(\w+)\s+dims: \[ ([-\d, ]*)\]', pbtxt)
    declared = {name: (kind, [int(size) for size in dims.split(",") if size.strip()]) for name, kind, dims in tensors}
    session = ExportedGuard.open(guards / "cifar10-small.zip")._session
    kinds = {"uint8": "UINT8", "float": "FP32", "int64": "INT64", "bool": "BOOL"}
    values = [*session.get_inputs(), *session.get_overridable_initializers(), *session.get_outputs()]
    assert declared == {
        each.name: (
            kinds[each.type.removeprefix("tensor(").removesuffix(")")],
            [size if isinstance(size, int) else -1 for size in each.shape],
        )
        for each in values
    }
    assert {*OUTPUTS} < {*declared}
    service = yaml.safe_load(next(block.text for block in blocks(PAGE) if block.language == "yaml"))
    assert service["kind"] == "InferenceService"
    assert service["spec"]["predictor"]["model"]["protocolVersion"] == "v2"
