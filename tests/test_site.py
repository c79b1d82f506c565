"""The documentation runs: the Python of every page, in order; its commands; and what it says of other pages.

``python`` blocks of a page share one namespace, which has what the page takes for granted. A ``text`` block after one
of them is what it prints. Commands in ``sh`` blocks are run in a small folder of images; those in blocks without a
language need data, hours or a cluster, and only their names and options are checked.
"""

import contextlib
import io
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from support import torchvision_operators  # noqa: F401  (before transformers, which imports torchvision)
from support.networks import one_thread  # noqa: F401
from support.site import DOCS, Block, arguments, blocks, commands, pages
from support.site_data import (
    exported_names,
    feature_names,
    guard_names,
    library_names,
    onnx_names,
    saved_names,
    vision_names,
    write_workspace,
)

from oodles import cli
from oodles.detectors import registry

NAMES: dict[str, Callable[[], dict[str, Any]]] = {
    "deploy": vision_names,
    "choose-a-detector": vision_names,
    "explain-a-rejection": guard_names,
    "export": guard_names,
    "glossary": feature_names,
    "index": vision_names,
    "report": feature_names,
    "security": guard_names,
    "set-a-threshold": guard_names,
    "start": vision_names,
    "training": dict,
    "write-your-own-detector": feature_names,
}
WITH_FILES = {
    "monitoring": exported_names,
    "onnx": onnx_names,
    "scoring": saved_names,
    "use-on-your-model": library_names,
}
"""What each page takes for granted, some of them in files."""
NOT_RUN = {
    "scale": "needs a Ray cluster: tests/distributed/test_ray.py runs the same calls",
    "serving": "needs a server: tests/serve/test_serving_page.py runs all of it",
}


@pytest.fixture(autouse=True)
def registry_of_one_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Detectors that a page registers are forgotten after it."""
    monkeypatch.setattr(registry, "_BY_NAME", dict(registry._BY_NAME))


@pytest.mark.filterwarnings("ignore::oodles.FitWarning")  # of networks with few rows and random weights
@pytest.mark.parametrize("page", [page for page in pages("python") if page not in NOT_RUN])
def test_python(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    given = WITH_FILES[page](tmp_path) if page in WITH_FILES else NAMES[page]()
    prepare(page, tmp_path)
    previous = ""
    for block in blocks(DOCS / f"{page}.md"):
        if block.language == "python":
            previous = run_python(page, block, given)
        elif block.language == "text":
            assert previous.strip("\n") == block.text.strip("\n"), f"{page}.md:{block.line} is not what is printed"


def prepare(page: str, folder: Path) -> None:
    if page in ("deploy", "export", "report", "scoring"):
        write_workspace(folder)
    if page == "report":
        (folder / "results.csv").write_text(
            "path,label,class_name,probability,score,p_value,is_id,error\na.jpg,0,cat,0.9,3.5,0.5,true,\n"
        )


def run_python(page: str, block: Block, given: dict[str, Any]) -> str:
    printed = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.text, DOCS / f"{page}.md", "exec")
    with contextlib.redirect_stdout(printed):
        exec(code, given)  # noqa: S102
    return printed.getvalue()


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that commands are run in, with guards and features as earlier pages made them."""
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        write_workspace(folder)
        network = "--model mynets:resnet18 --checkpoint r18.pt"
        for part in ("train", "val", "new"):
            run(f"oodles extract photos/{part} {network} --out features/{part}", patch)
        run("oodles fit features/train --calibration features/val --detector 'dice(0.5)' --out guard", patch)
        run(f"oodles export guard {network} --images photos/val --out guard.zip", patch)
    shutil.copy(folder / "guard.zip", folder / "exported.zip")
    return folder


@pytest.mark.parametrize("page", pages("sh"))
def test_commands(page: str, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shutil.copytree(workspace, tmp_path / "here", symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    for block in blocks(DOCS / f"{page}.md"):
        for command in commands(block) if block.language == "sh" else ():
            run(command, monkeypatch)


def run(command: str, patch: pytest.MonkeyPatch) -> None:
    """Run one command line in this process; what it would write is removed first."""
    piped, words = arguments(command)
    if "--out" in words and words[0] != "extract":
        out = Path(words[words.index("--out") + 1])
        if out.is_dir():
            shutil.rmtree(out)
        out.unlink(missing_ok=True)
    patch.setattr(sys, "argv", ["oodles", *words])
    if piped:
        given = subprocess.run(piped, shell=True, check=True, capture_output=True).stdout  # noqa: S602
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    errors = io.StringIO()
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(errors),
        pytest.raises(SystemExit) as end,
    ):
        cli.main()
    assert not end.value.code, f"{command}\n{errors.getvalue()}"


@pytest.mark.parametrize("page", ["../README", *sorted(path.stem for path in DOCS.glob("*.md"))])
def test_options(page: str) -> None:
    for block in blocks(DOCS / f"{page}.md"):
        for command in commands(block) if block.language in ("", "sh") else ():
            check_options(arguments(command)[1], f"{page}.md:{block.line}: {command}")


def check_options(words: list[str], place: str) -> None:
    """Raise unless the command exists, has these options, and they have values."""
    command: Any = typer.main.get_command(cli.app)
    name = "oodles"
    while True:
        context = type(command.make_context(name, [], resilient_parsing=True))(command, info_name=name)
        options, rest, _ = command.make_parser(context).parse_args(words)
        if not hasattr(command, "commands"):
            break
        assert rest, f"{place}: no command"
        assert rest[0] in command.commands, f"{place}: there is no command {rest[0]}"
        name, *words = rest
        command = command.commands[name]
    missing = [each.name for each in command.params if each.required and not options.get(each.name)]
    assert not missing, f"{place}: {missing} is required"


def test_a_wrong_option_is_noticed() -> None:
    with pytest.raises(Exception, match=r"(?i)no such option"):
        check_options(["score", "guard", "--no-such-option"], "here")
    with pytest.raises(AssertionError, match="no command"):
        check_options(["scores", "guard"], "here")
    with pytest.raises(AssertionError, match="required"):
        check_options(["fit", "features"], "here")


def test_the_page_of_commands_has_all() -> None:
    text = (DOCS / "command-line.md").read_text()
    names = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    assert [name for name in names if f"| `{name}` |" not in text] == []
