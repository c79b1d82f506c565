"""Python processes in which torch cannot be imported: one that refuses it, and an environment that does not have it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from support.installs import build, environment_with

import oodles

# put in front of a script: importing torch or a part of it fails as if it were not installed
BLOCKER = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name="torch")
sys.meta_path.insert(0, Blocker())
"""
COMMAND = "from oodles.cli import main\nmain()\n"

Run = Callable[..., "subprocess.CompletedProcess[str]"]
"""Runs a script with arguments: ``run(script, *arguments)``; ``run(COMMAND, "fit", ...)`` is ``oodles fit ...``."""


def without_torch(python: Path, *, prelude: str = "", folder: Path | None = None) -> Run:
    """A function that runs scripts with this interpreter; ``prelude`` is run first, ``folder`` is where.

    Our own interpreter imports the package that is tested here, that of another environment what is installed there.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"COLUMNS": "200", "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    if python == Path(sys.executable):
        environment["PYTHONPATH"] = str(Path(oodles.__file__).parents[1])

    def run(script: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
        command = [str(python), "-c", prelude + script, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=folder)

    return run


def install_without_torch(folder: Path) -> Path:
    """A new environment with the package as users install it and the extra ``serve``; returns its interpreter."""
    (wheel,) = build(folder, "wheel")
    return environment_with(f"{wheel}[serve]", folder / "venv")
