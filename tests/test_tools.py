"""The scripts beside the package fit it: each can be imported, and mutants that were explained still exist."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

IMPORT_ALL = """
import runpy, sys
root, *paths = sys.argv[1:]
sys.path[:0] = [root, root + "/tools"]
for path in paths:
    runpy.run_path(path, run_name="imported")
"""


def test_scripts_import_only_what_the_package_has() -> None:
    scripts = [*sorted((ROOT / "tools").glob("*.py")), ROOT / "benchmarks" / "__main__.py"]
    command = [sys.executable, "-c", IMPORT_ALL, str(ROOT), *map(str, scripts)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_mutants_are_changes_of_one_expression(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    tool = import_module("mutate")
    source = "def f(a: int = 1) -> bool:\n    return not a < 2 and f'{a + 1}'\n"
    assert [mutant.change for mutant in tool.mutants("x.py", source)] == [
        "a: int=1 → a: int=2",
        "return not a < 2 and f'{a + 1}' → return None",
        "not a < 2 and f'{a + 1}' → not a < 2 or f'{a + 1}'",
        "not a < 2 → a < 2",
        "a < 2 → a <= 2",
        "a < 2 → a >= 2",
        "a < 2 → a < 3",
    ]
    existing = {
        mutant.key for module in tool.TESTS for mutant in tool.mutants(module, (tool.SOURCE / module).read_text())
    }
    assert set(tool.explained()) <= existing, "run make mutants"
