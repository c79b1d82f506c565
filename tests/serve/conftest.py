"""Guards, exported once for all processes of pytest, and servers that several tests share."""

import os
from pathlib import Path

import pytest
from filelock import FileLock
from support.serving import TOKEN, export_guards, serving, until
from tokenizers import Tokenizer, models, pre_tokenizers

LIMITS = ("--max-mb", 1, "--max-megapixels", 1, "--max-side", 3000, "--max-images", 4, "--timeout", 1.5)


@pytest.fixture(scope="session")
def guards(tmp_path_factory) -> Path:
    """A folder with exported guards: cifar10-small.zip, images.zip, ensemble.zip, vectors.zip."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "served-guards"
    with FileLock(f"{folder}.lock"):
        if not (folder / "complete").exists():
            folder.mkdir(exist_ok=True)
            export_guards(folder)
            (folder / "complete").touch()
    return folder


@pytest.fixture(scope="session")
def server(guards):
    """The service with the usual limits and all guards, without a token."""
    with serving(*sorted(guards.glob("*.zip"))) as running:
        yield running


@pytest.fixture(scope="session")
def strict(guards):
    """The service with small limits, a token, and one origin that may call it."""
    with serving(guards / "images.zip", "--cors-origin", "https://example.org", *LIMITS, OODLES_TOKEN=TOKEN) as running:
        yield running


@pytest.fixture(scope="session")
def text_guard(guards, tmp_path_factory):
    """The arguments that serve a guard of texts."""
    made = Tokenizer(models.WordLevel({"[UNK]": 0, "good": 2, "film": 4}, unk_token="[UNK]"))  # noqa: S106
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return guards / "tokens.zip", "--tokenizer", f"tokens={path}"


@pytest.fixture(autouse=True)
def nothing_breaks(request):
    """After each test: the server lives, has counted no error of its own, and holds nothing in progress."""
    yield
    for name in {"server", "strict"} & {*request.fixturenames}:
        server = request.getfixturevalue(name)
        assert server.get("/v2/health/live").status == 200
        assert server.get("/v2/health/ready").status == 200
        bugs = [line for line in server.log if line.get("status") == 500 or line["level"] == "error"]
        assert not bugs + server.other_lines
        until(lambda server=server: server.metric("oodles_inputs_in_progress") == 0)
