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
    (made / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")
    return made


@pytest.fixture(scope="module")
def with_token(guards, folder):
    own = shutil.copy(guards / "cifar10-small.zip", folder / "cifar10-small.zip")
    with serving(own, "--token-file", folder / "token.txt") as running:
        yield running


@pytest.fixture(scope="module")
def without_token(guards):
    with serving(guards / "cifar10-small.zip") as running:
        yield running


def shell_commands() -> list[tuple[str, str]]:
    """Each block of curl commands, and the JSON that follows it before the next one, if any."""
    found = blocks(PAGE)
    return [
        (block.text, following.text if following.language == "json" else "")
        for block, following in zip(found, [*found[1:], found[-1]], strict=True)
        if block.language == "bash"
    ]


@pytest.mark.parametrize("number", range(len(shell_commands())))
def test_commands(number, folder, with_token, without_token):
    text, shown = shell_commands()[number]
    server = with_token if "Authorization" in text else without_token
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


def test_the_answer_that_is_shown(without_token, folder):
    shown = next(block.text for block in blocks(PAGE) if block.language == "json")
    reply = without_token.score_files([("photo.jpg", (folder / "photo.jpg").read_bytes())])
    assert_like(reply.json, json.loads(shown))


def test_python(without_token, folder, monkeypatch):
    monkeypatch.chdir(folder)
    code = next(block.text for block in blocks(PAGE) if block.language == "python")
    given: dict[str, Any] = {}
    exec(code.replace(ADDRESS, without_token.address), given)  # noqa: S102
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
    for row in (
        f"| `--max-mb` | {settings.max_mb:g} |",
        f"| `--max-megapixels`, `--max-side` | {settings.max_megapixels:g}, {settings.max_side:,} |",
        f"| `--max-images` | {settings.max_images} |",
        f"| `--concurrency` | {settings.concurrency} |",
        f"| `--queue` | {settings.queue} |",
        f"| `--max-batch`, `--max-wait-ms` | {settings.max_batch}, {settings.max_wait_ms:g} |",
        f"| `--timeout` | {settings.timeout:g} s |",
        f"| `--drain` | {settings.drain:g} s |",
        f"within `--reload` seconds ({settings.reload:g})",
        f"written every {STATE_SECONDS:g} seconds",
    ):
        assert row in text, row


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
