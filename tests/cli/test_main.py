"""The command as a whole: help, version, plugins, exit codes."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.command_line import MODEL
from typer.main import get_command
from typer.testing import CliRunner

import oodles
from oodles import cli

COMMANDS = (
    *("demo", "extract", "fit", "score", "bench", "select", "select-p"),
    *("detectors", "train", "analyze", "data"),
)

PLUGIN = """
    from oodles import Detector, register

    @register("first_logit_of_the_cli_tests", summary="the first logit")
    class FirstLogit(Detector):
        def forward(self, embedding, logits, *others):
            return logits[:, 0]
"""


def test_the_commands_are_in_the_order_in_which_a_user_needs_them():
    result = CliRunner().invoke(cli.app, ["--help"], env={"COLUMNS": "160", "NO_COLOR": "1"})
    assert result.exit_code == 0
    listed = result.output.partition("Commands")[2]
    assert tuple(re.findall(r"^\W*([a-z-]+)  +[A-Z]", listed, re.MULTILINE)) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command(command):
    result = CliRunner().invoke(cli.app, [command, "--help"], env={"COLUMNS": "160", "NO_COLOR": "1"})
    assert result.exit_code == 0
    assert f"oodles {command}" in result.output or f"{command} [OPTIONS]" in result.output
    summary = get_command(cli.app).commands[command].help.strip().splitlines()[0]
    assert " ".join(summary.split()[:4]) in " ".join(result.output.split())


def test_help_lists_every_command_without_importing_torch():
    command = [sys.executable, "-X", "importtime", "-c", "from oodles.cli import main; main()", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    for name in COMMANDS:
        assert re.search(rf"\b{name}\b", done.stdout), name
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "oodles.cli" in imported, "import times were recorded"
    for heavy in ("torch", "numpy", "scipy", "matplotlib", "PIL"):
        assert heavy not in imported, heavy


def test_the_version(oodles_run):
    assert oodles_run("--version") == (0, f"{oodles.__version__}\n", "")
    assert oodles_run("--version", "fit") == (0, f"{oodles.__version__}\n", ""), "before anything else"


def test_without_a_command_the_help_is_shown(oodles_run):
    _, out, err = oodles_run()
    assert re.search(r"Usage: .* \[OPTIONS\] COMMAND", out + err)
    assert "select-p" in out + err


def test_a_plugin_registers_detectors(workspace):
    # in a separate process, since a registered detector stays registered
    (workspace / "plugin_of_the_cli_tests.py").write_text(textwrap.dedent(PLUGIN))
    command = [sys.executable, "-m", "oodles", "--plugin", "plugin_of_the_cli_tests", "detectors"]
    done = subprocess.run(command, cwd=workspace, capture_output=True, text=True, check=True, timeout=60)
    assert re.search(r"^  first_logit_of_the_cli_tests +the first logit$", done.stdout, re.MULTILINE)


def test_a_plugin_that_cannot_be_imported(refused):
    assert "'no_such_plugin' cannot be imported" in refused("--plugin", "no_such_plugin", "detectors", notices=False)


def test_unknown_commands_and_options_exit_with_2(oodles_run):
    for arguments in (["nothing"], ["fit", "--nothing"], ["fit"]):
        code, out, err = oodles_run(*arguments)
        assert code == 2
        assert out == ""
        assert "Usage" in err


def test_brackets_in_a_message_are_shown_as_they_are(refused):
    line = refused("extract", "[red]x[/red]", "--out", "o", "--model", MODEL, notices=False)
    assert line == "error [red]x[/red] does not exist"


def test_an_interrupt_exits_with_130_and_without_a_traceback(oodles_run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("oodles.data.readers.open_images", interrupted)
    code, _, err = oodles_run("extract", "train", "--out", "o", "--model", MODEL)
    assert code == 130
    assert "Traceback" not in err


def test_the_installed_command_prints_one_line_and_exits_with_2(workspace):
    done = subprocess.run(
        [Path(sys.executable).with_name("oodles"), "extract", "nowhere", "--out", "o", "--model", MODEL],
        cwd=workspace,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "error nowhere does not exist\n"


def test_short_help(oodles_run):
    for arguments in (("-h",), ("fit", "-h")):
        code, out, _ = oodles_run(*arguments)
        assert code == 0
        assert "Usage" in out
