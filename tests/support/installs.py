"""The package as users get it: built as sdist and wheel, and installed into environments of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def run(*command: object, folder: Path | None = None) -> str:
    """Run a command that must succeed, away from the variables that would make Python find this repository."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_"))}
    environment["NO_COLOR"] = "1"
    parts = [str(part) for part in command]
    done = subprocess.run(parts, capture_output=True, text=True, env=environment, cwd=folder)
    assert done.returncode == 0, f"{parts}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(folder: Path, *targets: str) -> tuple[Path, ...]:
    """Build ``sdist`` or ``wheel`` from this repository into a folder; the paths, in the order asked for."""
    names = {"sdist": "oodles-*.tar.gz", "wheel": "oodles-*.whl"}
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, *(f"-t{target}" for target in targets), folder=ROOT)
    return tuple(next(folder.glob(names[target])) for target in targets)


def wheel_of_sdist(sdist: Path, folder: Path) -> Path:
    """Build the wheel from an sdist, as pip does where there is no wheel."""
    run(sys.executable, *PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, sdist, folder=folder)
    return next(folder.glob("oodles-*.whl"))


def environment_with(
    requirement: str, folder: Path, python: object = sys.executable, constraints: Path = ROOT / "constraints.txt"
) -> Path:
    """Return the interpreter of a new environment with what is asked for, at the pinned versions."""
    run(python, "-m", "venv", "--without-pip", folder)
    interpreter = folder / "bin" / "python"
    options = ("--no-compile", "--constraint", constraints)
    install = [sys.executable, *PIP, "--python", interpreter, "install", "--retries", "1", *options, requirement]
    done = subprocess.run(list(map(str, install)), capture_output=True, text=True)
    if done.returncode and re.search("No matching distribution|Connection", done.stderr):
        pytest.skip(f"pip cannot install anything here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return interpreter
