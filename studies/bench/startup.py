"""Start-up: importing oodles against importing torch, and help, which does not wait for torch."""

import compileall
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import oodles
from studies.bench.results import Row, cost, sides
from studies.timing import paired

IMPORTS = {
    "nothing": "pass",
    "torch": "import torch",
    "oodles": "import oodles",
    "first use": "from oodles import DICE, Guard, extract",
    "help": "import runpy, sys; sys.argv = ['oodles', '--help']; runpy.run_module('oodles', run_name='__main__')",
}
LISTS_TORCH = "import sys; from oodles.cli import app; print('torch' in sys.modules)"


def run(quick: bool = False) -> Iterator[Row]:
    """Each command in fresh processes, in turn, with bytecode as an installed package has it."""
    compileall.compile_dir(Path(oodles.__file__).parent, quiet=1)
    rounds = 1 if quick else 5
    sides_ = {name: partial(_python, code) for name, code in IMPORTS.items()}
    times = paired(sides_, budget=0, least=rounds, warm_up=not quick)
    torch_only = sides(times, "first use", "torch")
    yield cost("import oodles and use extract, DICE, Guard", "import torch", torch_only, target=1.15)
    yield cost("import oodles", "import torch", sides(times, "oodles", "torch"), target=1.15)
    loaded = _python(LISTS_TORCH)
    note = "torch is loaded" if loaded == "True" else "torch is not loaded"
    yield cost("oodles --help", "import torch", sides(times, "help", "torch"), note=note)


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    return done.stdout.strip()
