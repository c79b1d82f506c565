import os
import subprocess
import sys

import pytest

from oodles.cli.options import complete_detector, one_of
from oodles.detectors.registry import BUILT_IN

COMPLETE = """
import os, sys
from oodles.cli import main

os.environ["_OODLES_COMPLETE"] = "complete_bash"
for words in sys.argv[1:]:
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = words, str(len(words.split(" ")) - 1)
    try:
        main()
    except SystemExit:
        print("--")
print("torch" in sys.modules)
"""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_every_shell(succeeded, monkeypatch, shell):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")  # then the shell has to be named
    out, _ = succeeded("--show-completion", shell)
    assert "_OODLES_COMPLETE" in out
    assert f"complete_{shell}" in out


def test_the_shell_is_given_commands_options_and_detectors_without_torch():
    asked = ["oodles se", "oodles monitor --c", "oodles fit --detector react(90)+di", "oodles train --recipe "]
    done = subprocess.run(
        [sys.executable, "-c", COMPLETE, *asked], env=os.environ, capture_output=True, text=True, check=True, timeout=60
    )
    *answers, torch = done.stdout.split("--\n")
    assert [answer.split() for answer in answers] == [
        ["serve", "select", "select-p"],
        ["--cooldown", "--check"],
        ["react(90)+dice"],
        ["paper", "godin", "one-cycle"],
    ]
    assert torch == "False\n"


def test_the_names_of_detectors_are_those_of_the_registry():
    assert complete_detector("") == [entry.name for entry in BUILT_IN]
    assert complete_detector("kn") == ["knn"]
    assert complete_detector("react(90)+weight_d") == ["react(90)+weight_dropout"]
    assert complete_detector("nothing") == []


def test_one_of_several_values():
    assert one_of("red", "rose", "blue")("r") == ["red", "rose"]
