"""The command as a whole: help, version, plugins, exit codes."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.command_line import MODEL, bench_arguments
from typer.main import get_command
from typer.testing import CliRunner

import oodles
from oodles import cli
from oodles.cli.common import notices

COMMANDS = (*(each.__name__.replace("_", "-") for each in cli.COMMANDS), "data")

ODD_DETECTOR = """
    from oodles import Detector

    class Named(Detector):
        def __init__(self, *, title: str):
            super().__init__()
            self.title = title

        def forward(self, embedding, logits, *others):
            return logits[:, 0]
"""

PLUGIN = """
    from oodles import Detector, register

    @register("first_logit_of_the_cli_tests", summary="the first logit")
    class FirstLogit(Detector):
        def forward(self, embedding, logits, *others):
            return logits[:, 0]
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command(command):
    assert "Usage" in CliRunner().invoke(cli.app, [command, "-h"]).output
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


def test_unknown_commands_and_options_exit_with_2_and_one_line(oodles_run):
    for arguments, message in (
        (["nothing"], "error No such command 'nothing'; see `oodles --help`\n"),
        (["fit", "--nothing"], "error No such option: --nothing; see `oodles fit --help`\n"),
        (["data", "list", "x\ny"], "error Got unexpected extra argument(s) (x\\x0ay); see `oodles data list --help`\n"),
    ):
        assert oodles_run(*arguments) == (2, "", message)
    code, out, err = oodles_run("fit")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error Missing argument")


def test_a_bug_exits_with_1_and_one_line_and_shows_more_on_request(oodles_run, monkeypatch):
    def broken(*_, **__):
        raise KeyError("a\nb")

    monkeypatch.setattr("oodles.data.readers.open_images", broken)
    command = ["extract", "train", "--out", "o", "--model", MODEL]
    code, out, err = oodles_run(*command)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert re.match(r"internal error KeyError: .*, in test_main\.py, line \d+; OODLES_DEBUG=1 shows more$", err)
    monkeypatch.setenv("OODLES_DEBUG", "1")
    code, _, err = oodles_run(*command)
    assert code == 1
    assert re.search(r"Traceback(.|\n)*in broken", err)


def test_output_that_cannot_be_written_ends_with_one_line_and_a_reader_that_has_gone_with_none():
    command = [sys.executable, "-m", "oodles", "data", "list"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (2, "error [Errno 28] No space left on device\n")
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


ODD = "[red]x[/red]:boom:"  # markup and an emoji to rich


def test_text_of_the_user_in_an_error_is_shown_as_it_is(refused, fitted):
    for command, message in (
        (["extract", ODD, "--out", "o", "--model", MODEL], f"error {ODD} does not exist"),
        (["fit", ODD, "--out", "o"], f"error {ODD} does not exist; give a folder written by"),
        (["fit", fitted / "train", "--out", "o", "--detector", ODD], f"error '{ODD}' is not a detector"),
        (["threshold", ODD, "--features", "f"], f"error {ODD} does not exist; give a folder written by"),
        (["score", ODD], f"error {ODD} does not exist"),
        (["explain", ODD], f"error {ODD} does not exist"),
        (["select", ODD, "--held-out", "test", "--model", MODEL], f"error {ODD} does not exist"),
        (["select-p", ODD, "--held-out", "test", "--model", MODEL], f"error {ODD} does not exist"),
        (["bench", ODD], f"error suite '{ODD}' must be one of"),
        (["analyze", ODD, "--out", "o"], f"error {ODD}/train does not exist"),
        (["train", ODD, "--data", "train", "--out", "o"], f"error --model '{ODD}' is not of the form"),
        (["data", "fetch", ODD], f"error dataset '{ODD}' must be one of"),
    ):
        assert refused(*command, notices=False).startswith(message)


def test_text_of_the_user_in_a_usage_error_is_shown_as_it_is(oodles_run):
    for command in ([ODD], ["fit", f"--{ODD}"], ["fit", "f", "--out", "g", ODD]):
        code, _, err = oodles_run(*command)
        assert code == 2
        assert ODD in err


def test_text_of_the_user_in_a_table_is_shown_as_it_is(succeeded, workspace, tmp_path):
    (workspace / "odd_detector_of_the_cli_tests.py").write_text(textwrap.dedent(ODD_DETECTOR))
    spec = "odd_detector_of_the_cli_tests:Named(title='[red]x:boom:')"
    arguments = bench_arguments("--detector", spec, "--store", tmp_path / "[red]s:boom:")
    out, _ = succeeded(*arguments)
    assert "[red]x:boom:" in out


def test_the_bar_of_a_download_shows_the_name_as_it_is(refused, tmp_path, monkeypatch):
    """On a terminal the bar is drawn with the name, before that is found to be unknown."""
    monkeypatch.setattr(notices, "_force_terminal", True)
    assert "[/red]" in refused("data", "fetch", "[/red]", "--data", tmp_path)


def test_an_interrupt_exits_with_130_and_without_a_traceback(oodles_run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("oodles.data.readers.open_images", interrupted)
    code, _, err = oodles_run("extract", "train", "--out", "o", "--model", MODEL)
    assert code == 130
    assert "Traceback" not in err


def test_the_installed_command_prints_one_line_and_exits_with_2(workspace):
    command = [Path(sys.executable).with_name("oodles"), "extract", "nowhere", "--out", "o", "--model", MODEL]
    done = subprocess.run(command, cwd=workspace, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "error nowhere does not exist\n")
